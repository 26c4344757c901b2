// What is shown, and where it comes from: from the server, or from this file itself

const given = (() => {
  const text = byId("data").textContent;
  return text.startsWith("null") ? null : JSON.parse(text);
})();
/* A gateway with keys needs one: that which was given to its status page. Paths are relative: it has the page elsewhere. */
const request = async (path, headers = {}) => {
  let key = null;
  try { key = sessionStorage.getItem("unbroken-gateway-key"); } catch { /* a browser that keeps nothing */ }
  return fetch(path, { headers: key ? { ...headers, authorization: `Bearer ${key}` } : headers });
};
const read = async (answer) => {
  const told = await answer.json();
  const error = typeof told.error === "string" ? told.error : told.error?.message;
  if (answer.status === 401) throw Object.assign(new Error("The gateway needs an operator's key to show recordings."), { needsKey: true });
  if (!answer.ok) throw new Error(error || `the server answered ${answer.status}`);
  return told;
};
const fetched = async (path) => read(await request(path));
const runPath = (name) => `runs/${encodeURIComponent(name)}`;
const loadRuns = async () => (given ? given.runs : fetched("runs"));
const versions = new Map(); // of each picture that was loaded: the server sends it again only if it has grown
const loadPicture = async (name) => {
  if (given) {
    if (!Object.hasOwn(given.pictures, name)) throw new Error(`${name} is only listed in this file: it would have been too large`);
    return given.pictures[name];
  }
  const answer = await request(runPath(name)), told = await read(answer);
  versions.set(name, answer.headers.get("etag"));
  return told;
};
/* The picture of a run that has grown since it was loaded; else null. */
const loadGrown = async (name) => {
  const answer = await request(runPath(name), { "if-none-match": versions.get(name) ?? "" });
  if (answer.status !== 200) return null;
  versions.set(name, answer.headers.get("etag"));
  return answer.json();
};
/* The runs whose contents have this text: { found: { name: { count, snippet } }, skipped }. */
const searchRuns = async (text) => {
  if (!given) return fetched(`search?text=${encodeURIComponent(text)}`);
  const wanted = text.toLowerCase(), found = {};
  for (const [name, picture] of Object.entries(given.pictures)) {
    const texts = [...textsOf(picture)].filter((one) => one.toLowerCase().includes(wanted));
    if (!texts.length) continue;
    const at = texts[0].toLowerCase().indexOf(wanted);
    found[name] = { count: texts.length, snippet: texts[0].slice(Math.max(0, at - 30), at + 90).replace(/\s+/g, " ") };
  }
  return { found, skipped: given.runs.filter((run) => !run.problem && !Object.hasOwn(given.pictures, run.name)).length };
};
const textsOf = (picture) => {
  const texts = new Set([picture.prompt, picture.answer.text]);
  for (const request of picture.requests) for (const message of request.new) for (const part of message.parts) { texts.add(part.body.text); texts.add(part.name); }
  for (const turn of picture.turns) {
    texts.add(turn.said?.text ?? "");
    for (const call of turn.calls) { texts.add(call.name); texts.add(call.arguments?.text ?? ""); texts.add(call.result?.text ?? ""); }
  }
  return texts;
};
/* Nothing is run by the page: the commands are for a terminal. */
const loadReplay = async (number) => {
  if (!given) return loadCode(number, "replay");
  const turn = state.picture.turns.find((one) => one.number === state.picture.requests[number].turn), file = `'${state.name.replaceAll("'", "'\\''")}'`;
  return `unbroken replay ${file}${turn?.round && turn.finished !== null ? ` --until-round ${turn.round}` : ""}\n`;
};
const loadCode = async (number, language) => (await fetched(`${runPath(state.name)}/requests/${number}/${language}`)).text;

const state = { runs: [], picture: null, name: "", tab: "waterfall", filter: "", view: null, request: 0, all: false, sort: { by: "time", down: true }, found: null, marked: "", grownAt: 0 };
const isRunning = (picture) => picture.state === "unfinished" && Date.now() - state.grownAt < STILL;
let show = null; // what is on the page: { list, keys, filter(), update(), end() }
