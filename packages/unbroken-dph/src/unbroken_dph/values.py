"""The values of the language, which are JSON, and the variables that hold them while a program runs.

A value that was read never changes afterwards: appending creates a new list, unless nobody can have seen the old one.
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
from unbroken.tools.results import ToolOutput, is_plain
from unbroken.tools.threads import in_thread
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import collect, drain
from unbroken_wires.messages import Json, Media, Message, Text, ToolResult

LARGEST = 10_000_000
"""Characters or items of one value: a program that builds a larger one is considered faulty."""
DEEPEST = 100
"""Levels of nested lists and objects."""
MOST_BITS = 4096
"""The largest integer, in bits."""
_ORDINARY = 1 << 62
_LONG = 100
"""From this many items on, a list is measured in bulk."""


class Answer(dict[str, Json]):
    """The value of a block that asked a model: `answer`, `think`, and for an `/explore/` also `calls`. In a text it is
    replaced by its answer."""


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
    """A value as it is inserted into a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Answer):
        return in_text(value.get("answer", ""))
    return json.dumps(value, ensure_ascii=False, default=str)


def kind_of(value: Any) -> str:
    """The type of a value, for error messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def measure(value: Json) -> tuple[int, int]:
    """The size of a value in characters and items, and its depth. A part that occurs twice counts twice, as if written
    out. Raises `ValueError` for a number that is too large or not finite."""
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
    """The size and depth of a list or an object, and the parts of it whose size is not known yet."""
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
    """The same with little Python code per item: several times faster."""
    of_kind: dict[type[Any], Collection[Any]] = dict.fromkeys(set(map(type, items)), items)
    if len(of_kind) > 1:
        of_kind = {kind: [each for each in items if each.__class__ is kind] for kind in of_kind}
    depth = 0
    missing: dict[int, Any] = {}
    for kind, those in of_kind.items():
        if issubclass(kind, list | dict):
            times = Counter(map(id, those))  # a list that was doubled contains the same items many times
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
    """Whether none of them can be too large, so that each counts as one."""
    if kind is int:
        return min(those) > -_ORDINARY and max(those) < _ORDINARY
    return kind is bool or kind is type(None) or (kind is float and all(map(math.isfinite, those)))


def refuse_beyond(size: int) -> None:
    """Raises `ValueError` if the value would be too large. Called before it is built."""
    if size > LARGEST:
        raise ValueError("the value becomes too large")


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
    """Equal as JSON: 1 is not equal to true, not even inside lists and objects."""
    if isinstance(left, list) and isinstance(right, list):
        ours, theirs = cast("list[Json]", left), cast("list[Json]", right)
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(left, dict) and isinstance(right, dict):
        our, their = cast("dict[str, Json]", left), cast("dict[str, Json]", right)
        return our.keys() == their.keys() and all(same(value, their[key]) for key, value in our.items())
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def bounded(value: Json) -> Json:
    """Returns the value; raises `ValueError` if it is too large."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the number becomes too large")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError("the number becomes too large")
    if isinstance(value, str | list) and len(cast("str", value)) > LARGEST:
        raise ValueError("the value becomes too large")
    return cast("Json", value)


def read_json(text: str) -> Json:
    """Parses strictly. Raises `ValueError` for anything that is not JSON, and for numbers that are not finite."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} in line {error.lineno}, column {error.colno})") from None


def _refuse(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is too large")
    return number


MOST_WORK = 3_000_000
"""Values that one statement may copy, compare or write out. Meanwhile nothing else runs, not even a time-out."""
CHARACTERS = 100
"""So many characters of a string count as much work as one value."""
MEASURED = 50
"""Measuring so many values takes as long as one statement."""
REMEMBERED = 1000
"""From this size on, the measured size of a value is remembered."""


class Scope(dict[str, Json]):
    """The variables of a program: names and values."""

    def __init__(self, values: dict[str, Json] | None = None) -> None:
        super().__init__(values or {})
        self.history: tuple[Message, ...] = ()
        """The messages of the blocks with `history=true`."""
        self._unread: set[str] = set()
        """Names of lists that were created here and have not been read since."""
        self._sizes: dict[str, tuple[int, int]] = {}
        self._last: tuple[object, int, int] = (None, 0, 0)
        """The large value that was measured last, with its size and depth."""
        self.work = 0
        """The work done here since the last statement. The runner uses it to let other tasks run now and then."""
        self._spent = 0
        self._set: dict[str, None] = {}
        """In a fork: the names that were set, in order."""
        self._appended: dict[str, list[Json]] = {}
        """In a fork: what was appended to other names."""
        self._history_before: int | None = None
        """In a fork: the length of the history when it was created. None if this is not a fork."""

    def __getitem__(self, name: str) -> Json:
        self._unread.discard(name)
        return super().__getitem__(name)

    def begin_statement(self) -> int:
        """Returns how much work was done here since the last statement."""
        work = self.work + self._spent // 1000
        self.work = self._spent = 0
        return work

    def spend(self, value: Json, deep: bool = False) -> None:
        """Counts that a statement reads this value; with `deep` also everything inside it. Raises `ValueError` if that
        is too much work for one statement."""
        if isinstance(value, str):
            self._spent += len(value) // CHARACTERS
        elif isinstance(value, list | dict):
            self._spent += self._measured(cast("Json", value))[0] if deep else len(cast("list[Json]", value))
        if self._spent > MOST_WORK:
            raise ValueError(
                f"this statement processes more than {MOST_WORK:,} values; split it, or use smaller values"
            )

    def put(self, name: str, value: Json, *, append: bool) -> None:
        """Sets a name, or appends to its list; a value that is not a list becomes the first item of one. Raises
        `ValueError` if the result is too large or too deep to be written out."""
        forked = self._history_before is not None
        size, depth = self._measured(value)
        if append:
            before_size, before_depth = self._sizes.get(name) or measure(self.get(name, []))
            size, depth = before_size + size, max(before_depth, depth + 1)
        checked(size, depth)
        self._sizes[name] = size, depth
        self.work += 1
        if not append:
            self._unread.discard(name)
            self[name] = value
            if forked:
                self._set[name] = None
                self._appended.pop(name, None)
            return
        if name in self._unread:
            cast("list[Json]", super().__getitem__(name)).append(value)
            self._last = (None, 0, 0)  # it may have been this one
        else:
            before: Any = self.get(name, [])
            self[name] = [*cast("list[Json]", before), value] if isinstance(before, list) else [before, value]
            self._unread.add(name)
        if forked and name not in self._set:
            self._appended.setdefault(name, []).append(value)

    def _measured(self, value: Json) -> tuple[int, int]:
        """The size and depth. A value that was measured last is not measured again: a list often only gets another
        name."""
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
        """A copy of the variables as they are now."""
        self._unread.clear()
        return dict(self)

    def fork(self) -> Scope:
        """A copy for a child, which does not see what is set here from now on."""
        child = Scope(self.snapshot())
        child.history, child._history_before = self.history, len(self.history)
        child._sizes, child._last = dict(self._sizes), self._last
        return child

    def join(self, child: Scope) -> None:
        """Takes over the changes of a child. Call it for the children in their order."""
        for name in child._set:
            self._last = (child[name], *child._sizes[name])
            self.put(name, child[name], append=False)
        for name, values in child._appended.items():
            for value in values:
                self.put(name, value, append=True)
        self.history += child.history[child._history_before or 0 :]


# Tools that keep their values: a model reads text, but a program needs the value itself. The value is passed along in
# `data` of the result.


class ToolCallFailed(UserError):
    """The message is the tool's own."""


@dataclass(frozen=True, slots=True)
class KeptValue:
    value: Json
    problem: str = ""
    """Why the tool's return value is not a value of the language."""


def keeping(tool: Tool) -> Tool:
    """The same tool; its results carry the returned value as well, next to the text for a model."""
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
    """Runs on the event loop; code of other libraries is executed in a thread."""
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
    if isinstance(content, Iterator):  # it can be read only once, and the model needs it too
        content = drain(cast("Iterator[Any]", content))
    parts: Sequence[object] = cast("Sequence[object]", content) if isinstance(content, list | tuple) else [content]
    if any(isinstance(part, ToolResult | Text | Media) for part in parts):
        return value if content is _content(value) else cast("object", content)  # it is text already
    try:
        kept = KeptValue(value_of(content))
    except ValueError as error:
        kept = KeptValue(None, str(error))
    return ToolOutput(cast("object", content), kept)


def kept_value(result: ToolResult) -> Json:
    """The value that the tool returned, or its text if it returned text."""
    kept = result.data
    if not isinstance(kept, KeptValue):
        return result.text
    if kept.problem:
        raise ToolCallFailed(f"the result of tool `{result.name}` is not a JSON value: {kept.problem}")
    return kept.value


def value_of(given: Any) -> Json:
    """Converts what a tool returned to a value of the language, which is JSON. Raises `ValueError` if that is not
    possible."""
    try:
        value: Json = to_jsonable_python(given, fallback=str, inf_nan_mode="null")
    except RecursionError:
        raise ValueError("it contains itself") from None
    except ValueError as error:  # including errors of pydantic, and circular references
        raise ValueError((str(error).splitlines() or [""])[0]) from None
    except Exception as error:  # noqa: BLE001 - an object of other code may raise anything
        raise ValueError(f"{type(error).__name__} when it was converted to JSON") from None
    checked(*measure(value))
    return value
