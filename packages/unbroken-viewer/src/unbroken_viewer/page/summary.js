// The first screen of a run: what was asked, what was answered, what failed first; and its requests as a table

const firstError = (picture) => {
  let first = null;
  const consider = (at, turn, call, name, text) => { if (text && (first === null || at < first.at)) first = { at, turn, call, name, text }; };
  for (const turn of picture.turns) {
    for (const attempt of turn.attempts) if (attempt.broken) consider(attempt.ended ?? attempt.asked, turn, null, "the model", attempt.broken);
    if (turn.failed) consider(turn.ended ?? turn.asked, turn, null, "the model", turn.failed);
    for (const call of turn.calls) if (call.error || call.state === "spoiled") consider(call.ended ?? call.written ?? turn.asked, turn, call, call.name, call.result?.text || call.problem || WORDS[call.state]);
  }
  return first;
};
/* What a run was doing that has no end. */
const stoppedAt = (picture) => {
  const turn = picture.turns.at(-1), open = turn ? picture.turns.flatMap((one) => one.calls).filter((call) => call.state === "running").map((call) => call.name) : [];
  return open.length ? `while ${[...new Set(open)].slice(0, 5).join(", ")} ran` : !turn ? "before its first request" : turn.ended === null ? "in the middle of an answer" : "after an answer";
};
/* The calls with which the recording ends: somebody else runs them. */
const openCalls = (picture) => (picture.turns.at(-1)?.calls ?? []).filter((call) => ["sent", "held", "handed"].includes(call.state)).map((call) => `${call.name} ${brief(call.arguments)}`.trim().slice(0, 200) + (call.state === "held" ? " (held)" : "")).join(" · ");
const summaryOf = (picture) => {
  const error = firstError(picture);
  const row = (name, text, kind, act) => {
    const value = make("dd", { class: kind, tabindex: "0", title: "Click to unfold", on: { click: () => value.classList.toggle("open"), keydown: (event) => { if (event.key === "Enter") { value.classList.toggle("open"); event.preventDefault(); } } } }, text);
    return make("div", { class: kind }, make("dt", {}, name), value, act ? make("dd", { class: "act" }, act) : "");
  };
  const answer = picture.answer.text.trim();
  const failed = picture.state === "failed";
  return [
    picture.prompt ? row("asked", picture.prompt.trim(), picture.prompt.length > 60 ? "" : "narrow") : null,
    answer && !failed ? row("answered", answer.slice(0, 5000).replace(/\n\s*\n/g, "\n"), "") : null,
    openCalls(picture) ? row("tool calls", openCalls(picture).slice(0, 5000), "") : null,
    failed ? row("failed", answer.slice(0, 2000), "bad") : null,
    picture.state === "unfinished" && !isRunning(picture) ? row("stopped", stoppedAt(picture), "bad") : null,
    error && !(failed && answer.includes(error.text)) ? row("first error", `${error.name}: ${error.text.slice(0, 2000)}`, "bad", make("button", { class: "link", on: { click: () => goToLane(error.turn, error.call) } }, `at ${moment(error.at)}`)) : null,
  ].filter(Boolean);
};

const showRequests = () => {
  const picture = state.picture;
  const columns = [["Request", ""], ["Sent", "number"], ["First token", "number"], ["Answer took", "number"], ["In", "number"], ["Out", "number"], ["Cost", "number"], ["Calls", "number"], ["Attempts", "number"], ["Finish", ""]];
  const table = make("table", { class: "requests-table" }, make("thead", {}, make("tr", {}, ...columns.map(([text, kind]) => make("th", { class: kind, scope: "col" }, text)))));
  const rows = make("tbody");
  for (const turn of picture.turns) {
    const first = turn.attempts.at(-1)?.first, sent = turn.attempts.at(-1)?.asked ?? turn.asked;
    const calls = turn.calls.filter((call) => call.state !== "withdrawn").length;
    const cells = [
      make("td", {}, make("button", { class: "link", on: { click: () => goToLane(turn, null) } }, titleOf(turn))), moment(turn.asked), first === null || first === undefined ? "–" : seconds(first - sent),
      turn.ended === null ? "…" : seconds(turn.ended - turn.asked), turn.input_tokens ? turn.input_tokens.toLocaleString("en") : "–", turn.output_tokens ? turn.output_tokens.toLocaleString("en") : "–",
      money(turn.cost, picture.currency), calls || "", turn.attempts.length, turn.failed || turn.finish];
    rows.append(make("tr", { class: turn.failed ? "bad" : "" }, ...cells.map((cell, place) => (cell instanceof Node ? cell : make("td", { class: columns[place][1] }, String(cell))))));
  }
  table.append(rows);
  const box = make("div", { class: "talk", tabindex: "0", role: "region", "aria-label": "Requests" }, picture.turns.length ? table : make("p", { class: "empty" }, "No request is in this recording."));
  place(box);
  byId("filter").hidden = true; // nothing to filter here
  show = { filter: () => {}, update: () => tab("requests"), end: () => {}, focus: () => box.focus() };
  box.focus();
};
