// Messages with `@anthropic-ai/sdk`: the content goes back block for block.
import Anthropic from '@anthropic-ai/sdk';
import { description, key, model, parameters, prompt, serial, stream, url, writeFile } from './task.mjs';

const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const asked = {
  model,
  max_tokens: 1000,
  tools: [{ name: 'write_file', description, input_schema: parameters }],
  ...(serial ? { tool_choice: { type: 'auto', disable_parallel_tool_use: true } } : {}),
};
const ask = messages =>
  stream ? client.messages.stream({ ...asked, messages }).finalMessage() : client.messages.create({ ...asked, messages });

const messages = [{ role: 'user', content: prompt }];
let message = await ask(messages);
while (message.stop_reason === 'tool_use') {
  messages.push({ role: 'assistant', content: message.content });
  const calls = message.content.filter(block => block.type === 'tool_use');
  const results = calls.map(call => ({ type: 'tool_result', tool_use_id: call.id, content: writeFile(call.input) }));
  messages.push({ role: 'user', content: results });
  message = await ask(messages);
}
console.log(message.content.filter(block => block.type === 'text').map(block => block.text).join(''));
