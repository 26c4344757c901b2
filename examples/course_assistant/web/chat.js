/* The chat: one session of the server, named in the address, one question at a time. The server keeps its events, so after a
   reload, a lost connection or a restart of the server they continue where this page was. */

const chat = { session: null, last: 0, turns: new Map(), fresh: null, going: null, stopping: false, known: new Map() };

const inAddress = () => new URLSearchParams(location.hash.slice(1)).get("chat");
const path = (id, what = "") => `/api/sessions/${encodeURIComponent(id)}${what}`;
const lessonShown = /^\/lessons\/(\d{1,9})$/.exec(location.pathname)?.[1];

function ask(question) {
  question = question.trim();
  if (!question || chat.going) return;
  chat.fresh = new Turn(question);
  add(chat.fresh);
  listen((signal) => post(chat.session ? { question, session_id: chat.session } : { question }, signal));
}

/* The last question again, in place of its answer. */
function repeat(turn) {
  if (chat.going) return;
  if (!chat.session || !chat.turns.size || [...chat.turns.values()].at(-1) !== turn) return ask(turn.question);
  chat.fresh = turn;
  listen((signal) => post({ session_id: chat.session, again: true }, signal));
}

const post = (body, signal) => fetch("/api/ask", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
const rest = (signal) => fetch(`${path(chat.session, "/events")}?after=${chat.last}`, { signal });

function add(turn) {
  find("welcome").hidden = true;
  find("talk").hidden = false;
  find("talk").append(turn.node);
  turn.node.scrollIntoView({ block: "end" });
}

/* Reads events until the answer has ended. If the connection is lost, it continues after the last event. */
async function listen(start) {
  const going = (chat.going = new AbortController());
  busy(true);
  let open = start;
  for (let tries = 0; ; tries += 1) {
    try {
      const response = await open(going.signal);
      if (response.status === 404 && chat.session) throw forgotten();
      if (!response.ok) throw await refusal(response);
      for await (const event of eventsOf(response)) {
        tries = 0;
        take(event);
      }
      if (response.status === 204 || latest()?.ended !== false) break;
    } catch (error) {
      if (going.signal.aborted) return;
      if (error.explanation || !chat.session || tries > 4) {
        const turn = latest();
        if (turn && !turn.ended) follow(() => turn.on_failed({ message: error.explanation ?? words.lost }));
        break;
      }
    }
    latest()?.say(words.reconnects);
    await later(Math.min(4000, 250 * 2 ** tries));
    if (going.signal.aborted) return;
    open = rest;
  }
  if (chat.going !== going) return;
  if (chat.fresh && !chat.fresh.ended) follow(() => chat.fresh.on_failed({ message: words.lost })); // the server never got it
  chat.going = null;
  chat.fresh = null;
  chat.stopping = false;
  busy(false);
  const turn = latest();
  find("status").textContent = turn?.ended ? words.answer(turn.plain()) : "";
}

const latest = () => chat.fresh ?? [...chat.turns.values()].at(-1);

function take(event) {
  if (event.event === "session") {
    if (chat.session !== event.id) enter(event.id);
    if (chat.stopping) fetch(path(chat.session, "/stop"), { method: "POST" }).catch(() => {});
    return;
  }
  if (event.event === "asked") {
    const known = chat.turns.get(event.number) ?? (chat.fresh && ![...chat.turns.values()].includes(chat.fresh) ? chat.fresh : null);
    const turn = known ?? new Turn(event.question);
    known ? known.begin(event.question) : add(turn);
    chat.turns.set(event.number, turn);
    chat.fresh = turn;
    remember(event.question);
  } else if (chat.fresh) follow(() => chat.fresh.take(event));
}

async function* eventsOf(response) {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (left + value).split("\n\n");
    left = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const data = lines.find((line) => line.startsWith("data: "));
      if (!data) continue;
      yield JSON.parse(data.slice(6));
      const id = lines.find((line) => line.startsWith("id: "));
      if (id) chat.last = Number(id.slice(4));
    }
  }
}

function forgotten() {
  unlist(chat.session);
  Object.assign(chat, { session: null, last: 0, turns: new Map() }); // what is on the page stays there
  return Object.assign(new Error("forgotten"), { explanation: words.forgotten });
}

async function refusal(response) {
  const error = new Error("refused");
  try {
    error.explanation = (await response.json()).error;
  } catch {
    error.explanation = words.refused(response.status);
  }
  return error;
}

function stop() {
  if (!chat.going) return;
  chat.stopping = true;
  if (chat.session) fetch(path(chat.session, "/stop"), { method: "POST" }).catch(() => {});
}

function busy(is) {
  const send = find("send");
  send.textContent = is ? words.stop : words.send;
  send.classList.toggle("stop", is);
  send.type = is ? "button" : "submit";
  find("chat").setAttribute("aria-busy", String(is));
  find("talk").classList.toggle("going", is);
}

function showModel(name) {
  const node = find("model");
  node.hidden = !name;
  node.textContent = visible(name ?? "");
  node.title = words.model(visible(name ?? ""));
}

/* Chats: the list is kept in this browser only. Without its id nobody can read a chat. */

const chats = () => store.get("chats", []).filter((one) => one && typeof one.id === "string" && typeof one.title === "string");

function enter(id) {
  chat.session = id;
  history.replaceState(null, "", `#chat=${id}`);
}

function remember(question) {
  if (chats().some((one) => one.id === chat.session)) return;
  store.set("chats", [{ id: chat.session, title: question.slice(0, 200) }, ...chats()].slice(0, 50));
  listChats();
}

function unlist(id) {
  store.set("chats", chats().filter((one) => one.id !== id));
  listChats();
}

function listChats() {
  const known = chats();
  find("chats").hidden = !known.length;
  find("chats").querySelector("ul").replaceChildren(...known.map(({ id, title }) => {
    const open = make("a", "", visible(title));
    open.href = `/#chat=${encodeURIComponent(id)}`;
    if (id === chat.session) open.setAttribute("aria-current", "page");
    const gone = button("bare", "✕", () => {
      fetch(path(id), { method: "DELETE" }).catch(() => {});
      unlist(id);
      if (id === chat.session) anew();
    });
    gone.setAttribute("aria-label", words.forget(visible(title)));
    return make("li", "", open, gone);
  }));
}

function clear(id) {
  chat.going?.abort();
  Object.assign(chat, { session: id, last: 0, turns: new Map(), fresh: null, going: null, stopping: false, known: new Map() });
  find("talk").replaceChildren();
  find("talk").hidden = !id;
  find("welcome").hidden = Boolean(id) || Boolean(lessonShown);
  busy(false);
  show(false);
  listChats();
}

/* The chat that the address names, from its beginning. */
async function openChat() {
  const id = inAddress();
  clear(id);
  if (!id) return;
  await listen(rest);
  if (chat.session === null && !chat.turns.size) {
    history.replaceState(null, "", location.pathname);
    clear(null);
    note(words.gone);
  }
}

function anew() {
  if (lessonShown) return location.assign("/");
  if (location.hash) history.pushState(null, "", location.pathname);
  clear(null);
  find("question").focus();
}

/* The page of a lesson: its text, as it is in the file. */

async function showLesson(number) {
  const response = await fetch(`/api/lessons/${number}`);
  const node = find("lesson");
  for (const id of ["welcome", "talk", "form"]) find(id).hidden = true;
  node.hidden = false;
  if (!response.ok) return node.replaceChildren(make("h2", "", words.noLesson));
  const told = await response.json();
  document.title = `${visible(told.heading)} · ${words.name}`;
  const facts = [`${words.file}: ${visible(told.file)}`];
  const at = told.lessons.findIndex((lesson) => lesson.number === told.lesson);
  const near = [[words.previous, told.lessons[at - 1]], [words.next, told.lessons[at + 1]]].filter(([, lesson]) => lesson);
  const body = make("div", "prose");
  if (/\.(md|markdown):\d+$/i.test(told.file)) markdown(told.text, body);
  else body.append(...told.text.split(/\n\s*\n/).map((part) => make("p", "", part)));
  const listed = told.lessons.map((lesson) => make("li", "", inner(lesson.page, `${words.lesson(lesson.number)}: ${visible(lesson.title)}`)));
  node.replaceChildren(
    make("p", "soft", told.lesson === null ? "" : inner(told.page, visible(told.title)), told.lesson === null ? "" : ` · ${words.lesson(told.lesson)}`),
    make("h2", "", visible(told.heading)),
    body,
    ...(told.lesson === null ? [make("h3", "", words.lessons), make("ul", "lessons", ...listed)] : []),
    make("p", "facts", ...facts, ...(safeLink(told.link) ? [` · ${words.original} `, link(told.link, told.link)] : [])),
    make("p", "near", ...near.map(([way, lesson]) => inner(lesson.page, `${way}: ${visible(lesson.title)}`))),
  );
}

function inner(href, text) {
  const node = make("a", "", text);
  node.href = href;
  if (href === location.pathname) node.setAttribute("aria-current", "page");
  return node;
}

/* Does not scroll if the user has scrolled up. */
function follow(change) {
  const room = find("chat");
  const near = room.scrollHeight - room.scrollTop - room.clientHeight < 80;
  change();
  if (near) room.scrollTop = room.scrollHeight;
}

function show(is) {
  find("side").classList.toggle("shown", is);
  find("show").setAttribute("aria-expanded", String(is));
}

function grow() {
  const field = find("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

/* The next question can be typed at once; on a phone that would open the keyboard over the page. */
function write() {
  if (!matchMedia("(pointer: coarse)").matches) find("question").focus();
}

function send() {
  const field = find("question");
  const question = field.value;
  if (!question.trim() || chat.going) return;
  field.value = "";
  grow();
  ask(question);
}

function note(text) {
  find("note").firstChild.replaceChildren(inline(text, make("span")));
  find("note").hidden = false;
}

/* As the system, until somebody chooses. */
function useTheme(name) {
  if (name === "dark" || name === "light") document.documentElement.dataset.theme = name;
}

function turnTheme() {
  const chosen = document.documentElement.dataset.theme;
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  useTheme(dark ? "light" : "dark");
  store.set("theme", dark ? "light" : "dark");
}

let listed = null;

function aboutSearch() {
  const text = language === "zh" ? listed.note_zh : listed.note;
  find("search").lastChild.replaceChildren(inline(text, make("span")));
  find("search").lastChild.lang = language === "zh" ? "zh-CN" : "en";
  find("search").hidden = !text;
}

function listCourses() {
  aboutSearch();
  find("list").replaceChildren(...listed.courses.map((course) => {
    const lessons = course.lessons.map((lesson) => make("li", "", make("span", "soft", `${lesson.number}`), inner(lesson.page, visible(lesson.title))));
    const box = make("details", "", make("summary", "", visible(course.title)), make("p", "whole", inner(course.page, words.whole)), make("ol", "", ...lessons));
    box.open = [course.page, ...course.lessons.map((lesson) => lesson.page)].includes(location.pathname);
    return box;
  }));
  find("examples").replaceChildren(...listed.examples[language].map(({ question, shows }) => make("li", "", button("", question, () => {
    ask(question);
    write();
  }))));
  [...find("examples").querySelectorAll("button")].forEach((node, at) => {
    const { shows } = listed.examples[language][at];
    if (shows) node.append(make("small", "", shows));
  });
}

async function load() {
  const response = await fetch("/api/courses");
  if (!response.ok) throw await refusal(response);
  listed = await response.json();
  find("search").open = listed.attention;
  showModel(listed.model);
  listCourses();
}

function turnLanguage() {
  language = language === "zh" ? "en" : "zh";
  store.set("language", language);
  label();
  if (listed) listCourses();
  listChats();
  if (lessonShown) showLesson(lessonShown);
  else openChat();
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
find("send").addEventListener("click", (event) => {
  if (!chat.going) return;
  event.preventDefault();
  stop();
});
find("question").addEventListener("input", grow);
find("question").addEventListener("keydown", (event) => {
  if (event.isComposing) return; // Enter takes a word of an input method, say of Chinese
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !event.target.value && latest()) {
    event.preventDefault();
    event.target.value = latest().question;
    grow();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  const writes = event.target.matches("textarea, input");
  if (event.key === "Escape") {
    if (find("side").classList.contains("shown")) show(false);
    else stop();
  } else if (event.key === "/" && !writes) {
    event.preventDefault();
    find("question").focus();
  } else if (event.key === "n" && !writes) {
    event.preventDefault();
    anew();
  }
});
find("anew").addEventListener("click", anew);
find("show").addEventListener("click", () => show(!find("side").classList.contains("shown")));
find("note").querySelector("button").addEventListener("click", () => { find("note").hidden = true; });
find("theme").addEventListener("click", turnTheme);
find("language").addEventListener("click", turnLanguage);
for (const kind of ["hashchange", "popstate"]) addEventListener(kind, () => {
  if (!lessonShown && inAddress() !== chat.session) openChat();
});
addEventListener("storage", listChats);

useTheme(store.get("theme"));
label();
load().catch((error) => note(words.unlisted(error.explanation ?? words.lost)));
if (lessonShown) {
  clear(null);
  showLesson(lessonShown);
} else {
  openChat();
  write();
}
