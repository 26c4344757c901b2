"""What a line of a recording holds, whatever somebody has written into it: a value of the wanted type, or a default.

Recordings come from elsewhere. What is missing or of another type is not shown; nothing breaks on it.
"""

from __future__ import annotations

import math
from typing import cast

from unbroken.messages import Json
from unbroken.trajectory.lines import Line

LONGEST = 1_000
"""Characters of what is not meant to be long."""


def text(line: Line, name: str) -> str:
    value = line.get(name)
    return value if isinstance(value, str) else ""


def words(line: Line, name: str) -> str:
    """A name, an id, a reason: short, as they are meant to be."""
    value = text(line, name)
    return value if len(value) <= LONGEST else f"{value[:LONGEST]}…"


def number(line: Line, name: str) -> float | None:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        known = float(value)
    except OverflowError:
        return None
    return known if math.isfinite(known) else None


def count(line: Line, name: str) -> int:
    return int(number(line, name) or 0)


def flag(line: Line, name: str) -> bool:
    return line.get(name) is True


def inner(line: Line, name: str) -> Line:
    return as_object(line.get(name))


def objects(line: Line, name: str) -> list[Line]:
    return [as_object(value) for value in as_list(line.get(name)) if isinstance(value, dict)]


def as_object(value: Json) -> Line:
    return cast("Line", value) if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else []
