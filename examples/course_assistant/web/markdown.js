/* Markdown of the simple kind, as elements: text of a model or a course only ever becomes text nodes. Citations such as [7]
   become links, if `citations` knows the number. */

const INLINE = /(`{1,2})([^\n]{1,400}?)\1|\*\*([^\n]{1,400}?)\*\*|\*([^\s*][^*\n]{0,300})\*|\[([^\]\n]{1,200})\]\(([^\s()]{1,500})\)|[[【](\d{1,6}(?:\s*[,，、]\s*\d{1,6}){0,9})[\]】]|(https?:\/\/[^\s<>()"'`*]{1,500}[^\s<>()"'`*.,;:!?，。；：！？])/g;

let citations = null;

function inline(text, parent) {
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, , code, bold, slanted, label, target, cited, address] = found;
    parent.append(text.slice(end, found.index));
    end = found.index + whole.length;
    if (code !== undefined) parent.append(make("code", "", code.trim() || code));
    else if (bold !== undefined) parent.append(inline(bold, make("strong")));
    else if (slanted !== undefined) parent.append(inline(slanted, make("em")));
    else if (label !== undefined) parent.append(inline(label, safeLink(target) ? link(target) : make("span")));
    else if (cited !== undefined) parent.append(...(citations?.links(cited) ?? [whole]));
    else parent.append(link(address, address));
  }
  parent.append(text.slice(end));
  return parent;
}

const ITEM = /^ {0,3}(?:[-*+•]|(\d{1,4})[.)])\s+(.*)$/;
const RULER = /^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$/;
const FENCE = /^\s{0,3}(```|~~~)/;
const OTHER = /^(?:\s{0,3}(?:```|~~~)|#{1,6}\s|>\s?|\s*$)/;

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function markdown(text, parent, depth = 0) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  let at = 0;
  const take = (goes) => {
    const from = at;
    while (at < lines.length && goes(lines[at], at)) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (!line.trim()) at += 1;
    else if ((found = FENCE.exec(line))) {
      at += 1;
      const body = take((next) => !next.trim().startsWith(found[1]));
      at += 1;
      parent.append(scrolls(make("pre", "", make("code", "", body.join("\n")))));
    } else if ((found = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line))) {
      at += 1;
      parent.append(inline(found[2], make(found[1].length < 3 ? "h3" : "h4")));
    } else if (/^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/.test(line)) {
      at += 1;
      parent.append(make("hr"));
    } else if (line.startsWith(">") && depth < 4) {
      const body = take((next) => next.startsWith(">")).map((next) => next.replace(/^>\s?/, ""));
      parent.append(markdown(body.join("\n"), make("blockquote"), depth + 1));
    } else if (line.includes("|") && RULER.test(lines[at + 1] ?? "")) {
      parent.append(table(take((next) => next.includes("|"))));
    } else if (ITEM.test(line) && depth < 4) {
      parent.append(list(lines, () => at, (to) => { at = to; }, depth));
    } else {
      const first = at;
      const body = take((next, place) => place === first || !(OTHER.test(next) || ITEM.test(next)));
      parent.append(inline(body.join("\n"), make("p")));
    }
  }
  return parent;
}

/* What may scroll can be reached by keyboard. */
function scrolls(node) {
  node.tabIndex = 0;
  return node;
}

function table([head, , ...rows]) {
  const row = (tag, line) => make("tr", "", ...cells(line).map((cell) => inline(cell, make(tag))));
  return scrolls(make("div", "grid", make("table", "", make("thead", "", row("th", head)), make("tbody", "", ...rows.map((line) => row("td", line))))));
}

function list(lines, place, move, depth) {
  let at = place();
  const number = ITEM.exec(lines[at])[1];
  const node = make(number === undefined ? "ul" : "ol");
  if (number !== undefined) node.start = Number(number);
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || (found[1] === undefined) !== (number === undefined)) break;
    const item = inline(found[2], make("li"));
    const inner = [];
    at += 1;
    while (at < lines.length && (/^\s{2,}\S/.test(lines[at]) || (!lines[at].trim() && /^\s{2,}\S/.test(lines[at + 1] ?? "")))) {
      inner.push(lines[at].replace(/^\s{2,4}/, ""));
      at += 1;
    }
    if (inner.length) markdown(inner.join("\n"), item, depth + 1);
    if (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
    node.append(item);
  }
  move(at);
  return node;
}

/* A text that is still being written: what is bold or code so far is drawn so, not with the marks that wait for their end. */
function halfway(text) {
  const line = text.slice(text.lastIndexOf("\n") + 1);
  for (const mark of ["**", "`"]) {
    if (line.split(mark).length % 2) continue;
    return text.endsWith(mark) ? text.slice(0, -mark.length) : text.trimEnd() + mark;
  }
  return text;
}

