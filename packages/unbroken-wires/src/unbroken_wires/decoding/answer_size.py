"""How large an answer is: one measure for the response that is being read and for the attempts before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from unbroken_wires.errors import TooLarge
from unbroken_wires.messages import Assistant

CALL = 256
"""Characters that a call counts beside its name, its id and its arguments, because it takes more memory than its text:
without it an answer of a million empty calls would have no size."""
VALUE = 32
"""The same for an object, a list or a number in what a provider wants back."""


def answer_too_large(most: float) -> TooLarge:
    return TooLarge(
        f"the answer has more than {most:,} characters of text, reasoning, calls and data that the provider wants "
        "back, retries included: to allow more, raise `max_answer`"
    )


def size_of(message: Assistant) -> int:
    """The characters of a message. `native` repeats its text, so the larger of both counts and not their sum."""
    calls = sum([CALL + len(call.id) + len(call.name) + len(call.raw) for call in message.calls])
    size = len(message.text) + len(message.reasoning) + calls
    return size if message.native is None else max(size, size_of_values([message.native.value]))


def size_of_values(values: Iterable[Any]) -> int:
    """The characters of all texts in these values, however deep."""
    size = 0
    waiting = [values]
    while waiting:
        for value in waiting.pop():
            if isinstance(value, str):
                size += len(value)
                continue
            size += VALUE
            if isinstance(value, dict):
                waiting += (cast("dict[Any, Any]", value).keys(), cast("dict[Any, Any]", value).values())
            elif isinstance(value, (list, tuple)):
                waiting.append(cast("list[Any]", value))
    return size
