// The AI SDK: `generateText` and `streamText`, with its default client of Responses or `@ai-sdk/openai-compatible`.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, jsonSchema, Output, streamText, tool } from 'ai';
import { description, image, key, model, parameters, prompt, report, serial, stream, url, writeFile } from './task.mjs';

const settings = { name: 'gateway', baseURL: `${url}/v1`, apiKey: key };
const gateway =
  process.env.GATEWAY_WIRE === 'openai-responses'
    ? createOpenAI(settings)
    : createOpenAICompatible({ ...settings, supportsStructuredOutputs: true });
const content = [{ type: 'text', text: prompt }, { type: 'file', mediaType: 'image/png', data: image }];
const asked = {
  model: gateway(model),
  ...(image ? { messages: [{ role: 'user', content }], output: Output.object({ schema: jsonSchema(report) }) } : { prompt }),
  maxRetries: 0,
  stopWhen: isStepCount(9),
  tools: { write_file: tool({ description, inputSchema: jsonSchema(parameters), execute: writeFile }) },
  ...(serial
    ? { providerOptions: { gateway: { parallel_tool_calls: false }, openai: { parallelToolCalls: false } } }
    : {}),
};
const result = stream ? streamText(asked) : await generateText(asked);
console.log(image ? (await result.output).summary : await result.text);
