// Details

const pairs = (entries) => make("dl", { class: "pairs" }, ...entries.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–").flatMap(([name, value, kind]) => [make("dt", {}, name), make("dd", { class: kind ?? "" }, value)]));
const pretty = (clip) => {
  if (clip.cut || clip.text.length < 60 || !/^\s*[[{]/.test(clip.text)) return clip.text;
  try { return JSON.stringify(JSON.parse(clip.text), null, 2); } catch { return clip.text; }
};
const body = (clip, bad = false) => {
  if (!clip) return [make("p", { class: "soft" }, "none")];
  const box = make("pre", { class: bad ? "bad" : "", tabindex: "0" }, clip.text ? pretty(clip) : "(empty)");
  const copy = clip.text ? copyButton("Copy", () => clip.text) : "";
  return clip.cut ? [copy, make("p", { class: "cut" }, `${size(clip.size)}, the first ${size(new Blob([clip.text]).size)} are shown.`), box] : [copy, box];
};
const openDetail = (title, chip, parts) => {
  const detail = byId("detail");
  detail.replaceChildren(make("div", { class: "title" }, make("h2", {}, title), chip, make("span", { class: "gap" }), make("button", { class: "bare", "aria-label": "Close the details", on: { click: closeDetail } }, "✕")),
    ...Object.entries(parts).map(([kind, nodes]) => make("section", { class: kind }, ...nodes.flat(Infinity))));
  detail.hidden = false;
  detail.scrollTop = 0;
  requestAnimationFrame(() => show?.list?.reveal()); // it may have taken the room
};
const closeDetail = () => { byId("detail").hidden = true; byId("detail").replaceChildren(); show?.list?.node.focus(); };
const detailOfCall = (turn, call, jump) => {
  const waited = call.written !== null && call.state !== "shared" ? (call.started ?? call.ended ?? call.written) - call.written : null;
  const other = (id) => make("button", { class: "link", on: { click: () => jump(id) } }, id);
  openDetail(call.name || "(no name)", make("span", { class: `chip ${call.error || call.state === "spoiled" ? "bad" : call.state === "done" ? "good" : "quiet"}` }, call.state === "running" && isRunning(state.picture) ? "running" : WORDS[call.state]), { times: [
    make("h3", {}, "Timing"),
    pairs([
      ["first byte", moment(call.opened)],
      ["complete", call.written === null ? "" : `${moment(call.written)}  (written in ${seconds(call.written - (call.opened ?? call.written))})`],
      ["approval asked", moment(call.asked)], ["decided", call.decided === null ? call.decision : `${moment(call.decided)}  ${call.decision}`],
      ["waited", waited === null ? "" : seconds(waited)],
      ["started", call.started === null ? "" : `${moment(call.started)}${call.early ? "  (early: the answer was still being written)" : ""}`],
      ["ended", moment(call.ended)],
      ["ran", call.started === null ? "" : seconds(call.ended === null ? state.picture.seconds - call.started : call.seconds ?? call.ended - call.started) + (call.ended === null ? ", and did not end" : "")],
      ...call.died.map(([start, end]) => ["died", `${moment(start)} to ${moment(end)}, with its process`]),
    ])], texts: [
    call.problem ? [make("h3", {}, "Problem"), make("p", {}, call.problem)] : [],
    make("h3", {}, call.edited ? "Arguments as they ran (edited)" : "Arguments"), body(call.arguments),
    call.made ? [make("h3", {}, "Arguments as the model made them"), body(call.made)] : [],
    make("h3", {}, call.error ? "Error" : "Result"), body(call.result, call.error),
    call.steps.length ? [make("h3", {}, `Agent ${call.agent}`), pairs(call.steps.slice(-200).map(([at, agent, text]) => [moment(at), agent === call.agent ? text : `${agent.slice(call.agent.length + 1)}: ${text}`]))] : call.progress.length ? [make("h3", {}, "Progress"), pairs(call.progress.slice(-50).map(([at, text]) => [moment(at), text]))] : [],
    call.notes.length ? [make("h3", {}, "Notes"), ...call.notes.map((note) => make("p", {}, note))] : [],
    ], ids: [
    make("h3", {}, "Ids"),
    pairs([
      ["call", call.id, "mono"], ["shares the result of", call.duplicate_of ? other(call.duplicate_of) : "", "mono"],
      ["adopted from", call.adopted_from, "mono"], ["key", call.key, "mono"], ["request", `${turn.number + 1}, call ${call.index + 1}`],
    ]), make("p", {}, make("button", { class: "link", on: { click: () => goToMessage(turn, call.id) } }, "The call in its message"))] });
};
/* Commands that replay the run to the end of this round, and continue it from there. */
const replayButton = (number) => (state.picture.gateway || number < 0 || !state.picture.schedule ? "" : copyButton("Replay from here", () => loadReplay(number), "Copy the commands that replay the run to here and continue it"));
const detailOfTurn = (turn) => openDetail(titleOf(turn), turn.failed ? make("span", { class: "chip bad" }, "failed") : null, { times: [
  make("h3", {}, "Timing"),
  pairs([["request sent", moment(turn.asked)], ["first token", turn.attempts[0].first === null ? "" : `${moment(turn.attempts[0].first)}  (after ${seconds(turn.attempts[0].first - turn.asked)})`], ["answer ended", moment(turn.ended)], ["calls ended", moment(turn.finished)], ["tokens", turn.input_tokens || turn.output_tokens ? `${turn.input_tokens.toLocaleString("en")} in, ${turn.output_tokens.toLocaleString("en")} out` : ""], ["cost", money(turn.cost, state.picture.currency)], ["cost with its calls", turn.round_cost === null || turn.round_cost === turn.cost ? "" : money(turn.round_cost, state.picture.currency)], ["finish", turn.finish], ["messages", turn.messages || ""], ["tools offered", turn.tools || ""], ["run by the provider", turn.provider_calls.join(", ")], ["ignored", turn.ignored.join(", ")]])], texts: [
  turn.attempts.length > 1 || turn.failed ? [make("h3", {}, "Attempts"), pairs(turn.attempts.map((attempt, place) => [`${place + 1}`, attempt.broken ? `${attempt.model ? `${attempt.model} ` : ""}failed at ${moment(attempt.ended)}: ${attempt.broken}${attempt.wait ? `; retried after ${seconds(attempt.wait)}` : ""}${attempt.elsewhere ? "; the next went to another model" : ""}` : `complete at ${moment(attempt.ended)}${attempt.model ? `, from ${attempt.model}` : ""}`]))] : [],
  turn.reasoning ? [make("h3", {}, "Reasoning"), body(turn.reasoning)] : [],
  turn.said ? [make("h3", {}, "Text"), body(turn.said)] : [],
  ], ids: [make("h3", {}, "Messages"), make("p", {}, make("button", { class: "link", on: { click: () => { state.request = Math.max(0, state.picture.requests.findIndex((one) => one.turn === turn.number)); tab("messages"); } } }, "The messages of this request")), make("p", { class: "tools" }, replayButton(state.picture.requests.findIndex((one) => one.turn === turn.number)))] });
