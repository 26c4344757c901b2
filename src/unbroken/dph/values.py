"""The values of the language: JSON. How one is shown in a text, looked into, read, compared, and how large it may
be."""

from __future__ import annotations

import json
import math
from typing import Any, cast

from unbroken.messages import Json

LARGEST = 10_000_000
"""Characters or items of one value: a program that makes more has gone wrong."""
DEEPEST = 100
"""Lists and objects in each other."""
MOST_BITS = 4096
"""Of a whole number."""


class Answer(dict[str, Json]):
    """What a block that asked a model gave: `answer`, `think`, and `calls` of an `/explore/`. In a text it stands as
    its answer."""


class Missing(LookupError):
    """There is no such key or position."""


def step_into(value: Any, key: Any) -> Json:
    """`.key` or `[0]` of a value."""
    if isinstance(value, dict):
        inside = cast("dict[Any, Any]", value)
        if isinstance(key, str | int) and not isinstance(key, bool):
            for name in (key, str(key)):
                if name in inside:
                    return inside[name]
        raise Missing(f"there is no `{key}`; there are: {', '.join(map(str, inside)) or 'none'}")
    if isinstance(value, list | str) and isinstance(key, int) and not isinstance(key, bool):
        items = cast("list[Any] | str", value)
        if -len(items) <= key < len(items):
            return items[key]
        what = "characters" if isinstance(value, str) else "items"
        raise Missing(f"there is no position {key}: it has {len(items)} {what}")
    raise Missing(f"{kind_of(value)} has no `{key}`")


def in_text(value: Json) -> str:
    """A value as it stands in a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Answer):
        return in_text(value.get("answer", ""))
    return json.dumps(value, ensure_ascii=False, default=str)


def kind_of(value: Any) -> str:
    """For people."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def measure(value: Json) -> tuple[int, int]:
    """How much of it there is, in characters and values, and how deep it is; written out, what is in it twice counts
    twice. What has no end is refused."""
    known: dict[int, tuple[int, int]] = {}
    waiting: list[tuple[Json, bool]] = [(value, False)]
    while waiting:
        one, ready = waiting.pop()
        inside = _inside(one)
        if inside is None or id(one) in known:
            continue
        if not ready:
            waiting.append((one, True))
            waiting += [(each, False) for each in inside if _inside(each) is not None and id(each) not in known]
            if len(waiting) > LARGEST:
                raise ValueError("the value gets too large")
            continue
        sizes = [known[id(each)] if _inside(each) is not None else (_length(each), 0) for each in inside]
        keys = sum(map(len, cast("dict[str, Json]", one))) if isinstance(one, dict) else 0
        known[id(cast("Any", one))] = (
            1 + keys + sum(size for size, _ in sizes),
            1 + max((depth for _, depth in sizes), default=0),
        )
    return known.get(id(value), (_length(value), 0))


def checked(size: int, depth: int) -> None:
    if size > LARGEST:
        raise ValueError("the value gets too large")
    if depth > DEEPEST:
        raise ValueError(f"the value is nested more than {DEEPEST} deep")


def _inside(value: Any) -> list[Json] | None:
    if isinstance(value, dict):
        return [*cast("dict[str, Json]", value).values()]
    return cast("list[Json]", value) if isinstance(value, list) else None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 1


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(left: Json, right: Json) -> bool:
    """Equal as JSON is: 1 is no true, also inside of lists and objects."""
    if isinstance(left, list) and isinstance(right, list):
        ours, theirs = cast("list[Json]", left), cast("list[Json]", right)
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(left, dict) and isinstance(right, dict):
        our, their = cast("dict[str, Json]", left), cast("dict[str, Json]", right)
        return our.keys() == their.keys() and all(same(value, their[key]) for key, value in our.items())
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def bounded(value: Json) -> Json:
    """The value, if it is no larger than a program has any use for."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the number gets too large")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError("the number gets too large")
    if isinstance(value, str | list) and len(cast("str", value)) > LARGEST:
        raise ValueError("the value gets too large")
    return cast("Json", value)


def read_json(text: str) -> Json:
    """Strictly: what is no JSON, or no number that can be reckoned with, is refused in words."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error.msg} in line {error.lineno}, column {error.colno})") from None


def _refuse(word: str) -> Json:
    raise ValueError(f"{word} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is too large a number")
    return number
