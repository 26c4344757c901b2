"""Checks of results and arguments that code of the user has built: middleware, tools, approvers, answers to `resume`.

They are checked where they come in: later they would fail the next request, or the saving of a conversation.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from unbroken_wires.messages import OUTCOMES, CacheMark, Media, Native, Text, ToolResult

_FIELDS: dict[str, tuple[type, ...]] = {
    "content": (tuple,),
    "error": (bool,),
    "name": (str,),
    "duplicate_of": (str,),
    "native": (Native, type(None)),
    "exception": (BaseException, type(None)),
}
_PART_FIELDS: dict[type, tuple[str, ...]] = {Text: ("text",), Media: ("mime", "data", "url", "name")}


def problem_of_result(result: Any) -> str:
    """What is wrong with a result; empty if nothing is. The id is not looked at: it is that of the call."""
    if not isinstance(result, ToolResult):
        return f"{type(result).__name__}, and no ToolResult"
    for name, kinds in _FIELDS.items():
        value = getattr(result, name)
        if not isinstance(value, kinds):
            return f"a ToolResult whose `{name}` is {type(value).__name__}, and not {kinds[0].__name__}"
    if result.ended_as is not None and result.ended_as not in OUTCOMES:
        return f"a ToolResult whose `ended_as` is {result.ended_as!r}, and not one of {', '.join(OUTCOMES)}"
    if result.cache not in get_args(CacheMark):
        return f"a ToolResult whose `cache` is {result.cache!r}, and not 5m or 1h"
    if result.native is not None and (problem := _unwritable(result.native.value)):
        return f"a ToolResult whose `native` cannot be written as JSON: {problem}"
    return next((problem for part in result.content if (problem := _odd_part(part))), "")


def _odd_part(part: Any) -> str:
    for kind, names in _PART_FIELDS.items():
        if isinstance(part, kind):
            odd = next((name for name in names if not isinstance(getattr(part, name), str)), "")
            return f"a ToolResult with {kind.__name__} whose `{odd}` is no text" if odd else ""
    return f"a ToolResult with {type(part).__name__} in its content, and not only Text and Media"


def problem_of_arguments(arguments: Any) -> str:
    """Why a call cannot have these arguments; empty if it can."""
    if not isinstance(arguments, dict):
        return f"they are {type(arguments).__name__}, and no dict"
    return _unwritable(arguments)


def _unwritable(value: Any) -> str:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "a text in it has half a surrogate pair"
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return ""
