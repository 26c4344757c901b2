// The AI SDK: `generateText` and `streamText` with `@ai-sdk/openai-compatible`.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, jsonSchema, streamText, tool } from 'ai';
import { description, key, model, parameters, prompt, serial, stream, url, writeFile } from './task.mjs';

const gateway = createOpenAICompatible({ name: 'gateway', baseURL: `${url}/v1`, apiKey: key });
const asked = {
  model: gateway(model),
  prompt,
  maxRetries: 0,
  stopWhen: isStepCount(9),
  tools: { write_file: tool({ description, inputSchema: jsonSchema(parameters), execute: writeFile }) },
  ...(serial ? { providerOptions: { gateway: { parallel_tool_calls: false } } } : {}),
};
const result = stream ? streamText(asked) : await generateText(asked);
console.log(await result.text);
