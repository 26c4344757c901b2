/* Small things, and the words of the page in two languages. What a model, a course or a server wrote stays as it is. */

const find = (id) => document.getElementById(id);

function make(tag, name, ...inner) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...inner);
  return node;
}

function button(name, words, act) {
  const node = make("button", name, words);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

/* Where there is room for one line only, characters that cannot be seen or turn the writing direction are named. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|\p{Surrogate}/gu;
const visible = (text) => String(text).replace(UNSEEN, (letter) => `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

function safeLink(address) {
  try {
    const url = new URL(address);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : "";
  } catch {
    return "";
  }
}

function link(address, ...inner) {
  const href = safeLink(address);
  return href ? outside(href, ...inner) : make("span", "", ...inner);
}

function outside(href, ...inner) {
  const node = make("a", "", ...inner);
  node.href = href;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return node;
}

/* Pages of lessons are on this server: nothing but a number is taken from an event. */
const lessonPage = (source) => `/lessons/${Number(source.number)}`;

const store = {
  get(name, otherwise = null) {
    try {
      return JSON.parse(localStorage.getItem(`course-assistant.${name}`)) ?? otherwise;
    } catch {
      return otherwise; // storage is off, or has something else in it
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`course-assistant.${name}`, JSON.stringify(value));
    } catch {
      /* without storage it is forgotten with the page */
    }
  },
};

const WORDS = {
  en: {
    name: "Course assistant", menu: "Menu", anew: "New chat", theme: "Light or dark", close: "Close", side: "Chats and courses",
    chats: "Chats", courses: "Courses", welcome: "What would you like to know?", examples: "Example questions", talk: "The chat",
    intro: "Ask about the courses, in English or in Chinese. You see each search as it happens, and where the answer comes from.",
    form: "Your question", placeholder: "Ask about the courses…", send: "Ask", stop: "Stop",
    other: "中文", otherTitle: "用中文显示",
    keys: ["`Enter` asks", "`Shift` `Enter` new line", "`↑` the last question", "`Esc` stops", "`/` to the question", "`n` new chat"],
    model: (name) => `Model: ${name}`, steps: "Rounds and calls", round: (number) => `Round ${number}`,
    begins: "beginning…", waits: "waiting for the model…", reads: "the model reads the results…", last: "final request: no more tool calls",
    answers: "the model is answering…", thinks: "the model is thinking…", reasoning: "Reasoning", retried: (why) => `retried: ${why}`,
    used: (count) => (count === 1 ? "1 round used: the model has to answer" : `${count} rounds used: the model has to answer`),
    runs: "runs", dropped: "dropped", notRun: "not run", cut: "cut off", halted: "stopped", nothing: "(nothing)",
    given: "Arguments", result: "Result", sources: "Sources", found: "Found, but not cited", source: (number, title) => `Source ${number}: ${title}`,
    again: "Ask again", copy: "Copy", copied: "Copied", regenerate: "Answer again", stopped: "Stopped.", answer: (text) => `Answer: ${text}`,
    rounds: (n) => (n === 1 ? "1 round" : `${n} rounds`), calls: (n) => (n === 1 ? "1 call" : `${n} calls`),
    requests: (n) => (n === 1 ? "1 request" : `${n} requests`), tokens: (n, about) => `${about ? "about " : ""}${n.toLocaleString("en")} tokens`,
    stops: { round_limit: "all rounds used", tool_failure: "a tool failed", loop: "the same call repeated" },
    lost: "The connection to the server was lost. Is it still running?", reconnects: "the connection was lost: connecting again…",
    forgotten: "The server has forgotten this chat. Ask again to start a new one, without the earlier questions.",
    gone: "That chat does not exist any more: it was deleted, or there were too many. This is a new one.",
    refused: (status) => `The server answered ${status}.`, unlisted: (why) => `The courses could not be listed. ${why}`,
    forget: (title) => `Delete the chat “${title}”`, back: "To the chat", whole: "the course", lesson: (number) => `Lesson ${number}`,
    file: "File", original: "Published at", lessons: "Lessons", previous: "Previous", next: "Next", noLesson: "This lesson does not exist.", search: "About the search",
  },
  zh: {
    name: "课程助手", menu: "菜单", anew: "新对话", theme: "浅色或深色", close: "关闭", side: "对话与课程",
    chats: "对话", courses: "课程", welcome: "想了解什么？", examples: "示例问题", talk: "对话内容",
    intro: "用中文或英文提问有关课程的问题。每次搜索都会实时显示，并注明答案的出处。",
    form: "您的问题", placeholder: "提一个有关课程的问题…", send: "提问", stop: "停止",
    other: "English", otherTitle: "Show in English",
    keys: ["`Enter` 提问", "`Shift` `Enter` 换行", "`↑` 上一个问题", "`Esc` 停止", "`/` 转到输入框", "`n` 新对话"],
    model: (name) => `模型：${name}`, steps: "轮次与调用", round: (number) => `第 ${number} 轮`,
    begins: "开始…", waits: "等待模型…", reads: "模型正在阅读结果…", last: "最后一次请求：不再调用工具",
    answers: "模型正在回答…", thinks: "模型正在思考…", reasoning: "推理过程", retried: (why) => `已重试：${why}`,
    used: (count) => `已用完 ${count} 轮：模型必须作答`,
    runs: "运行中", dropped: "已放弃", notRun: "未执行", cut: "已截断", halted: "已停止", nothing: "（无）",
    given: "参数", result: "结果", sources: "来源", found: "已找到但未引用", source: (number, title) => `来源 ${number}：${title}`,
    again: "再问一次", copy: "复制", copied: "已复制", regenerate: "重新回答", stopped: "已停止。", answer: (text) => `回答：${text}`,
    rounds: (n) => `${n} 轮`, calls: (n) => `${n} 次调用`, requests: (n) => `${n} 次请求`,
    tokens: (n, about) => `${about ? "约 " : ""}${n.toLocaleString("zh-CN")} 个令牌`,
    stops: { round_limit: "已用完所有轮次", tool_failure: "有工具失败", loop: "重复同一调用" },
    lost: "与服务器的连接已断开。服务器还在运行吗？", reconnects: "连接已断开，正在重新连接…",
    forgotten: "服务器已经忘记这段对话。再问一次会开始新的对话，不含之前的问题。",
    gone: "那段对话已不存在：它被删除了，或者对话太多。这是一段新的对话。",
    refused: (status) => `服务器返回了 ${status}。`, unlisted: (why) => `无法列出课程。${why}`,
    forget: (title) => `删除对话“${title}”`, back: "回到对话", whole: "课程简介", lesson: (number) => `第 ${number} 课`,
    file: "文件", original: "发布于", lessons: "各课", previous: "上一课", next: "下一课", noLesson: "没有这一课。", search: "关于搜索",
  },
};

/* As the browser prefers, until somebody chooses. */
let language = store.get("language") === "zh" || store.get("language") === "en" ? store.get("language")
  : (navigator.languages ?? [navigator.language]).find((name) => /^(zh|en)\b/i.test(name))?.slice(0, 2).toLowerCase() ?? "en";
let words = WORDS[language];

function label() {
  words = WORDS[language];
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-words]")) node.textContent = words[node.dataset.words];
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", words[node.dataset.label]);
  for (const node of document.querySelectorAll("[data-title]")) node.title = words[node.dataset.title];
  for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = words[node.dataset.placeholder];
  const other = find("language");
  [other.textContent, other.title, other.lang] = [words.other, words.otherTitle, language === "zh" ? "en" : "zh-CN"];
  find("keys").replaceChildren(...words.keys.flatMap((key, at) => [at ? " · " : "", ...key.split("`").map((part, place) => (place % 2 ? make("kbd", "", part) : part))]));
  document.title = words.name;
}

const span = (seconds) => (seconds < 0.0995 ? `${Math.max(1, Math.round(seconds * 1000))}\u00a0ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)}\u00a0s`);
const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
