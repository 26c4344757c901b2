"""Raw messages and bytes of a client's wire: what a wire provides to repair a history, and to relay a response
unchanged.

A wire's adaptor takes its messages apart into calls, results and the rest. What is wrong with a history, and how it is
repaired, is decided by `transcript`, the same for all wires. Raw messages come from clients: any field may have any
value, and fields that we do not know are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from unbroken_wires.errors import StreamError
from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.transcript import History, Piece
from unbroken_wires.wires.content_parts import call_from_text
from unbroken_wires.wires.framing import SSE, Framing
from unbroken_wires.wires.json_access import MINTED, MISSHAPEN, Object, as_dict, as_list
from unbroken_wires.wires.jsontext import Damaged, loads
from unbroken_wires.wires.sse import is_only_alive


class RawHistory(History[Json], Protocol):
    """What is defined here holds on most wires."""

    unique = False

    def holds(self, message: Json) -> bool:
        return False

    def wrap(self, results: list[Json]) -> list[Json]:
        return results

    def has_links(self, message: Object) -> bool:
        """Does the message have calls or results in the form of this wire, which no other wire has?"""
        ...

    def is_partial(self, messages: list[Json]) -> bool:
        """Do the messages refer to others that only the provider has?"""
        return False

    def joined(self, messages: list[Json]) -> list[Json]:
        """With those as one that the provider refuses as neighbours; the same list if there are none."""
        return messages


def field(fields: Object, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


class MessageHistory(RawHistory):
    """Raw messages in the shape that Chat Completions has given to several wires: calls in `tool_calls`, each result a
    message of its own with the role `tool`, neighbouring results one turn."""

    ids_optional = False
    """May calls and results lack ids? Then they belong together by name and place."""
    name_field = "name"
    """The name of the tool in a result."""

    def run(self, message: Json) -> str:
        return "results" if field(as_dict(message), "role") == "tool" else ""

    def pieces(self, message: Json) -> list[Piece]:
        fields = as_dict(message)
        match fields.get("role"):
            case "tool":
                return [self._result(message, fields)]
            case "assistant":
                calls = [self._call(call) for call in as_list(fields.get("tool_calls"))]
                return calls or [Piece("speech", message)]
            case _:
                return [Piece("speech", message)]

    def _result(self, message: Json, fields: Object) -> Piece:
        return Piece("result", message, self._id(fields, "tool_call_id"), field(fields, self.name_field))

    def _call(self, call: Json) -> Piece:
        fields = as_dict(call)
        if not fields:
            return Piece("speech", call)
        function = as_dict(fields.get("function")) or as_dict(fields.get("custom"))
        return Piece("call", call, self._id(fields, "id"), field(function, "name"))

    def _id(self, fields: Object, name: str) -> str | None:
        return field(fields, name) or (None if self.ids_optional else "")

    def build(self, message: Json, values: list[Json]) -> Json:
        if as_list(message.get("tool_calls")) and message.get("role") == "assistant":
            return {**message, "tool_calls": values}
        return values[0]

    def error(self, call: Object, text: str) -> Json:
        return {"role": "tool", "tool_call_id": field(call, "id"), "content": text}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "id" if piece.kind == "call" else "tool_call_id": id}

    def has_links(self, message: Object) -> bool:
        return field(message, "role") == "tool" or bool(as_list(message.get("tool_calls")))


def one_call_in_each(
    history: RawHistory, body: Object, answers: str, message_field: str, role: str, new_id: str
) -> Object:
    """A body whose list `answers` offers several messages to choose from, with one call left in each of them."""
    before = as_list(body.get(answers))
    after: list[Json] = []
    for answer in before:
        message = as_dict(as_dict(answer).get(message_field))
        trimmed = one_call_in(history, message, role, new_id)
        after.append(answer if trimmed is message else {**answer, message_field: trimmed})
    return {**body, answers: after} if any(a is not b for a, b in zip(before, after, strict=True)) else body


def one_call_in(history: RawHistory, message: Object, role: str, new_id: str) -> Object:
    """The message with only the first of its calls, under `new_id` if there is one. The same object where nothing has
    to change."""
    message_of_model = {**message, "role": role}  # some servers leave it out, and a user's message has no calls
    pieces = history.pieces(message_of_model)
    calls = [piece for piece in pieces if piece.kind == "call"]
    if len(calls) < (1 if new_id else 2):
        return message
    first = calls[0]
    kept = [piece for piece in pieces if piece.kind != "call" or piece is first]
    values = [history.renamed(piece, new_id) if new_id and piece is first else piece.value for piece in kept]
    built = history.build(message_of_model, values)
    return {key: value for key, value in built.items() if key in message}


# Relaying a response to a client of the same wire: may the bytes go out unchanged, and what does the client have?


MANY = 16 * 1024
"""Bytes that are kept unread: few enough for a gateway that relays hundreds of streams at once."""


class RelayedStream:
    """What a client has received of a response as its provider sent it, for the encoder that continues the stream.

    A relay sees every event and continuing with an encoder is rare, so bytes are only kept here. They are read when the
    encoder needs them, or when there are many. It never raises: what cannot be read is skipped, for the client has it
    already. Each wire has a subclass that reads its events.
    """

    framing: Framing = SSE
    marks: tuple[bytes, ...] = ()
    """Every event that matters once the beginning is known contains one of these; without marks, all events matter."""

    def __init__(self) -> None:
        self.begun = False
        """The beginning is known: from now on only events with a mark have to be read."""
        self._unread: list[bytes] = []
        self._size = 0
        self._news = False

    def add(self, data: bytes) -> None:
        """Complete events, as many as came at once."""
        self._unread.append(data)
        self._size += len(data)
        self._news = True
        if self._size > MANY:
            self._read_all()

    def catch_up(self) -> bool:
        """Reads everything. False if nothing was added since the last call."""
        if not self._news:
            return False
        self._news = False
        self._read_all()
        return True

    def read_up(self) -> None:
        """Reads everything, and leaves it to `catch_up` to report that."""
        self._read_all()

    def _read_all(self) -> None:
        data = b"".join(self._unread)
        self._unread.clear()
        self._size = 0
        if self._may_skip(data):  # nearly all that ever passes is text
            return
        for text in self.framing.texts(data):
            self._read(text)

    def read(self, data: bytes) -> None:
        """The JSON text of one event; whatever is wrong with it may be raised."""
        raise NotImplementedError

    def _may_skip(self, data: bytes) -> bool:
        if not self.begun:
            return False
        for mark in self.marks:  # noqa: SIM110 - a generator would cost more than the search
            if mark in data:
                return False
        return True

    def _read(self, data: bytes) -> None:
        if self._may_skip(data):
            return
        try:
            self.read(data)
        except (*MISSHAPEN, StreamError):
            return


def same_input(sent: str, complete: str) -> bool:
    """Did the client receive all of a call's arguments (or free text)? Another spelling of the same JSON counts."""
    if sent == complete:
        return True
    arguments = call_from_text("", "", sent, 0).arguments
    return arguments is not None and arguments == call_from_text("", "", complete, 0).arguments


def event_of(data: bytes) -> Object:
    event: Json = loads(data)
    return as_dict(event)


class StreamCheck:
    """Can any client of a wire read these raw events? Feed it all events of a response, complete ones, in any portions.

    Our decoder accepts calls without an index, with index 0 for all of them, with arguments of a wrong type; official
    clients merge them, lose them or raise. So only events about calls are read, and everything unexpected is refused;
    then our encoder writes the response instead.
    """

    framing: Framing = SSE
    marks: tuple[bytes, ...]
    """Only events that contain one of these are read."""
    start: bytes = b""
    """An event with which a call begins contains this, on wires where calls come in several events."""
    named = False
    """Clients of this wire need the name of each event."""

    def __init__(self) -> None:
        self._next = 0
        """The index of the next block or item."""
        self._begun = False

    def feed(self, data: bytes) -> bool:
        if not self._begun and not is_only_alive(data):
            self._begun = True
            if self.named and b"event:" not in data:
                return False
        if not self._has_mark(data):
            return True
        for text in self.framing.texts(data):
            if self._has_mark(text):
                try:
                    event = as_dict(loads(text))
                except Damaged:
                    return False
                if not self.conforms(event):
                    return False
        return True

    def _has_mark(self, data: bytes) -> bool:
        for mark in self.marks:  # noqa: SIM110 - a generator would cost more than the search
            if mark in data:
                return True
        return False

    def conforms(self, event: Object) -> bool:
        raise NotImplementedError

    def is_next(self, index: Json) -> bool:
        fits = isinstance(index, int) and not isinstance(index, bool) and index == self._next
        self._next += 1
        return fits


@dataclass(frozen=True, slots=True)
class Relay:
    """When may a provider's bytes go to a client of the same wire unchanged?"""

    check: Callable[[], StreamCheck]
    body_conforms: Callable[[Object], bool]
    """The same for the calls of a non-streaming body."""
    end: re.Pattern[bytes]
    """Matches the last events of a stream, which clients wait for."""
    ids_optional: bool = False
    """Do clients of this wire expect calls without ids?"""
    is_usage: Callable[[Object], bool] | None = None
    """Does an event have the usage and nothing else? None if this wire has no such event."""

    def without_usage(self, data: bytes) -> bytes:
        """These complete events without those that have the usage and nothing else."""
        if self.is_usage is None or b'"usage"' not in data:
            return data
        return b"".join([event for event in SSE.events(data) if not self._has_only_usage(event)])

    def _has_only_usage(self, event: bytes) -> bool:
        if self.is_usage is None or not event.startswith(b"data:") or b'"usage"' not in event:
            return False
        try:
            return self.is_usage(event_of(event[5:].strip()))
        except (*MISSHAPEN, StreamError):
            return False

    def call_conforms(self, call: ToolCall) -> bool:
        """Did the call come as its wire has it?"""
        return not call.problem and (not call.notes or (self.ids_optional and call.notes == (MINTED,)))

    def has_end(self, data: bytes) -> bool:
        """Of a complete response: are its last events in this data?"""
        return self.end.search(data) is not None
