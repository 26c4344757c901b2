// Reads our UI message streams with the real AI SDK, the way `useChat` does: its Chat, its transport, its schema.
// node check.mjs PACKAGE URL, where PACKAGE is `ai` or another version of it under another name.
import assert from 'node:assert/strict';

const [name, url] = process.argv.slice(2);
const sdk = await import(name);
const knowsApprovals = 'lastAssistantMessageIsCompleteWithApprovalResponses' in sdk;

class Chat extends sdk.AbstractChat {
  constructor(agent, more = {}) {
    const state = {
      status: 'ready',
      error: undefined,
      messages: [],
      pushMessage: message => { state.messages = [...state.messages, message]; },
      popMessage: () => { state.messages = state.messages.slice(0, -1); },
      replaceMessage: (index, message) => { state.messages = state.messages.with(index, structuredClone(message)); },
      snapshot: value => structuredClone(value),
    };
    const seen = { data: [] };
    super({
      state,
      transport: new sdk.DefaultChatTransport({ api: `${url}/chat/${agent}` }),
      onData: part => seen.data.push(part),
      onFinish: told => { seen.finished = told; },
      onError: error => { seen.error = error; },
      ...more,
    });
    this.seen = seen;
  }
  get parts() { return this.messages.at(-1).parts.filter(part => part.type !== 'step-start'); }
  get text() { return this.parts.filter(part => part.type === 'text').at(-1).text; }
}

const settled = async (chat, done = () => true) => {
  for (let tries = 0; tries < 200 && !(done() && ['ready', 'error'].includes(chat.status)); tries++)
    await new Promise(resolve => setTimeout(resolve, 10));
  assert.ok(done(), 'it did not happen within two seconds');
};
// As docs/events.md has it: a component shows these parts.
const notReplaced = parts => parts.filter((part, at) => {
  const step = parts.slice(at).findIndex(later => later.type === 'step-start');
  const rest = parts.slice(at, step < 0 ? undefined : at + step);
  return !rest.some(later => later.type === 'data-replaced' && later.data.part === part.type);
});
const pick = (part, ...keys) => Object.fromEntries(keys.map(key => [key, part[key]]));

const checks = {
  async 'texts, reasoning, calls with their results and failures, progress and todos'() {
    const chat = new Chat('tools');
    await chat.sendMessage({ text: 'Rome?', files: [{ type: 'file', mediaType: 'image/png', url: 'data:image/png;base64,AAAA' }] });
    assert.equal(chat.error, undefined);
    assert.deepEqual(chat.parts.map(part => part.type), [
      'reasoning', 'text', 'tool-get_weather', 'tool-fall_over', 'tool-nothing_like_it', 'tool-todo_write', 'data-todo', 'text',
    ]);
    const [thought, text, weather, fallen, unknown, , todo, answer] = chat.parts;
    assert.deepEqual(pick(thought, 'text', 'state'), { text: 'Rome, then.', state: 'done' });
    assert.deepEqual(pick(text, 'text', 'state'), { text: 'Let me look. ', state: 'done' });
    assert.deepEqual(pick(weather, 'state', 'input', 'output'), {
      state: 'output-available', input: { city: 'Rome' }, output: { city: 'Rome', celsius: 18 },
    });
    assert.deepEqual(pick(fallen, 'state', 'input', 'errorText'), {
      state: 'output-error', input: {}, errorText: 'Error: the floor is wet',
    });
    assert.equal(unknown.state, 'output-error');
    assert.deepEqual(todo.data, { todos: [{ content: 'look', status: 'completed' }] });
    assert.match(answer.text, /^user: Rome\?\nassistant: Let me look\.  get_weather\(\{"city": "Rome"\}\) fall_over/);
    assert.deepEqual(chat.seen.data.filter(part => part.type === 'data-progress').map(part => part.data), [
      { toolCallId: weather.toolCallId, toolName: 'get_weather', message: 'asking the station', done: 0.5 },
    ]);
    assert.equal(chat.messages.at(-1).parts.filter(part => part.type === 'step-start').length, 2);
    assert.equal(chat.messages.at(-1).metadata.stopReason, 'answered');
    if (chat.seen.finished.finishReason !== undefined) assert.equal(chat.seen.finished.finishReason, 'stop');

    const before = answer.text;
    await chat.sendMessage({ text: 'And now?' });
    assert.equal(chat.text, `${before}\nassistant: ${before}\nuser: And now?`); // the same history, from what was posted
  },
  async 'a call that was cut is an error with its words'() {
    const chat = new Chat('cut');
    await chat.sendMessage({ text: 'Go' });
    assert.equal(chat.parts[0].state, 'output-error');
    assert.match(chat.parts[0].errorText, /^Error: not executed: .*\{"city": "Ro/);
  },
  async 'a client tool runs in the browser and the run goes on'() {
    const chat = new Chat('client', {
      sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { lat: 41.9 } });
      },
    });
    await chat.sendMessage({ text: 'Where am I?' });
    await settled(chat, () => chat.parts.at(-1).type === 'text');
    assert.equal(chat.text, 'user: Where am I?\nassistant:  locate({"precise": true})\ntools: {"lat":41.9}');
  },
  async 'an answer that broke off and came again, with what it replaces'() {
    const chat = new Chat('broken');
    await chat.sendMessage({ text: 'Rome?' });
    assert.equal(chat.error, undefined);
    assert.deepEqual(chat.parts.map(part => part.type), [
      'reasoning', 'text', 'tool-get_weather', 'tool-get_weather', 'data-replaced', 'reasoning', 'data-replaced', 'text',
      'tool-fall_over', 'data-dropped', 'text',
    ]);
    const [, , rome, oslo, , , replaced, , fallen, dropped] = chat.parts;
    assert.deepEqual(pick(rome, 'state', 'output'), { state: 'output-available', output: { city: 'Rome', celsius: 18 } });
    assert.deepEqual(replaced.data, { part: 'text' });
    assert.deepEqual(dropped.data, { toolCallIds: [oslo.toolCallId] });
    assert.notEqual(fallen.toolCallId, oslo.toolCallId);
    assert.equal(fallen.errorText, 'Error: the floor is wet');
    const shown = notReplaced(chat.messages.at(-1).parts).filter(part => part.text !== undefined);
    assert.deepEqual(shown.slice(0, 2).map(part => part.text), ['So.', 'I will see. ']);
    assert.equal(shown.length, 3);
    assert.deepEqual(chat.seen.data.filter(part => part.type === 'data-retry').map(part => part.data.kind), ['lost']);
    assert.equal(chat.messages.at(-1).metadata.fallbackUsed, true);
    const told = 'assistant: I will see.  get_weather({"city": "Rome"}) fall_over({})';
    assert.ok(chat.text.startsWith(`user: Rome?\n${told}\n`), chat.text);
    const before = chat.text;
    await chat.sendMessage({ text: 'And now?' });
    assert.equal(chat.text, `${before}\nassistant: ${before}\nuser: And now?`); // what was replaced is not in the history
  },
  async 'a failure is an error that tells the browser little'() {
    const chat = new Chat('failure');
    await chat.sendMessage({ text: 'Go' });
    assert.equal(chat.status, 'error');
    assert.equal(chat.error.message, 'An error occurred.');
    assert.equal(chat.text, 'It beg');
  },
  async 'who stops ends the run'() {
    const chat = new Chat('endless');
    const sent = chat.sendMessage({ text: 'Go' });
    await settled({ status: 'ready' }, () => chat.messages.at(-1)?.parts.some(part => part.type === 'text'));
    await chat.stop();
    await sent;
    let over = [];
    for (let tries = 0; tries < 200 && !over.includes(chat.id); tries++) over = await (await fetch(`${url}/ended`)).json();
    assert.ok(over.includes(chat.id));
  },
};

checks['a call that waits can be shown without an approval of its own'] = async () => {
  const chat = new Chat('approval?plain');
  await chat.sendMessage({ text: 'Delete a.txt' });
  assert.equal(chat.error, undefined);
  assert.deepEqual(pick(chat.parts.at(-1), 'state', 'input'), { state: 'input-available', input: { path: 'a.txt' } });
};
if (knowsApprovals) {
  for (const approved of [true, false]) {
    checks[`a call waits for its approval and is ${approved ? 'run' : 'denied'}`] = async () => {
      const chat = new Chat('approval', { sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithApprovalResponses });
      await chat.sendMessage({ text: 'Delete a.txt' });
      const part = chat.parts.at(-1);
      assert.deepEqual(pick(part, 'type', 'state', 'input'), {
        type: 'tool-delete', state: 'approval-requested', input: { path: 'a.txt' },
      });
      await chat.addToolApprovalResponse({ id: part.approval.id, approved, reason: approved ? undefined : 'no' });
      await settled(chat, () => chat.parts.at(-1).type === 'text');
      assert.equal(chat.messages.length, 2);
      assert.equal(chat.parts.length, 2);
      assert.deepEqual(pick(chat.parts[0], 'state', 'input', 'output', 'errorText'), approved
        ? { state: 'output-available', input: { path: 'a.txt' }, output: 'a.txt is gone', errorText: undefined }
        : { state: 'output-error', input: { path: 'a.txt' }, output: undefined, errorText: 'Error: not executed: denied: no' });
    };
  }
}

let failed = 0;
for (const [title, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`  ok    ${title}`);
  } catch (error) {
    failed += 1;
    console.log(`  FAILS ${title}\n${error.stack}`);
  }
}
console.log(`${name}: ${Object.keys(checks).length - failed} of ${Object.keys(checks).length}`);
process.exit(failed ? 1 : 0);
