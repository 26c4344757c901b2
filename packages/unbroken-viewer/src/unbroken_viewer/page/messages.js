// The messages

const showMessages = () => {
  const picture = state.picture, turns = new Map(picture.turns.map((turn) => [turn.number, turn]));
  const side = make("div", { class: "requests", role: "group", "aria-label": "Requests" });
  const talk = make("div", { class: "talk", tabindex: "0", "aria-label": "Messages" });
  const messagesOf = (number) => {
    let whole = [];
    for (let place = 0; place <= number; place++) { const one = picture.requests[place]; whole = [...whole.slice(0, one.keep), ...one.new]; }
    return whole;
  };
  const part = (one) => {
    const more = one.body.cut ? make("p", { class: "cut" }, `${size(one.body.size)}, the first ${size(new Blob([one.body.text]).size)} are shown.`) : null;
    if (one.kind === "call" || one.kind === "result") {
      return [make("div", { class: "of" }, one.kind === "call" ? "calls " : "result of ", one.id ? make("button", { class: "link", "data-call": one.id, title: "To its bar", on: { click: () => { if (!goToCall(one.id)) hear("This call is not in the waterfall"); } } }, one.name || "?") : make("b", {}, one.name || "?"), make("span", {}, one.id), one.error ? make("span", { class: "bad" }, "✕ error") : null, copyButton("Copy", () => one.body.text)), make("pre", { class: one.error ? "bad" : "", tabindex: "0" }, pretty(one.body) || "(empty)"), more];
    }
    return [make("div", { class: `body ${one.kind} ${one.body.text.length > 1500 ? "long" : ""}` }, one.body.text || "(empty)"), more];
  };
  const message = (one, kind, note) => make("article", { class: `message ${kind}` }, make("header", {}, one.role, note ? make("span", { class: "tag" }, note) : null), ...one.parts.slice(0, 500).flatMap(part).filter(Boolean), one.parts.length > 500 ? make("p", { class: "cut" }, `${many(one.parts.length - 500, "part")} more: the waterfall has all calls.`) : null);
  const answerOf = (request) => {
    const turn = turns.get(request.turn);
    if (!turn) return null;
    const parts = [turn.reasoning ? { kind: "reasoning", body: turn.reasoning } : null, turn.said ? { kind: "text", body: turn.said } : null,
      ...turn.calls.filter((call) => call.state !== "withdrawn" && call.state !== "dropped").map((call) => ({ kind: "call", body: call.made ?? call.arguments ?? { text: "", size: 0, cut: false }, name: call.name, id: call.id, error: call.state === "spoiled" })),
      turn.failed ? { kind: "text", body: { text: turn.failed, size: 0, cut: false } } : null].filter(Boolean);
    return parts.length ? message({ role: "assistant", parts }, "answer", "its answer") : null;
  };
  const draw = (from = null) => {
    const request = picture.requests[state.request];
    const whole = messagesOf(state.request);
    const wanted = state.filter.toLowerCase();
    const matches = (one) => !wanted || `${one.role} ${one.parts.map((each) => `${each.name} ${each.id} ${each.body.text}`).join(" ")}`.toLowerCase().includes(wanted);
    const first = from ?? Math.max(0, whole.length - 200);
    const rest = Object.keys(JSON.parse(request.settings.cut ? "{}" : request.settings.text)).length ? request.settings : null;
    talk.replaceChildren(
      make("p", { class: "soft" }, `${many(whole.length, "message")}, ${request.new.length} new · ${many(request.tools.length, "tool")}${request.tools.length ? `: ${request.tools.slice(0, 40).join(", ")}` : ""}`),
      ...(rest ? [make("p", { class: "soft" }, rest.text.slice(0, 400))] : []),
      make("p", { class: "tools" }, ...(given ? [] : [copyButton("Copy as curl", () => loadCode(state.request, "curl")), copyButton("Copy as Python", () => loadCode(state.request, "python"), "Copy a Python program that continues from this request")]), replayButton(state.request)),
      make("p", {}, first ? make("button", { on: { click: () => draw(0) } }, `Show the ${many(first, "earlier message")}`) : ""),
      ...whole.flatMap((one, place) => (place < first || !matches(one) ? [] : [message(one, place >= request.keep ? "new" : "", place >= request.keep ? "new" : "")])),
      answerOf(request) ?? "");
    for (const button of side.children) button.setAttribute("aria-current", Number(button.dataset.request) === state.request);
    side.children[state.request]?.scrollIntoView({ block: "nearest" });
    if (from === null) talk.scrollTop = 0;
  };
  const choose = (number) => { state.request = Math.max(0, Math.min(number, picture.requests.length - 1)); draw(); hear(`Request ${state.request + 1}`); };
  const box = make("div", { class: "pane" });
  box.style.flexDirection = "row";
  box.style.minHeight = "0";
  box.append(side, talk);
  if (!picture.requests.length) {
    place(make("p", { class: "empty" }, "No request is in this recording."));
    show = { filter: () => {}, end: () => {}, focus: () => byId("tab-messages").focus() };
    return;
  }
  picture.requests.forEach((one, number) => {
    const turn = turns.get(one.turn);
    side.append(make("button", { "data-request": number, on: { click: () => choose(number) } }, `Request ${number + 1}`, make("small", {}, `${moment(one.at)} · ${many(one.keep + one.new.length, "message")}, ${one.new.length} new${turn ? ` · ${titleOf(turn).toLowerCase()}` : ""}`)));
  });
  place(box);
  const step = (by) => () => { choose(state.request + by); side.children[state.request].focus(); };
  const find = (id) => {
    const link = [...talk.querySelectorAll("[data-call]")].find((node) => node.dataset.call === id);
    if (!link) return;
    link.closest(".message").classList.add("picked");
    link.scrollIntoView({ block: "center" });
    link.focus();
  };
  show = { filter: () => draw(), update: () => { const at = talk.scrollTop; tab("messages"); byId("view").querySelector(".talk").scrollTop = at; }, end: () => {}, find, focus: () => side.children[state.request].focus(), keys: { ArrowUp: step(-1), ArrowDown: step(1) } };
  choose(state.request);
  side.children[state.request].focus();
};
const goToMessage = (turn, id) => {
  state.request = Math.max(0, state.picture.requests.findIndex((one) => one.turn === turn.number));
  tab("messages");
  show.find?.(id);
};
