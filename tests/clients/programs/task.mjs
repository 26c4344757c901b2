// What every Node program here is told, and the tool that it offers.
import { appendFileSync } from 'node:fs';

const told = process.env;
export const url = told.GATEWAY_URL, key = told.GATEWAY_KEY, model = told.GATEWAY_MODEL, prompt = told.GATEWAY_PROMPT;
export const serial = told.GATEWAY_SERIAL === '1', stream = told.GATEWAY_STREAM === '1';
export const image = told.GATEWAY_IMAGE; // in base64; with it the answer is a report
export const imageUrl = `data:image/png;base64,${image}`;
export const report = {
  type: 'object',
  properties: { written: { type: 'integer' }, summary: { type: 'string' } },
  required: ['written', 'summary'],
  additionalProperties: false,
};
export const description = 'Writes a file.';
export const parameters = {
  type: 'object',
  properties: { path: { type: 'string' }, content: { type: 'string' } },
  required: ['path', 'content'],
  additionalProperties: false,
};

export function finish(text) {
  console.log(image ? JSON.parse(text).summary : text);
}

export function writeFile({ path, content }) {
  appendFileSync(path, content); // appended: a call that ran twice shows
  return `${path} is written`;
}
