"""Is the response whole? The one place that decides, from several witnesses, because each of them lies somewhere.

The witnesses: the wire's terminal sign, the finish reason, the balance of every call, an error object, damaged events,
the token count; where there was no response, the error that stands for it. The verdict is data (`verdicts.Verdict`),
and says whether another try may do; who tries again is decided above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from unbroken.decoding.calls import CUT, UNFINISHED
from unbroken.decoding.complaints import complaint_of
from unbroken.errors import ContextTooLong, ProviderError, RateLimited, TimedOut, Unavailable, Unreachable
from unbroken.messages import Json, ToolCall
from unbroken.verdicts import Meaning, Verdict, VerdictKind
from unbroken.wires.jsontext import dump_arguments

How: TypeAlias = Literal["unfinished", "lost", "silent", "late"]
"""How a body without its terminal sign came to its end."""


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
    how: How
    """The kind of that."""
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


LONGEST = 500
"""Characters of a provider's own words."""
_HTML = re.compile(r"\s*<[!/a-zA-Z]")
_SAY_CALLS = ("tool_calls", "function_call", "tool_use")


def says_enough(text: str, calls: Sequence[ToolCall], finish: str | None) -> bool:
    """Of a response that ended as it should, and of which everything could be read: is it whole? The short way to the
    same verdict, for nearly all responses."""
    if calls:
        return not any(call.problem for call in calls)
    return bool(text) and not text.isspace() and finish not in _SAY_CALLS


def judge(seen: Witnesses) -> Verdict:
    kind, reason = _kind(seen)
    names = tuple(call.name for call in seen.broken_calls)
    # Some say that they were done though the token limit cut them.
    meaning = "length" if kind == "cut_call" and _met_its_limit(seen) else seen.meaning
    again = kind != "whole" and _again(kind, meaning, seen)
    return Verdict(kind, reason, seen.finish, meaning, seen.bytes_seen, seen.text, names, seen.error, again)


def judge_failure(error: ProviderError) -> Verdict:
    """The verdict where there was no response at all, or none that can be read."""
    match error:
        case RateLimited():
            kind = "limited"
        case Unavailable():
            kind = "unavailable"
        case Unreachable():
            kind = "unreachable"
        case TimedOut():
            kind = "late" if error.total else "unanswered"
        case ContextTooLong():
            return Verdict("too_long", str(error))
        case _:
            return Verdict("refused", str(error))
    return Verdict(kind, str(error), again=kind != "late")


def _again(kind: VerdictKind, meaning: Meaning, seen: Witnesses) -> bool:
    if kind == "error":
        return complaint_of(seen.error) != "refused"
    if kind == "cut_call":
        # The limit would cut it again; and arguments that are whole but wrong are the model's own, it is told.
        cut = any(call.problem.startswith(UNFINISHED) for call in seen.broken_calls) or not seen.broken_calls
        return cut and meaning != "length"
    return kind not in ("late", "too_long")


def _met_its_limit(seen: Witnesses) -> bool:
    return seen.meaning == "length" or (seen.max_tokens is not None and seen.output_tokens >= seen.max_tokens)


def _kind(seen: Witnesses) -> tuple[VerdictKind, str]:
    names = ", ".join(call.name or "a call without a name" for call in seen.broken_calls)
    if seen.error is not None:
        kind = "too_long" if complaint_of(seen.error) == "too_long" else "error"
        return kind, f"the provider sent an error: {error_text(seen.error)[:LONGEST]}"
    if seen.bytes_seen == 0:
        kind = "foreign" if seen.how == "unfinished" else seen.how
        return kind, f"the body is empty{f': {seen.cause}' if seen.cause else ''}"
    if not seen.recognised and not seen.cut and (seen.noise or not seen.damaged):
        return "foreign", _foreign(seen)
    if seen.damaged:
        return "damaged", seen.damaged
    if not seen.terminal:
        calls = f"; calls not complete: {names}" if names else ""
        end = seen.cause or "the body ended without the terminal sign of its wire"
        return seen.how, f"{end}{calls}"
    if _HTML.match(seen.noise):
        return "damaged", f"the stream contains HTML: {seen.noise}"
    if seen.broken_calls:
        if _met_its_limit(seen):
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
