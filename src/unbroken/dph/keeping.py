"""Tools whose values are kept: a model reads words, a program wants the value itself. The value goes along with the
result, as its `data`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

from pydantic_core import to_jsonable_python

from unbroken.dph.values import checked, measure
from unbroken.errors import UserError
from unbroken.messages import Json, Media, Text, ToolResult
from unbroken.tools.results import ITEMS, ToolOutput
from unbroken.tools.tool import Tool


class ToolCallFailed(UserError):
    """In the tool's own words."""


@dataclass(frozen=True, slots=True)
class Kept:
    value: Any


def keeping(tool: Tool) -> Tool:
    """The same tool; what it gives goes along as it is, beside the words that are made of it for a model."""
    function = tool.function
    assert function is not None

    async def run_async(**arguments: Any) -> Any:
        return _with_value(await function(**arguments))

    def run(**arguments: Any) -> Any:
        value = function(**arguments)
        return _awaited(value) if inspect.isawaitable(value) else _with_value(value)

    return replace(tool, function=run_async if tool.signature.is_async else run)


async def _awaited(value: Awaitable[Any]) -> Any:
    return _with_value(await value)


def _with_value(value: Any) -> Any:
    content: Any = value.content if isinstance(value, ToolOutput) else value
    if isinstance(content, Iterator):  # it can be gone through once, and a model is told of it too
        content = [*islice(cast("Iterator[object]", content), ITEMS)]
    parts: Sequence[object] = cast("Sequence[object]", content) if isinstance(content, list | tuple) else [content]
    if any(isinstance(part, ToolResult | Text | Media) for part in parts):
        return value  # it is in words already
    return ToolOutput(cast("object", content), Kept(cast("object", content)))


def kept_value(result: ToolResult) -> Json:
    """What the tool gave; if that was words already, its words."""
    if not isinstance(result.data, Kept):
        return result.text
    try:
        return value_of(result.data.value)
    except ValueError as error:
        raise ToolCallFailed(f"what tool `{result.name}` gave is no value: {error}") from None


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
