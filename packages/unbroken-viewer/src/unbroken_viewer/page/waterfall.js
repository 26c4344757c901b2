// The waterfall

const lanesOf = (picture) => {
  const lanes = [];
  picture.turns.forEach((turn, place) => {
    lanes.push({ turn, place });
    for (const call of turn.calls) if (call.state !== "withdrawn") {
      lanes.push({ turn, call, place });
      for (const inner of call.inner) lanes.push({ turn, call, inner, place });
    }
  });
  return lanes;
};
const brief = (clip) => {
  if (!clip) return "";
  let text = clip.text.slice(0, 300);
  if (!clip.cut && text.length === clip.text.length) {
    try {
      const value = JSON.parse(text);
      if (value && typeof value === "object" && !Array.isArray(value)) text = Object.values(value).map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join(", ");
    } catch { /* shown as it is */ }
  }
  return text.replace(/\s+/g, " ");
};
const SEEN = 80; // characters beside a name that have room: a longer text costs time to lay out
const WORDS = { done: "done", failed: "failed", shared: "shared", refused: "refused", spoiled: "incomplete", dropped: "dropped", uncertain: "outcome unknown", running: "no end", waiting: "never ran", handed: "not run here", sent: "sent to the client", held: "held", withdrawn: "withdrawn" };
/* After the seconds of what has no end. */
const noEnd = (picture) => (picture.state !== "unfinished" || isRunning(picture) ? " …" : ", no end");

const showWaterfall = () => {
  let picture = state.picture, total = Math.max(picture.seconds, 0.001);
  let all = lanesOf(picture);
  let lanes = all;
  state.view ??= { start: 0, end: total };
  const ticks = make("div", { class: "ticks", title: "Wheel: zoom" });
  const axis = make("div", { class: "axis", "aria-hidden": "true" }, make("div", { class: "corner" }, make("span", {}, "seconds"), make("span", { class: "wide" }, " from the start")), ticks);
  const cross = make("div", { class: "cross", hidden: true });
  let width = 1, labels = 1, grid = [], marks = [], hover = null;
  const x = (time) => ((time - state.view.start) / (state.view.end - state.view.start)) * width;

  const list = new List(30, "fall", "Turns and calls of the run", (row) => draw(lanes[row]), (row) => open(lanes[row]), (row) => {
    hear(words(lanes[row]));
    if (!byId("detail").hidden) open(lanes[row]);
  });
  const words = ({ turn, call, inner }) => inner ? `${inner.name} of agent ${inner.agent}: ${inner.ended === null ? "no end" : inner.error ? "failed" : "done"}, started at ${moment(inner.started)}` : call
    ? `${call.name} ${brief(call.arguments)}: ${WORDS[call.state]}${call.edited ? ", edited" : ""}${call.early ? ", started early" : ""}, ${call.started === null ? "" : `started at ${moment(call.started)}, `}ran ${seconds(call.seconds)}`
    : `${titleOf(turn)}, asked at ${moment(turn.asked)}, answered at ${moment(turn.ended)}, ${many(turn.calls.length, "call")}`;

  let used = 0; // a track keeps its elements when it is drawn again: they only move
  const piece = (track, kind, text = "", title = "") => {
    const node = track.childNodes[used++] ?? track.appendChild(document.createElement("div"));
    if (node.className !== kind) node.className = kind;
    if ((node.firstChild?.data ?? "") !== text) node.textContent = text;
    if (node.title !== title) node.title = title;
    return node;
  };
  const bar = (track, start, end, kind, least = 3) => {
    const left = x(start), right = x(end);
    if (right < 0 || left > width) return;
    const from = Math.max(Math.min(left, width - least), 0), to = Math.min(Math.max(right, left + least), width);
    const style = piece(track, `bar ${kind}`).style;
    style.left = `${from.toFixed(1)}px`;
    style.width = `${(to - from).toFixed(1)}px`;
  };
  const rule = (track, time, kind, title = "") => {
    const at = x(time);
    if (at < 0 || at > width - 1) return;
    const style = piece(track, `rule ${kind}`, "", title).style;
    style.left = `${at.toFixed(1)}px`;
    style.width = "";
  };
  const took = (track, start, end, text, kind = "", from = start) => { // right of the bar; or left of all of the row; or in the middle of the bar
    const right = Math.max(x(end), x(start) + 3), left = x(from), room = text.length * (kind === "bad" ? 7.6 : 6.4) + 14;
    if (right < 0 || left > width || !text) return;
    const onRight = right + room <= width, onLeft = left >= room, middle = (Math.max(x(start), 0) + Math.min(right, width)) / 2;
    if (!onRight && !onLeft && text.includes(" · ")) { took(track, start, end, text.split(" · ")[0], kind, from); return; }
    const style = piece(track, `took ${kind} ${onRight ? "" : onLeft ? "left" : "over"}`, text).style;
    style.left = `${(onRight ? right : onLeft ? left : Math.min(Math.max(middle, room / 2), width - room / 2)).toFixed(1)}px`;
    style.width = "";
  };
  const trackOf = ({ turn, call, inner }, track = make("div", { class: "track" })) => {
    used = 0;
    for (const attempt of turn.attempts) if (attempt.broken) rule(track, attempt.ended ?? attempt.asked, "break");
    for (const mark of marks) rule(track, mark.at, "mark", mark.text);
    if (inner) drawInner(track, call, inner); else if (call) drawCall(track, turn, call); else drawTurn(track, turn);
    while (track.childNodes.length > used) track.lastChild.remove();
    return track;
  };
  const drawInner = (track, call, inner) => {
    const end = inner.ended ?? call.ended ?? picture.seconds, open = inner.ended === null;
    bar(track, inner.started, end, `${inner.error ? "failed" : "inner"}${open ? " open" : ""}`);
    took(track, inner.started, end, seconds(end - inner.started) + (inner.error ? " ✕" : open ? noEnd(picture) : ""), inner.error ? "bad" : "");
  };
  const draw = ({ turn, call, inner, place }) => {
    const label = inner
      ? make("div", { class: `label inner depth-${Math.min(inner.depth, 3)}`, title: inner.agent }, make("span", { class: "name" }, inner.name || "(no name)"), make("span", { class: "more" }, brief({ text: inner.arguments, cut: false }).slice(0, SEEN)))
      : call
      ? make("div", { class: "label" }, make("span", { class: "name" }, call.name || "(no name)"), make("span", { class: "more", title: brief(call.arguments) }, (call.edited ? "(edited) " : "") + brief(call.arguments).slice(0, SEEN)))
      : make("div", { class: "label" }, make("span", { class: "name" }, titleOf(turn)), make("span", { class: "more" }, turnInShort(turn).slice(0, SEEN)));
    return make("div", { class: `lane ${call ? "" : "turn"} ${place % 2 ? "odd" : ""}`, "aria-label": words({ turn, call, inner }) }, label, trackOf({ turn, call, inner }));
  };
  const drawTurn = (track, turn) => {
    for (const attempt of turn.attempts) {
      const end = attempt.ended ?? picture.seconds, first = attempt.first ?? end;
      bar(track, attempt.asked, first, "asked", 0);
      bar(track, first, end, "stream");
      let free = -Infinity;
      for (const piece of attempt.pieces) {
        if (x(piece.end) < free + 1 && x(piece.start) < free) continue; // not to be seen beside the one before
        bar(track, piece.start, piece.end, piece.kind);
        free = Math.max(x(piece.end), x(piece.start) + 3);
      }
      if (attempt.wait) bar(track, end, end + attempt.wait, "waiting", 0);
    }
    const last = turn.attempts.at(-1), again = turn.attempts.length - 1;
    const long = seconds((turn.ended ?? picture.seconds) - turn.asked) + (turn.ended === null ? noEnd(picture) : "");
    const told = last.broken ? `✕ ${long}` : again ? `⟲ ${long} · ${again > 1 ? `${again} retries` : "retried"}` : long;
    took(track, last.asked, last.ended ?? picture.seconds, told, last.broken || again ? "bad" : "", turn.asked);
  };
  const drawCall = (track, turn, call) => {
    const now = picture.seconds, written = call.written ?? call.opened, end = call.ended ?? (call.state === "handed" || call.state === "sent" || call.state === "held" || call.state === "spoiled" || call.state === "waiting" ? written : now);
    const from = call.opened ?? written ?? call.started ?? end, died = call.died[0]?.[0];
    if (call.opened !== null) bar(track, call.opened, written, "writing");
    if (died !== undefined && written !== null) bar(track, written, died, "waiting", 0);
    for (const [start, stop] of call.died) bar(track, start, stop, "gone");
    if (call.state === "shared") { bar(track, written ?? end, end, "shared", 10); took(track, written ?? end, end, "shares another's result", "", from); return; }
    if (call.started === null && call.died.length) { const [start, stop] = call.died.at(-1); took(track, start, stop, call.state === "uncertain" ? "? outcome unknown" : "✕ its process died", "bad", from); return; }
    if (call.started === null) {
      if (written !== null && end !== null && end > written) bar(track, written, end, "waiting", 0);
      const told = { refused: "✕ refused", spoiled: "✕ incomplete", handed: "not run here", sent: "sent to the client", held: "held", waiting: "never ran" }[call.state];
      if (written !== null) took(track, written, end ?? written, told ?? "", call.error || call.state === "spoiled" ? "bad" : "", from);
      return;
    }
    if (written !== null && !call.died.length) bar(track, written, call.started, "waiting", 0);
    const kind = call.state === "dropped" ? "gone" : call.error ? "failed" : call.early ? "early" : "running";
    bar(track, call.started, end, call.ended === null ? `${kind} open` : kind);
    const extra = call.state === "dropped" ? " · dropped" : call.error ? " ✕" : call.ended === null ? noEnd(picture) : call.backgrounded !== null ? " · in the background" : call.adopted_from ? " · adopted" : call.died.length ? " · ran again" : "";
    took(track, call.started, end, seconds(end - call.started) + extra, call.error ? "bad" : "", from);
  };

  const redraw = () => {
    labels = axis.firstChild.offsetWidth;
    width = Math.max(list.node.clientWidth - labels, 50);
    ticks.style.flex = `0 0 ${width}px`;
    const span = state.view.end - state.view.start;
    const step = [1, 2, 5].flatMap((digit) => [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5].map((power) => digit * 10 ** power)).sort((a, b) => a - b).find((one) => (one / span) * width >= 84) ?? span;
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    grid = [];
    for (let number = Math.ceil(state.view.start / step - 1e-9); number * step <= state.view.end + step * 1e-6; number++) grid.push(number * step);
    const seen = new Set(); // of many at one place, one can be seen
    marks = picture.marks.filter((mark) => { const at = Math.round(x(mark.at)); return mark.kind !== "note" && at >= 0 && at <= width && !seen.has(at) && seen.add(at); });
    ticks.replaceChildren(...grid.map((time) => {
      const node = make("span", { class: x(time) < 20 ? "tick first" : x(time) > width - 24 ? "tick last" : "tick" }, `${time.toFixed(places)}${time === 0 ? " s" : ""}`);
      node.style.left = `${x(time)}px`;
      return node;
    }));
    if (span < total * 0.999) {
      const range = make("div", { class: "range" });
      range.style.left = `${(state.view.start / total) * 100}%`;
      range.style.width = `${Math.max((span / total) * 100, 0.5)}%`;
      ticks.append(range);
    }
    const apart = x(step) - x(0); // the lines of the grid are one background: an element for each would cost half of a frame
    list.rows.style.backgroundSize = `${apart}px 100%`;
    list.rows.style.backgroundPosition = `${x(0) % apart}px 0`;
    list.rows.style.borderLeftWidth = `${labels}px`;
    for (const [row, node] of list.drawn) if (lanes[row]) trackOf(lanes[row], node.lastChild);
    list.later();
  };
  let asked = false;
  const soon = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; redraw(); }); } };
  const look = (start, span) => {
    const held = Math.min(Math.max(span, Math.min(total, 1e-4)), total * 1.02);
    const from = Math.min(Math.max(start, 0), Math.max(total * 1.02 - held, 0));
    state.view = { start: from, end: from + held };
    soon();
  };
  const zoom = (factor, at = 0.5) => {
    const span = state.view.end - state.view.start, held = state.view.start + span * at;
    look(held - span * factor * at, span * factor);
  };
  const pan = (share) => { const span = state.view.end - state.view.start; look(state.view.start + span * share, span); };
  const whole = () => look(0, total * 1.02);
  const fit = () => { // the picked lane
    const lane = lanes[list.picked];
    if (!lane) return;
    const start = lane.call ? lane.call.opened ?? lane.call.started ?? 0 : lane.turn.asked;
    const end = (lane.call ? lane.call.ended : lane.turn.finished ?? lane.turn.ended) ?? total;
    look(start - (end - start) * 0.1, Math.max((end - start) * 1.3, 1e-3));
  };

  const shareOf = (event) => Math.min(Math.max((event.clientX - list.node.getBoundingClientRect().left - labels) / width, 0), 1);
  const wheel = (event) => {
    const overAxis = axis.contains(event.target);
    const still = list.node.scrollHeight <= list.node.clientHeight + 1;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) pan(((event.deltaX || event.deltaY) / width) * 0.8);
    else if (overAxis || still || event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), shareOf(event));
    else return;
    event.preventDefault();
  };
  list.node.addEventListener("wheel", wheel, { passive: false });
  axis.addEventListener("wheel", wheel, { passive: false });
  const drag = (event) => {
    if (event.button !== 0 || event.clientX < list.node.getBoundingClientRect().left + labels) return;
    const from = event.clientX, view = { ...state.view };
    const move = (next) => {
      if (Math.abs(next.clientX - from) < 4 && !list.node.classList.contains("dragged")) return;
      list.node.classList.add("dragged");
      look(view.start - ((next.clientX - from) / width) * (view.end - view.start), view.end - view.start);
    };
    const stop = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", stop);
      setTimeout(() => list.node.classList.remove("dragged")); // the click that ends it picks nothing
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop);
  };
  list.node.addEventListener("pointerdown", drag);
  axis.addEventListener("pointerdown", drag);
  const point = (event) => {
    const at = event.clientX - list.node.getBoundingClientRect().left - labels;
    cross.hidden = at < 0 || at > width || event.type === "pointerleave";
    hover?.remove();
    if (cross.hidden) return;
    cross.style.left = `${labels + at}px`;
    hover = make("span", { class: "now" }, moment(state.view.start + (at / width) * (state.view.end - state.view.start)));
    hover.style.left = `${Math.min(Math.max(at, 28), width - 28)}px`;
    ticks.append(hover);
  };
  list.node.addEventListener("pointermove", point);
  list.node.addEventListener("pointerleave", point);

  const open = ({ turn, call }) => (call ? detailOfCall(turn, call, (id) => {
    const row = lanes.findIndex((lane) => lane.call && lane.call.id === id);
    if (row >= 0) { list.pick(row); open(lanes[row]); }
  }) : detailOfTurn(turn));
  const filter = () => {
    const wanted = state.filter.toLowerCase();
    const found = new Set(all.filter(({ call, inner }) => call && `${inner ? `${inner.name} ${inner.agent} ` : ""}${call.name} ${call.id} ${WORDS[call.state]} ${call.state} ${call.early ? "early" : ""} ${call.edited ? "edited" : ""} ${call.arguments?.text.slice(0, 2000) ?? ""} ${call.result?.text.slice(0, 2000) ?? ""}`.toLowerCase().includes(wanted)));
    const turns = new Set([...found].map((lane) => lane.place));
    lanes = wanted ? all.filter((lane) => (lane.call ? found.has(lane) : turns.has(lane.place))) : all;
    list.set(lanes.length);
    if (wanted) hear(many(found.size, "call"));
  };
  const entry = (kind, text) => make("span", {}, make("i", { "aria-hidden": "true" }, make("b", { class: kind })), text);
  const has = (test) => all.some(({ call, inner }) => call && !inner && test(call));
  const legendOf = () => [
    entry("bar text", "text"),
    picture.turns.some((turn) => turn.attempts.some((one) => one.pieces.some((piece) => piece.kind === "reasoning"))) ? entry("bar reasoning", "reasoning") : null,
    entry("bar writing", "the call is being written"), entry("bar waiting", "waits"), has((call) => call.early) ? entry("bar early", "runs, started early") : null, has((call) => call.started !== null && !call.early) ? entry("bar running", "runs") : null,
    has((call) => call.inner.length) ? entry("bar inner", "a call of an inner agent") : null,
    has((call) => call.error) ? entry("bar failed", "failed") : null,
    has((call) => call.state === "shared") ? entry("bar shared", "shares a result") : null,
    has((call) => call.state === "dropped" || call.died.length) ? entry("bar gone", "lost") : null,
    picture.turns.some((turn) => turn.attempts.some((one) => one.broken)) ? entry("rule break", picture.turns.some((turn) => turn.attempts.some((one) => one.broken && one.first !== null)) ? "the answer broke off" : "there was no answer") : null,
    ...picture.marks.filter((mark) => mark.kind !== "note").slice(0, 3).map((mark) => entry("rule mark", `${moment(mark.at)}: ${spaced(mark.text)}`))].filter(Boolean);
  const legend = make("div", { class: "legend", role: "group", "aria-label": "Legend" }, ...legendOf());
  place(axis, list.node, legend);
  list.node.append(cross);
  const watch = new ResizeObserver(soon);
  watch.observe(list.node);
  list.node.addEventListener("keydown", (event) => { if (event.key === "f" && !event.ctrlKey && !event.metaKey) fit(); });
  const update = () => { // the run has grown: what is chosen stays, and so does a part that was zoomed to
    const whole = state.view.start === 0 && state.view.end >= total * 0.999, last = list.node.scrollTop + list.node.clientHeight >= list.node.scrollHeight - 40;
    picture = state.picture;
    total = Math.max(picture.seconds, 0.001);
    all = lanesOf(picture);
    if (whole) state.view = { start: 0, end: total * 1.02 };
    legend.replaceChildren(...legendOf());
    filter();
    if (whole && last) list.node.scrollTop = list.node.scrollHeight;
    redraw();
    if (!byId("detail").hidden && lanes[list.picked]) open(lanes[list.picked]);
  };
  const go = (turn, call) => {
    const row = lanes.findIndex((lane) => lane.turn.number === turn.number && (call ? lane.call && lane.call.index === call.index && lane.call.id === call.id : !lane.call));
    if (row >= 0) { list.pick(row); open(lanes[row]); }
  };
  show = { list, filter, update, go, end: () => { list.end(); watch.disconnect(); }, keys: { "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: whole, ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15) } };
  if (state.view.end >= total * 0.999 && state.view.start === 0) state.view = { start: 0, end: total * 1.02 };
  redraw();
  filter();
  list.picked = Math.min(0, lanes.length - 1);
  list.node.focus();
};
const goToLane = (turn, call) => { if (state.tab !== "waterfall" || !show?.go) tab("waterfall"); show?.go?.(turn, call); };
/* The lane of a call, by the id that it has in a message. */
const goToCall = (id) => {
  for (const turn of [...state.picture.turns].reverse()) {
    const call = turn.calls.find((one) => one.id === id && one.state !== "withdrawn" && one.state !== "dropped");
    if (call) { goToLane(turn, call); return true; }
  }
  return false;
};
const titleOf = (turn) => (turn.round ? `Round ${turn.round}` : turn.failed ? "No answer" : turn.ended === null ? "No end" : turn.final ? "Last answer" : "Answer");
const turnInShort = (turn) => [turn.calls.length ? many(turn.calls.filter((call) => call.state !== "withdrawn").length, "call") : "", turn.output_tokens ? many(turn.output_tokens, "token") : ""].filter(Boolean).join(" · ") || (turn.said ? turn.said.text.slice(0, 200) : "");
