"""Puts the pieces of one response together: the receiver that a wire's decoder talks to, and the deltas that come out.

Text, reasoning, usage and the end live here; calls have a file of their own (`calls`), and calls that leaked into the
text are found by `prose`. Whether the response is complete is decided in `verdict`. `Shown` compares the text of a
retry with the text that was already shown.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import cast

from unbroken_wires.decoding.answer_size import size_of_values
from unbroken_wires.decoding.calls import Calls
from unbroken_wires.decoding.leaked_calls import DuplicateCalls, Prose, ProseCall
from unbroken_wires.deltas import (
    Delta,
    Meaning,
    ReasoningDelta,
    ServerCallEnded,
    ServerCallOpened,
    ServerCallSeen,
    TextDelta,
    UsageReported,
)
from unbroken_wires.messages import Json, ServerCall, Usage
from unbroken_wires.wires.jsontext import join_surrogates

_AHEAD = 4096
"""Characters that are looked at again behind a mark: not all that came, because there may be many marks."""


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
        self.calls = calls = Calls(self.deltas, turn, used_ids, names, pieces, max_calls)
        # The calls' part of `Receiver`, bound here once: a stream calls them for every few bytes.
        self.piece = calls.piece
        self.more = calls.more
        self.entry = calls.entry
        self.again = calls.again
        self.loose = calls.loose
        self.open = calls.open
        self.arguments = calls.arguments
        self.close = calls.close
        self.withdraw = calls.withdraw
        self.server_calls: list[ServerCall] = []
        self.finish_reason: str | None = None
        self.meaning: Meaning = "done"
        self.has_refusal = False
        """The provider has marked its text as a refusal."""
        self.fields_left_out: tuple[str, ...] = ()
        self.terminal = False
        self.over = False
        """Nothing that follows belongs to this response."""
        self.failure: Json = None
        self.damaged = ""
        self.said_otherwise = False
        self.last_usage: Usage | None = None
        self._halves = False
        self._prose = prose
        self._quiet = prose is None
        """Text is passed on as it comes: nothing of it is held by the search for calls."""
        self._searched = 0
        """How many of the texts need not be searched any more."""
        self._passed = 0
        """How many deltas came before the others."""
        if prose is not None:
            self.calls.duplicates = DuplicateCalls(self.settle)
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._text_half = ""
        self._reasoning_half = ""

    def take(self) -> list[Delta]:
        deltas = self.deltas.copy()
        self.deltas.clear()
        self._passed = 0
        return deltas

    @property
    def text_so_far(self) -> str:
        return "".join(self._text)

    @property
    def size(self) -> int:
        """The characters of all that came so far."""
        ours = sum(map(len, self._text)) + sum(map(len, self._reasoning)) + self.calls.size
        return max(
            ours, size_of_values([(call.id, call.name, call.arguments, call.item) for call in self.server_calls])
        )

    @property
    def reasoning_so_far(self) -> str:
        return "".join(self._reasoning)

    def text(self, text: str) -> None:
        if self._halves:
            text, self._text_half = join_surrogates(self._text_half + text)
        if not text:
            return
        if self._quiet:
            self._text.append(text)
            self.deltas.append(TextDelta(text))
        else:
            self._search(text)

    def settle(self) -> None:
        """Search the text that was passed on since the last time. Once for each read and before each call, not for each
        delta: that would cost a fifth of decoding plain text, this costs a twentieth."""
        new = len(self._text) - self._searched
        if not new or not self._quiet or self._prose is None:
            return
        text = self._text[-1] if new == 1 else "".join(self._text[-new:])
        doubt = self._prose.doubt(text)
        if doubt < 0:
            self._prose.skip(text)
            self._settled()
            return
        deltas = self.deltas
        came = deltas[self._passed :]
        del deltas[self._passed :], self._text[self._searched :]
        end, plain = 0, ""
        for delta in came:
            if not isinstance(delta, TextDelta):
                deltas.append(delta)
                continue
            end += len(delta.text)
            if self._quiet and end <= doubt:
                plain = delta.text
                self._text.append(plain)
                deltas.append(delta)
            else:
                if plain:
                    self._prose.skip(plain)
                    plain = ""
                self._search(delta.text)
                if self._quiet:
                    ahead = text[end : end + _AHEAD]
                    doubt = self._prose.doubt(ahead) if ahead else 0
                    doubt = end + (len(ahead) if doubt < 0 else doubt)
        if plain:
            self._prose.skip(plain)
        self._settled()

    def _settled(self) -> None:
        self._searched, self._passed = len(self._text), len(self.deltas)

    def _search(self, text: str) -> None:
        prose = cast("Prose", self._prose)
        self._quiet = False
        self._said(prose.feed(text))
        self._quiet = prose.quiet
        self._settled()

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

    def server_call_opened(self, call: ServerCall) -> None:
        self.deltas.append(ServerCallOpened(call))

    def server_call_ended(self, call: ServerCall, error: str = "") -> None:
        self.deltas.append(ServerCallEnded(call, error))

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

    def refused(self) -> None:
        self.has_refusal = True

    def left_out(self, name: str) -> None:
        self.fields_left_out = (*self.fields_left_out, name)

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
        self.settle()
        self.calls.damage()
        if self._prose is not None:
            # What was lost may have been a part of a form that is open: what is held of it is text for good.
            self._said([_as_it_was(item) for item in self._prose.end()])
            self._prose = self._prose.restarted()
            self._quiet = False

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
            self.settle()
            found = self._prose.end()
            self._quiet = False
            # A form that ends with the text is complete only if the text is.
            self._said(found if well else [_as_it_was(item) for item in found])
        self.calls.flush(well)
        if self.calls.duplicates is not None:
            self.calls.duplicates.settle = _nothing  # else the garbage collector would have to find this circle

    def _said(self, found: list[str | ProseCall]) -> None:
        for item in found:
            if isinstance(item, str):
                self._text.append(item)
                self.deltas.append(TextDelta(item))
            else:
                self.calls.recovered(item.name, item.arguments)


def _nothing() -> None:
    """No more text will come."""


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
