/* The words of the page in two languages. What a model, a command or the server wrote stays as it is. */
const WORDS = {
  en: {
    title: "Wishes for a block world", other: "中文", otherTitle: "用中文显示", theme: "Light or dark", connecting: "connecting…", offline: "not connected",
    empty: "Say what you wish, in English or Chinese, or take an idea from below. It becomes commands, and the world changes as you watch.",
    talk: "Wishes and answers", ideas: "Ideas", placeholder: "What do you wish?", wish: "Your wish", send: "Wish", stop: "Stop",
    world: "The world", scene: "The world, seen from above", left: "Turn the view to the left", right: "Turn the view to the right",
    players: "Players", commands: "Commands", day: "day", night: "night", you: (name) => `${name} (you)`, at: (place) => `  at ${place}`, nothing: "has nothing yet",
    who: (name, model) => `you are ${name} · model: ${model}`, cut: " (cut)", progress: (what, done, all) => `${what}: ${done} of ${all}`,
    broken: (title) => `broken on purpose: ${title}; retried`, brokeOff: (kind) => `the answer broke off (${kind}); retried`,
    onPurpose: "What was broken on purpose", noticed: "What Unbroken noticed", did: "What it did",
    deed: (wait) => `It sent the same request again${wait}. Text that you have read is continued or replaced, never repeated. A command that was cut off did not run, and no command runs twice.`,
    after: (seconds) => ` after ${seconds} s`,
    survived: (breaks) => `answered after ${breaks} ${breaks === 1 ? "break" : "breaks"}; nothing was lost, nothing ran twice`, unharmed: "broken on purpose, and read without a retry",
    again: "broken on purpose; the request was sent again", noRetry: "broken on purpose; no retry was needed", what: "What broke",
    each: (count) => `${count}, each with exactly one result`, stopped: "stopped", incomplete: (why) => `not completed: ${why}`,
    spent: ({ requests, calls, tokens, about, cost, seconds }) => `${requests} ${requests === 1 ? "request" : "requests"} · ${calls} ${calls === 1 ? "command" : "commands"} · ${about ? "about " : ""}${tokens.toLocaleString("en")} tokens · cost ${cost ?? "unknown"} · ${seconds} s`,
    noConnection: "There is no connection at the moment.", lostNow: "the connection to the server was lost", lost: "The connection was lost",
    retry: (why, wait) => `${why}. Trying again in ${wait} s.`, elsewhere: "This player continues in another tab. Reload this page to continue here.",
    renamed: (now, before) => `You are ${now} now: the server does not know ${before} any more, whose items and conversation are gone.`,
    wishes: ["give me three diamonds", "build a small house at 9 64 5", "build a tower of 6 gold_block at 3 64 3", "make it night and tell everyone", "what do I have?", "teleport me to 5 64 9", "给我一个钻石", "变成白天并告诉大家", "give me a unicorn"],
  },
  zh: {
    title: "方块世界的愿望", other: "English", otherTitle: "Show in English", theme: "浅色或深色", connecting: "正在连接…", offline: "未连接",
    empty: "用中文或英文说出您的愿望，或者从下面选一个。它会变成命令，世界就在您眼前改变。",
    talk: "愿望与回答", ideas: "示例愿望", placeholder: "您有什么愿望？", wish: "您的愿望", send: "许愿", stop: "停止",
    world: "世界", scene: "从上方看到的世界", left: "向左转动视角", right: "向右转动视角",
    players: "玩家", commands: "命令", day: "白天", night: "夜晚", you: (name) => `${name}（您）`, at: (place) => `  位于 ${place}`, nothing: "还什么都没有",
    who: (name, model) => `您是 ${name} · 模型：${model}`, cut: "（已截断）", progress: (what, done, all) => `${what}：${all} 个中的 ${done} 个`,
    broken: (title) => `故意破坏：${title}；已重新请求`, brokeOff: (kind) => `回答中断（${kind}）；已重新请求`,
    onPurpose: "故意破坏了什么", noticed: "Unbroken 发现了什么", did: "它做了什么",
    deed: (wait) => `它${wait}重新发送了同一请求。您已读到的文字会接着写下去或被替换，绝不重复。被截断的命令没有执行，任何命令都不会执行两次。`,
    after: (seconds) => `在 ${seconds} 秒后`,
    survived: (breaks) => `中断 ${breaks} 次后作答；什么都没有丢失，什么都没有执行两次`, unharmed: "故意破坏过，不用重试就读懂了",
    again: "故意破坏；已重新发送请求", noRetry: "故意破坏；不需要重试", what: "什么中断了",
    each: (count) => `${count} 个，每个恰好有一个结果`, stopped: "已停止", incomplete: (why) => `未完成：${why}`,
    spent: ({ requests, calls, tokens, about, cost, seconds }) => `${requests} 次请求 · ${calls} 个命令 · ${about ? "约 " : ""}${tokens.toLocaleString("zh-CN")} 个令牌 · 费用${cost ? ` ${cost}` : "未知"} · ${seconds} 秒`,
    noConnection: "目前没有连接。", lostNow: "与服务器的连接已断开", lost: "连接已断开",
    retry: (why, wait) => `${why}。${wait} 秒后重试。`, elsewhere: "这个玩家在另一个标签页里继续。重新加载本页即可在这里继续。",
    renamed: (now, before) => `您现在是 ${now}：服务器已不认识 ${before}，其物品和对话都没有了。`,
    wishes: ["给我三个钻石", "在 9 64 5 盖一座小房子", "在 3 64 3 建一座 6 格高的金块塔", "变成晚上并告诉大家", "我有什么？", "把我传送到 5 64 9", "变成白天并告诉大家", "give me three diamonds", "给我一只独角兽"],
  },
};
/* As the browser prefers, until somebody chooses. */
const preferred = (navigator.languages ?? [navigator.language]).find((name) => /^(zh|en)\b/i.test(name))?.slice(0, 2).toLowerCase() ?? "en";

function label() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = words.title;
  at("talk").dataset.empty = words.empty;
  for (const node of document.querySelectorAll("[data-words]")) node.textContent = words[node.dataset.words];
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", words[node.dataset.label]);
  for (const node of document.querySelectorAll("[data-title]")) node.title = `${words[node.dataset.title]} (${node.dataset.key})`;
  for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = words[node.dataset.placeholder];
  Object.assign(at("language"), { textContent: words.other, title: words.otherTitle, lang: language === "zh" ? "en" : "zh-CN" });
}
