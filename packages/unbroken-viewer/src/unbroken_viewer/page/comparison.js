// Two runs side by side, and what differs: their numbers, their requests, their calls, their answers

const LONGEST_TABLE = 3000; // calls of each run: the table for longer ones would take too much memory

const callsOf = (picture) => picture.turns.flatMap((turn) => turn.calls.filter((call) => call.state !== "withdrawn" && call.state !== "dropped"));
const sameCall = (one, other) => one.name === other.name && (one.arguments?.text ?? "") === (other.arguments?.text ?? "");

/* Pairs of equal entries in both lists, in order, and the entries that only one of them has: [one or null, other or null]. */
const aligned = (left, right, same) => {
  const pairs = [];
  let start = 0;
  while (start < left.length && start < right.length && same(left[start], right[start])) { pairs.push([left[start], right[start]]); start++; }
  const rows = left.length - start, columns = right.length - start;
  if (rows * columns > LONGEST_TABLE ** 2) { // too long to align: one beside the other
    for (let place = start; place < Math.max(left.length, right.length); place++) pairs.push([left[place] ?? null, right[place] ?? null]);
    return pairs;
  }
  const best = Array.from({ length: rows + 1 }, () => new Uint32Array(columns + 1));
  for (let row = rows - 1; row >= 0; row--) for (let column = columns - 1; column >= 0; column--) {
    best[row][column] = same(left[start + row], right[start + column]) ? best[row + 1][column + 1] + 1 : Math.max(best[row + 1][column], best[row][column + 1]);
  }
  let row = 0, column = 0;
  while (row < rows || column < columns) {
    if (row < rows && column < columns && same(left[start + row], right[start + column])) pairs.push([left[start + row++], right[start + column++]]);
    else if (column >= columns || (row < rows && best[row + 1][column] >= best[row][column + 1])) pairs.push([left[start + row++], null]);
    else pairs.push([null, right[start + column++]]);
  }
  return pairs;
};

const messagesOfRequest = (picture, number) => {
  let whole = [];
  for (let place = 0; place <= number; place++) { const one = picture.requests[place]; whole = [...whole.slice(0, one.keep), ...one.new]; }
  return whole;
};
const textOfMessage = (one) => `${one.role}: ${one.parts.map((part) => `${part.name ? `${part.name} ` : ""}${part.body.text}`).join("\n")}`;

/* The first message in which the requests of two runs differ; null if there is none. */
const firstDifference = (left, right) => {
  for (let number = 0; number < Math.min(left.requests.length, right.requests.length); number++) {
    const one = messagesOfRequest(left, number).map(textOfMessage), other = messagesOfRequest(right, number).map(textOfMessage);
    for (let place = 0; place < Math.max(one.length, other.length); place++) {
      if (one[place] !== other[place]) return { number, place, one: one[place] ?? "(no such message)", other: other[place] ?? "(no such message)" };
    }
  }
  return null;
};

const showComparison = (left, right) => {
  const both = [left, right];
  const table = (caption, rows, kind = "") => make("table", { class: `compared ${kind}` }, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, kind ? "no." : "what"), ...both.map((one) => make("th", { scope: "col" }, make("a", { href: `#${encodeURIComponent(one.file)}` }, one.file))), make("th", { scope: "col" }, "change"))),
    make("tbody", {}, ...rows));
  const row = (name, one, other, difference = one === other ? "" : "differs") => make("tr", { class: difference ? "differs" : "" }, make("th", { scope: "row" }, name), make("td", {}, one), make("td", {}, other), make("td", { class: "soft" }, difference));
  const change = (one, other) => (one === other || one === null || other === null ? "" : one ? `${other > one ? "+" : "−"}${Math.abs(((other - one) / one) * 100).toFixed(0)} %` : "new");
  const amount = (name, read, shown) => row(name, shown(read(left)), shown(read(right)), read(left) === read(right) ? "" : change(read(left), read(right)) || "differs");
  const whole = (value) => value.toLocaleString("en");
  const numbers = [
    row("question", left.prompt, right.prompt), row("model", left.model, right.model), row("schedule", left.schedule, right.schedule), row("end", spaced(left.state), spaced(right.state)),
    amount("took", (one) => one.seconds, seconds), amount("requests", (one) => one.totals.requests, whole), amount("rounds", (one) => one.totals.rounds, whole), amount("calls", (one) => one.totals.calls, whole), amount("failed calls", (one) => one.totals.failed, whole),
    amount("started early", (one) => one.totals.early, whole), amount("time in tools", (one) => one.totals.tool_seconds, seconds), amount("tokens in", (one) => one.totals.input_tokens, whole), amount("tokens out", (one) => one.totals.output_tokens, whole), amount("cost", (one) => one.totals.cost, (cost) => money(cost, left.currency && right.currency)),
  ];
  const shownCall = (call) => (call ? `${call.name} ${brief(call.arguments)}` : "–");
  const outcome = (call) => (call ? `${WORDS[call.state]}${call.seconds === null ? "" : `, ${seconds(call.seconds)}`}` : "");
  const calls = aligned(callsOf(left), callsOf(right), sameCall).map(([one, other], place) => make("tr", { class: one && other ? "" : "differs" }, make("th", { scope: "row" }, String(place + 1)),
    ...[one, other].map((call) => make("td", {}, make("div", {}, shownCall(call)), make("small", { class: call?.error ? "bad" : "soft" }, outcome(call)))),
    make("td", { class: "soft" }, !one ? "only on the right" : !other ? "only on the left" : (one.result?.text ?? "") === (other.result?.text ?? "") ? "" : "another result")));
  const first = firstDifference(left, right);
  const requests = first
    ? [make("p", {}, `Request ${first.number + 1} is the first that differs, in message ${first.place + 1}:`), make("div", { class: "beside" }, make("pre", { tabindex: "0" }, first.one.slice(0, 20000)), make("pre", { tabindex: "0" }, first.other.slice(0, 20000)))]
    : [make("p", {}, left.requests.length === right.requests.length ? "All requests have the same messages." : `The first ${Math.min(left.requests.length, right.requests.length)} requests have the same messages; one run made ${many(Math.abs(left.requests.length - right.requests.length), "request")} more.`)];
  const answers = left.answer.text === right.answer.text ? [make("p", {}, "The answers are the same.")] : [make("div", { class: "beside" }, ...both.map((one) => make("pre", { tabindex: "0" }, one.answer.text || "(none)")))];
  const box = make("div", { class: "talk", tabindex: "0", role: "region", "aria-label": "Comparison of two runs" },
    table("Numbers", numbers), make("h2", {}, "Answers"), ...answers, make("h2", {}, "Requests"), ...requests, calls.length ? table("Calls", calls, "calls") : make("p", {}, "Neither run made a call."));
  place(box);
  byId("filter").hidden = true; // nothing to filter here
  show = { filter: () => {}, end: () => {}, focus: () => box.focus() };
  box.focus();
};
