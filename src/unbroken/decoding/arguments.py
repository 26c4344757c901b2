"""The strict reading of a call's arguments: one JSON object, exact numbers, nothing repaired.

Parsed once, when the call is complete. By the standard parser, because orjson turns integers beyond 64 bits into
floats; by orjson where the text is short and has no number so long. Says in words why a text is refused; the words go
to the model and into logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import orjson

from unbroken.decoding.scanner import MAX_DEPTH, Scanner
from unbroken.messages import Json
from unbroken.wires.jsontext import strict

DOUBLE_ENCODED = "double-encoded"
_LONG_NUMBER = re.compile(r"[0-9]{19}")


@dataclass(slots=True)
class Parsed:
    arguments: dict[str, Json] | None
    problem: str = ""
    invalid: bool = False
    """It is not JSON at all, as a text is that was cut."""
    notes: tuple[str, ...] = ()


def parse_arguments(raw: str) -> Parsed:
    """Read a text that is not blank. A JSON string that holds a JSON object is read once more, and noted."""
    if not _shallow(raw):
        return Parsed(None, f"the arguments are nested deeper than {MAX_DEPTH} levels")
    try:
        value = strict.decode(raw)
        notes: tuple[str, ...] = ()
        if isinstance(value, str) and _shallow(value):
            value = strict.decode(value)
            notes = (DOUBLE_ENCODED,)
    except (ValueError, RecursionError) as error:
        return Parsed(None, f"the arguments are not valid JSON: {error}", invalid=True)
    if not isinstance(value, dict):
        return Parsed(None, f"the arguments are not a JSON object but {_name(value)}")
    return Parsed(cast("dict[str, Json]", value), notes=notes)


def parse_object(text: str) -> Parsed | None:
    """A short text that is one JSON object and nothing else; None for any other, which has to be looked at closely."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = strict.decode(text) if _LONG_NUMBER.search(text) else orjson.loads(text)
    except (ValueError, RecursionError):
        return None
    return Parsed(cast("dict[str, Json]", value)) if isinstance(value, dict) else None


def _shallow(raw: str) -> bool:
    if raw.count("{") + raw.count("[") <= MAX_DEPTH:
        return True
    scanner = Scanner()
    scanner.feed(raw)
    # Text that is not an object is refused in any case: no need to know its depth, but it must not be parsed.
    return not (scanner.too_deep or scanner.foreign)


def _name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case _:
            return "an array"
