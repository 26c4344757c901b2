"""What kind of thing a provider complains of, read from its error object in any of many spellings: may another try do?

Pure data in, one word out. Where the error came from (a status, an event inside a 200) and what is done about it are
decided elsewhere.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from unbroken.messages import Json
from unbroken.wires.values import as_dict

Complaint: TypeAlias = Literal["too_long", "limited", "unavailable", "refused", ""]
"""The context is too long; too many requests; the provider's own trouble; this request will never do; not known."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum context length|prompt is too long|context window|input is too long"
    r"|request_too_large|exceeds the (?:maximum|model'?s?) .{0,40}(?:token|context)|too many tokens"
)
_LIMITED = re.compile(r"rate[_ ]?limit|too many requests|resource[_ ]exhausted|\b429\b")
_UNAVAILABLE = re.compile(
    r"overloaded|unavailable|server[_ ]error|internal|timeout|timed out|upstream|try again|capacity|\b5\d\d\b"
)
_REFUSED = re.compile(
    r"invalid[_ ]request|invalid[_ ]argument|authentication|permission|unauthori[sz]ed|api[_ ]key|not[_ ]found"
    r"|insufficient[_ ](?:quota|balance|credit|funds)|credit balance|content[_ ]policy|\b40[0134]\b"
)


def complaint_of(error: Json) -> Complaint:
    signs = signs_of(error)
    if _TOO_LONG.search(signs):
        return "too_long"
    if _REFUSED.search(signs):
        return "refused"
    if _LIMITED.search(signs):
        return "limited"
    return "unavailable" if _UNAVAILABLE.search(signs) else ""


def signs_of(value: Json) -> str:
    """Everything in the error that may name its kind, in lower case."""
    found: list[str] = []
    stack: list[Json] = [value]
    for _ in range(200):
        if not stack:
            break
        item = stack.pop()
        if isinstance(item, str):
            found.append(item[:500].lower())
        elif isinstance(item, int) and not isinstance(item, bool):
            found.append(str(item)[:20])
        elif isinstance(item, dict):
            stack.extend(as_dict(item).values())
        elif isinstance(item, list):
            stack.extend(item)  # pyright: ignore[reportUnknownArgumentType] - any JSON
    return " ".join(found)
