"""Messages with the `anthropic` package: the content is sent back block by block."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from task import (
    DESCRIPTION,
    IMAGE,
    KEY,
    MODEL,
    PARAMETERS,
    PROMPT,
    REPORT,
    SERIAL,
    STREAM,
    URL,
    Report,
    finish,
    write_file,
)

client = Anthropic(base_url=URL, api_key=KEY, max_retries=0)
tool = {"name": "write_file", "description": DESCRIPTION, "input_schema": PARAMETERS}
asked: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "tools": [tool]}
if SERIAL:
    asked["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
content: Any = PROMPT
if IMAGE:
    asked["output_config"] = {"format": {"type": "json_schema", "schema": REPORT}}
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    content = [{"type": "image", "source": source}, {"type": "text", "text": PROMPT}]


def ask(messages):
    if not STREAM:
        return client.messages.create(messages=messages, **asked)
    with client.messages.stream(messages=messages, **asked) as stream:
        return stream.get_final_message()


messages: list[Any] = [{"role": "user", "content": content}]
while (message := ask(messages)).stop_reason == "tool_use":
    messages.append({"role": "assistant", "content": message.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": write_file(**block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
text = "".join(block.text for block in message.content if block.type == "text")
finish(Report.model_validate_json(text).summary if IMAGE else text)
