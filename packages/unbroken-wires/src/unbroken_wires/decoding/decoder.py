"""Bytes of one response in, deltas out: framing, wire, prose recovery and assembly behind one small interface.

Pure: no I/O, no clock, nothing global. `decode` is the same for a complete body. The bytes show whether a response is
streamed, so there is one path. `guess_wire` is for files of unknown origin, never for a request of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

import orjson

from unbroken_wires.decoding.answer_size import answer_too_large, size_of_values
from unbroken_wires.decoding.assembler import Assembler
from unbroken_wires.decoding.leaked_calls import Prose
from unbroken_wires.decoding.verdict import Evidence, How, judge
from unbroken_wires.deltas import Delta, Ended, Verdict
from unbroken_wires.errors import NotAResponse, StreamError, UserError
from unbroken_wires.messages import Assistant, Json, Native, Request, ServerCall, ToolCall, Usage
from unbroken_wires.validation import checked
from unbroken_wires.wires import DEFAULT_WIRE, WIRES, find_wire
from unbroken_wires.wires.content_parts import custom_as_functions
from unbroken_wires.wires.json_access import MISSHAPEN, Object, shortened
from unbroken_wires.wires.jsontext import Damaged, loads, loads_exact, shallow
from unbroken_wires.wires.sse import MAX_ANSWER, MAX_BODY, MAX_EVENT, Framer, is_word
from unbroken_wires.wires.wire import Plain, Wire

_orjson_loads = orjson.loads
_Refused = orjson.JSONDecodeError

LOOKS = 16
"""An answer is measured again after this part of what it may have, at the earliest: measuring takes time."""
SHORTEST = 9
"""Bytes: no event of any wire is shorter than this."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is in a response. `complete`: it ended as its wire requires; `verdict`: is it complete, and if not, why."""

    calls: tuple[ToolCall, ...]
    server_calls: tuple[ServerCall, ...]
    text: str
    reasoning: str
    finish: str | None
    usage: Usage | None
    error: Json
    complete: bool
    verdict: Verdict
    message: Assistant
    """The same as an assistant message for the history, with what has to be sent back."""


class Decoder:
    """Feed it the body in any pieces: `feed` and `end` return deltas, `response` everything at once.

    `tools` are the names of the offered tools: when given, calls that leaked into the text are recovered. A mapping
    from names to the JSON Schemas of their parameters also decides what values without a type are; otherwise the
    schemas are those of the request. `request` is the request that is being answered: it shows which ids are taken and
    how many tokens were allowed. `keeps_ids`: an id that was used in an earlier turn is not changed, because a client
    has it. More than `max_calls` calls are `TooLarge`, and so are more than `max_answer` characters of text, reasoning,
    calls and what has to be sent back with them.
    """

    def __init__(
        self,
        wire: str,
        tools: Collection[str] | None = None,
        request: Request | None = None,
        *,
        keeps_ids: bool = False,
        max_event: int = MAX_EVENT,
        max_body: int = MAX_BODY,
        max_calls: float = inf,
        max_answer: float = MAX_ANSWER,
    ) -> None:
        self.wire = find_wire(wire)
        history = [m for m in request.messages if isinstance(m, Assistant) and m.calls] if request else []
        self._max_tokens = request.sampling.max_tokens if request else None
        self._framer = Framer(max_event, max_body)
        self._max_answer = self._measured_at = max_answer
        """After this many bytes the answer is measured: before, it cannot be too large."""
        names = tools or ([tool.name for tool in request.tools] if request else ())
        schemas = _schemas(tools, request)
        short = shortened(names, self.wire.name_rule)
        if short:
            names = (*names, *short)
            tools = names if tools else None
            schemas = {**schemas, **{sent: schemas[name] for sent, name in short.items() if name in schemas}}
        self._assembler = Assembler(
            turn=len(history),
            used_ids=set() if keeps_ids else _used(history, request),
            names=names,
            prose=Prose(tools, schemas) if tools else None,
            pieces=request.pieces if request else True,
            max_calls=max_calls,
        )
        self._assembler.calls.shortened = short
        if request is not None and [tool for tool in request.tools if tool.kind == "custom"]:
            self._assembler.calls.custom = custom_as_functions(request.tools, wire)
        self._reader = self.wire.decoder(self._assembler)
        self._read = self._reader.feed
        self._again: Callable[[bytes], bool] = getattr(self._reader, "again", _never)
        self._kept: Callable[[], object] = getattr(self._reader, "kept", self._reader.native)
        self._cut = False
        self._done = False
        self._failure: StreamError | None = None
        self._ended: Ended | None = None

    @property
    def calling(self) -> bool:
        """A call has begun and is not complete."""
        return self._assembler.calls.under_way

    @property
    def troubled(self) -> bool:
        """An error was read, or something unreadable."""
        return self._assembler.failure is not None or bool(self._assembler.damaged)

    @property
    def terminal(self) -> bool:
        """A terminal event of the wire was read. Usage may still follow it, up to `done`."""
        return self._assembler.terminal

    @property
    def done(self) -> bool:
        """`[DONE]` was read: only the end of the body can follow."""
        return self._done

    def feed(self, chunk: bytes) -> list[Delta]:
        """Takes the next bytes, cut anywhere, and returns their deltas. Beyond a limit `TooLarge` or `TooDeep`, also if
        it is fed again; `UserError` after `end`."""
        if self._ended is not None:
            raise UserError("feed was called after end: use a new Decoder for each response")
        if self._failure is not None:
            raise self._failure
        assembler, again = self._assembler, self._again
        try:
            for data in self._framer.feed(chunk):
                if assembler.over:
                    break  # for example, a proxy that started over
                if again(data):
                    continue
                if len(data) < SHORTEST:  # `[DONE]`: an exception for it would cost more than many events
                    self._read_slowly(data)
                    continue
                try:
                    event = _orjson_loads(data)
                except _Refused:
                    self._read_slowly(data)
                    continue
                try:
                    if event.__class__ is dict:
                        self._read(event, data)
                    else:
                        self._read_list(event, data)
                except MISSHAPEN as error:
                    self._misshapen(error)
            assembler.settle()
            if self._framer.bytes_seen > self._measured_at:
                self._measure()
        except StreamError as error:
            self._fail(error)
            raise
        return assembler.take()

    def _measure(self) -> None:
        read = self._framer.bytes_seen - self._framer.held
        if read <= self._measured_at:
            return
        size = max(self._assembler.size, size_of_values([self._kept()]))
        if size > self._max_answer:
            raise answer_too_large(self._max_answer)
        self._measured_at = read + max(self._max_answer - size, self._max_answer / LOOKS)

    def end(self, cause: str = "", how: How = "unfinished") -> list[Delta]:
        """No more bytes will come. If it was not the provider that ended the body, `cause` is the reason and `how` its
        kind."""
        if self._ended is None:
            try:
                if self._failure is None:
                    self._read_the_rest()
            except StreamError as error:
                self._fail(error)
                raise
            self._ended = self._conclude(cause, how)
            self._assembler.deltas.append(self._ended)
        return self._assembler.take()

    def _read_the_rest(self) -> None:
        if self._framer.clean:
            return
        unfinished = self._framer.unfinished
        rest = self._framer.end()
        for number, data in enumerate(rest if not self._assembler.over else (), start=1):
            self._read_slowly(data, last=unfinished and number == len(rest))

    def _fail(self, error: StreamError) -> None:
        # Beyond a limit something was not read: from here on nothing that is open may count as complete.
        self._failure = error
        self._assembler.damage(str(error))

    def response(self) -> Response:
        """Everything that was received. Ends the decoder if necessary."""
        if self._ended is None:
            self.end()
        ended, a = cast("Ended", self._ended), self._assembler
        message = cast("Assistant", ended.message)
        return Response(
            calls=message.calls,
            server_calls=tuple(a.server_calls),
            text=message.text,
            reasoning=message.reasoning,
            finish=a.finish_reason,
            usage=a.last_usage,
            error=a.failure,
            complete=a.terminal and not a.damaged,
            verdict=ended.verdict,
            message=message,
        )

    def _read_slowly(self, data: bytes, last: bool = False) -> None:
        """An event that the fast parser refuses, or the last one, which may have been cut."""
        if data.strip().upper() == b"[DONE]":
            if self.wire.done_ends:
                self._reader.recognised = True
                self._assembler.ended(last=self._assembler.terminal)  # some proxies send one that ends nothing
                self._done = True
            return
        if is_word(data):
            return
        try:
            event = loads_exact(data)
        except Damaged as error:
            if not last:
                self._assembler.damage(str(error))
            elif data.lstrip()[:1] in (b"{", b"["):
                self._cut = True
            return
        self._assembler.expect_halves()
        try:
            if isinstance(event, dict):
                self._read(cast("dict[str, Json]", event), data)
            else:
                self._read_list(event, data)
        except MISSHAPEN as error:
            self._misshapen(error)

    def _misshapen(self, error: Exception) -> None:
        self._assembler.damage(f"an event has a shape that its wire does not have: {error}")

    def _read_list(self, event: Json, data: bytes) -> None:
        """Several events in one: parsed exactly, once, because none of them has bytes of its own to be read again."""
        if isinstance(event, list):
            for item in cast("list[Json]", loads_exact(data)):
                if isinstance(item, dict):
                    self._read(cast("dict[str, Json]", item), b"")

    def _conclude(self, cause: str, how: How) -> Ended:
        a = self._assembler
        a.flush()
        calls = tuple(a.calls.in_order())
        text, reasoning = a.text_so_far, a.reasoning_so_far
        broken = [call for call in calls if call.problem]
        recognised, limit = self._reader.recognised, self._max_tokens
        seen = Evidence(a, self._framer, recognised, self._cut, cause, how, text, reasoning, calls, broken, limit)
        value = self._reader.native()
        if a.calls.recovered_any and self.wire.native_has_text:
            value = None
        native = None if value is None else Native(self.wire.name, value, a.calls.native_ids())
        return Ended(judge(seen), Assistant(text, calls, reasoning, native))


def _schemas(tools: Collection[str] | None, request: Request | None) -> Mapping[str, Mapping[str, Json]]:
    if not tools:
        return {}
    if isinstance(tools, (dict, Mapping)):  # asked for a dict first, because a protocol takes longer
        return cast("Mapping[str, Mapping[str, Json]]", tools)
    return {tool.name: tool.parameters for tool in request.tools} if request else {}


def _never(data: bytes) -> bool:
    return False


def _used(history: Sequence[Assistant], request: Request | None) -> set[str]:
    used = {call.id for message in history for call in message.calls}
    return used.union(request.taken) if request and request.taken else used


@checked
def decode(
    body: bytes,
    wire: str = DEFAULT_WIRE,
    stream: bool = True,
    tools: Collection[str] | None = None,
    *,
    request: Request | None = None,
    max_event: int = MAX_EVENT,
    max_body: int = MAX_BODY,
    max_answer: float = MAX_ANSWER,
) -> Response:
    """Decode a complete body; the arguments are those of `Decoder`.

    `stream` is what was requested. Servers may answer differently, so the bytes decide how they are read.

    Raises `NotAResponse` when there is nothing of the wire in it (an empty body, HTML, noise), `TooLarge` and `TooDeep`
    beyond the limits. Anything else that is wrong with the response is in `verdict`.
    """
    decoder = Decoder(wire, tools, request, max_event=max_event, max_body=max_body, max_answer=max_answer)
    decoder.feed(body)
    response = decoder.response()
    if response.verdict.kind == "foreign":
        raise NotAResponse(f"decoding as {wire} failed: {response.verdict.reason}")
    return response


EVENTS_LOOKED_AT = 50
HEAD = 4096


def guess_wire(body: bytes) -> str | None:
    """The name of the wire, or None when no event looks like any of them."""
    for event in _events(body):
        # The first wire comes last: most servers imitate it, so its errors are the least specific.
        for wire in reversed([*WIRES.values()]):
            if wire.recognises(event):
                return wire.name
    return _guess_from_head(body[:HEAD])


def _guess_from_head(head: bytes) -> str | None:
    """A body that was cut in its first event has no event at all, but its beginning may show what it was."""
    places = [(head.find(mark), wire.name) for wire in WIRES.values() for mark in wire.marks]
    found = [(at, name) for at, name in places if at >= 0]
    return min(found)[1] if found else None


def _events(body: bytes) -> Iterator[Object]:
    framer = Framer(max_body=len(body) + 1)
    for data in [*framer.feed(body), *framer.end()][:EVENTS_LOOKED_AT]:
        try:
            value: Json = loads(data)
        except Damaged:
            continue
        for item in cast("list[Json]", value) if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield cast("Object", item)


# A shortcut for non-streaming bodies that are exactly as their wire documents; the decoder reads all others.
#
# For a body with two calls it takes 26 us, the decoder 143; a request through the gateway takes 270 to 460 in all.


def look_at(wire: Wire, body: bytes, max_tokens: object = None) -> Plain | None:
    """What is in it, if nothing in it is in doubt (except whether its ids are new to a history). `max_tokens`: how many
    tokens it was allowed."""
    if wire.plain is None or body[:1] != b"{" or not shallow(body):
        return None
    try:
        plain = wire.plain(orjson.loads(body))
    except orjson.JSONDecodeError:
        return None
    if plain is None or len({call["id"] for call in plain.calls}) < len(plain.calls):
        return None
    if max_tokens is not None and (
        not isinstance(max_tokens, int) or plain.usage is None or plain.usage.output_tokens >= max_tokens
    ):
        return None  # some servers report that they were done although the limit cut them
    return plain
