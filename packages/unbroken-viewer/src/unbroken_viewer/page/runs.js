// The list of runs: sorted by a column, filtered by words, searched in its contents, compared

const COLUMNS = [["When", "time"], ["Prompt", "prompt"], ["Model", "model"], ["End", "state"], ["Rounds", "rounds"], ["Calls", "calls"], ["Failed calls", "failed"], ["Time", "seconds"], ["Tokens", "tokens"], ["Cost", "cost"]];
const NUMBERS = new Set(["rounds", "calls", "failed", "seconds", "tokens", "cost"]);

const showRuns = () => {
  let shown = [];
  const narrow = matchMedia("(max-width: 760px)"); // there a prompt has two lines of its own
  const dated = matchMedia("(max-width: 900px)"); // there the time is below the prompt
  const list = new List(narrow.matches ? 100 : 48, "", "Runs", (row) => {
    const run = shown[row];
    const cell = (text, kind = "", title = "") => make("span", { class: kind, title: title || null }, text);
    if (run.problem) {
      const node = make("div", { class: "item", "aria-label": `${run.name}: ${run.problem}` }, cell("cannot be read", "bad"), cell(run.problem, "soft", run.problem));
      node.style.gridTemplateColumns = "10.5rem 1fr";
      return node;
    }
    const found = state.found?.found[run.name];
    const below = found ? `${found.count > 1 ? `${found.count}× ` : ""}${found.snippet}` : dated.matches ? `${day(run.time)}  ${run.name}` : run.name;
    return make("div", { class: `item runs ${run.name === state.marked ? "marked" : ""}`, "aria-label": `${run.prompt || run.name}, ${endOf(run.state, run.agent === "gateway")}, ${run.calls === null ? "" : `${many(run.calls, "call")}, `}${run.failed ? `${run.failed} failed, ` : ""}${seconds(run.seconds)}, cost ${money(run.cost, run.currency)}` },
      cell(day(run.time), "soft"), make("span", { class: "asked" }, make("span", { title: run.prompt || null }, run.prompt || "(no prompt)"), make("small", { class: found ? "" : "soft", title: below }, below)), cell(run.model, "soft", run.model),
      make("span", {}, make("span", { class: `chip ${tone(run.state)}` }, `${run.state === "failed" ? "✕ " : ""}${endOf(run.state, run.agent === "gateway")}`)),
      cell(run.rounds ?? "–", "number"), cell(run.calls ?? "–", "number"),
      run.failed === null ? cell("–", "number soft", "not counted yet: r counts more") : cell(run.failed, run.failed ? "number bad" : "number soft", `${many(run.failed, "call")} failed`),
      cell(seconds(run.seconds), "number"), cell(run.tokens ? run.tokens.toLocaleString("en") : "", "number"), cell(shortMoney(run.cost, run.currency), "number", money(run.cost, run.currency)));
  }, (row) => { if (!shown[row].problem) go(shown[row].name); });

  const sortBy = (by) => {
    state.sort = { by, down: state.sort.by === by ? !state.sort.down : NUMBERS.has(by) || by === "time" };
    drawHead();
    filter();
  };
  const head = make("div", { class: "head runs", role: "group", "aria-label": "Sort by" });
  const drawHead = () => head.replaceChildren(...COLUMNS.map(([text, by]) => {
    const here = state.sort.by === by;
    return make("span", { class: NUMBERS.has(by) ? "number" : "" }, make("button", { class: "sort", "aria-pressed": here, "aria-label": `Sort by ${text.toLowerCase()}${here ? (state.sort.down ? ", now descending" : ", now ascending") : ""}`, on: { click: () => sortBy(by) } }, `${text}${here ? (state.sort.down ? " ↓" : " ↑") : ""}`));
  }));
  const sorted = (runs) => {
    const { by, down } = state.sort;
    const value = (run) => (run[by] === null || run[by] === undefined || run.problem ? null : typeof run[by] === "string" ? run[by].toLowerCase() : run[by]);
    return [...runs].sort((one, other) => {
      const a = value(one), b = value(other);
      if (a === null || b === null) return (a === null) - (b === null); // unknown comes last, both ways
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
  };

  const told = make("span", { class: "soft" });
  const compare = make("button", { on: { click: () => mark() } }, "Compare ", make("kbd", {}, "c"));
  const searching = make("button", { on: { click: () => search() } }, "Search in contents ", make("kbd", {}, "s"));
  const bar = make("div", { class: "legend" }, told, make("span", { class: "gap" }), searching, compare);
  const search = async () => {
    const text = state.filter.trim();
    if (text.length < 2) { byId("filter").focus(); told.textContent = "Write what to search for into the field, then press Enter."; hear(told.textContent); return; }
    told.textContent = "Searching …";
    try {
      const answer = await searchRuns(text);
      state.found = { text, ...answer };
      filter();
      list.pick(0);
      list.node.focus();
    } catch (error) { told.textContent = error.message; }
  };
  const mark = () => {
    const run = shown[list.picked];
    if (!run || run.problem) return;
    if (state.marked && state.marked !== run.name) { const first = state.marked; state.marked = ""; goCompare(first, run.name); return; }
    state.marked = state.marked === run.name ? "" : run.name;
    list.again();
    tell();
  };
  const tell = () => {
    told.textContent = state.marked ? `${state.marked} is marked: choose another run and press c to compare them.`
      : state.found ? `${many(shown.length, "run")} with “${state.found.text}” in the contents${state.found.skipped ? `; ${state.found.skipped} were not searched` : ""}.`
      : `${many(shown.length, "run")}${shown.length < state.runs.length ? ` of ${state.runs.length.toLocaleString("en")}` : ""}`;
    hear(told.textContent);
  };
  const empty = make("p", { class: "empty", hidden: true }, "No recording is here. Agent(record=…) and unbroken run --record write some.");
  const filter = () => {
    if (state.found && state.found.text !== state.filter.trim()) state.found = null; // other words: a filter again
    const wanted = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    shown = sorted(state.runs.filter((run) => {
      if (state.found) return Object.hasOwn(state.found.found, run.name);
      const text = `${run.prompt} ${run.model} ${run.state} ${run.name} ${run.run} ${run.agent} ${run.problem}`.toLowerCase();
      return wanted.every((word) => text.includes(word));
    }));
    empty.hidden = shown.length > 0;
    if (state.runs.length && !shown.length) empty.textContent = state.found ? "No run has this in its contents." : "No run matches the filter. Press Enter to search in the contents.";
    list.set(shown.length);
    tell();
  };
  const update = () => {
    const picked = shown[list.picked]?.name;
    filter();
    const row = shown.findIndex((run) => run.name === picked);
    if (row >= 0 && row !== list.picked) { list.picked = row; list.again(); }
  };
  drawHead();
  place(head, list.node, empty, bar);
  const lay = () => { list.height = narrow.matches ? 100 : 48; list.set(list.count); }; // the window was made wider or narrower
  for (const one of [narrow, dated]) one.addEventListener("change", lay);
  show = { list, filter, update, search, end: () => { for (const one of [narrow, dated]) one.removeEventListener("change", lay); list.end(); }, keys: { c: mark, s: search } };
  filter();
  const before = shown.findIndex((run) => run.name === state.name);
  list.pick(Math.max(before, 0));
  list.node.focus();
};
