"""Converts what a tool returned to the parts that a model reads. Never raises for an odd value: a tool that has run
must have a result.

- Text is passed on as it is, media stay media, and a list that has parts in it is these parts.
- Everything else is compact JSON, or where JSON has no word for it, its `str`. Media inside of it are replaced by their
  number and follow after it.
- None and blank text become words: a model that is shown nothing tends to call again, and some wires refuse it.
- A lazy value (a generator, a file, `map`) is consumed here, so this belongs where the tool runs. If that raises,
  the tool has failed: `IterationFailed`, the one exception to the first sentence.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, TypeAlias, cast

from pydantic_core import to_jsonable_python

from unbroken.tools.toolbox import IterationFailed, drain
from unbroken_wires.messages import Json, Media, Part, Text, ToolCall
from unbroken_wires.transcript.shorten import without_middle

RESULT_LIMIT = 50_000
"""Maximum characters of all text parts together."""

QUICK = 1_000
"""Maximum values in a list or an object that are converted on the event loop."""

_LEAVES = frozenset({type(None), str, bool, int, float, bytes, Text, Media})

NOTHING = "(the tool returned nothing)"


class ToolFailed(Exception):
    """Raise it in a tool to report a failure, with a text for the model."""


class Retry(ToolFailed):
    """Raise it in a tool, or in a check of an answer, to let the model try again: its text tells the model what to do
    better. `Policy(tool_retries=…)` limits how often a tool may do that in a run."""


class CallWaits(BaseException):
    """A call cannot end before somebody outside decides about other calls: those that an agent has made which runs as
    its tool. The run then waits, and the call continues when the run is resumed. It is no `Exception`, so middleware
    that handles failures of tools lets it pass."""

    def __init__(
        self,
        pending: tuple[ToolCall, ...],
        needs_result: frozenset[str] = frozenset(),
        uncertain: frozenset[str] = frozenset(),
        state: Any = None,
    ) -> None:
        super().__init__()
        self.pending = pending
        """The calls that wait, with ids that are unique in the run."""
        self.needs_result = needs_result
        """The ids of those that wait for a result, and not for an approval."""
        self.uncertain = uncertain
        """The ids of those that may have taken effect before their process died."""
        self.state = state
        """What the tool needs to continue."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Return it from a tool to give `content` to the model and `data` to your program, which finds it in
    `call.result.data` of the run's calls."""

    content: object
    data: Any = None


Stopped: TypeAlias = Callable[[], bool]
"""Returns whether the value is no longer needed."""


def is_plain(value: object) -> bool:
    """Can it be converted quickly and without running user code? Then it may be done on the event loop."""
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if type(one) in (list, tuple, dict):
            inside = cast("list[object]", one)
            if len(inside) + seen > QUICK:
                return False
            waiting += inside
            if isinstance(one, dict):
                waiting += cast("dict[object, object]", one).values()
        elif type(one) not in _LEAVES or seen > QUICK:
            return False
    return True


def to_parts(value: object, limit: int = RESULT_LIMIT, stopped: Stopped | None = None) -> tuple[Part, ...]:
    if type(value) is str and 0 < len(value) <= limit and not value.isspace():
        return (Text(value),)
    parts = _parts(value, stopped)
    if not any(isinstance(part, Media) or part.text.strip() for part in parts):
        return (Text(NOTHING),)
    total = sum(len(part.text) for part in parts if isinstance(part, Text))
    return without_middle(parts, limit, "left out here") if total > limit else tuple(parts)


def _parts(value: object, stopped: Stopped | None = None) -> list[Part]:
    match value:
        case None:
            return []
        case Text() | Media():
            return [value]
        case ToolOutput():
            return _parts(value.content, stopped)
        case bytes() | bytearray():
            return [Text(_text_of_bytes(bytes(value)))]
        case Iterator():
            return _parts(drain(cast("Iterator[object]", value), stopped))
        case list() | tuple() if any(isinstance(one, Text | Media) for one in cast("list[object]", value)):
            return [part for one in cast("list[object]", value) for part in _parts(one)]
        case _:
            found: list[Media] = []
            text = _as_text(value, found)
            return [Text(text), *found]


_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _as_text(value: object, media: list[Media]) -> str:
    if type(value) in (dict, list):
        try:
            return _write(value)
        except (TypeError, ValueError, RecursionError):
            pass  # it contains something that has to be converted first
    try:
        plain = _jsonable(value, media)
        return plain if isinstance(plain, str) else _write(plain)
    except IterationFailed:
        raise
    except Exception:  # noqa: BLE001 - a foreign object that fails when it is looked at still has to have a result
        media.clear()
        return _str(value)


def _jsonable(value: object, media: list[Media], inside: tuple[int, ...] = ()) -> Json:
    """Converts to JSON types only. A circular reference is refused, as by `json`."""
    match value:
        case None | bool():
            return value
        case Enum():
            return _jsonable(value.value, media, inside)
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case Text():
            return value.text
        case Media():
            media.append(value)
            return f"[media {len(media)}]"
        case bytes() | bytearray():
            return _text_of_bytes(bytes(value))
        case _:
            pass
    if id(value) in inside:
        raise ValueError("it holds itself")
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_key(key): _jsonable(one, media, inside) for key, one in items}
    if isinstance(value, list | tuple | set | frozenset | deque | range | KeysView | ValuesView | ItemsView):
        plain = [_jsonable(one, media, inside) for one in cast("list[object]", value)]
        # A set has no order, and the same run must produce the same bytes.
        return sorted(plain, key=_order) if isinstance(value, set | frozenset) else plain
    if isinstance(value, Iterator):
        return [_jsonable(one, media, inside) for one in drain(cast("Iterator[object]", value))]
    if hasattr(type(value), "__pydantic_serializer__"):
        return _jsonable(to_jsonable_python(value), media, inside)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _jsonable(getattr(value, field.name), media, inside) for field in fields(value)}
    return _foreign(value)


def _foreign(value: Any) -> Json:
    try:
        if callable(to_list := getattr(value, "tolist", None)):  # arrays and scalars of NumPy
            return _jsonable(to_list(), [])
        return to_jsonable_python(value, fallback=_str)
    except IterationFailed:
        raise
    except Exception:  # noqa: BLE001 - as above
        return _str(value)


def _key(key: object) -> str:
    return key if type(key) is str else _as_text(key, [])


def _order(value: Json) -> tuple[str, Any]:
    return (type(value).__name__, value if isinstance(value, int | float | str) else json.dumps(value, sort_keys=True))


def _str(value: object) -> str:
    try:
        return str(value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        return f"(a result of the type `{type(value).__name__}` that cannot be shown: {type(error).__name__})"


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"({len(value):,} bytes that are not text)"
