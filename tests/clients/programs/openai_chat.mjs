// Chat Completions with the `openai` package and its own runner of tools.
import OpenAI from 'openai';
import { description, finish, image, imageUrl, key, model, parameters, prompt, report, serial, stream, url, writeFile } from './task.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const write = { name: 'write_file', description, parameters, parse: JSON.parse, function: writeFile };
const picture = { type: 'image_url', image_url: { url: imageUrl } };
const content = image ? [{ type: 'text', text: prompt }, picture] : prompt;
const shape = { name: 'report', schema: report, strict: true };
const runner = client.chat.completions.runTools({
  model,
  stream,
  messages: [{ role: 'user', content }],
  tools: [{ type: 'function', function: write }],
  ...(serial ? { parallel_tool_calls: false } : {}),
  ...(image ? { response_format: { type: 'json_schema', json_schema: shape } } : {}),
});
finish(await runner.finalContent());
