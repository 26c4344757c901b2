// Messages with `@anthropic-ai/sdk`: the content goes back block for block.
import Anthropic from '@anthropic-ai/sdk';
import { description, finish, image, key, model, parameters, prompt, report, serial, stream, url, writeFile } from './task.mjs';

const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const asked = {
  model,
  max_tokens: 1000,
  tools: [{ name: 'write_file', description, input_schema: parameters }],
  ...(serial ? { tool_choice: { type: 'auto', disable_parallel_tool_use: true } } : {}),
  ...(image ? { output_config: { format: { type: 'json_schema', schema: report } } } : {}),
};
const ask = messages =>
  stream ? client.messages.stream({ ...asked, messages }).finalMessage() : client.messages.create({ ...asked, messages });

const source = { type: 'base64', media_type: 'image/png', data: image };
const content = image ? [{ type: 'image', source }, { type: 'text', text: prompt }] : prompt;
const messages = [{ role: 'user', content }];
let message = await ask(messages);
while (message.stop_reason === 'tool_use') {
  messages.push({ role: 'assistant', content: message.content });
  const calls = message.content.filter(block => block.type === 'tool_use');
  const results = calls.map(call => ({ type: 'tool_result', tool_use_id: call.id, content: writeFile(call.input) }));
  messages.push({ role: 'user', content: results });
  message = await ask(messages);
}
finish(message.content.filter(block => block.type === 'text').map(block => block.text).join(''));
