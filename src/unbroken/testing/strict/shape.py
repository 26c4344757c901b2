"""What no server can read, however lax it is: nothing that is asked, and fields of another type than they have.

Not whether it makes sense: that is read by the check of each wire, which takes the types for granted. A null is as good
as a field that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from unbroken.messages import Json
from unbroken.wires.values import Object, as_dict, as_list

Kind: TypeAlias = Literal["a text", "a number", "true or false", "a list", "an object"]

_TEXT: tuple[Kind, ...] = ("a text",)
_NUMBER: tuple[Kind, ...] = ("a number",)
_FLAG: tuple[Kind, ...] = ("true or false",)
_LIST: tuple[Kind, ...] = ("a list",)
_OBJECT: tuple[Kind, ...] = ("an object",)
_TEXT_OR_LIST: tuple[Kind, ...] = ("a text", "a list")

_SAMPLING = {"temperature": _NUMBER, "top_p": _NUMBER}
_FIELDS: Mapping[str, Mapping[str, tuple[Kind, ...]]] = {
    "openai-chat": {
        "model": _TEXT,
        "messages": _LIST,
        "tools": _LIST,
        "tool_choice": ("a text", "an object"),
        "parallel_tool_calls": _FLAG,
        "stream": _FLAG,
        "stream_options": _OBJECT,
        "response_format": _OBJECT,
        "max_tokens": _NUMBER,
        "max_completion_tokens": _NUMBER,
        "stop": _TEXT_OR_LIST,
        **_SAMPLING,
    },
    "openai-responses": {
        "model": _TEXT,
        "input": _TEXT_OR_LIST,
        "instructions": _TEXT_OR_LIST,
        "tools": _LIST,
        "tool_choice": ("a text", "an object"),
        "parallel_tool_calls": _FLAG,
        "stream": _FLAG,
        "reasoning": _OBJECT,
        "text": _OBJECT,
        "max_output_tokens": _NUMBER,
        "previous_response_id": _TEXT,
        **_SAMPLING,
    },
    "anthropic-messages": {
        "model": _TEXT,
        "messages": _LIST,
        "system": _TEXT_OR_LIST,
        "tools": _LIST,
        "tool_choice": _OBJECT,
        "stream": _FLAG,
        "thinking": _OBJECT,
        "max_tokens": _NUMBER,
        "stop_sequences": _LIST,
        **_SAMPLING,
    },
    "gemini": {
        "contents": _LIST,
        "tools": ("a list", "an object"),
        "toolConfig": _OBJECT,
        "generationConfig": _OBJECT,
        "systemInstruction": ("a text", "an object"),
    },
}
_IN_MESSAGES: Mapping[str, Mapping[str, tuple[Kind, ...]]] = {
    "messages": {"role": _TEXT, "content": _TEXT_OR_LIST, "tool_calls": _LIST},
    "input": {"type": _TEXT, "role": _TEXT, "content": _TEXT_OR_LIST, "call_id": _TEXT},
    "contents": {"role": _TEXT, "parts": ("a list", "an object")},
    "tools": {},
}
"""The lists of objects, and what stands in these."""


def check_shape(wire: str, body: Object) -> list[str]:
    problems = _wrong_types("", body, _FIELDS[wire])
    for field, inside in _IN_MESSAGES.items():
        items = as_list(body.get(field)) if field in _FIELDS[wire] else []
        for n, item in enumerate(items):
            where = f"{field}[{n}]"
            wrong = _wrong_types(f"{where}.", as_dict(item), inside)
            problems += wrong if isinstance(item, dict) else [f"{where}: it has to be an object"]
    return problems or _nothing_asked(wire, body)


def _nothing_asked(wire: str, body: Object) -> list[str]:
    if wire == "openai-responses":
        asked = ("input", "previous_response_id", "conversation", "prompt")
        return [] if any(body.get(field) for field in asked) else ["input: nothing"]
    field = "contents" if wire == "gemini" else "messages"
    return [] if body.get(field) else [f"{field}: none"]


def _wrong_types(before: str, value: Object, fields: Mapping[str, tuple[Kind, ...]]) -> list[str]:
    given = {field: value[field] for field in fields if value.get(field) is not None}
    return [
        f"{before}{field}: it is {_kind(one)}, and has to be {' or '.join(fields[field])}"
        for field, one in given.items()
        if _kind(one) not in fields[field]
    ]


def _kind(value: Json) -> Kind:
    match value:
        case bool():
            return "true or false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"
