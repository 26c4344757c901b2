// The page as a whole

const hear = (text) => { byId("hear").textContent = text; };
const place = (...nodes) => byId("view").replaceChildren(...nodes);
/* What a word means, shown when the pointer rests on it. */
const HINTS = {
  "schedule": "when calls start: eager as soon as a call is written, parallel when the answer is complete, sequential one after the other", "model took": "all requests added up", "tools took": "all calls added up; calls that run at the same time count each",
  "rounds": "answers of the model that had calls", "started early": "calls that ran while the answer was still being written", "shared results": "calls that repeated another call and took its result",
  "before the model": "in the gateway, before the request was sent to the model", "held calls": "the client takes one call at a time: these follow without another request to the model", "dropped fields": "fields of the client's request that the model's API does not have",
};
const fact = (name, value, kind = "") => (value === "" || value === null ? null : make("div", { class: MINOR.has(name) ? "minor" : "" }, make("dt", { title: HINTS[name] ?? null }, name), make("dd", { class: kind, title: HINTS[name] ? `${value}: ${HINTS[name]}` : String(value) }, value)));
const MINOR = new Set(["schedule", "started early", "shared results", "began", "streamed", "agent", "rounds"]); // a narrow window has no room for them
const leave = () => { show?.end?.(); show = null; byId("filter").hidden = false; byId("detail").hidden = true; byId("detail").replaceChildren(); };
const say = (...texts) => byId("banners").replaceChildren(...texts.map((text) => make("p", { class: "banner", tabindex: text.length > 200 ? "0" : null }, ...text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part)))));
const tab = (name) => {
  if (!state.picture) return;
  leave();
  state.tab = name;
  for (const button of byId("tabs").children) {
    const chosen = button.id === `tab-${name}`;
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  byId("view").setAttribute("role", "tabpanel");
  byId("view").setAttribute("aria-labelledby", `tab-${name}`);
  const hash = `#${encodeURIComponent(state.name)}${name === "waterfall" ? "" : `/${name}`}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
  ({ waterfall: showWaterfall, messages: showMessages, requests: showRequests, events: showEvents })[name]();
};
const bannersOf = (picture) => picture.banners.filter((text) => !(isRunning(picture) && text.startsWith("This run has no end")) && !text.startsWith("The run failed."));
const modelTime = (picture) => picture.turns.reduce((sum, turn) => sum + turn.attempts.reduce((all, one) => all + Math.max((one.ended ?? picture.seconds) - one.asked, 0), 0), 0);
/* Which client asked, and which model answered. */
const gatewayFacts = (turn, waited) => [
  fact("client", `${turn.user_agent || "unknown"}${turn.key ? `, key ${turn.key}` : ""}`), fact("asked for", turn.alias), fact("before the model", waited > 0.01 ? seconds(waited) : ""),
  fact("answered by", turn.answered_by || "no model", turn.answered_by && turn.answered_by !== turn.model ? "bad" : ""), fact("fallback for", turn.answered_by && turn.answered_by !== turn.model ? turn.model : ""),
  fact("API", turn.client_wire === turn.upstream_wire || !turn.upstream_wire || (turn.answered_by && turn.answered_by !== turn.model) ? turn.client_wire : `${turn.client_wire} → ${turn.upstream_wire}`), fact("streamed", turn.stream ? "yes" : "no"), fact("held calls", turn.held || ""),
  ...turn.changes.map(([kind, what]) => fact(kind, what, "bad")),
];
const head = (picture) => {
  const one = !picture;
  byId("summary").hidden = one;
  byId("back").hidden = one || (state.runs.length < 2 && state.runs.every((run) => run.name === state.name));
  byId("tabs").hidden = byId("facts").hidden = byId("state").hidden = one;
  byId("title").textContent = picture ? picture.prompt.replace(/\s+/g, " ") || picture.run || picture.file : "Runs";
  byId("title").title = picture ? picture.prompt : "";
  document.title = picture ? `${byId("title").textContent.slice(0, 60)} · Unbroken` : "Unbroken runs";
  if (!picture) return;
  const totals = picture.totals;
  const running = isRunning(picture);
  byId("state").textContent = running ? "● running" : endOf(picture.state, picture.gateway);
  byId("state").className = `chip ${running ? "good" : tone(picture.state)}`;
  byId("summary").replaceChildren(...summaryOf(picture));
  byId("facts").replaceChildren(...[
    fact("took", seconds(picture.seconds)), ...(picture.gateway ? gatewayFacts(picture.gateway, picture.turns[0]?.asked ?? 0) : [fact("model", picture.model), fact("schedule", picture.schedule)]),
    fact("model took", modelTime(picture) ? seconds(modelTime(picture)) : ""), fact("tools took", totals.tool_seconds ? seconds(totals.tool_seconds) : ""),
    fact("rounds", totals.rounds), fact("calls", totals.calls), fact("failed calls", totals.failed || "", "bad"), fact("started early", totals.early || ""),
    fact("shared results", totals.duplicates || ""), fact("retries", retriesOf(totals), "bad"), fact("refused", totals.refused || ""), fact("uncertain", totals.uncertain || "", "bad"),
    fact("tokens", totals.input_tokens || totals.output_tokens ? `${totals.estimated ? "about " : ""}${totals.input_tokens.toLocaleString("en")} in, ${totals.output_tokens.toLocaleString("en")} out` : ""),
    fact(picture.state === "unfinished" && totals.cost !== null ? "cost so far" : "cost", `${totals.estimated && totals.cost !== null ? "about " : ""}${money(totals.cost, picture.currency)}`),
    fact("began", day(picture.time)), fact("agent", picture.agent === "main" || picture.gateway ? "" : picture.agent),
  ].filter(Boolean));
};
const failed = (error) => {
  leave();
  place(make("p", { class: "empty" }, error.message === "Failed to fetch" ? "The server has ended: start unbroken view again." : error.message, error.needsKey ? make("span", {}, " ", make("a", { href: "../" }, "Enter it on the status page"), ", then come back.") : ""));
};
const go = (name) => { location.hash = `#${encodeURIComponent(name)}`; };
const goCompare = (one, other) => { location.hash = `#${encodeURIComponent(one)}/with/${encodeURIComponent(other)}`; };
const route = async () => {
  const [name, wanted, other] = location.hash.slice(1).split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  leave();
  byId("filter").value = state.filter = "";
  try {
    if (!state.runs.length) state.runs = await loadRuns();
    const only = state.runs.length === 1 && !state.runs[0].problem ? state.runs[0].name : "";
    if (!name && !only) {
      state.picture = null;
      head(null);
      say();
      byId("view").removeAttribute("role");
      showRuns();
      return;
    }
    if (wanted === "with" && other) {
      Object.assign(state, { picture: null, view: null, name });
      head(null);
      say();
      byId("back").hidden = false;
      byId("title").textContent = "Two runs compared";
      place(make("p", { class: "empty" }, "Loading …"));
      showComparison(...await Promise.all([loadPicture(name), loadPicture(other)]));
      return;
    }
    const chosen = name || only;
    if (state.name !== chosen || !state.picture) Object.assign(state, { picture: null, view: null, request: 0 });
    place(make("p", { class: "empty" }, "Loading …"));
    state.picture ??= await loadPicture(chosen);
    state.name = chosen;
    state.grownAt = (state.runs.find((run) => run.name === chosen)?.changed ?? 0) * 1000;
    head(state.picture);
    say(...bannersOf(state.picture));
    tab(["messages", "requests", "events"].includes(wanted) ? wanted : "waterfall");
  } catch (error) { state.name = name; failed(error); }
};

// A run that is being recorded grows on the page, and a new one appears in the list

const STILL = 15000; // milliseconds without a new line, after which a run without an end is not called running
const SOON = 1000, LATER = 5000;
let looking = null;
const look = async () => {
  clearTimeout(looking);
  const began = Date.now();
  let wait = LATER;
  try {
    if (document.hidden || given) { /* nothing is seen, or nothing can change */ } else if (state.picture) {
      const name = state.name, grown = await loadGrown(name);
      if (grown && state.name === name && state.picture) {
        Object.assign(state, { picture: grown, grownAt: Date.now() });
        head(grown);
        say(...bannersOf(grown));
        show?.update?.();
      } else if (state.picture && byId("state").textContent.startsWith("●") && Date.now() - state.grownAt >= STILL) { head(state.picture); say(...bannersOf(state.picture)); }
      wait = state.picture?.state === "unfinished" ? SOON : LATER;
    } else if (show?.list && state.runs.length) {
      const runs = await loadRuns();
      if (!state.picture && JSON.stringify(runs) !== JSON.stringify(state.runs)) { state.runs = runs; show?.update?.(); }
    }
  } catch { /* the server has ended, or has no time: the next look comes later */ }
  looking = setTimeout(look, Math.max(wait, (Date.now() - began) * 5)); // never more than a fifth of the time
};
if (!given) looking = setTimeout(look, SOON);
document.addEventListener("visibilitychange", () => { if (!document.hidden && !given) look(); });

const reload = () => { if (!given) { state.runs = []; state.picture = null; route(); } };
const beside = (by) => {
  const good = state.runs.filter((run) => !run.problem), here = good.findIndex((run) => run.name === state.name);
  if (state.picture && good[here + by]) go(good[here + by].name);
};
const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const remember = (theme) => { try { localStorage.setItem("unbroken-theme", theme); } catch { /* a file may keep nothing */ } };
const switchTheme = () => { const theme = isDark() ? "light" : "dark"; document.documentElement.dataset.theme = theme; remember(theme); };
try { const theme = localStorage.getItem("unbroken-theme"); if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme; } catch { /* as the system has it */ }

byId("key-list").append(...[
  ["↑ ↓  PgUp PgDn  Home End", "choose a run, a call, an event, a request"], ["Enter", "open it, or its details"], ["Esc", "close the details; back to the list"],
  ["+  −  0", "zoom in, out, show all"], ["← →", "move in time"], ["f", "zoom to the chosen call"], ["wheel", "zoom over the time axis; over the lanes with Ctrl, or when they all fit"], ["drag", "move in time"],
  ["1  2  3  4", "waterfall, messages, events, requests"], ["c", "in the list: mark a run, then compare it with another"], ["s", "in the list: search in the contents of all runs"], ["[  ]", "the run before, the next"], ["/", "filter"], ["r", "read the recordings again"], ["t", "light or dark"], ["?", "these keys"],
].flatMap(([keys, text]) => [make("dt", {}, ...keys.split("  ").flatMap((key, place) => (place ? [" ", make("kbd", {}, key)] : [make("kbd", {}, key)]))), make("dd", {}, text)]));
byId("back").addEventListener("click", () => { location.hash = ""; });
byId("theme").addEventListener("click", switchTheme);
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("close-keys").addEventListener("click", () => byId("keys").close());
byId("filter").addEventListener("input", () => { state.filter = byId("filter").value; show?.filter?.(); });
byId("filter").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && show?.search && state.filter.trim() && !show.list.count) { show.search(); event.preventDefault(); return; }
  if (event.key === "Escape") { byId("filter").value = state.filter = ""; show?.filter?.(); }
  if (["Escape", "Enter", "ArrowDown"].includes(event.key)) { if (show?.list) show.list.node.focus(); else if (show?.focus) show.focus(); else byId("filter").blur(); if (show?.list?.count) show.list.pick(Math.max(show.list.picked, 0)); event.preventDefault(); event.stopPropagation(); }
});
for (const button of byId("tabs").children) {
  button.addEventListener("click", () => tab(button.id.slice(4)));
  button.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const tabs = [...byId("tabs").children], next = tabs[(tabs.indexOf(button) + by + tabs.length) % tabs.length];
    tab(next.id.slice(4));
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  });
}
window.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (event.target === byId("filter")) return;
  const inDetail = byId("detail").contains(event.target);
  const act = {
    Escape: () => { if (!byId("detail").hidden) closeDetail(); else if (!byId("back").hidden) location.hash = ""; },
    "/": () => { byId("filter").focus(); byId("filter").select(); },
    "?": () => byId("keys").showModal(), t: switchTheme, r: reload, 1: () => tab("waterfall"), 2: () => tab("messages"), 3: () => tab("events"), 4: () => tab("requests"), "[": () => beside(-1), "]": () => beside(1),
    ...(inDetail ? {} : show?.keys ?? {}),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
  else if (event.target === document.body) show?.list?.key(event); // a click on the heading takes the focus from the list
});
window.addEventListener("hashchange", route);
route();
