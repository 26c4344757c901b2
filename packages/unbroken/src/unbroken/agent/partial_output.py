"""A structured answer while it is written: validated values of the part that has arrived.

`PartialOutput` reads the deltas of a run, the text and the arguments of `final_answer` alike, and validates what there
is after each read. It validates at most `WORK` bytes for each byte that arrives, so the work is linear in the length of
the answer: a long answer is shown less often.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from unbroken.agent.output import ANSWER, Output
from unbroken.middleware import Ask, Middleware
from unbroken.models.model import closing
from unbroken_wires.deltas import CallArguments, CallOpened, CallReady, Delta, Restarted, TextDelta
from unbroken_wires.messages import Request

WORK = 32
FREE = 32 << 10
"""Bytes that are validated in any case: a short answer is shown after each read."""

_MARKS = re.compile(r'[{}\[\]]|"')
_STRING = re.compile(r'(?:[^"\\]|\\.)*+', re.S)
_NUMBER = "0123456789+-.eE"


@dataclass(slots=True)
class Partial:
    value: Any


class Prefix:
    """The beginning of a JSON text. It is scanned once."""

    __slots__ = ("_closed", "_in_string", "_parts", "_scanned", "_text", "size")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._text = ""
        self._scanned = 0
        self._in_string = False
        self._closed = 0
        """The end of the last object or list that is complete."""
        self.size = 0

    def add(self, text: str) -> None:
        self._parts.append(text)
        self.size += len(text)

    def candidates(self) -> tuple[str, ...]:
        """The longest parts that can be read without guessing: an unfinished number is left out, and, in the second
        one, all that follows the last complete object or list."""
        if self._parts:
            self._text += "".join(self._parts)
            self._parts.clear()
            self._scan()
        begin = self._text.find("{")
        if begin < 0:
            return ()
        longest = self._text if self._in_string else self._text.rstrip(_NUMBER)
        if self._closed <= begin or self._closed == len(longest):
            return (longest[begin:],)
        return longest[begin:], self._text[begin : self._closed]

    def _scan(self) -> None:
        text, at, end = self._text, self._scanned, len(self._text)
        while at < end:
            if self._in_string:
                found = _STRING.match(text, at)
                at = found.end() if found is not None else at
                if at >= end or text[at] == "\\":
                    break  # half an escape: it is read again with what follows
                self._in_string = False
                at += 1
                continue
            found = _MARKS.search(text, at)
            if found is None:
                at = end
                break
            at = found.end()
            self._in_string = found.group() == '"'
            if found.group() in "}]":
                self._closed = at
        self._scanned = at


class PartialOutput(Middleware):
    """The outermost middleware of one run: `put` gets each `Partial`.

    No value contradicts an earlier one: if the answer begins anew (its stream broke, or it did not fit) and differs
    from what was shown, nothing more is shown of it.
    """

    mutates = False
    edits_answers: ClassVar[bool] = False

    def __init__(self, output: Output[Any], put: Callable[[Partial], None]) -> None:
        self._output = output
        self._put = put
        self._shown = ""
        """The JSON that the last value was read from."""
        self._last: Partial | None = None
        self._spent = self._received = 0
        self._text = Prefix()
        self._calls: dict[int, Prefix] = {}

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        """A request beside the rounds of the run, for a summary, asks for no answer."""
        wanted = request.output is not None or any(tool.name == ANSWER for tool in request.tools)
        return self._watch(request, call_next) if wanted else call_next(request)

    async def _watch(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        self._restart()
        async with closing(call_next(replace(request, pieces=True))) as batches:
            async for deltas in batches:
                for delta in deltas:
                    self._read(delta)
                self._show()
                yield deltas

    def _restart(self) -> None:
        self._text, self._calls = Prefix(), {}

    def _read(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text):
                self._add(self._text, text)
            case CallOpened(index, name) if name == ANSWER:
                self._calls[index] = Prefix()
            case CallArguments(index, text) if index in self._calls:
                self._add(self._calls[index], text)
            case CallReady(call) if call.name == ANSWER and not self._calls.setdefault(call.index, Prefix()).size:
                self._add(self._calls[call.index], call.raw)  # a model that does not yield pieces
            case Restarted():
                self._restart()
            case _:
                pass

    def _add(self, prefix: Prefix, text: str) -> None:
        prefix.add(text)
        self._received += len(text)

    def _show(self) -> None:
        # Plain text may be an answer or what precedes one, so it is shown when the run is over.
        prefix = next(iter(self._calls.values()), Prefix() if self._output.free_text else self._text)
        if not prefix.size or self._spent + prefix.size > WORK * self._received + FREE:
            return
        for text in prefix.candidates():
            if len(text) <= len(self._shown) or not text.startswith(self._shown):
                continue
            self._spent += len(text)
            with suppress(Exception, SystemExit):  # it does not fit yet; validators of users raise anything
                partial = Partial(self._output.read_partial(text))
                if partial != self._last:
                    self._last, self._shown = partial, text
                    self._put(partial)
                return
