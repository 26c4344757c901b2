"""Is the response whole? The one place that decides, from several witnesses, because each of them lies somewhere.

The witnesses: the wire's terminal sign, the finish reason, the balance of every call, an error object, damaged events,
the token count. The verdict is data (`deltas.Verdict`); what to do about it is decided above.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from unbroken.decoding.calls import CUT
from unbroken.messages import Json, ToolCall
from unbroken.verdicts import Meaning, Verdict
from unbroken.wires.jsontext import dump_arguments


@dataclass(slots=True)
class Witnesses:
    """What was seen of a response when its body had ended."""

    bytes_seen: int
    recognised: bool
    """At least one event was of the wire."""
    noise: str
    """The first line that was no event, for instance of an HTML page."""
    cut: bool
    """The body ended in the middle of an event."""
    cause: str
    """Why the bytes ended, where it was not the provider who ended them."""
    damaged: str
    terminal: bool
    finish: str | None
    meaning: Meaning
    error: Json
    text: int
    """Characters of text."""
    blank: bool
    """The text is nothing but white space."""
    reasoning: int
    other: bool
    """Something that is neither text nor a call: an image, a sound."""
    calls: int
    server_calls: int
    broken_calls: tuple[ToolCall, ...]
    output_tokens: int
    max_tokens: int | None


_HTML = re.compile(r"\s*<[!/a-zA-Z]")
_SAY_CALLS = ("tool_calls", "function_call", "tool_use")


def judge(seen: Witnesses) -> Verdict:
    kind, reason = _kind(seen)
    names = tuple(call.name for call in seen.broken_calls)
    return Verdict(kind, reason, seen.finish, seen.meaning, seen.bytes_seen, seen.text, names, seen.error)


def _kind(seen: Witnesses) -> tuple[str, str]:
    names = ", ".join(call.name or "a call without a name" for call in seen.broken_calls)
    if seen.error is not None:
        return "error", f"the provider sent an error: {error_text(seen.error)}"
    if seen.bytes_seen == 0:
        return "foreign", f"the body is empty{f': {seen.cause}' if seen.cause else ''}"
    if not seen.recognised and not seen.cut and (seen.noise or not seen.damaged):
        return "foreign", _foreign(seen)
    if seen.damaged:
        return "damaged", seen.damaged
    if not seen.terminal:
        calls = f"; calls not complete: {names}" if names else ""
        end = seen.cause or "the body ended without the terminal sign of its wire"
        return "unfinished", f"{end}{calls}"
    if _HTML.match(seen.noise):
        return "damaged", f"the stream contains HTML: {seen.noise}"
    if seen.broken_calls:
        if seen.meaning == "length" or (seen.max_tokens is not None and seen.output_tokens >= seen.max_tokens):
            return "cut_call", f"the token limit cut the call: {names} (finish reason {seen.finish!r})"
        problem = seen.broken_calls[0].problem
        said = f"the finish reason is {seen.finish!r}, but"
        if problem.startswith(CUT):
            return "cut_call", f"{said} the arguments are not complete: {names}"
        return "cut_call", f"{said} not every call can run: {names}: {problem}"
    if seen.finish in _SAY_CALLS and not (seen.calls or seen.server_calls):
        return "cut_call", f"the finish reason is {seen.finish!r}, but no call came"
    if seen.blank and not (seen.calls or seen.server_calls or seen.other) and seen.meaning in ("done", "other"):
        what = "only reasoning" if seen.reasoning else "nothing"
        return "empty", f"the response ended as it should and says {what}"
    return "whole", ""


def _foreign(seen: Witnesses) -> str:
    if _HTML.match(seen.noise):
        return f"the body is HTML, not a response: {seen.noise}"
    if seen.noise:
        return f"the body is not a response of this wire: {seen.noise}"
    return "the body holds no event of this wire"


_WORDS = ("message", "error", "msg", "error_msg", "detail", "reason")


def error_text(error: Json) -> str:
    """The words of a provider's error object, whatever its shape."""
    found = error
    for _ in range(5):  # as deep as errors are seen inside errors
        if isinstance(found, str) and found:
            return found
        if isinstance(found, list):
            found = next(iter(cast("list[Json]", found)), None)
        elif isinstance(found, dict):
            fields = cast("dict[str, Json]", found)
            found = next((fields[word] for word in _WORDS if fields.get(word)), None)
    return (dump_arguments(error) or "an error object")[:200]
