"""Tools whose values are kept: a model reads words, a program wants the value itself. The value goes along with the
result, as its `data`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from pydantic_core import to_jsonable_python

from unbroken.dph.values import checked, measure
from unbroken.errors import UserError
from unbroken.messages import Json, Media, Text, ToolResult
from unbroken.tools.lazy import collect, drain
from unbroken.tools.results import ToolOutput, is_plain
from unbroken.tools.threads import in_thread
from unbroken.tools.tool import Tool


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
    if isinstance(content, Iterator):  # it can be gone through once, and a model is told of it too
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
