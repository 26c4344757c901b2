"""A model that is not there: it plays a script, chunk by chunk, with pauses, on virtual or real time.

For tests and demonstrations. It fakes the provider and nothing else: the script becomes the bytes of a wire
(`play_bytes`, which `unbroken.testing` also serves over HTTP), and those go through the decoder that a real provider's
bytes go through, so ids, completeness and verdicts are the true ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from unbroken.decoding import Decoder
from unbroken.deltas import Delta, ReasoningDelta, TextDelta, UsageReported
from unbroken.messages import Assistant, Json, Request, Usage
from unbroken.models.script import (
    Answer,
    Break,
    Call,
    Cut,
    End,
    ErrorInside,
    Fail,
    Line,
    Pause,
    Raw,
    Say,
    Script,
    Step,
    Think,
    Uses,
    pieces_of,
    steps_of,
)
from unbroken.validation import checked
from unbroken.verdicts import Meaning
from unbroken.wires import DEFAULT_WIRE, find_wire
from unbroken.wires.jsontext import dumps


@checked
class ScriptedModel:
    """One answer for each request, in their order: `ScriptedModel([Call("add", a=1, b=2)], "It is 3.")`.

    A function of the request may stand in place of an answer; alone, it answers everything. `requests` are the requests
    that came, `bodies` the same in the JSON of the `wire`; with `keep` only so many of them, the last, for one that
    runs for days. `recover` looks for calls that were written as text, as models of real providers do.
    """

    def __init__(
        self,
        *answers: Line,
        name: str = "scripted:demo",
        wire: str = DEFAULT_WIRE,
        loop_last: bool = False,
        chunk_delay: float = 0.0,
        recover: bool = True,
        keep: int | None = None,
    ) -> None:
        self.name = name
        self.wire = find_wire(wire).name
        self.requests: list[Request] = []
        self.bodies: list[dict[str, Json]] = []
        self._script = Script(answers, loop_last)
        self._chunk_delay = chunk_delay
        self._recover = recover
        self._keep = keep

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        """Plays the next answer of the script and keeps the request. `UserError` if the script has no more."""
        if not request.model:
            request = replace(request, model=self.name.rpartition(":")[2])
        self.requests.append(request)
        self.bodies.append(find_wire(self.wire).encode_request(request))
        if self._keep is not None:
            old = max(len(self.requests) - self._keep, 0)
            del self.requests[:old], self.bodies[:old]
        return self._play(self._script.answer(request, f"the model {self.name}"), request)

    async def _play(self, steps: list[Step], request: Request) -> AsyncIterator[Sequence[Delta]]:
        offered = [tool.name for tool in request.tools] if self._recover else []
        decoder = Decoder(self.wire, offered or None, request)
        cause = ""
        try:
            for pause, data in play_bytes(steps, self.wire, request, self._chunk_delay):
                await asyncio.sleep(pause)  # also when it is 0: between two chunks of a stream others get their turn
                if deltas := decoder.feed(data):
                    yield deltas
        except ConnectionResetError as error:
            cause = str(error)
        yield decoder.end(cause, "lost" if cause else "unfinished")


def play_bytes(answer: Answer, wire: str, request: Request, chunk_delay: float = 0.0) -> Iterator[tuple[float, bytes]]:
    """The answer as a provider of this wire sends it: seconds to wait, then bytes, in one piece if the request does
    not ask for a stream. A `Fail` is raised; a `Break` raises `ConnectionResetError`."""
    number = sum(isinstance(message, Assistant) for message in request.messages)
    player = _Player(wire, request.model, number, steps_of(answer))
    return _paced(player.play(), chunk_delay) if request.stream else player.play_at_once()


class _Player:
    """Goes through the steps of one answer, the answer to a history with `number` answers before it."""

    def __init__(self, wire: str, model: str, number: int, steps: Sequence[Step]) -> None:
        self._wire = find_wire(wire)
        self._writer = self._wire.provider_writer(model, f"scripted-{number}")
        self._steps = steps
        self._id = f"{self._writer.call_prefix}_r{number}"
        self._calls = 0
        self._cut = False
        """A call has ended in the middle of its arguments: whatever follows closes it first."""
        self._ended = False
        self._begun = self._bare = bool(steps) and all(isinstance(step, Raw | Pause | Break | Fail) for step in steps)
        """Nothing but bytes as they are: then the wire's own beginning and end are not added."""

    def play(self) -> Iterator[tuple[float, bytes]]:
        for step in self._steps:
            match step:
                case Uses() | End():
                    pass
                case Pause(seconds):
                    yield seconds, b""
                case Fail(error):
                    raise error
                case Break(reason):
                    raise ConnectionResetError(reason)
                case Raw(data, after):
                    yield after, data
                case ErrorInside(message):
                    yield 0.0, self._begin() + self._writer.fail(500, message)
                    return
                case Say():
                    yield from self._say(TextDelta, step)
                case Think():
                    yield from self._say(ReasoningDelta, step)
                case Call():
                    yield from self._call(step)
                    yield 0.0, self._writer.close_call(True)
                case Cut():
                    yield from self._call(step)
                    self._cut = True
                case _:
                    assert_never(step)
        if not self._bare:
            yield 0.0, self._end()

    def play_at_once(self) -> Iterator[tuple[float, bytes]]:
        seconds = 0.0
        failure: Exception | None = None
        try:
            for pause, _ in self.play():
                seconds += pause
        except Exception as error:  # noqa: BLE001 - the script's own, raised when its time has come
            failure = error
        body = self._body()
        if isinstance(failure, ConnectionResetError):
            body = body if self._bare else body[: len(body) // 2]
        elif failure is not None:
            body = b""
        yield seconds, body
        if failure is not None:
            raise failure

    def _body(self) -> bytes:
        if self._bare:
            return b"".join(step.data for step in self._steps if isinstance(step, Raw))
        for step in self._steps:
            if isinstance(step, ErrorInside):
                return dumps(self._wire.error_body(500, step.message))
        if not self._ended:  # the script broke off
            self._end()
        return self._writer.body()

    def _meaning(self) -> Meaning:
        for step in self._steps:
            if isinstance(step, End):
                return step.meaning
        return "length" if any(isinstance(step, Cut) for step in self._steps) else "done"

    def _say(self, delta: type[TextDelta | ReasoningDelta], step: Say | Think) -> Iterator[tuple[float, bytes]]:
        pieces = pieces_of(step.text, step.chunks)
        if not step.text:
            yield step.after, b""
            return
        before = self._begin() + self._close_cut()
        for number, piece in enumerate(pieces):
            pause = step.over / (len(pieces) - 1) if number else step.after
            yield pause, before + self._writer.feed(delta(piece))
            before = b""

    def _call(self, step: Call | Cut) -> Iterator[tuple[float, bytes]]:
        id = f"{self._id}c{self._calls}" if step.id is None else step.id
        self._calls += 1
        yield step.after, self._begin() + self._close_cut() + self._writer.open_call(id, step.name)
        pieces = pieces_of(step.raw, max(1, step.pieces))
        for piece in pieces:
            yield step.over / len(pieces), self._writer.grow_call(piece)

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        uses = next((step for step in self._steps if isinstance(step, Uses)), None)
        reported = b""
        if uses is not None:  # one wire reports usage in its first event
            usage = Usage(uses.input, uses.output, uses.cached, reasoning_tokens=uses.reasoning)
            reported = self._writer.feed(UsageReported(usage))
        return reported + self._writer.begin()

    def _close_cut(self) -> bytes:
        if not self._cut:
            return b""
        self._cut = False
        return self._writer.close_call(False)

    def _end(self) -> bytes:
        self._ended = True
        return self._begin() + self._close_cut() + self._writer.end(self._meaning())


def _paced(chunks: Iterator[tuple[float, bytes]], chunk_delay: float) -> Iterator[tuple[float, bytes]]:
    """No empty chunks: their pauses go to the next one. `chunk_delay` comes on top from the second chunk on."""
    waited, delay = 0.0, 0.0
    failure: Exception | None = None
    try:
        for pause, data in chunks:
            waited += pause
            if data:
                yield waited + delay, data
                waited, delay = 0.0, chunk_delay
    except Exception as error:  # noqa: BLE001 - the script's own, raised when its time has come
        failure = error
    if waited:
        yield waited, b""
    if failure is not None:
        raise failure
