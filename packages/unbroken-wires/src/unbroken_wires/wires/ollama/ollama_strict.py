"""ollama: what the server of `/api/chat` refuses. It does not check the chain of calls; here that is checked as on
every wire, so that it can judge our encoders and repairs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken_wires.messages import Json
from unbroken_wires.wires.event_shapes import Event, Events, EventShapes, ForTests, TooLong, dumps
from unbroken_wires.wires.framing import JSON_LINES
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.strict import (
    FLAG,
    LIST,
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    Chain,
    Fields,
    check_model,
    check_names,
    check_types,
)

_FIELDS: Fields = {
    "model": TEXT,
    "messages": LIST,
    "tools": LIST,
    "stream": FLAG,
    "options": OBJECT,
    "format": TEXT_OR_OBJECT,
    "think": ("a text", "true or false"),
}
_MESSAGES: Fields = {
    "role": TEXT,
    "content": TEXT,
    "thinking": TEXT,
    "images": LIST,
    "tool_calls": LIST,
    "tool_name": TEXT,
    "tool_call_id": TEXT,
}


def check_shape(body: Object) -> list[str]:
    problems = check_types(body, _FIELDS, {"messages": _MESSAGES, "tools": {}})
    if problems:
        return problems
    return [] if body.get("messages") else ["messages: none"]


def check_request(body: Object) -> list[str]:
    tools = [as_dict(tool.get("function")) for tool in dicts(body.get("tools"))]
    problems = [*check_model(body), *check_names("tools", [as_text(tool.get("name")) for tool in tools])]
    if body.get("think") not in (None, True, False, "low", "medium", "high"):
        problems.append("think: it has to be true, false, low, medium or high")
    chain = Chain(problems)
    waiting: list[tuple[str, str]] = []
    for n, message in enumerate(dicts(body.get("messages"))):
        where, role = f"messages[{n}]", message.get("role")
        problems += _check_images(where, message.get("images"))
        if role == "tool":
            chain.result(where, _answered(message, waiting))
            continue
        chain.other(where)
        if role not in ("system", "user", "assistant"):
            problems.append(f"{where}: there is no role {role!r}")
        calls = dicts(message.get("tool_calls"))
        if calls and role != "assistant":
            problems.append(f"{where}: calls belong to the assistant")
        problems += _check_calls(where, calls)
        waiting = [(_id(at, call), as_text(as_dict(call.get("function")).get("name"))) for at, call in enumerate(calls)]
        if calls:
            chain.calls(where, [id for id, _ in waiting])
    chain.other("the end")
    return problems


def _id(place: int, call: Object) -> str:
    return as_text(call.get("id")) or f"call {place}"


def _answered(message: Object, waiting: list[tuple[str, str]]) -> str:
    """The call that a result is about: by id, else by name, in order."""
    id, name = as_text(message.get("tool_call_id")), as_text(message.get("tool_name"))
    for one in waiting:
        if id == one[0] if id else name in ("", one[1]):
            waiting.remove(one)
            return one[0]
    return id or name


def _check_calls(where: str, calls: list[Object]) -> list[str]:
    functions = [as_dict(call.get("function")) for call in calls]
    problems = [each for function in functions for each in check_names(where, [as_text(function.get("name"))])]
    if any(not isinstance(function.get("arguments"), dict) for function in functions):
        problems.append(f"{where}: the arguments of a call are not an object")
    return problems


def _check_images(where: str, images: Json) -> list[str]:
    for image in as_list(images):
        try:
            base64.b64decode(as_text(image) or "?", validate=True)
        except ValueError:
            return [f"{where}: an image is not base64"]
    return []


# ollama, its events as faults change them: lines with a `message`, a call always in one of them.


class OllamaEvents(EventShapes):
    in_fragments = False
    text_arguments = ()
    merges_calls = True
    provider_runs = False
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "ollama": TooLong(400, "the input length exceeds the context length"),
    }

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        for call in _calls(event):
            yield call["function"], "arguments"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        message = as_dict(as_dict(event).get("message"))
        return next(((message, key) for key in ("thinking", "content") if message.get(key)), None)

    def is_finish(self, event: Event) -> bool:
        return as_dict(event).get("done") is True

    def all_calls_at_once(self, events: Events) -> Events:
        held: list[Object] = []
        for event in events:
            if calls := _calls(event):
                held += calls
                continue
            if held and self.is_finish(event):
                as_dict(event)["message"]["tool_calls"] = held
                held = []
            yield event

    def error_event(self, error: Object, message: str) -> bytes:
        return JSON_LINES.write(dumps(error))


def _calls(event: Event) -> list[Object]:
    return dicts(as_dict(as_dict(event).get("message")).get("tool_calls"))


FOR_TESTS = ForTests(check_shape, check_request, OllamaEvents())
