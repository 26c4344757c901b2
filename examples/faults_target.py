"""A loop over the `openai` package as many people write it, to test with the faulty server:

    unbroken faults run --target "python examples/faults_target.py"

It streams, runs each call, and sends requests until there is an answer. It is not prepared for any fault; use your own
program instead.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from openai import OpenAI

TOOLS = {
    "get_weather": lambda city, days: f"rain in {city} for {days} days",
    "now": lambda: "12:00",
    "save_note": lambda text: "saved",
}
PARAMETERS = {
    "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "now": {},
    "save_note": {"text": {"type": "string"}},
}
SPECS: Any = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": fields, "required": list(fields)}},
    }
    for name, fields in PARAMETERS.items()
]


def ask(client: OpenAI, messages: Any) -> dict[str, Any]:
    text, calls = "", {}
    stream = client.chat.completions.create(
        model=os.environ["UNBROKEN_MODEL"], messages=messages, tools=SPECS, stream=True
    )
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                text += choice.delta.content
                sys.stdout.write(choice.delta.content)
                sys.stdout.flush()
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, {"id": "", "type": "function", "function": {}})
                call["id"] = call["id"] or piece.id
                if piece.function:
                    function = call["function"]
                    function["name"] = function.get("name") or piece.function.name
                    function["arguments"] = function.get("arguments", "") + (piece.function.arguments or "")
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return {**message, "tool_calls": list(calls.values())} if calls else message


def main() -> None:
    client = OpenAI()
    messages: list[Any] = [{"role": "user", "content": os.environ["UNBROKEN_PROMPT"]}]
    while True:
        messages.append(ask(client, messages))
        calls = messages[-1].get("tool_calls")
        if not calls:
            break
        for call in calls:
            function = call["function"]
            result = TOOLS[function["name"]](**json.loads(function["arguments"] or "{}"))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    main()
