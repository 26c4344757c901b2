// Chat Completions with the `openai` package and its own runner of tools.
import OpenAI from 'openai';
import { description, key, model, parameters, prompt, serial, stream, url, writeFile } from './task.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const write = { name: 'write_file', description, parameters, parse: JSON.parse, function: writeFile };
const runner = client.chat.completions.runTools({
  model,
  stream,
  messages: [{ role: 'user', content: prompt }],
  tools: [{ type: 'function', function: write }],
  ...(serial ? { parallel_tool_calls: false } : {}),
});
console.log(await runner.finalContent());
