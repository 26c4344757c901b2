"""Values of an unsure type: JSON from providers and clients, where anything may stand anywhere.

Each function gives the value if it is what its name says, else the empty one of that kind. They never raise.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from unbroken.messages import Json

Object: TypeAlias = dict[str, Any]

MISSHAPEN = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
"""What reading a value of an unexpected type may raise."""


def as_dict(value: Json) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else []


def dicts(value: Json) -> list[Object]:
    """The objects in a list; everything else in it is left out."""
    return [cast("Object", item) for item in as_list(value) if isinstance(item, dict)]


def as_text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def as_number(value: Json) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None


def as_int(value: Json) -> int:
    """A count of something: 0 where it is no number that could be one."""
    return int(value) if isinstance(value, int | float) and value == value and abs(value) < 2**63 else 0
