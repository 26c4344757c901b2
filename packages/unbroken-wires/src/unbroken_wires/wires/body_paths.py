"""Paths to the values of a body: finding them, changing them, leaving them out.

`thinking.type`, `messages[].tool_calls[].id` (`[]`: each item), `tools[]{type=function}` (only items with this value;
`{a=x|y}`, `{a}`, `{!a}`), `**.cache_control` (at any depth).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import Object

GONE = object()
_SEGMENT = re.compile(r"(?P<key>\*\*|[^.\[{]+)(?P<each>\[\])?(?P<tests>(?:\{[^}]*\})*)")


@dataclass(frozen=True, slots=True)
class _Step:
    key: str
    each: bool
    tests: tuple[_Test, ...]

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, dict):
            return not self.tests
        for test in self.tests:  # noqa: SIM110 - a generator takes twice as long
            if not test.passes(cast("Object", value)):
                return False
        return True


@dataclass(frozen=True, slots=True)
class _Test:
    key: str
    absent: bool = False
    wanted: frozenset[str] = frozenset()

    def passes(self, value: Object) -> bool:
        found = value.get(self.key)
        return str(found) in self.wanted if self.wanted else (found is None) is self.absent


def _test(text: str) -> _Test:
    key, equals, wanted = text.partition("=")
    return _Test(key.removeprefix("!"), not equals and key[0] == "!", frozenset(wanted.split("|") if equals else ()))


@cache
def _steps(path: str) -> tuple[_Step, ...]:
    return tuple(
        _Step(found["key"], found["each"] is not None, tuple(map(_test, re.findall(r"\{([^}]*)\}", found["tests"]))))
        for found in _SEGMENT.finditer(path)
    )


def find(body: Json, path: str) -> list[tuple[str, Any]]:
    """The values at a path, each with its place. A null is as good as absent."""
    found: list[tuple[str, Any]] = []
    if values_at(body, path):
        _find(body, _steps(path), "", found)
    return found


def places(body: Json, path: str, is_wrong: Callable[[Any], bool]) -> list[str]:
    """Where the values at a path are wrong. Every request is searched and hardly any has such a value, so the places
    are worked out only if there is one: that takes four times as long as looking at the values."""
    for value in values_at(body, path):
        if is_wrong(value):
            return [where for where, each in find(body, path) if is_wrong(each)]
    return []


def values_at(body: Json, path: str) -> Sequence[Any]:
    """The values at a path, without their places."""
    found: list[Any] = [body]
    for step in _steps(path):
        if step.key == "**":
            deep: list[tuple[str, Any]] = []
            _find(body, _steps(path), "", deep)
            return [value for _, value in deep]
        key, each, before, found = step.key, step.each, found, []
        for value in before:
            here = cast("Object", value).get(key) if isinstance(value, dict) else None
            if here is None:
                continue
            if not each:
                found.append(here)
            elif isinstance(here, list):
                found += cast("list[Any]", here)
        if step.tests:
            found = [value for value in found if step.accepts(value)]
        if not found:
            return ()
    return [value for value in found if value is not None]


def _find(value: Any, steps: Sequence[_Step], where: str, found: list[tuple[str, Any]]) -> None:
    """Appends to a list: generators inside generators take twice as long."""
    if not steps:
        if value is not None:
            found.append((where, value))
        return
    step, rest = steps[0], steps[1:]
    if step.key == "**":
        _find(value, rest, where, found)
        for key, each in values_in(value):
            _find(each, steps, place_in(where, key), found)
        return
    here = cast("Object", value).get(step.key) if isinstance(value, dict) else None
    if here is None:
        return
    at = f"{where}.{step.key}" if where else step.key
    if not step.each:
        if not step.tests or step.accepts(here):
            _find(here, rest, at, found)
    elif isinstance(here, list):
        for n, each in enumerate(cast("list[Json]", here)):
            if not step.tests or step.accepts(each):
                _find(each, rest, f"{at}[{n}]", found)


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
