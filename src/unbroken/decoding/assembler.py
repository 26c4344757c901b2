"""Puts the pieces of one response together: the receiver that a wire's decoder talks to, and the deltas that come out.

Text, reasoning, usage and the end live here; calls have a file of their own (`calls`), and calls that leaked into the
text are found by `prose`. Whether the response is complete is decided in `verdict`. `Shown` compares the text of a
retry with the text that was already shown.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from unbroken.decoding.calls import Calls
from unbroken.decoding.prose import Prose, ProseCall, Twins
from unbroken.deltas import Delta, Meaning, ReasoningDelta, ServerCallSeen, TextDelta, UsageReported
from unbroken.messages import Json, ServerCall, Usage
from unbroken.wires.jsontext import join_surrogates


class Assembler:
    """A `wires.wire.Receiver`. It collects `deltas` until the decoder takes them."""

    def __init__(
        self,
        turn: int = 0,
        used_ids: Collection[str] = (),
        names: Collection[str] = (),
        prose: Prose | None = None,
        pieces: bool = True,
        max_calls: float = inf,
    ) -> None:
        self.deltas: list[Delta] = []
        self.calls = Calls(self.deltas, turn, used_ids, names, pieces, max_calls)
        # The calls' part of `Receiver`, bound here once: a stream calls them for every few bytes.
        self.piece = self.calls.piece
        self.more = self.calls.more
        self.entry = self.calls.entry
        self.again = self.calls.again
        self.loose = self.calls.loose
        self.open = self.calls.open
        self.arguments = self.calls.arguments
        self.close = self.calls.close
        self.withdraw = self.calls.withdraw
        self.server_calls: list[ServerCall] = []
        self.finish_reason: str | None = None
        self.meaning: Meaning = "done"
        self.terminal = False
        self.over = False
        """Nothing that follows belongs to this response."""
        self.failure: Json = None
        self.damaged = ""
        self.said_otherwise = False
        self.last_usage: Usage | None = None
        self._halves = False
        self._prose = prose
        self.calls.twins = Twins() if prose is not None else None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._text_half = ""
        self._reasoning_half = ""

    def take(self) -> list[Delta]:
        deltas = self.deltas.copy()
        self.deltas.clear()
        return deltas

    @property
    def text_so_far(self) -> str:
        return "".join(self._text)

    @property
    def reasoning_so_far(self) -> str:
        return "".join(self._reasoning)

    def text(self, text: str) -> None:
        if self._halves:
            text, self._text_half = join_surrogates(self._text_half + text)
        if not text:
            return
        if self._prose is None or self._prose.passes(text):
            self._text.append(text)
            self.deltas.append(TextDelta(text))
        else:
            self._said(self._prose.feed(text))

    def reasoning(self, text: str) -> None:
        if self._halves:
            text, self._reasoning_half = join_surrogates(self._reasoning_half + text)
        if text:
            self._reasoning.append(text)
            self.deltas.append(ReasoningDelta(text))

    def other(self) -> None:
        self.said_otherwise = True

    def server_call(self, call: ServerCall) -> None:
        self.server_calls.append(call)
        self.deltas.append(ServerCallSeen(call))

    def usage(self, usage: Usage) -> None:
        self.last_usage = usage
        self.deltas.append(UsageReported(usage))

    def finish(self, reason: str, meaning: Meaning = "done") -> None:
        # The first reason counts: Together and OpenRouter repeat it in the chunk that carries the usage. But one that
        # says the answer was cut outweighs an earlier "done": old Gemini models say STOP in every chunk.
        self.terminal = True
        if self.finish_reason is None or (self.meaning == "done" and meaning == "length"):
            self.finish_reason = reason or None
            self.meaning = meaning

    def ended(self, last: bool = False) -> None:
        self.terminal = True
        self.over = self.over or last

    def error(self, error: Json) -> None:
        if self.failure is None:
            self.failure = error

    def expect_halves(self) -> None:
        """An event had to be read by the slow parser: only from then on can half a character come."""
        self._halves = self.calls.halves = True

    def damage(self, reason: str) -> None:
        """An event could not be read."""
        self.damaged = self.damaged or reason
        self.calls.damage()
        if self._prose is not None:
            # What was lost may have been a part of a form that is open: what is held of it is text for good.
            self._said([_as_it_was(item) for item in self._prose.end()])
            self._prose = Prose(self._prose.names)

    def flush(self) -> None:
        """The body has ended: nothing is held back any longer, and the calls that are still open are decided."""
        text_half, reasoning_half = self._text_half, self._reasoning_half
        self._text_half = self._reasoning_half = ""
        if text_half:
            self.text("\ufffd")
        if reasoning_half:
            self.reasoning("\ufffd")
        well = self.terminal and self.failure is None and not self.damaged and self.meaning in ("done", "paused")
        if self._prose is not None:
            found = self._prose.end()
            # A form that ends with the text is complete only if the text is.
            self._said(found if well else [_as_it_was(item) for item in found])
        self.calls.flush(well)

    def _said(self, found: list[str | ProseCall]) -> None:
        for item in found:
            if isinstance(item, str):
                self._text.append(item)
                self.deltas.append(TextDelta(item))
            else:
                self.calls.recovered(item.name, item.arguments)


def _as_it_was(item: str | ProseCall) -> str:
    return item if isinstance(item, str) else item.text


@dataclass(frozen=True, slots=True)
class StillToSay:
    """`text` follows what was shown, unless `replaced`: then `text` is the complete answer and what was shown is
    void."""

    text: str
    replaced: bool = False


class Shown:
    def __init__(self, text: str = "") -> None:
        self._pieces: list[str] = [text] if text else []

    def feed(self, text: str) -> None:
        """This was shown, after all the rest."""
        self._pieces.append(text)

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "".join(self._pieces)

    def compare(self, answer: str) -> StillToSay:
        """What is left to show of the complete second `answer`."""
        shown = self.text
        if answer.startswith(shown):
            return StillToSay(answer[len(shown) :])
        if shown.startswith(answer):
            return StillToSay("")
        return StillToSay(answer, replaced=True)
