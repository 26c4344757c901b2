"""Describes where a replayed run diverges from its recording, as a diff: a request or a call that is different now."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import unified_diff
from typing import Any, cast

from unbroken.models.secrets import MASK
from unbroken.tools.context import CallContext
from unbroken.trajectory.lines import Line, request_fields, spec_fields
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken.trajectory.redaction import Redactor, secrets_in_environment
from unbroken_wires.messages import Json, Request, ToolCall
from unbroken_wires.transcript import to_json
from unbroken_wires.wires.json_access import dicts

_LONGEST = 40
"""Lines of a diff that are shown."""
_WIDEST = 200


def compare_requests(recorded: RecordedRequest, request: Request, place: int) -> str:
    """How the request differs, as text; empty if it is the same."""
    messages = to_json(request.messages)
    for number, (before, now) in enumerate(zip(recorded.messages, messages, strict=False)):
        before, now = _as_sent(before), _as_sent(now)
        if not _same(before, now, recorded.masked):
            return _words(f"request {place}, message {number} ({now.get('role')})", before, now)
    if len(recorded.messages) != len(messages):
        more = "more" if len(messages) > len(recorded.messages) else "fewer"
        longer = messages if more == "more" else list(recorded.messages)
        first = longer[min(len(messages), len(recorded.messages))]
        counts = f"{len(messages)} messages in place of {len(recorded.messages)}"
        before, now = ({}, first) if more == "more" else (first, {})
        return _words(f"request {place} has {counts}; the first that is {more}", before, now)
    tools = [spec_fields(spec) for spec in request.tools]
    if not _same(list(recorded.tools), tools, recorded.masked):
        before, now = _by_name(recorded.tools), _by_name(tools)
        if _same(before, now, recorded.masked):
            return _words(f"request {place}, the order of its tools,", list(before), list(now))
        return _words(f"request {place}, what its tools are,", before, now)
    fields = request_fields(request)
    if not _same(recorded.fields, fields, recorded.masked):
        return _words(f"request {place}, how it is asked,", recorded.fields, fields)
    return ""


def describe_call(call: ToolCall, context: CallContext[Any], recording: Recording) -> str:
    """A call that is not in the recording, compared with what is recorded at that place."""
    now: Line = {"name": call.name, "arguments": call.arguments}
    recorded: list[Line] = [
        {"name": line["name"], "arguments": line.get("arguments")}
        for line in recording.of("event")
        if line.get("event") == "call_started" and line.get("turn") == context.turn
    ]
    if now in recorded:
        at = f"turn {context.turn}, call `{call.name}` ({call.id})"
        return f"the run diverges from its recording: {at} is recorded, but its result is missing or cannot be read"
    like = next((each for each in recorded if each["name"] == call.name), recorded[0] if recorded else {})
    return _words(f"turn {context.turn}, call `{call.name}` ({call.id})", like, now)


def _as_sent(message: Line) -> Line:
    """The message without the outcomes of calls, which are not sent to a model."""
    results = message.get("results")
    if not isinstance(results, list):
        return message
    sent = [{name: each[name] for name in each if name != "outcome"} for each in dicts(cast("object", results))]
    return {**message, "results": sent}


def _by_name(tools: Iterable[Line]) -> Line:
    return {str(tool.get("name")): tool for tool in tools}


def _same(recorded: Json, now: Json, masked: bool) -> bool:
    """Equal, except for what was masked in the recording."""
    if recorded == now:
        return True
    before, after = _text(recorded), _text(now)
    return before == after or (masked and _fits(before.split(MASK), after))


def _fits(pieces: list[str], text: str) -> bool:
    """Does the text contain them in order, the first at its beginning and the last at its end?"""
    first, *others = pieces
    if not text.startswith(first) or not others:
        return False
    at = len(first)
    for piece in others[:-1]:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return len(text) - len(others[-1]) >= at and text.endswith(others[-1])


def _words(where: str, recorded: Json, now: Json) -> str:
    lines = list(
        unified_diff(_text(recorded).splitlines(), _text(now).splitlines(), "recorded", "now", lineterm="", n=2)
    )
    shown = [line if len(line) <= _WIDEST else f"{line[:_WIDEST]}…" for line in lines[:_LONGEST]]
    if len(lines) > _LONGEST:
        shown.append(f"… and {len(lines) - _LONGEST} lines more")
    words = f"the run diverges from its recording: {where} is different now\n" + "\n".join(shown)
    return Redactor(secrets_in_environment()).text(words)  # what is masked in the recording is masked here too


def _text(value: Json) -> str:
    """Spread over lines, without escaping: a text of several lines is several lines."""
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True, default=str)
    return text.replace("\\n", "\n    ")
