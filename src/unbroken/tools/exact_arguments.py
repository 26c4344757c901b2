"""Arguments that two readers of the same JSON text would read differently: a key that stands in an object twice, a
number beyond the range of a float. A tool gets neither by guess: the call is refused, in words for the model.

This looks at calls before they run. What a gateway passes on is not looked at.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from unbroken.messages import ToolCall

SHOWN = 40
"""Characters of a key or a number in a refusal."""


_EXACT = frozenset({str, int, bool, type(None)})


class _Inexact(Exception):
    pass


def inexact(call: ToolCall) -> str:
    """Why the text of its arguments does not say exactly one thing, or an empty text."""
    raw, arguments = call.raw, call.arguments
    if not raw or arguments is None:
        return ""
    # Each key has its colon: where there are no more colons than keys, none stands there twice.
    if raw.count(":") == len(arguments) and _EXACT.issuperset(map(type, arguments.values())):
        return ""
    try:
        value = _DECODER.decode(raw)
        if isinstance(value, str):  # encoded twice
            _DECODER.decode(value)
    except _Inexact as error:
        return str(error)
    except (ValueError, RecursionError):
        pass  # they came in another way than as this text
    return ""


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _Inexact(f"`{twice[:SHOWN]}` is given more than once in the same object; give each name once")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Inexact(f"the number {digits[:SHOWN]} is too large to be read; give a smaller one, or a text")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_once_each, parse_float=_finite)
