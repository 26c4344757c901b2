"""Tools whose values are kept: a model reads words, a program wants the value itself. The value goes along with the
result, as its `data`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from unbroken.messages import Json, Media, Text, ToolResult
from unbroken.tools.results import ToolOutput
from unbroken.tools.tool import Tool


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
    parts: Sequence[object] = cast("Sequence[object]", content) if isinstance(content, list | tuple) else [content]
    if any(isinstance(part, ToolResult | Text | Media) for part in parts):
        return value  # it is in words already
    return ToolOutput(cast("object", content), Kept(cast("object", content)))


def kept_value(result: ToolResult) -> Json:
    """What the tool gave; if that was words already, its words."""
    return value_of(result.data.value) if isinstance(result.data, Kept) else result.text


def value_of(given: Any) -> Json:
    """What a tool gave as a value of the language: JSON."""
    try:
        return to_jsonable_python(given, fallback=str, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError):
        return str(given)
