// Recordings are strangers' words: they become text nodes and nothing else. There is no innerHTML here.
const byId = (id) => document.getElementById(id);
const make = (tag, props = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "on") for (const [event, hear] of Object.entries(value)) node.addEventListener(event, hear);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
};
const copyText = async (text) => {
  try { await navigator.clipboard.writeText(text); } catch { // where the browser does not allow it
    const box = make("textarea", { class: "hear", "aria-hidden": "true", tabindex: "-1" });
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
};
/* A button that copies a text, or what a promise gives. */
const copyButton = (words, text, name = words) => {
  const button = make("button", { class: "copy", "aria-label": name, on: { click: async (event) => {
    event.stopPropagation();
    let told = "Copied";
    try { await copyText(await text()); } catch (error) { told = error.message; }
    button.textContent = told;
    hear(told);
    setTimeout(() => { button.textContent = words; }, 1500);
  } } }, words);
  return button;
};

// Words for numbers

/* The currency is empty if a run had prices of its own. */
const money = (value, currency) => (value === null || value === undefined ? "unknown" : currency + (value && value < 0.001 ? value.toFixed(7) : value.toLocaleString("en", { minimumFractionDigits: 4, maximumFractionDigits: 4 })));
/* At most nine characters, for a column of a list. */
const shortMoney = (value, currency) => (value && value < 0.001 ? `${currency}${value < 0.000001 ? "<0.000001" : Number(value.toPrecision(2)).toFixed(value < 0.0001 ? 6 : 5)}` : money(value, currency));
const seconds = (value) => {
  if (value === null || value === undefined) return "–";
  if (value < 0.000005) return "0 s";
  if (value < 1) return `${value < 0.001 ? (value * 1000).toFixed(2) : value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(2)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
};
const moment = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(value < 100 ? 3 : 1)} s`);
const size = (bytes) => bytes < 1000 ? `${bytes} bytes` : bytes < 1e6 ? `${(bytes / 1000).toFixed(bytes < 1e5 ? 1 : 0)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
const many = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
const day = (time) => {
  if (!time) return "";
  const date = new Date(time * 1000);
  const two = (part) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
};
/* `3 (1 after the answer broke off)` */
const retriesOf = ({ retries, restarts }) => (!retries ? "" : !restarts ? String(retries) : `${retries} (${restarts === retries ? "" : `${restarts} after `}the answer broke off)`);
const spaced = (word) => word.replaceAll("_", " ");
/* A gateway's answer with calls waits for its client, not for anybody here. */
const endOf = (state, gateway) => (gateway && state === "waiting" ? "tool calls" : spaced(state));
const tone = (state) => (state === "answered" || state === "recorded" ? "good" : state === "failed" || state === "unfinished" ? "bad" : "quiet");
