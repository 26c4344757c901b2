"""The words of a script: what a model that is not there will say, step by step.

An answer is a text, or a list of steps: `[Say("Let me look."), Call("get_weather", city="Beijing")]`. Only the words
stand here; `scripted` plays them, and the writer of each wire turns them into bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from unbroken.errors import UserError
from unbroken.messages import Json, Request
from unbroken.verdicts import Meaning


@dataclass(frozen=True, slots=True)
class Say:
    """Text, word by word or in `chunks` pieces of about one length; `over` is how many seconds that takes."""

    text: str
    chunks: int = 0
    after: float = 0.0
    over: float = 0.0


@dataclass(frozen=True, slots=True)
class Think:
    """Reasoning, in the wire's own place for it."""

    text: str
    chunks: int = 0
    after: float = 0.0
    over: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class Call:
    """A call: `Call("get_weather", city="Beijing")`, or with its arguments as a dict, or as the very text to send.

    `id` None: the script gives one, the same each time; empty: none is sent. It comes `after` seconds, its arguments
    in `pieces`, `over` so many seconds; then it is complete.
    """

    name: str
    raw: str
    id: str | None
    after: float
    over: float
    pieces: int

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Json] | str | None = None,
        /,
        *,
        id: str | None = None,
        after: float = 0.0,
        over: float = 0.0,
        pieces: int = 3,
        **more: Json,
    ) -> None:
        if isinstance(arguments, str):
            if more:
                raise UserError(f"the script's call of `{name}` has its arguments both as text and by name: choose one")
            raw = arguments
        else:
            raw = json.dumps({**(arguments or {}), **more}, ensure_ascii=False)
        for field, value in (("name", name), ("raw", raw), ("id", id), ("after", after), ("over", over)):
            object.__setattr__(self, field, value)
        object.__setattr__(self, "pieces", pieces)


@dataclass(frozen=True, slots=True)
class Cut:
    """A call whose arguments are cut after `raw`. The answer then ends as one that met its token limit, unless the
    script says otherwise. (Gemini's wire has no half calls: there it ends with the provider's word for it.)"""

    name: str
    raw: str
    id: str | None = None
    after: float = 0.0
    over: float = 0.0
    pieces: int = 3


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Uses:
    """The tokens that the answer reports."""

    input: int
    output: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """How the answer ends: `length` for the token limit, `refused`, `paused`. Without it: done."""

    meaning: Meaning


@dataclass(frozen=True, slots=True)
class Fail:
    """No answer, or none any more: this error is raised. (A server sends a `ProviderError` with its status.)"""

    error: Exception


@dataclass(frozen=True, slots=True)
class Break:
    """The connection is lost: the answer breaks off without its end."""

    reason: str = "the connection was lost"


@dataclass(frozen=True, slots=True)
class ErrorInside:
    """The provider's error, told inside an answer that had begun well. It is the last thing in it."""

    message: str


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes, as they are. If nothing else is in the answer, nothing is added to them."""

    data: bytes
    after: float = 0.0


Step: TypeAlias = Say | Think | Call | Cut | Pause | Uses | End | Fail | Break | ErrorInside | Raw
Answer: TypeAlias = str | Step | Sequence[str | Step]
Line: TypeAlias = Answer | Callable[[Request], Answer]
"""One entry of a script: an answer, or a function that makes it from the request."""


def steps_of(answer: Answer) -> list[Step]:
    if isinstance(answer, str):
        return [Say(answer)]
    if isinstance(answer, Sequence):
        return [Say(step) if isinstance(step, str) else step for step in answer]
    return [answer]


class Script:
    """One answer for each request, in their order. A function that stands alone answers all of them; `loop_last`
    gives the last answer again and again."""

    def __init__(self, lines: Sequence[Line], loop_last: bool = False) -> None:
        self._lines = tuple(lines)
        self._loop_last = loop_last or (len(lines) == 1 and callable(lines[0]))
        self._given = 0

    def answer(self, request: Request, who: str) -> list[Step]:
        """The steps of the next answer; `who` plays the script, for the error."""
        number = self._given
        if number >= len(self._lines) and not (self._loop_last and self._lines):
            raise UserError(
                f"{who} was asked for answer {number + 1} and its script has {len(self._lines)}: "
                "add an answer, or say loop_last=True"
            )
        self._given += 1
        line = self._lines[min(number, len(self._lines) - 1)]
        return steps_of(line(request) if callable(line) else line)


_WORDS = re.compile(r"\S+\s*|\s+")


def pieces_of(text: str, count: int) -> list[str]:
    """The text in `count` pieces of about one length; word by word if `count` is 0."""
    if count <= 0:
        return _WORDS.findall(text)
    count = min(count, len(text)) or 1
    ends = [len(text) * n // count for n in range(count + 1)]
    return [text[start:end] for start, end in pairwise(ends)]
