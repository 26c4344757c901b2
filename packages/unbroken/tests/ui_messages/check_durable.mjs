// Watches durable runs with the real AI SDK, the way `useChat` resumes a stream, and with the real client of AG-UI.
// node check_durable.mjs PACKAGE URL, where PACKAGE is `ai`, another version of it under another name, or @ag-ui/client.
import assert from 'node:assert/strict';

const [name, url] = process.argv.slice(2);
const sdk = await import(name);
const question = 'look refund slowly';
const answer = 'Order 7 was refunded, and 你好 to all.';

const start = async () => {
  const body = JSON.stringify({ agent: 'support', prompt: question });
  return (await (await fetch(`${url}/runs`, { method: 'POST', body })).json()).run_id;
};
const state = async id => (await (await fetch(`${url}/runs/${id}`)).json()).state;
const reaches = async (id, wanted) => {
  for (let tries = 0; tries < 500 && (await state(id)) !== wanted; tries++) await new Promise(resolve => setTimeout(resolve, 20));
  assert.equal(await state(id), wanted);
};
const allow = id =>
  fetch(`${url}/runs/${id}/answers`, { method: 'POST', body: JSON.stringify({ 'refund-1': { decision: 'allow' } }) });

const checks = {};
if (name === '@ag-ui/client') {
  // The client posts what it wants by default; a durable run is only watched.
  class RunAgent extends sdk.HttpAgent {
    requestInit() { return { method: 'GET', headers: this.headers, signal: this.abortController.signal }; }
  }
  checks['the client of AG-UI verifies and applies every event, before and after an approval'] = async () => {
    const id = await start();
    await reaches(id, 'waiting');
    const agent = new RunAgent({ url: `${url}/runs/${id}/ag-ui`, threadId: id });
    await agent.runAgent();
    assert.deepEqual(agent.messages.filter(message => message.role === 'tool').map(message => message.content), ['order 7 is late']);
    await allow(id);
    const again = new RunAgent({ url: `${url}/runs/${id}/ag-ui`, threadId: id });
    await again.runAgent();
    assert.deepEqual(again.messages.filter(message => message.role === 'tool').map(message => message.content), [
      'order 7 is late', 'refunded 7',
    ]);
    assert.equal(again.messages.at(-1).content, answer);
    const calls = again.messages.flatMap(message => message.toolCalls ?? []);
    assert.deepEqual(calls.map(call => [call.function.name, JSON.parse(call.function.arguments)]), [
      ['look', { order: 7 }], ['refund', { order: 7 }],
    ]);
  };
} else {
  class Chat extends sdk.AbstractChat {
    constructor(id) {
      const state = {
        status: 'ready',
        error: undefined,
        messages: [{ id: 'q', role: 'user', parts: [{ type: 'text', text: question }] }],
        pushMessage: message => { state.messages = [...state.messages, message]; },
        popMessage: () => { state.messages = state.messages.slice(0, -1); },
        replaceMessage: (index, message) => { state.messages = state.messages.with(index, structuredClone(message)); },
        snapshot: value => structuredClone(value),
      };
      const transport = new sdk.DefaultChatTransport({
        prepareReconnectToStreamRequest: ({ id }) => ({
          api: `${url}/runs/${id}/ui${name === 'ai5' ? '?approvals=false' : ''}`,
        }),
      });
      super({ id, state, transport });
    }
    get parts() { return this.messages.at(-1).parts.filter(part => part.type !== 'step-start'); }
  }
  const inShort = chat => chat.parts.map(part => part.text ?? `${part.type}: ${part.state}`);
  const complete = [
    'Step 1. ', 'tool-look: output-available', 'Step 2. ', 'tool-refund: output-available', answer,
  ];
  checks['a chat is resumed before and after an approval'] = async () => {
    const id = await start();
    const chat = new Chat(id);
    await chat.resumeStream();
    assert.equal(chat.error, undefined);
    assert.equal(chat.status, 'ready');
    const waits = name === 'ai5' ? 'input-available' : 'approval-requested';
    assert.deepEqual(inShort(chat), [...complete.slice(0, 3), `tool-refund: ${waits}`]);
    await allow(id);
    const again = new Chat(id);
    await again.resumeStream();
    assert.equal(again.error, undefined);
    assert.deepEqual(inShort(again), complete);
    assert.equal(again.messages.at(-1).id, id);
    assert.equal(again.messages.length, 2);
  };
  checks['a page that is reloaded in the middle has the same message in the end'] = async () => {
    const id = await start();
    await reaches(id, 'waiting');
    await allow(id);
    for (let reloads = 0; (await state(id)) !== 'answered'; reloads++) {
      const chat = new Chat(id);
      const reading = chat.resumeStream();
      await new Promise(resolve => setTimeout(resolve, 50 + 30 * reloads));
      await chat.stop();
      await reading;
    }
    const chat = new Chat(id);
    await chat.resumeStream();
    assert.deepEqual(inShort(chat), complete);
  };
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
console.log(`${name}, durable: ${Object.keys(checks).length - failed} of ${Object.keys(checks).length}`);
process.exit(failed ? 1 : 0);
