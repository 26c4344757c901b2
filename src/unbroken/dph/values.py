"""The values of the language, which are JSON, and the variables that hold them while a program runs.

A value that was read does not change afterwards: appending creates a new list, unless nobody can have seen the old one.
So each child of a `/parallel/` starts from the same values.
"""

from __future__ import annotations

import inspect
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, cast

from pydantic_core import to_jsonable_python

from unbroken.errors import UserError
from unbroken.messages import Json, Media, Message, Text, ToolResult
from unbroken.tools.results import ToolOutput, is_plain
from unbroken.tools.threads import in_thread
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import collect, drain

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


MOST_WORK = 3_000_000
"""Values that one statement may copy, compare or write out. In between nothing else runs, not even a time-out."""
CHARACTERS = 100
"""So many characters of a text are as much work as one value."""
MEASURED = 50
"""So many values are measured in the time of one statement."""
REMEMBERED = 1000
"""From this size on a value is worth remembering."""


class Scope(dict[str, Json]):
    """Names and values."""

    def __init__(self, values: dict[str, Json] | None = None) -> None:
        super().__init__(values or {})
        self.said: tuple[Message, ...] = ()
        """What blocks with `history=true` have said to each other."""
        self._unseen: set[str] = set()
        """Names of lists that were made here, and that nobody has read since."""
        self._sizes: dict[str, tuple[int, int]] = {}
        self._last: tuple[object, int, int] = (None, 0, 0)
        """The large value that was measured last."""
        self.work = 0
        """How much was done here: who runs a program lets others have their turn now and then."""
        self._spent = 0
        self._set: dict[str, None] = {}
        """Since it was forked: names that were set, in their order."""
        self._appended: dict[str, list[Json]] = {}
        """And what was appended to others."""
        self._said_before: int | None = None
        """Of a fork: how much had been said when it was made."""

    def __getitem__(self, name: str) -> Json:
        self._unseen.discard(name)
        return super().__getitem__(name)

    def begin_statement(self) -> int:
        """Gives how much was done here since the last one."""
        work = self.work + self._spent // 1000
        self.work = self._spent = 0
        return work

    def spend(self, value: Json, deep: bool = False) -> None:
        """A statement goes through this value, with `deep` also through all that is in it. `ValueError` if that is too
        much for one statement."""
        if isinstance(value, str):
            self._spent += len(value) // CHARACTERS
        elif isinstance(value, list | dict):
            self._spent += self._measured(cast("Json", value))[0] if deep else len(cast("list[Json]", value))
        if self._spent > MOST_WORK:
            raise ValueError(
                f"this statement goes through more than {MOST_WORK:,} values; split it, or use smaller ones"
            )

    def put(self, name: str, value: Json, *, append: bool) -> None:
        """Set a name, or append to the list that it has; one that has no list is made one. What is too large or too
        deep to be written out is refused, in words."""
        forked = self._said_before is not None
        size, depth = self._measured(value)
        if append:
            before_size, before_depth = self._sizes.get(name) or measure(self.get(name, []))
            size, depth = before_size + size, max(before_depth, depth + 1)
        checked(size, depth)
        self._sizes[name] = size, depth
        self.work += 1
        if not append:
            self._unseen.discard(name)
            self[name] = value
            if forked:
                self._set[name] = None
                self._appended.pop(name, None)
            return
        if name in self._unseen:
            cast("list[Json]", super().__getitem__(name)).append(value)
            self._last = (None, 0, 0)  # it may have been this one
        else:
            before: Any = self.get(name, [])
            self[name] = [*cast("list[Json]", before), value] if isinstance(before, list) else [before, value]
            self._unseen.add(name)
        if forked and name not in self._set:
            self._appended.setdefault(name, []).append(value)

    def _measured(self, value: Json) -> tuple[int, int]:
        """What was measured a moment ago is not measured again: a list is often only given another name."""
        if not isinstance(value, list | dict):
            return measure(value)
        last, size, depth = self._last
        if last is not value:
            size, depth = measure(value)
            self.work += size // MEASURED
            if size > REMEMBERED:
                self._last = (value, size, depth)
        return size, depth

    def snapshot(self) -> dict[str, Json]:
        """As they are now, to be kept."""
        self._unseen.clear()
        return dict(self)

    def fork(self) -> Scope:
        """The same names and values for a child, which sees nothing of what is put here from now on."""
        child = Scope(self.snapshot())
        child.said, child._said_before = self.said, len(self.said)
        child._sizes, child._last = dict(self._sizes), self._last
        return child

    def join(self, child: Scope) -> None:
        """Take over what a child changed, after those that stand before it."""
        for name in child._set:
            self._last = (child[name], *child._sizes[name])
            self.put(name, child[name], append=False)
        for name, values in child._appended.items():
            for value in values:
                self.put(name, value, append=True)
        self.said += child.said[child._said_before or 0 :]


# Tools whose values are kept: a model reads words, a program wants the value itself. The value goes along with the
# result, as its `data`.


class ToolCallFailed(UserError):
    """In the tool's own words."""


@dataclass(frozen=True, slots=True)
class Kept:
    value: Json
    problem: str = ""
    """Why what the tool gave is no value of the language."""


def keeping(tool: Tool) -> Tool:
    """The same tool; what it gives goes along as a value, beside the words that are made of it for a model."""
    function = tool.function
    assert function is not None

    async def run_async(**arguments: Any) -> Any:
        return await _finished(function(**arguments))

    def run(**arguments: Any) -> Any:
        value = function(**arguments)
        lazy = inspect.isawaitable(value) or isinstance(_content(value), AsyncIterator)
        return _finished(value) if lazy else _with_value(value)

    return replace(tool, function=run_async if tool.signature.is_async else run)


async def _finished(value: Any) -> Any:
    """On the event loop: what runs foreign code is done in a thread."""
    if inspect.isawaitable(value):
        value = await value
    content = _content(value)
    if isinstance(content, AsyncIterator):
        items = await collect(cast("AsyncIterator[Any]", content), lambda item: None)
        value = replace(value, content=items) if isinstance(value, ToolOutput) else items
    return _with_value(value) if is_plain(_content(value)) else await in_thread(partial(_with_value, value))


def _content(value: Any) -> Any:
    return value.content if isinstance(value, ToolOutput) else value


def _with_value(value: Any) -> Any:
    content: Any = _content(value)
    if isinstance(content, Iterator):  # it can be read only once, and the model gets it too
        content = drain(cast("Iterator[Any]", content))
    parts: Sequence[object] = cast("Sequence[object]", content) if isinstance(content, list | tuple) else [content]
    if any(isinstance(part, ToolResult | Text | Media) for part in parts):
        return value if content is _content(value) else cast("object", content)  # it is in words already
    try:
        kept = Kept(value_of(content))
    except ValueError as error:
        kept = Kept(None, str(error))
    return ToolOutput(cast("object", content), kept)


def kept_value(result: ToolResult) -> Json:
    """What the tool gave; if that was words already, its words."""
    kept = result.data
    if not isinstance(kept, Kept):
        return result.text
    if kept.problem:
        raise ToolCallFailed(f"what tool `{result.name}` gave is no value: {kept.problem}")
    return kept.value


def value_of(given: Any) -> Json:
    """What a tool gave as a value of the language: JSON. What cannot be one is refused, in words."""
    try:
        value: Json = to_jsonable_python(given, fallback=str, inf_nan_mode="null")
    except RecursionError:
        raise ValueError("it is nested without end") from None
    except ValueError as error:  # pydantic's own among them, and a circle
        raise ValueError((str(error).splitlines() or [""])[0]) from None
    except Exception as error:  # noqa: BLE001 - a foreign object that fails when it is looked at
        raise ValueError(f"{type(error).__name__} when it was written down") from None
    checked(*measure(value))
    return value
