"""cohere-v2: what the Chat API refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken_wires.wires.event_shapes import Event, EventShapes, ForTests, PartOfCall, TooLong
from unbroken_wires.wires.json_access import Object, as_dict, as_number, as_text, dicts
from unbroken_wires.wires.strict import (
    FLAG,
    LIST,
    MESSAGES,
    NUMBER,
    OBJECT,
    TEXT,
    Chain,
    Fields,
    check_call,
    check_content,
    check_model,
    check_names,
    check_types,
)

_FIELDS: Fields = {
    "model": TEXT,
    "messages": LIST,
    "tools": LIST,
    "tool_choice": TEXT,
    "strict_tools": FLAG,
    "stream": FLAG,
    "thinking": OBJECT,
    "max_tokens": NUMBER,
    "stop_sequences": LIST,
    "temperature": NUMBER,
    "p": NUMBER,
}


def check_shape(body: Object) -> list[str]:
    problems = check_types(body, _FIELDS, {"messages": MESSAGES, "tools": {}})
    if problems:
        return problems
    return [] if body.get("messages") else ["messages: none"]


def check_request(body: Object) -> list[str]:
    problems = [*check_model(body), *_check_tools(body)]
    p = as_number(body.get("p"))
    if p is not None and not 0.01 <= p <= 0.99:
        problems.append("p: it has to be from 0.01 to 0.99")
    chain = Chain(problems)
    for n, message in enumerate(dicts(body.get("messages"))):
        where, role = f"messages[{n}]", message.get("role")
        if role == "tool":
            problems += check_content(where, message.get("content") or None, {"text", "document"})
            chain.result(where, as_text(message.get("tool_call_id")))
            continue
        chain.other(where)
        if role == "assistant":
            problems += _check_answer(where, message)
            if calls := dicts(message.get("tool_calls")):
                chain.calls(where, [as_text(call.get("id")) for call in calls])
        elif role in ("system", "user"):
            types = {"text", "image_url"} if role == "user" else {"text"}
            problems += check_content(where, message.get("content") or None, types)
        else:
            problems.append(f"{where}: there is no role {role!r}")
    chain.other("the end")
    return problems


def _check_tools(body: Object) -> list[str]:
    tools = dicts(body.get("tools"))
    problems = check_names("tools", [as_text(as_dict(tool.get("function")).get("name")) for tool in tools])
    if "tools" in body and not tools:
        problems.append("tools: an empty list")
    if "tool_choice" in body:
        if body["tool_choice"] not in ("REQUIRED", "NONE"):
            problems.append("tool_choice: it has to be REQUIRED or NONE")
        if not tools:
            problems.append("tool_choice: there are no tools")
    return problems


def _check_answer(where: str, message: Object) -> list[str]:
    calls, content = dicts(message.get("tool_calls")), message.get("content")
    problems: list[str] = []
    if content:
        problems += check_content(where, content, {"text", "thinking"})
    elif not calls:
        problems.append(f"{where}: neither content nor tool_calls")
    for call in calls:
        function = as_dict(call.get("function"))
        problems += check_call(where, function.get("name"), function.get("arguments"))
        if not as_text(call.get("id")):
            problems.append(f"{where}: a call without an id")
        if call.get("type") != "function":
            problems.append(f"{where}: there is no type of calls {call.get('type')!r}")
    return problems


# cohere-v2, its events as faults change them: typed events, a call in a start, deltas and an end.


class CohereEvents(EventShapes):
    named = True
    done_reason = "COMPLETE"
    interleaves = True
    provider_runs = False
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "cohere": TooLong(
            400,
            "too many tokens: total number of tokens in the prompt cannot exceed 128000 - received 131402. Try using a "
            "shorter prompt, or enabling prompt truncating.",
        )
    }

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        fields = as_dict(event)
        calls = dicts(as_dict(fields.get("message")).get("tool_calls"))
        for call in (as_dict(_message(event).get("tool_calls")), *calls):
            function = as_dict(call.get("function"))
            if "arguments" in function:
                yield function, "arguments"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        if as_dict(event).get("type") == "content-delta":
            content = as_dict(_message(event).get("content"))
            return next(((content, key) for key in ("text", "thinking") if isinstance(content.get(key), str)), None)
        if as_dict(event).get("type") == "tool-call-delta":
            return as_dict(_message(event)["tool_calls"]["function"]), "arguments"
        return None

    def is_finish(self, event: Event) -> bool:
        return as_dict(event).get("type") == "message-end"

    def set_finish(self, event: Event, reason: str | None) -> None:
        for holder in (as_dict(event), as_dict(as_dict(event).get("delta"))):
            if holder.get("finish_reason"):
                holder["finish_reason"] = reason

    def part_of_call(self, event: Event) -> PartOfCall:
        kind = as_text(as_dict(event).get("type"))
        return "first" if kind == "tool-call-start" else "later" if kind.startswith("tool-call-") else ""


def _message(event: Event) -> Object:
    return as_dict(as_dict(as_dict(event).get("delta")).get("message"))


FOR_TESTS = ForTests(check_shape, check_request, CohereEvents())
