"""Estimates what an answer cost beyond what its provider reported: the client left before the usage arrived, the stream
broke off, or the provider reports none.

A token is taken to be four bytes of text: four letters of English, one or two characters of Chinese. The input is
estimated from the request, the output from what was received. Tokens that nobody received, such as hidden reasoning,
cannot be estimated.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from unbroken.errors import UnbrokenError
from unbroken.models.model import RESPONSE_HEAD, Model, ResponseHead, closing
from unbroken_gateway.spending.prices import Prices
from unbroken_gateway.stores.store import Addition
from unbroken_wires.deltas import (
    AttemptFailed,
    CallArguments,
    CallReady,
    Delta,
    Ended,
    ReasoningDelta,
    TextDelta,
    UsageReported,
)
from unbroken_wires.messages import Assistant, Json, Part, Request, Text, ToolMessage, Usage
from unbroken_wires.wires.json_access import as_dict, as_int

BYTES_PER_TOKEN = 4
FILE_TOKENS = 1000
"""Of an image or another file that is not text. Each provider counts them differently."""
MOST_CHOICES = 128
FIRST_OUTPUT = 1000
"""Tokens of output that are expected while no answer is known."""
_RECENT = 16
"""About how many answers an average is of."""
_SMALL = 64 << 10
"""Bytes of a body whose input is estimated from its size alone."""


@dataclass(frozen=True, slots=True)
class Estimate:
    model: str
    reported: Usage
    """What the provider has reported of the same answer."""
    more: Usage
    """What the answer is estimated to have used beyond that."""


@dataclass(slots=True)
class Reservation:
    """What is reserved for an answer until it has ended."""

    additions: list[Addition]
    minute: str
    """The group of the minute in which it began."""
    tokens: int


@dataclass(slots=True)
class Average:
    """What recent answers have used, to expect the same of the next one."""

    answers: int = 0
    more_input: float = 0.0
    """Beyond the estimate: providers count differently, and may have a part of the conversation."""
    cached: float = 0.0
    """The part of the input that came from a cache."""
    output: float = FIRST_OUTPUT
    """Of each choice."""
    cost: float = 0.0
    """In nano-dollars."""

    def expect(self, tally: Tally) -> Usage:
        entered = max(1, round(tally.entered + self.more_input))
        output = ceil(min(self.output, tally.most_output) * tally.choices)
        return Usage(entered, output, int(entered * self.cached), estimated=True)

    def learn(self, tally: Tally, used: Sequence[Usage], cost: int | None) -> None:
        """`used`: by one request, in all its attempts."""
        self.answers += 1
        share = 1 / min(self.answers, _RECENT)
        entered = sum(each.input_tokens for each in used)
        self.more_input += share * (entered - tally.entered - self.more_input)
        self.cached += share * (min(1.0, sum(each.cached_tokens for each in used) / max(1, entered)) - self.cached)
        self.output += share * (sum(each.output_tokens for each in used) / tally.choices - self.output)
        self.cost += share * ((cost or 0) - self.cost)


class Tally:
    """Follows the answers to one request. `read` reads the client's request, if no model was given one; without it,
    nothing is estimated."""

    def __init__(self, read: Callable[[], Request] | None, prices: Prices) -> None:
        self.prices = prices
        """As they were when the request began."""
        self.choices = 1
        """How many answers were requested at once: only the first of them is followed."""
        self.model_name = ""
        """The model that is asked first."""
        self.size = 0
        """Bytes of the request; 0: nothing is reserved for it."""
        self.most_output = inf
        self.entered = 0
        """Tokens of the input, by estimate."""
        self.reserved: Reservation | None = None
        self._read = read
        self._request: Request | None = None
        self._reported: Usage | None = None
        self._written = 0
        """Bytes of text since the last report."""
        self._in_pieces: set[int] = set()
        self._whole = False
        self._closed: list[Estimate] = []

    def model(self, model: Model) -> Model:
        """The same model, whose answers are followed."""
        return _Followed(model, self)

    def estimate_input(self) -> None:
        is_small = self.size < _SMALL or self._read is None
        self.entered = -(-self.size // BYTES_PER_TOKEN) if is_small else self._input()

    def begin(self, model: str, request: Request) -> None:
        self._close(model)
        self._request = request

    def feed(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta, (TextDelta, ReasoningDelta)):
                self._written += _size(delta.text)
            elif isinstance(delta, CallArguments):
                self._in_pieces.add(delta.index)
                self._written += _size(delta.text)
            elif isinstance(delta, CallReady):
                if delta.call.index not in self._in_pieces:
                    self._written += _size(delta.call.name) + _size(delta.call.raw)
            elif isinstance(delta, UsageReported):
                self._reported, self._written = delta.usage, 0
            elif isinstance(delta, AttemptFailed):
                self._close(delta.verdict.model)
                if (head := RESPONSE_HEAD.get()) is not None:
                    head.asked = ""  # the next attempt may begin later
            elif isinstance(delta, Ended):
                self._whole = not delta.verdict.failed

    def passed(self, events: int) -> None:
        """The client left an answer that was passed through, of which it has got so many events. An event is a
        token."""
        self._written = events * BYTES_PER_TOKEN

    def left(self, model: str, more: Usage) -> None:
        """An answer on a connection was left, which has probably used so much."""
        self._closed.append(Estimate(model, Usage(), more))

    def estimates(self, head: ResponseHead, reported: Usage | None, gone: bool) -> list[Estimate]:
        """At the end of the request. `reported`: the usage of its last answer. `gone`: the client left, or the gateway
        was stopped, so the provider may have counted what it was sent even if nothing of its answer arrived."""
        if self._read is None:
            return self._closed
        if self._request is None:  # the answer was passed on as it came
            self._reported = reported
        model = head.asked or head.model
        if model:
            self._close(model, sent=gone and bool(head.asked))
        return self._closed

    def _close(self, model: str, sent: bool = False) -> None:
        """Ends an attempt at this model. `sent`: the provider has the request, and has not refused it."""
        reported, written = self._reported, self._written
        exact = reported is not None and (self._whole or not written)
        if not exact and (written or sent):
            entered = self._input() if reported is None else 0
            more = Usage(entered, -(-written // BYTES_PER_TOKEN) * self.choices, estimated=True)
            self._closed.append(Estimate(model, reported or Usage(), more))
        self._reported, self._written, self._whole = None, 0, False
        self._in_pieces.clear()

    def _input(self) -> int:
        try:
            request = self._request or (self._read() if self._read is not None else Request(()))
            return input_tokens(request)
        except UnbrokenError:  # a provider may have taken a body that cannot be read here
            return 1


class _Followed:
    def __init__(self, model: Model, tally: Tally) -> None:
        self.name = model.name
        self._model = model
        self._tally = tally

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        tally = self._tally
        tally.begin(self.name, request)
        async with closing(self._model.stream(request)) as batches:
            async for deltas in batches:
                tally.feed(deltas)
                yield deltas


def choices_in(body: Mapping[str, Json]) -> int:
    """How many answers the body of a request asks for at once: `n` of OpenAI, `candidateCount` of Gemini."""
    config = as_dict(body.get("generationConfig") or body.get("generation_config"))
    asked = (body.get("n"), config.get("candidateCount"), config.get("candidate_count"))
    return min(max(1, *map(as_int, asked)), MOST_CHOICES)


def most_output(body: Mapping[str, Json]) -> float:
    """How many tokens an answer to this body may have, in any of the wires."""
    config = as_dict(body.get("generationConfig") or body.get("generation_config"))
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    given = [*map(body.get, names), config.get("maxOutputTokens"), config.get("max_output_tokens")]
    return max(0, *map(as_int, given)) or inf  # if there are several, it is not known which of them counts


def input_tokens(request: Request) -> int:
    size = sum(map(_size, _texts(request)))
    parts = [part for message in request.messages for part in _parts(message)]
    files = [part for part in parts if not isinstance(part, Text)]
    size += sum(_decoded(part.data) for part in files if part.data and part.mime.startswith("text/"))
    others = sum(1 for part in files if not part.mime.startswith("text/"))
    return -(-size // BYTES_PER_TOKEN) + FILE_TOKENS * others + 1


def _texts(request: Request) -> Iterator[str]:
    for message in request.messages:
        if isinstance(message, Assistant):
            yield message.text
            yield message.reasoning
            for call in message.calls:
                yield call.name
                yield call.raw
        else:
            for part in _parts(message):
                if isinstance(part, Text):
                    yield part.text
    for tool in request.tools:
        yield tool.name
        yield tool.description
        yield json.dumps(dict(tool.parameters), ensure_ascii=False)


def _parts(message: object) -> Iterator[Part]:
    if isinstance(message, ToolMessage):
        for result in message.results:
            yield from result.content
    elif not isinstance(message, Assistant):
        yield from getattr(message, "parts", ())


def _decoded(data: str) -> int:
    try:
        return len(b64decode(data))
    except ValueError:
        return len(data)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def together(estimate: Estimate) -> Usage:
    """What was reported and what is estimated, as the usage of one answer."""
    reported, more = estimate.reported, estimate.more
    return replace(
        reported,
        input_tokens=reported.input_tokens + more.input_tokens,
        output_tokens=reported.output_tokens + more.output_tokens,
        estimated=True,
    )
