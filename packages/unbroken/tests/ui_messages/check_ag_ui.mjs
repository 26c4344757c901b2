// Reads an answer that broke off and came again with the real client of AG-UI, which posts its messages.
// node check_ag_ui.mjs URL
import assert from 'node:assert/strict';
import { HttpAgent } from '@ag-ui/client';

const agent = new HttpAgent({ url: `${process.argv.at(-1)}/ag-ui/broken`, threadId: 't' });
agent.messages = [
  { id: 'before', role: 'user', content: 'Hello.' },
  { id: 'said', role: 'assistant', content: 'Hello to you.' },
  { id: 'asked', role: 'user', content: 'Rome?' },
];
const seen = [];
agent.subscribe({
  onTextMessageContentEvent: ({ event }) => { seen.push(event.delta); },
  onCustomEvent: ({ event }) => { if (event.name === 'replaced') seen.push(event.value.part); },
});
await agent.runAgent();
assert.deepEqual(seen.slice(0, 6), ['Let ', 'me ', 'look. ', 'reasoning', 'text', 'I will see. ']);
const texts = agent.messages.filter(message => message.role === 'assistant' && message.content).map(message => message.content);
assert.deepEqual(texts.slice(0, 2), ['Hello to you.', 'I will see. ']);
assert.equal(texts.length, 3);
assert.deepEqual(agent.messages.slice(0, 3).map(message => message.id), ['before', 'said', 'asked']);
assert.deepEqual(agent.messages.filter(message => message.role === 'reasoning').map(message => message.content), ['Hm.', 'So.']);
const calls = agent.messages.flatMap(message => message.toolCalls ?? []);
assert.deepEqual(calls.map(call => [call.function.name, call.function.arguments]), [
  ['get_weather', '{"city":"Rome"}'], ['get_weather', '{"city":"Oslo"}'], ['fall_over', '{}'],
]);
const results = agent.messages.filter(message => message.role === 'tool');
assert.deepEqual(results.map(message => message.toolCallId), calls.map(call => call.id));
console.log('@ag-ui/client: replaced text is gone, all else is there');
