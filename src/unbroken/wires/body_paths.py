"""Paths to the values of a body: finding them, changing them, leaving them out.

`thinking.type`, `messages[].tool_calls[].id` (`[]`: each item), `tools[]{type=function}` (only items with this value;
`{a=x|y}`, `{a}`, `{!a}`), `**.cache_control` (at any depth).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from unbroken.messages import Json
from unbroken.wires.values import Object

GONE = object()
_SEGMENT = re.compile(r"(?P<key>\*\*|[^.\[{]+)(?P<each>\[\])?(?P<tests>(?:\{[^}]*\})*)")


@dataclass(frozen=True, slots=True)
class _Step:
    key: str
    each: bool
    tests: tuple[str, ...]

    def accepts(self, value: Any) -> bool:
        return all(_passes(value, test) for test in self.tests)


def _passes(value: Any, test: str) -> bool:
    if not isinstance(value, dict):
        return False
    value = cast("Object", value)
    key, equals, wanted = test.partition("=")
    if not equals:
        return value.get(key) is not None if key[0] != "!" else value.get(key[1:]) is None
    return str(value.get(key)) in wanted.split("|")


@cache
def _steps(path: str) -> tuple[_Step, ...]:
    return tuple(
        _Step(found["key"], found["each"] is not None, tuple(re.findall(r"\{([^}]*)\}", found["tests"])))
        for found in _SEGMENT.finditer(path)
    )


def find(body: Json, path: str) -> list[tuple[str, Any]]:
    """The values at a path, each with its place. A null is as good as absent."""
    return list(_find(body, _steps(path), ""))


def _find(value: Any, steps: Sequence[_Step], where: str) -> Iterator[tuple[str, Any]]:
    if not steps:
        if value is not None:
            yield where, value
        return
    step, rest = steps[0], steps[1:]
    if step.key == "**":
        yield from _find(value, rest, where)
        for key, each in values_in(value):
            yield from _find(each, steps, place_in(where, key))
        return
    found = cast("Object", value).get(step.key) if isinstance(value, dict) else None
    if found is None:
        return
    at = place_in(where, step.key)
    if not step.each:
        if step.accepts(found):
            yield from _find(found, rest, at)
    elif isinstance(found, list):
        for n, each in enumerate(cast("list[Json]", found)):
            if step.accepts(each):
                yield from _find(each, rest, f"{at}[{n}]")


def values_in(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return cast("Object", value).items()
    return enumerate(cast("list[Json]", value)) if isinstance(value, list) else ()


def place_in(where: str, key: Any) -> str:
    return f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}" if where else str(key)


def changed(body: Object, path: str, change: Callable[[Any], Any]) -> Object:
    """The body with the values at the path changed; `GONE` removes one. Only what changes is copied, because a body
    shares objects with the history and with the user's settings."""
    return cast("Object", _changed(body, _steps(path), change))


def _changed(value: Any, steps: Sequence[_Step], change: Callable[[Any], Any]) -> Any:
    if not steps:
        return change(value)
    step, rest = steps[0], steps[1:]
    if step.key == "**":
        value = _changed(value, rest, change)
        if isinstance(value, dict):
            fields = cast("Object", value)
            return _with(fields, {key: _changed(each, steps, change) for key, each in fields.items()})
        return _each(cast("list[Json]", value), steps, change) if isinstance(value, list) else value
    fields = cast("Object", value) if isinstance(value, dict) else {}
    found = fields.get(step.key)
    if found is None:
        return cast("Any", value)
    if not step.each:
        return _with(fields, {**fields, step.key: _changed(found, rest, change) if step.accepts(found) else found})
    if not isinstance(found, list):
        return fields
    return _with(fields, {**fields, step.key: _each(cast("list[Json]", found), rest, change, step)})


def _each(
    items: list[Json], steps: Sequence[_Step], change: Callable[[Any], Any], only: _Step | None = None
) -> list[Json]:
    new = [_changed(one, steps, change) if only is None or only.accepts(one) else one for one in items]
    kept = [one for one in new if one is not GONE]
    return items if len(kept) == len(items) and all(map(_is, kept, items)) else kept


def _with(old: Object, new: Object) -> Object:
    kept = {key: value for key, value in new.items() if value is not GONE}
    return old if len(kept) == len(old) and all(_is(old[key], value) for key, value in kept.items()) else kept


def _is(one: Any, other: Any) -> bool:
    return one is other


def without(body: Object, path: str) -> Object:
    return changed(body, path, lambda value: GONE)


def first_key(path: str) -> str:
    return _steps(path)[0].key.replace("**", "")


def shown(path: str) -> str:
    """A path without its marks: the name of a field."""
    return re.sub(r"\[\]|\{[^}]*\}|\*\*\.", "", path)
