"""Chat Completions with the `openai` package: a loop by hand, as its documentation shows it."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

import json
from typing import Any

from openai import OpenAI
from task import (
    DESCRIPTION,
    IMAGE,
    IMAGE_URL,
    KEY,
    MODEL,
    PARAMETERS,
    PROMPT,
    SERIAL,
    STREAM,
    URL,
    Report,
    finish,
    write_file,
)

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
function = {"name": "write_file", "description": DESCRIPTION, "parameters": PARAMETERS, "strict": True}
asked: dict[str, Any] = {"model": MODEL, "tools": [{"type": "function", "function": function}]}
if SERIAL:
    asked["parallel_tool_calls"] = False
content: Any = PROMPT
if IMAGE:
    asked["response_format"] = Report
    content = [{"type": "text", "text": PROMPT}, {"type": "image_url", "image_url": {"url": IMAGE_URL}}]


def ask(messages):
    if not STREAM and IMAGE:
        return client.chat.completions.parse(messages=messages, **asked).choices[0].message
    if not STREAM:
        return client.chat.completions.create(messages=messages, **asked).choices[0].message
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        return stream.get_final_completion().choices[0].message


messages: list[Any] = [{"role": "user", "content": content}]
while (message := ask(messages)).tool_calls:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls
    ]
    messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
    for call in message.tool_calls:
        result = write_file(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
finish(message.parsed.summary if IMAGE and message.parsed else message.content)
