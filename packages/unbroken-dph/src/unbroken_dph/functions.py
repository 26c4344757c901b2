"""The functions of the language: each takes JSON values and returns one; there are no others. They raise errors without
a position; `evaluating` adds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from unbroken_dph.values import Answer, bounded, in_text, is_number, kind_of, read_json, refuse_beyond
from unbroken_wires.messages import Json

MOST_NUMBERS = 1_000_000
MANY = 99
DIGITS = 300
"""The most digits of a number in a string."""


def apply(name: str, arguments: list[Json]) -> Json:
    function, fewest, most = FUNCTIONS[name]
    if not fewest <= len(arguments) <= most:
        wanted = str(fewest) if fewest == most else f"{fewest} to {most}" if most < MANY else f"{fewest} or more"
        raise TypeError(f"it takes {wanted} value{'' if wanted == '1' else 's'}, got {len(arguments)}")
    return bounded(function(*arguments))


def _text(value: Any) -> str:
    if isinstance(value, Answer):
        return in_text(value)
    if not isinstance(value, str):
        raise TypeError(f"needs a string, not {kind_of(value)}")
    return value


def _list(value: Any) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"needs a list, not {kind_of(value)}")
    return cast("list[Json]", value)


def _object(value: Any) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"needs an object, not {kind_of(value)}")
    return cast("dict[str, Json]", value)


def _len(value: Any) -> int:
    if isinstance(value, Answer):
        return len(in_text(value))
    if not isinstance(value, str | list | dict):
        raise TypeError(f"{kind_of(value)} has no length")
    return len(cast("list[Json]", value))


def _alike(values: tuple[Any, ...]) -> list[Any]:
    items = _list(values[0]) if len(values) == 1 else list(values)
    if not items:
        raise ValueError("the list is empty")
    if not (all(map(is_number, items)) or all(isinstance(item, str) for item in items)):
        raise TypeError("needs only numbers or only strings")
    return items


def _sum(values: Any) -> Json:
    items = _list(values)
    if not all(map(is_number, items)):
        raise TypeError("needs a list of numbers")
    return sum(items)


def _range(*bounds: Any) -> list[Json]:
    if not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds):
        raise TypeError("needs integers")
    if len(bounds) == 3 and bounds[2] == 0:
        raise ValueError("the step must not be 0")
    numbers = range(*bounds)
    if len(numbers) > MOST_NUMBERS:
        raise ValueError(f"more than {MOST_NUMBERS:,} numbers")
    return list(numbers)


def _round(value: Any, digits: Any = 0) -> Json:
    if not is_number(value) or not isinstance(digits, int):
        raise TypeError(f"needs a number, not {kind_of(value)}")
    if not -DIGITS <= digits <= DIGITS:
        raise ValueError(f"at most {DIGITS} digits")
    return round(value, digits) if digits else round(value)


def _abs(value: Any) -> Json:
    if not is_number(value):
        raise TypeError(f"needs a number, not {kind_of(value)}")
    return abs(value)


def _split(value: Any, mark: Any = None) -> list[Json]:
    if mark == "":
        raise ValueError("the separator is empty")
    return list(_text(value).split(None if mark is None else _text(mark)))


def _join(items: Any, mark: Any = "") -> str:
    texts = [in_text(item) for item in _list(items)]
    refuse_beyond(sum(map(len, texts)) + len(_text(mark)) * len(texts))
    return _text(mark).join(texts)


def _replace(text: Any, old: Any, new: Any) -> str:
    whole, part, instead = _text(text), _text(old), _text(new)
    if not part:
        raise ValueError("the string to replace is empty")
    refuse_beyond(len(whole) + whole.count(part) * (len(instead) - len(part)))
    return whole.replace(part, instead)


def _json(text: Any) -> Json:
    return read_json(_text(text))


def _sorted(values: Any) -> list[Json]:
    return sorted(_alike((_list(values),))) if values else []


def _digits(text: str) -> str:
    if "_" in text or len(text) > DIGITS:
        raise ValueError(text)
    return text.strip()


def _int(value: Any) -> int:
    value = in_text(value) if isinstance(value, Answer) else value
    if isinstance(value, str | int | float):
        try:
            return int(_digits(value) if isinstance(value, str) else value)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"{in_text(value)[:80]!r} is not an integer")


def _float(value: Any) -> float:
    value = in_text(value) if isinstance(value, Answer) else value
    if isinstance(value, str | int | float):
        try:
            return float(_digits(value) if isinstance(value, str) else value)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"{in_text(value)[:80]!r} is not a number")


def _bool(value: Any) -> bool:
    return bool(value)


def _keys(value: Any) -> list[Json]:
    return list(_object(value))


def _values(value: Any) -> list[Json]:
    return list(_object(value).values())


def _lower(text: Any) -> str:
    return _text(text).lower()


def _upper(text: Any) -> str:
    return _text(text).upper()


def _strip(text: Any) -> str:
    return _text(text).strip()


def _max(*values: Any) -> Json:
    return max(_alike(values))


def _min(*values: Any) -> Json:
    return min(_alike(values))


FUNCTIONS: dict[str, tuple[Callable[..., Json], int, int]] = {
    "abs": (_abs, 1, 1),
    "bool": (_bool, 1, 1),
    "float": (_float, 1, 1),
    "int": (_int, 1, 1),
    "join": (_join, 1, 2),
    "json": (_json, 1, 1),
    "keys": (_keys, 1, 1),
    "len": (_len, 1, 1),
    "lower": (_lower, 1, 1),
    "max": (_max, 1, MANY),
    "min": (_min, 1, MANY),
    "range": (_range, 1, 3),
    "replace": (_replace, 3, 3),
    "round": (_round, 1, 2),
    "sorted": (_sorted, 1, 1),
    "split": (_split, 1, 2),
    "str": (in_text, 1, 1),
    "strip": (_strip, 1, 1),
    "sum": (_sum, 1, 1),
    "upper": (_upper, 1, 1),
    "values": (_values, 1, 1),
}
"""Each function, and the least and most values that it takes."""
