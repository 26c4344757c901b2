"""A fake model that plays a script, chunk by chunk, with pauses, in virtual or real time.

For tests and demonstrations. It fakes the provider and nothing else: the script becomes the bytes of a wire
(`play_bytes`, which `unbroken_testing` also serves over HTTP), and those go through the decoder that a real provider's
bytes go through, so ids, completeness and verdicts are the true ones.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias, assert_never

from unbroken.errors import UserError
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import Delta, Meaning, ReasoningDelta, TextDelta, UsageReported
from unbroken_wires.messages import Assistant, Json, Request, Usage
from unbroken_wires.validation import checked
from unbroken_wires.wires import DEFAULT_WIRE, find_wire
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.wire import ProviderCall

# The steps of a script: what the fake model will answer.
#
# An answer is a text, or a list of steps: `[Say("Let me look."), Call("get_weather", city="Beijing")]`. These are only
# data; `ScriptedModel` plays them, and the writer of each wire turns them into bytes.


@dataclass(frozen=True, slots=True)
class Say:
    """Text, word by word or in `chunks` pieces of similar length; `over` is how many seconds that takes."""

    text: str
    chunks: int = 0
    after: float = 0.0
    over: float = 0.0


@dataclass(frozen=True, slots=True)
class Think:
    """Reasoning, in the wire's own field for it."""

    text: str
    chunks: int = 0
    after: float = 0.0
    over: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class Call:
    """A call: `Call("get_weather", city="Beijing")`, or with its arguments as a dict, or as the exact text to send.

    `id` None: the script generates one, the same each time; empty: none is sent. It begins `after` seconds; its
    arguments arrive in `pieces`, `over` this many seconds.
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
        if id is not None and not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - scripts are seldom type-checked
            raise UserError(
                f"Call({name!r}, id={id!r}): `id` is the id of the call, a text; "
                f'for an argument of this name write Call({name!r}, {{"id": {id!r}}})'
            )
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
    """A call whose arguments are cut after `raw`. The answer then ends at its token limit, unless the script has an
    `End`. (Gemini's wire has no half calls: there it ends with the provider's finish reason for it.)"""

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
    searches: int = 0
    """Searches that the provider ran, on wires that count them."""


@dataclass(frozen=True, slots=True)
class End:
    """How the answer ends: `length` for the token limit, `refused`, `paused`. Without it: done."""

    meaning: Meaning


@dataclass(frozen=True, slots=True)
class Fail:
    """Raises this error instead of an answer, or in the middle of one. (A server sends a `ProviderError` with its
    status.)"""

    error: Exception


@dataclass(frozen=True, slots=True)
class Break:
    """The connection is lost: the answer breaks off without its end."""

    reason: str = "the connection was lost"


@dataclass(frozen=True, slots=True)
class ErrorInside:
    """An error of the provider inside an answer that began well. It ends the answer."""

    message: str


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes, unchanged. If the answer has nothing else, nothing is added to them."""

    data: bytes
    after: float = 0.0


Step: TypeAlias = Say | Think | Call | ProviderCall | Cut | Pause | Uses | End | Fail | Break | ErrorInside | Raw
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
    """One answer for each request, in order. A single function answers all of them; `loop_last` repeats the last
    answer."""

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
    """The text in `count` pieces of similar length; word by word if `count` is 0."""
    if count <= 0:
        return _WORDS.findall(text)
    count = min(count, len(text)) or 1
    ends = [len(text) * n // count for n in range(count + 1)]
    return [text[start:end] for start, end in pairwise(ends)]


@checked
class ScriptedModel:
    """One answer for each request, in order: `ScriptedModel([Call("add", a=1, b=2)], "It is 3.")`.

    An answer may be a function of the request; a single function answers everything. `requests` are the requests
    received, `bodies` the same in the JSON of the `wire`; `keep` limits both to the last ones, for a model that runs
    for days. `recover` finds calls that were written as text, as with real providers.
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
        """Plays the next answer of the script and keeps the request. Raises `UserError` if the script has no more."""
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
                await asyncio.sleep(pause)  # even if it is 0, so that other tasks run between two chunks
                if deltas := decoder.feed(data):
                    yield deltas
        except ConnectionResetError as error:
            cause = str(error)
        yield decoder.end(cause, "lost" if cause else "unfinished")


def play_bytes(answer: Answer, wire: str, request: Request, chunk_delay: float = 0.0) -> Iterator[tuple[float, bytes]]:
    """The answer as a provider of this wire sends it: seconds to wait, then bytes, in one piece if the request does
    not ask for a stream. A `Fail` is raised; a `Break` raises `ConnectionResetError`."""
    number = sum(isinstance(message, Assistant) for message in request.messages)
    player = _Player(wire, request, number, steps_of(answer))
    return _paced(player.play(), chunk_delay) if request.stream else player.play_at_once()


class _Player:
    """Plays the steps of one answer to a history with `number` earlier answers."""

    def __init__(self, wire: str, request: Request, number: int, steps: Sequence[Step]) -> None:
        self._wire = find_wire(wire)
        self._writer = self._wire.provider_writer(request, f"scripted-{number}")
        self._steps = steps
        self._id = f"{self._writer.call_prefix}_r{number}"
        self._calls = 0
        self._cut = False
        """A call was cut in the middle of its arguments: the next step closes it first."""
        self._ended = False
        self._begun = self._bare = bool(steps) and all(isinstance(step, Raw | Pause | Break | Fail) for step in steps)
        """The answer is only raw bytes, so the wire's own beginning and end are not added."""

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
                case ProviderCall():
                    yield 0.0, self._begin() + self._writer.provider_call(step)
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
            thoughts, searches = uses.reasoning, uses.searches
            usage = Usage(uses.input, uses.output, uses.cached, reasoning_tokens=thoughts, web_searches=searches)
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
