// The events

const showEvents = () => {
  const entries = state.picture.entries;
  const told = entries.map(() => null);
  const line = (row) => (told[row] ??= Object.entries(entries[row].fields).filter(([name, value]) => value !== "" && value !== null && value !== false && name !== "seq" && !(Array.isArray(value) && !value.length)).map(([name, value]) => (name === "text" ? JSON.stringify(value) : `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)).join("  "));
  let shown = [];
  const list = new List(26, "", "Events of the run", (row) => {
    const one = entries[shown[row]];
    return make("div", { class: "item events", "aria-label": `${spaced(one.kind)} at ${moment(one.at)}` }, make("span", { class: "soft" }, one.fields.seq ?? ""), make("span", { class: "number soft" }, moment(one.at)), make("span", { class: "number soft" }, one.turn), make("span", { class: `kind ${/failed|retried|limit|spoiled|restarted/.test(one.kind) || one.fields.error === true ? "bad" : one.event ? "" : "quiet"}` }, one.kind), make("span", { class: "said" }, line(shown[row]).slice(0, Math.ceil(list.node.clientWidth / 6))));
  }, (row) => open(entries[shown[row]]), (row) => { if (!byId("detail").hidden) open(entries[shown[row]]); });
  const open = (one) => openDetail(spaced(one.kind), null, { times: [pairs([["at", moment(one.at)], ["request", one.turn + 1], ["line", one.event ? "event" : "of the recording"]])], texts: [make("h3", {}, "Fields"), body({ text: JSON.stringify(one.fields), size: 0, cut: false })] });
  const box = make("input", { type: "checkbox", id: "all", on: { change: () => { state.all = box.checked; filter(); } } });
  box.checked = state.all;
  const counted = make("span", { class: "soft" });
  const bar = make("div", { class: "legend" }, make("label", { for: "all" }, box, " with deltas and the other lines of the recording"), make("span", { class: "gap" }), counted);
  const head = make("div", { class: "head events", "aria-hidden": "true" }, ...["No.", "At", "Turn", "Event", ""].map((text, place) => make("span", { class: place === 1 || place === 2 ? "number" : "" }, text)));
  for (const cell of head.children) cell.style.paddingRight = "0.75rem";
  const filter = () => {
    const wanted = state.filter.toLowerCase();
    shown = [];
    for (let row = 0; row < entries.length; row++) {
      if (!state.all && !entries[row].event) continue;
      if (wanted && !(entries[row].kind.includes(wanted) || line(row).toLowerCase().includes(wanted))) continue;
      shown.push(row);
    }
    counted.textContent = `${shown.length.toLocaleString("en")} of ${many(entries.length, "line")}`;
    list.set(shown.length);
    hear(counted.textContent);
  };
  place(head, list.node, bar);
  const update = () => { const at = list.node.scrollTop, picked = list.picked; tab("events"); show.list.picked = picked; show.list.node.scrollTop = at; };
  show = { list, filter, update, end: () => list.end() };
  filter();
  list.picked = 0;
  list.node.focus();
};
