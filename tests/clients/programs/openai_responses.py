"""Responses with the `openai` package: the output items are sent back unchanged, or with `GATEWAY_STORED` by the id of
the stored response, which is then read, listed and deleted."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

import json
import os
from typing import Any

from openai import NotFoundError, OpenAI
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

STORED = os.environ.get("GATEWAY_STORED") == "1"
client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
function = {
    "type": "function",
    "name": "write_file",
    "description": DESCRIPTION,
    "parameters": PARAMETERS,
    "strict": True,
}
asked: dict[str, Any] = {"model": MODEL, "tools": [function], "store": STORED}
if not STORED:
    asked["include"] = ["reasoning.encrypted_content"]
if SERIAL:
    asked["parallel_tool_calls"] = False
content: Any = PROMPT
if IMAGE:
    asked["text_format"] = Report
    content = [{"type": "input_text", "text": PROMPT}, {"type": "input_image", "image_url": IMAGE_URL}]


def ask(**more):
    if not STREAM and IMAGE:
        return client.responses.parse(**asked, **more)
    if not STREAM:
        return client.responses.create(**asked, **more)
    with client.responses.stream(**asked, **more) as stream:
        return stream.get_final_response()


def use_stored(response, sent):
    """Reads the response and its input items again, and deletes it. `sent`: the input of its request."""
    again = client.responses.retrieve(response.id)
    assert (again.id, again.output_text, again.status) == (response.id, response.output_text, "completed")
    assert [item.type for item in again.output] == [item.type for item in response.output]
    assert again.usage == response.usage
    listed = [*client.responses.input_items.list(response.id, limit=2, order="asc")]  # it follows the pages
    outputs = [(item.call_id, item.output) for item in listed if item.type == "function_call_output"]
    assert outputs[-len(sent) :] == [(item["call_id"], item["output"]) for item in sent], listed
    assert getattr(listed[0], "role", None) == "user", listed  # the items of the responses before it come first
    client.responses.delete(response.id)
    assert is_gone(client.responses.retrieve, response.id)
    assert is_gone(client.responses.input_items.list, response.id)


def is_gone(read, id):
    try:
        read(id)
    except NotFoundError as error:
        return id in error.message
    return False


items: list[Any] = [{"role": "user", "content": content}]
response = ask(input=items)
while calls := [item for item in response.output if item.type == "function_call"]:
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": write_file(**json.loads(call.arguments))}
        for call in calls
    ]
    if STORED:
        response = ask(input=results, previous_response_id=response.id)
    else:
        items += response.output
        items += results
        response = ask(input=items)
if STORED:
    use_stored(response, results)
finish(response.output_parsed.summary if IMAGE and response.output_parsed else response.output_text)
