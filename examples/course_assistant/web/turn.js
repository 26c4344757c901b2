/* One question and its answer. */

const LONG = 100; // characters of arguments on one line

/* The citations of one answer: what may be cited, and how it is counted in the order of the text. */
class Citations {
  constructor(known) {
    this.known = known;
    this.order = [];
  }

  /* As `cite` in sources.py: all numbers are known, or it is no citation. */
  places(said) {
    const numbers = [...new Set(said.match(/\d+/g).map(Number))];
    if (!numbers.every((number) => this.known.has(number))) return null;
    for (const number of numbers) if (!this.order.includes(number)) this.order.push(number);
    return numbers.map((number) => [this.order.indexOf(number) + 1, this.known.get(number)]);
  }

  links(said) {
    return this.places(said)?.map(([place, source]) => {
      const node = outside(lessonPage(source), `[${place}]`);
      node.className = "cite";
      node.title = visible(source.title);
      node.setAttribute("aria-label", words.source(place, visible(source.title)));
      return node;
    });
  }

  plain(text) {
    return text.replace(/[[【](\d{1,6}(?:\s*[,，、]\s*\d{1,6}){0,9})[\]】]/g, (whole, said) => this.places(said)?.map(([place]) => `[${place}]`).join("") ?? whole);
  }
}

class Turn {
  constructor(question) {
    this.node = make("li", "turn");
    this.begin(question);
  }

  begin(question) {
    this.question = question;
    this.rounds = 0;
    this.open = null;
    this.rows = new Map();
    this.text = "";
    this.thought = null;
    this.drawing = 0;
    this.ended = false;
    this.status = make("li", "waiting", make("span", "wide event busy", words.begins));
    this.steps = make("ol", "steps", this.status);
    this.steps.setAttribute("aria-label", words.steps);
    this.prose = make("div", "prose");
    this.end = make("div", "answer");
    this.node.replaceChildren(make("h2", "question", question), make("div", "answer", this.steps, this.prose, this.end));
  }

  take(event) {
    const how = this[`on_${event.event}`];
    if (how) how.call(this, event);
  }

  on_run_started(event) {
    this.model = visible(event.model).slice(0, LONG);
    showModel(event.model);
  }

  on_request_sent(event) {
    this.open = null;
    this.text = "";
    this.thought = null;
    this.rows.clear();
    this.say(event.final ? words.last : this.rounds ? words.reads : words.waits);
  }

  on_reasoning_added(event) {
    this.think((this.thought?.text ?? "") + event.text);
  }

  on_reasoning_replaced(event) {
    this.think(event.text);
  }

  think(text) {
    if (!this.thought) {
      const body = make("p", "thought");
      const box = make("details", "reasoning", make("summary", "", words.reasoning), body);
      box.open = true;
      this.thought = { box, body, text: "", letters: document.createTextNode("") };
      body.append(this.thought.letters);
      this.status.before(make("li", "", box));
    }
    this.thought.text = text;
    this.thought.letters.data = text;
    this.say(words.thinks);
  }

  /* Reasoning is folded when what it was for begins. */
  fold() {
    if (this.thought && !this.thought.folded) this.thought.box.open = false;
    if (this.thought) this.thought.folded = true;
  }

  on_text_added(event) {
    this.fold();
    this.text += event.text;
    this.say(words.answers);
    this.draw();
  }

  on_text_replaced(event) {
    this.text = event.text;
    this.draw();
  }

  /* Text next to calls is a thought, not the answer. */
  on_text_finished(event) {
    if (event.final || !event.text.trim()) return;
    this.round().prepend(make("p", "thought", event.text.trim()));
    this.text = "";
    this.draw();
  }

  on_request_retried(event) {
    this.line(words.retried(visible(event.reason)));
  }

  on_limit_reached(event) {
    if (event.kind === "round_limit") this.line(words.used(event.limit));
  }

  on_call_written(event) {
    this.fold();
    this.rows.set(event.call, this.call(event.name, event.arguments));
  }

  on_call_started(event) {
    if (!this.rows.has(event.call)) this.on_call_written(event);
    this.say("");
  }

  on_call_adopted(event) {
    const own = this.rows.get(event.call);
    const before = this.rows.get(event.adopted);
    if (!before || own === before) return;
    own?.remove();
    this.rows.set(event.call, before);
  }

  on_call_dropped(event) {
    const row = this.rows.get(event.call);
    if (!row) return;
    row.classList.remove("failed");
    row.classList.add("dropped");
    row.querySelector(".time").textContent = words.dropped;
  }

  on_call_finished(event) {
    const row = this.rows.get(event.call) ?? this.call(event.name, {});
    const time = row.querySelector(".time");
    row.classList.remove("running");
    row.classList.toggle("failed", event.error);
    time.classList.remove("busy");
    time.textContent = event.outcome === "not_executed" ? words.notRun : `${span(event.seconds)}${event.error ? " ✕" : ""}`;
    row.querySelector(".result")?.remove();
    row.append(make("div", "result", make("h3", "", words.result), scrolls(make("pre", "", event.text || words.nothing))));
    for (const source of event.sources ?? []) chat.known.set(source.number, source);
  }

  on_answered(event) {
    this.text = event.text;
    this.close();
    for (const source of [...event.sources, ...event.found]) chat.known.set(source.number, source);
    const cited = this.citations();
    cited.plain(event.text);
    if (cited.order.length) this.list("sources", words.sources, cited.order.map((number) => chat.known.get(number)), true);
    else if (event.found.length) this.list("sources unused", words.found, event.found, false);
    const { usage } = event;
    const facts = [...(this.model ? [this.model] : []), words.rounds(event.rounds), words.calls(event.calls), words.requests(event.requests),
      words.tokens(usage.input_tokens + usage.output_tokens, usage.estimated), ...(typeof event.cost === "number" ? [`$${event.cost.toFixed(4)}`] : []), span(event.seconds)];
    const stop = words.stops[event.stop_reason] ?? (event.stop_reason === "answered" ? "" : event.stop_reason);
    this.end.append(make("p", "facts", [...facts, ...(stop ? [stop] : [])].join(" · ")));
    this.actions(true);
  }

  list(name, title, sources, counted) {
    const items = sources.map((source, at) => {
      const node = outside(lessonPage(source), ...(counted ? [make("b", "", `${at + 1}`), " "] : []), visible(source.title));
      node.title = visible(source.file);
      return make("li", "", node);
    });
    const box = make("section", name, make("h3", "", title), make("ul", "", ...items));
    box.setAttribute("aria-label", title);
    this.end.append(box);
  }

  on_failed(event) {
    this.close();
    const again = button("again", words.again, () => repeat(this));
    this.end.append(make("div", "failure", make("p", "", event.message), again));
    this.end.lastChild.setAttribute("role", "alert");
  }

  on_stopped() {
    this.close();
    this.end.append(make("p", "facts", words.stopped));
    this.actions(false);
  }

  actions(copies) {
    const copy = button("bare copy", words.copy, () => copyText(this.plain()).then(() => {
      copy.textContent = words.copied;
      setTimeout(() => { copy.textContent = words.copy; }, 2000);
    }));
    const again = button("bare regenerate", words.regenerate, () => repeat(this));
    this.end.append(make("p", "actions", ...(copies ? [copy] : []), again));
  }

  /* The answer as Markdown, with its sources. */
  plain() {
    const cited = this.citations();
    const text = cited.plain(this.text);
    const listed = cited.order.map((number, at) => `[${at + 1}] ${visible(chat.known.get(number).title)}`);
    return listed.length ? `${text}\n\n${listed.join("\n")}` : text;
  }

  citations() {
    return new Citations(chat.known);
  }

  close() {
    this.ended = true;
    this.fold();
    this.draw();
    this.status.remove();
    for (const time of this.steps.querySelectorAll(".busy")) {
      time.classList.remove("busy");
      time.textContent = words.halted;
    }
  }

  round() {
    if (!this.open) {
      this.rounds += 1;
      this.open = make("div", "calls");
      this.status.before(make("li", "round", make("span", "label", words.round(this.rounds)), this.open));
    }
    return this.open;
  }

  call(name, given) {
    const shown = Object.entries(given ?? {}).filter(([, value]) => value !== null).map(([key, value]) => `${key}: ${JSON.stringify(value)}`);
    const all = visible(shown.join(", "));
    const short = all.length > LONG ? `${all.slice(0, LONG)}…` : all;
    const said = make("span", "said", make("code", "", visible(name).slice(0, LONG)), make("span", "arguments", given ? `(${short})` : ` (${words.cut})`));
    const row = make("details", "call running", make("summary", "", said, make("span", "time busy", words.runs)));
    if (all.length > LONG) row.append(make("div", "given", make("h3", "", words.given), scrolls(make("pre", "", visible(JSON.stringify(given, null, 1))))));
    this.round().append(row);
    return row;
  }

  line(text) {
    this.status.before(make("li", "", make("span", "wide event", text)));
  }

  say(text) {
    this.status.firstChild.textContent = text;
    this.status.hidden = !text;
  }

  /* A text that takes long to draw is drawn less often. */
  draw() {
    if (this.ended) return this.paint();
    this.drawing ||= setTimeout(() => requestAnimationFrame(() => {
      this.drawing = 0;
      this.paint();
    }), this.cost > 30 ? 4 * this.cost : 0);
  }

  paint() {
    const began = performance.now();
    const text = this.ended ? this.text : halfway(this.text);
    follow(() => {
      citations = this.citations();
      this.prose.replaceChildren(...markdown(text, make("div")).childNodes);
      citations = null;
    });
    this.cost = performance.now() - began;
  }
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not allowed, as in a frame
    const field = make("textarea", "unseen", text);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}
