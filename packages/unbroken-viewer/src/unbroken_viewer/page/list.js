// A long list of which only what can be seen is there

class List {
  constructor(height, className, label, draw, activate, pick = () => {}) {
    Object.assign(this, { height, draw, activate, onPick: pick, count: 0, picked: -1, drawn: new Map(), asked: false });
    this.rows = make("div", { class: "rows" });
    this.node = make("div", { class: `list ${className}`, tabindex: "0", role: "listbox", "aria-label": label }, this.rows);
    this.node.addEventListener("scroll", () => this.later(), { passive: true });
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.node.addEventListener("click", (event) => {
      const row = event.target.closest("[data-row]");
      if (row && !this.node.classList.contains("dragged")) { this.pick(Number(row.dataset.row)); this.activate(this.picked); }
    });
    this.watch = new ResizeObserver(() => { if (!byId("detail").hidden) this.reveal(); this.again(); });
    this.watch.observe(this.node);
  }
  set(count) {
    this.count = count;
    this.picked = Math.min(this.picked, count - 1);
    this.rows.style.height = `${count * this.height}px`;
    if (this.picked < 0) this.node.removeAttribute("aria-activedescendant");
    this.again();
  }
  again() { this.stale = true; this.later(); }
  later() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.paint(); });
  }
  paint() {
    const spare = 6, top = this.node.scrollTop;
    const first = Math.max(0, Math.floor(top / this.height) - spare);
    const last = Math.min(this.count, Math.ceil((top + this.node.clientHeight) / this.height) + spare);
    for (const [row, node] of this.drawn) {
      if (this.stale || row < first || row >= last) { node.remove(); this.drawn.delete(row); }
    }
    this.stale = false;
    const fresh = document.createDocumentFragment();
    for (let row = first; row < last; row++) {
      if (this.drawn.has(row)) continue;
      const node = this.draw(row);
      node.style.top = `${row * this.height}px`;
      node.style.height = `${this.height}px`;
      node.dataset.row = row;
      node.id = `row-${row}`;
      node.setAttribute("role", "option");
      node.setAttribute("aria-setsize", this.count);
      node.setAttribute("aria-posinset", row + 1);
      this.mark(node, row === this.picked);
      this.drawn.set(row, node);
      fresh.append(node);
    }
    this.rows.append(fresh);
  }
  mark(node, picked) {
    node.classList.toggle("picked", picked);
    node.setAttribute("aria-selected", picked);
  }
  pick(row) {
    if (!this.count) return;
    const before = this.drawn.get(this.picked);
    if (before) this.mark(before, false);
    this.picked = Math.max(0, Math.min(row, this.count - 1));
    this.reveal();
    this.paint();
    const now = this.drawn.get(this.picked);
    if (now) this.mark(now, true);
    this.node.setAttribute("aria-activedescendant", `row-${this.picked}`);
    this.onPick(this.picked);
  }
  reveal() {
    const top = this.picked * this.height, below = top + this.height - this.node.clientHeight;
    if (this.node.scrollTop > top) this.node.scrollTop = top;
    else if (this.node.scrollTop < below) this.node.scrollTop = below;
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.height) - 1);
    const to = { ArrowDown: this.picked + 1, ArrowUp: this.picked - 1, PageDown: this.picked + page, PageUp: this.picked - page, Home: 0, End: this.count - 1 }[event.key];
    if (to !== undefined) this.pick(to);
    else if (event.key === "Enter" && this.picked >= 0) this.activate(this.picked);
    else return;
    event.preventDefault();
  }
  end() { this.watch.disconnect(); }
}
