"""The values of the language: JSON. How one is shown in a text, looked into, read, compared, and how large it may
be."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection
from typing import Any, TypeAlias, cast

from unbroken.messages import Json

LARGEST = 10_000_000
"""Characters or items of one value: a program that makes more has gone wrong."""
DEEPEST = 100
"""Lists and objects in each other."""
MOST_BITS = 4096
"""Of a whole number."""
_ORDINARY = 1 << 62
_LONG = 100
"""Items of a list that are looked at all at once."""


class Answer(dict[str, Json]):
    """What a block that asked a model gave: `answer`, `think`, and `calls` of an `/explore/`. In a text it stands as
    its answer."""


class Missing(LookupError):
    """There is no such key or position."""


def step_into(value: Any, key: Any) -> Json:
    """`.key` or `[0]` of a value."""
    key = in_text(key) if isinstance(key, Answer) else key
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
    twice. A number that cannot be reckoned with is refused."""
    if not isinstance(value, list | dict):
        return _length(value), 0
    known: dict[int, tuple[int, int]] = {}
    waiting: list[tuple[Any, bool]] = [(value, False)]
    while waiting:
        one, ready = waiting.pop()
        if id(one) in known:
            continue
        size, depth, missing = _sum_up(one, known)
        if ready or not missing:
            known[id(one)] = size, depth
        else:
            waiting.append((one, True))
            waiting += [(each, False) for each in missing.values()]
    return known[id(cast("Any", value))]


_Known: TypeAlias = dict[int, tuple[int, int]]


def _sum_up(one: Any, known: _Known) -> tuple[int, int, dict[int, Any]]:
    """Of a list or an object, as far as the size of all that is in it is known; and of what it is not."""
    size, depth = 1, 0
    missing: dict[int, Any] = {}
    items: Collection[Any] = one
    if isinstance(one, dict):
        size += sum(map(len, map(str, cast("dict[str, Any]", one))))
        items = cast("dict[str, Any]", one).values()
    if len(items) > _LONG:
        return _sum_up_many(items, size, known)
    for each in items:
        kind = each.__class__
        if kind is str:
            size += len(each)
        elif kind is list or kind is dict or isinstance(each, list | dict):
            found = known.get(id(cast("Any", each)))
            if found is None:
                missing[id(cast("Any", each))] = each
            else:
                size, depth = size + found[0], max(depth, found[1])
        else:
            size += _length(each)
    return size, depth + 1, missing


def _sum_up_many(items: Collection[Any], size: int, known: _Known) -> tuple[int, int, dict[int, Any]]:
    """The same with little of Python for each item: several times faster."""
    of_kind: dict[type[Any], Collection[Any]] = dict.fromkeys(set(map(type, items)), items)
    if len(of_kind) > 1:
        of_kind = {kind: [each for each in items if each.__class__ is kind] for kind in of_kind}
    depth = 0
    missing: dict[int, Any] = {}
    for kind, those in of_kind.items():
        if issubclass(kind, list | dict):
            times = Counter(map(id, those))  # a list that was doubled holds the same ones again and again
            by_id = dict(zip(map(id, those), those, strict=True))
            missing |= {key: each for key, each in by_id.items() if key not in known}
            for key, count in times.items():
                inner_size, inner_depth = known.get(key, (0, 0))
                size, depth = size + count * inner_size, max(depth, inner_depth)
        elif kind is str:
            size += sum(map(len, those))
        elif _are_ordinary(kind, those):
            size += len(those)
        else:
            size += sum(map(_length, those))
    return size, depth + 1, missing


def _are_ordinary(kind: type[Any], those: Collection[Any]) -> bool:
    """They can surely be reckoned with, and each counts as one."""
    if kind is int:
        return min(those) > -_ORDINARY and max(those) < _ORDINARY
    return kind is bool or kind is type(None) or (kind is float and all(map(math.isfinite, those)))


def refuse_beyond(size: int) -> None:
    """Before the work is done."""
    if size > LARGEST:
        raise ValueError("the value gets too large")


def checked(size: int, depth: int) -> None:
    refuse_beyond(size)
    if depth > DEEPEST:
        raise ValueError(f"the value is nested more than {DEEPEST} deep")


def _length(value: Any) -> int:
    bounded(value)
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
