"""Reads what `useChat` of the AI SDK posts: `from_ui_messages` reads the history, and `answers_from_ui_messages` the
decisions about a waiting run. A browser is not trusted: what cannot be read raises a `UserError` that names the
message.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from unbroken.errors import UserError
from unbroken.tools.approval import Allow, Deny
from unbroken.tools.caller import failure
from unbroken.tools.results import to_parts
from unbroken_wires.messages import Assistant, Json, Media, Message, Part, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript import repair
from unbroken_wires.wires.json_access import Object, as_dict, as_list, dicts
from unbroken_wires.wires.jsontext import dumps

_RENAMED = re.compile(r"-\d+\Z")
"""Suffix for an id that a call of a broken response already has."""


def from_ui_messages(messages: Sequence[Mapping[str, Json]]) -> tuple[Message, ...]:
    """The history that `useChat` posts as `messages`, for `agent.stream(None, history=…)`.

    The browser's content is the user's, so system messages are left out: only the agent has instructions. A call
    without a result gets one that reports this; a call with incomplete arguments is left out.
    """
    history: list[Message] = []
    for number, message in enumerate(_messages(messages)):
        role = message.get("role")
        if role == "user":
            if parts := [part for each in _parts(message, number) for part in _said(each, number)]:
                history.append(User(tuple(parts)))
        elif role == "assistant":
            for step in _steps(_parts(message, number)):
                history += _turn(step, number)
        elif role != "system":
            raise _unreadable(number, f"its role is {role!r}, and not user or assistant")
    return repair(history)[0]


def answers_from_ui_messages(messages: Sequence[Mapping[str, Json]], pending: Iterable[ToolCall]) -> dict[str, Any]:
    """The client's answers for calls that a run waits for (`result.pending`), for `agent.resume`: approvals given with
    `addToolApprovalResponse`, and results given with `addToolOutput`."""
    waiting = {call.id: call for call in pending}
    answers: dict[str, Any] = {}
    posted = _messages(messages)
    if not posted or posted[-1].get("role") != "assistant":
        return answers
    parts: dict[str, Object] = {}
    for part in _parts(posted[-1], len(posted) - 1):
        id = str(part.get("toolCallId"))
        parts[id if id in waiting else _RENAMED.sub("", id)] = part
        asked = waiting.get(str(as_dict(part.get("approval")).get("id")))
        if asked is not None and asked.agent:  # it is approved at the part of the tool that runs its agent
            parts[asked.id] = part
    for call in waiting.values():
        part = parts.get(call.id, {})
        if part.get("state") == "approval-responded" and isinstance(part.get("approval"), dict):
            decided = as_dict(part.get("approval"))
            answers[call.id] = Allow() if decided.get("approved") is True else Deny(str(decided.get("reason") or ""))
        elif (result := _result(part, call)) is not None:
            answers[call.id] = result
    return answers


def _messages(posted: object) -> list[Mapping[str, Json]]:
    """Checks the types: a browser may post anything."""
    if not isinstance(posted, list | tuple):
        raise UserError(f"the UI messages cannot be read: they are a {type(posted).__name__}, and not a list")
    messages = list(cast("Sequence[object]", posted))
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise _unreadable(number, f"it is a {type(message).__name__}, and not an object")
    return cast("list[Mapping[str, Json]]", messages)


def _parts(message: Mapping[str, Json], number: int) -> list[Object]:
    parts = message.get("parts")
    if parts is None and isinstance(message.get("content"), str):
        return [{"type": "text", "text": message["content"]}]
    if not isinstance(parts, list) or len(found := dicts(parts)) < len(as_list(parts)):
        raise _unreadable(number, "it has no list of parts")
    return found


def _said(part: Object, number: int) -> Iterator[Part]:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        if part["text"]:
            yield Text(part["text"])
    elif part.get("type") == "file":
        yield _media(part, number)


def _media(part: Object, number: int) -> Media:
    url, mime, name = (part.get(key) or "" for key in ("url", "mediaType", "filename"))
    if not all(isinstance(value, str) for value in (url, mime, name)) or not url:
        raise _unreadable(number, "a file in it has no URL")
    if not url.startswith("data:"):
        return Media(mime, url=url, name=name)
    head, comma, data = url[len("data:") :].partition(",")
    try:
        content = base64.b64decode(data, validate=True) if head.endswith(";base64") else unquote_to_bytes(data)
    except binascii.Error:
        raise _unreadable(number, "the data URL of a file in it is not base64") from None
    mime = mime or head.split(";")[0] or "text/plain"
    if not comma or not content:
        raise _unreadable(number, "a file in it is empty")
    return Media(mime, base64.b64encode(content).decode(), name=name)


def _steps(parts: Iterable[Object]) -> list[list[Object]]:
    steps: list[list[Object]] = [[]]
    for part in parts:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    return steps


def _turn(parts: Iterable[Object], number: int) -> Iterator[Message]:
    """One step as a message with its calls, and their results, without what a retry has replaced."""
    said: dict[str, list[str]] = {"text": [], "reasoning": []}
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    for part in parts:
        kind = str(part.get("type"))
        if kind in said and isinstance(part.get("text"), str):
            said[kind].append(part["text"])
        elif _is_call(part, kind):
            calls.append(_call(part, kind, len(calls), number))
            result = _result(part, calls[-1])
            if result is not None:
                results.append(result)
        elif kind == "data-replaced":
            said[str(as_dict(part.get("data")).get("part"))] = []
        elif kind == "data-dropped":
            dropped = as_list(as_dict(part.get("data")).get("toolCallIds"))
            calls = [call for call in calls if call.id not in dropped]
            results = [result for result in results if result.call_id not in dropped]
    text, reasoning = "".join(said["text"]), "\n\n".join(filter(None, said["reasoning"]))
    if text or calls:
        yield Assistant(text, tuple(calls), reasoning)
    if results:
        yield ToolMessage(tuple(results))


def _is_call(part: Object, kind: str) -> bool:
    """A call that a provider ran itself, or that is incomplete, does not count."""
    if part.get("providerExecuted") is True or part.get("state") == "input-streaming":
        return False
    return kind.startswith("tool-") or kind == "dynamic-tool"


def _call(part: Object, kind: str, index: int, number: int) -> ToolCall:
    name = part.get("toolName") if kind == "dynamic-tool" else kind.removeprefix("tool-")
    id = part.get("toolCallId")
    if not (isinstance(name, str) and name and isinstance(id, str)):
        raise _unreadable(number, "a call in it has no name, or no toolCallId")
    arguments = as_dict(part.get("input"))
    return ToolCall(id, name, arguments, dumps(arguments).decode(), index)


def _result(part: Object, call: ToolCall) -> ToolResult | None:
    state, decided = part.get("state"), as_dict(part.get("approval"))
    if state == "output-available" and part.get("preliminary") is not True:
        return ToolResult(call.id, to_parts(part.get("output")), name=call.name)
    if state == "output-error":
        return ToolResult.of(call, str(part.get("errorText") or "Error: it failed"), error=True)
    if state == "output-denied" or (state == "approval-responded" and decided.get("approved") is False):
        reason = decided.get("reason")
        why = f"not executed: denied: {reason}" if reason else "not executed: denied"
        return failure(call, why, "not_executed")
    return None


def _unreadable(number: int, why: str) -> UserError:
    return UserError(f"message {number} of the UI messages cannot be read: {why}")
