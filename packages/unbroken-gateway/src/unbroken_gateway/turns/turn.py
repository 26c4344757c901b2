"""A turn of a model as the gateway keeps it, and the keys that find it again. Pure; nothing is stored here.

Strategy. A client receives a message in its own wire and sends it back with every later request, often without what
its wire cannot carry. So the model's message is kept complete, once, and never changes: which of its calls were
released is read from the client's history, not counted. That is why a client may retry, branch or go back, and why
replicas need not agree on anything.

A turn is found by a random id of one of its calls, which proves it; or by the chained digest of the conversation up to
and including the message as the client has it. That key holds a list of every turn that was given there, each with a
fingerprint of its context (`context_of`), because two conversations may have the same text. A turn is used only if
exactly one entry matches everything that the client sends, including its ids. The digest leaves out what clients often
drop: reasoning, and white space around a model's text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from math import inf
from operator import itemgetter
from typing import cast

import orjson

from unbroken.errors import CannotEncode, UserError
from unbroken_gateway.stores.store import LIST_BYTES
from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Part,
    Request,
    System,
    ToolCall,
    ToolMessage,
    ToolSpec,
    User,
)
from unbroken_wires.transcript import from_json, to_json
from unbroken_wires.wires.json_pieces import IN_PIECES, dumps_in_pieces
from unbroken_wires.wires.jsontext import Damaged, dumps, loads_faithful, strict

VERSION = 2
"""Version of the stored format: other versions are not read."""
_CHECK = 8
"""Bytes of the checksum before each value: a damaged value must not be taken for a model's answer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a model."""

    key: str
    """Its key in the store."""
    message: Assistant
    """The model's own message: all calls, their ids, and the fields of its wire."""
    ids: tuple[str, ...] = ()
    """The ids by which the client knows the calls."""
    held: bool = False
    """The calls are released one at a time."""
    shown: str | None = None
    """The text that the client was given, if it differs (the answer broke off, and the retry gave a different one)."""
    kept_until: float = 0.0

    @property
    def text(self) -> str:
        return self.message.text if self.shown is None else self.shown


@dataclass(frozen=True, slots=True)
class Hold:
    """The state of the calls of a turn that were not released yet."""

    until: float
    """When the wait for the result of the last released call ends."""
    closed: bool = False
    """The rest was answered "not run" in this branch of the conversation; another branch may still receive it."""


# Serialisation


def write_turn(turn: Turn) -> bytes:
    saved: dict[str, Json] = {"v": VERSION, "message": to_json([turn.message])[0], "until": turn.kept_until}
    if turn.ids:
        saved["ids"] = turn.ids
    if turn.held:
        saved["held"] = True
    if turn.shown is not None:
        saved["shown"] = turn.shown
    return write_value(saved)


def read_turn(key: str, data: bytes) -> Turn | None:
    """None if another version wrote it or it is damaged: losing state is acceptable."""
    saved = read_value(data)
    if saved is None:
        return None
    try:
        message = cast("Assistant", from_json([saved["message"]])[0])
        ids = tuple(saved.get("ids", ()))
        if len(ids) != len(message.calls):
            return None
        return Turn(
            key,
            replace(message, calls=tuple(map(_exact, message.calls))),
            ids,
            bool(saved.get("held")),
            saved.get("shown"),
            float(saved["until"]),
        )
    except (UserError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _exact(call: ToolCall) -> ToolCall:
    """Infinite numbers, which JSON cannot express, are only in the raw text of the arguments."""
    return replace(call, arguments=strict.decode(call.raw)) if call.complete and call.raw else call


def write_hold(hold: Hold) -> bytes:
    return write_value({"v": VERSION, "until": hold.until, "closed": hold.closed})


def read_hold(data: bytes | None) -> Hold | None:
    saved = read_value(data)
    until = None if saved is None else saved.get("until")
    if saved is None or not isinstance(until, int | float):
        return None
    return Hold(float(until), bool(saved.get("closed")))


def write_value(value: Json) -> bytes:
    """Round-trips exactly, even half a surrogate pair."""
    try:
        data = orjson.dumps(value)
    except TypeError:
        data = json.dumps(value).encode()
    return blake2b(data, digest_size=_CHECK).digest() + data


def read_value(data: bytes | None) -> dict[str, Json] | None:
    """None if another version wrote it or it is damaged."""
    if data is None or blake2b(data[_CHECK:], digest_size=_CHECK).digest() != data[:_CHECK]:
        return None
    try:
        saved = loads_faithful(data[_CHECK:])
    except Damaged:
        return None
    value = cast("dict[str, Json]", saved) if isinstance(saved, dict) else {}
    return value if value.get("v") == VERSION else None


# Keys


def turn_key(scope: str, chain: bytes, message: Assistant, ids: Sequence[str]) -> str:
    """Unique per answer: two answers that begin alike in the same conversation are two turns."""
    return "turn:" + _named(scope, _bytes_of([chain.hex(), to_json([message])[0], *ids]))


def said_key(scope: str, chain: bytes) -> str:
    """The list of turns that were given at this point of a conversation."""
    return "said:" + _named(scope, chain)


def call_key(scope: str, id: str) -> str:
    """The list of turns that have a call with this id."""
    return "call:" + _named(scope, id.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of such a list: the key of a turn, and the fingerprint of its context (`context_of`)."""

    key: str
    context: bytes = b"\0" * 8

    def packed(self) -> bytes:
        return bytes.fromhex(self.key.partition(":")[2]) + self.context


def unpack(data: bytes, kind: str = "turn:") -> tuple[list[Listed], bool]:
    """The entries of a list, each once, and whether it is complete: one that is full may lack some."""
    size = _TURN + _CONTEXT
    ends = range(size, len(data) + 1, size)
    found = [Listed(kind + data[end - size : end - _CONTEXT].hex(), data[end - _CONTEXT : end]) for end in ends]
    return list(dict.fromkeys(found)), len(data) < LIST_BYTES


def hold_key(turn: str) -> str:
    return "hold:" + turn


def asked_key(scope: str, alias: str, attempt: str, body: bytes) -> str:
    """For the retry of a request, which has the same bytes. `attempt` is the client's idempotency key or address. The
    model is included because the bodies of one wire do not name it."""
    return "asked:" + _named(scope, f"{alias}\n{attempt}\n".encode() + body)


def conversation_key(scope: str, saved: bytes) -> str:
    """The conversation up to a response, by its content."""
    return "conversation:" + _named(scope, saved)


def response_key(scope: str, id: str) -> str:
    """The list of conversations whose last response has this id."""
    return "response:" + _named(scope, id.encode("utf-8", "surrogatepass"))


def item_key(scope: str, id: str) -> str:
    """The list of conversations whose last response has an item with this id."""
    return "item:" + _named(scope, id.encode("utf-8", "surrogatepass"))


def owned_key(scope: str, id: str) -> str:
    """For a provider's id that was given to this caller."""
    return "owned:" + _named(scope, id.encode("utf-8", "surrogatepass"))


def _named(scope: str, data: bytes) -> str:
    return blake2b(data, digest_size=16, key=_digest_of_scope(scope)).hexdigest()


@lru_cache(256)
def _digest_of_scope(scope: str) -> bytes:
    return blake2b(scope.encode(), digest_size=32).digest()


_TURN, _CONTEXT = 16, 8
"""Bytes of the digest in a turn's key, and of a fingerprint."""


def same_answer(one: Turn, other: Turn) -> bool:
    """Did the model give the same answer, from a client's point of view?"""
    ours, theirs = one.message.calls, other.message.calls
    if (one.text, one.held, len(ours)) != (other.text, other.held, len(theirs)):
        return False
    return all(map(same_call, ours, theirs))


# Digests


_MAY_CHANGE = frozenset(
    {"generationConfig", "include", "previous_response_id", "reasoning", "reasoning_effort", "service_tier", "store"}
    | {"stream_options", "text", "thinking", "toolConfig", "tool_choice", "truncation"}
)
"""Fields that control the answer: a client may change them with each request of a conversation."""


def context_of(request: Request, alias: str, speakers: Sequence[Json] = ()) -> bytes:
    """A fingerprint of a conversation's context, which is not part of its chain: the model, the names in its first
    messages, system texts, tools, and other fields of the client's body (a file store, servers, a user)."""
    systems = [message.text for message in request.messages if isinstance(message, System)]
    tools = sorted((_spelled_tool(tool) for tool in request.tools), key=itemgetter(0))
    rest = {name: value for name, value in request.extra.items() if name not in _MAY_CHANGE} if request.extra else {}
    return _link(b"", [alias, [*speakers], systems, tools, _without_marks(rest)])[:_CONTEXT]


def _spelled_tool(tool: ToolSpec) -> list[Json]:
    native = None if tool.native is None else _without_marks(tool.native.value)
    return [tool.name, tool.description, tool.parameters, tool.strict, native]


def chain(messages: Iterable[Message]) -> bytes:
    """The chained digest of the messages."""
    digests = chains(messages)
    return digests[-1] if digests else b""


def chains(messages: Iterable[Message]) -> list[bytes]:
    """For each message, the digest of all messages up to and including it."""
    digests: list[bytes] = []
    last = b""
    places: dict[str, int] = {}
    for message in messages:
        if isinstance(message, Assistant) and message.calls:
            places = {call.id: place for place, call in enumerate(message.calls)}
        last = link(last, message, places)
        digests.append(last)
    return digests


_KNOWN: dict[tuple[bytes, int], bytes] = {}
"""Recent digests: a client sends its whole history with each request, and most of it was digested for the previous one.
The key is the preceding digest and Python's hash of the message, which nobody outside can predict."""
_MOST_KNOWN = 4096


def link(before: bytes, message: Message, places: Mapping[str, int]) -> bytes:
    """The digest after one more message. `places`: positions of the calls that results may answer, by id. A result is
    identified by the position of its call, because clients change ids."""
    try:
        mark = _mark(message, places)
    except TypeError:  # media as a client spelled them
        mark = None
    if mark is None:
        return _digest(before, message, places)
    key = (before, mark)
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()  # one step: large requests are digested on a thread of their own
        known = _KNOWN[key] = _digest(before, message, places)
    return known


def _mark(message: Message, places: Mapping[str, int]) -> int | None:
    """A hashable value, equal for messages with the same digest; None if the message cannot be hashed."""
    match message:
        case User():
            return hash(message.parts)
        case ToolMessage():
            return hash(tuple([(r.content, r.error, places.get(r.call_id)) for r in message.results]))
        case Assistant(text, calls):
            if not all(call.raw for call in calls):
                return None
            return hash((text, *[(call.name, call.raw, call.arguments is None) for call in calls]))
        case _:
            return None


def _digest(before: bytes, message: Message, places: Mapping[str, int]) -> bytes:
    match message:
        case System():
            return before  # it is in `context_of`: some clients put the current time into it
        case User():
            return _link(before, ["user", *map(_said, message.parts)], in_pieces=IN_PIECES.get())
        case Assistant():
            calls = [[call.name, call.raw if call.arguments is None else call.arguments] for call in message.calls]
            return _link(before, ["assistant", words(message.text), calls])
        case ToolMessage():
            for result in message.results:  # one by one: clients send them together or apart
                about = ["result", str(places.get(result.call_id)), "failed" if result.error else ""]
                before = _link(before, [*about, *map(_said, result.content)], in_pieces=IN_PIECES.get())
            return before


_FILLERS = frozenset({"[System: Empty message content sanitised to satisfy protocol]"})
"""What clients write in place of an empty text, because Anthropic refuses one: litellm does."""


def words(text: str) -> str:
    """The model's text as a client sends it back, without what the client adds: some put reasoning before it, some
    write something where the model wrote nothing."""
    text = text.strip()
    if text in _FILLERS:
        return ""
    if text.startswith("<think>"):
        _, end, rest = text.partition("</think>")
        text = rest.strip() if end else text
    return text


def _said(part: Part) -> Json:
    if isinstance(part, Media):
        native = "" if part.native is None else json.dumps(_without_marks(part.native.value), sort_keys=True)
        return [part.mime, part.url or part.data, part.name, native]
    return part.text


def _without_marks(value: Json) -> Json:
    """Without cache markers, which clients move with each request."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Json]", value)
        return {name: _without_marks(each) for name, each in fields.items() if name != "cache_control"}
    if isinstance(value, list):
        return [*map(_without_marks, cast("list[Json]", value))]
    return value


def _link(before: bytes, said: list[Json], *, in_pieces: bool = False) -> bytes:
    """`in_pieces`: for plain texts, which may be long; the digest is the same."""
    data = dumps_in_pieces(said) if in_pieces else _bytes_of(said)
    return blake2b(data, digest_size=16, key=before).digest()


def _bytes_of(said: list[Json]) -> bytes:
    try:
        return orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, half a surrogate pair
        try:
            return dumps(said)
        except CannotEncode:  # and an infinite number
            return repr(said).encode("utf-8", "surrogatepass")


def same_call(one: ToolCall, other: ToolCall) -> bool:
    """Is it the same call, even if the client has parsed and rewritten the arguments? Clients may round integers beyond
    2**53 and drop nulls."""
    if one.name != other.name or (one.namespace != other.namespace and one.namespace and other.namespace):
        return False
    if one.arguments is None or other.arguments is None:
        return one.raw == other.raw
    if one.raw and one.raw == other.raw:
        return True
    return _same(one.arguments, other.arguments) or _spelled(one) == _spelled(other)


def _same(one: Json, other: Json) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast("dict[str, Json]", one), cast("dict[str, Json]", other)
        return all(_same(ours.get(name), theirs.get(name)) for name in (*ours, *(theirs.keys() - ours.keys())))
    if isinstance(one, list) and isinstance(other, list):
        some, others = cast("list[Json]", one), cast("list[Json]", other)
        return len(some) == len(others) and all(map(_same, some, others))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return _as_double(one) == _as_double(other)
    return bool(one == other)


def is_retold(own: ToolCall, told: ToolCall) -> bool:
    """Is it the same call except for added defaults and trimmed white space? The client ran it with these arguments. A
    larger change is an edit."""
    if own.name != told.name or own.arguments is None or told.arguments is None:
        return False
    return _is_retold(own.arguments, told.arguments)


def _is_retold(own: Json, told: Json) -> bool:
    if isinstance(own, dict) and isinstance(told, dict):
        fields = cast("dict[str, Json]", told)
        return all(_is_retold(value, fields.get(name)) for name, value in cast("dict[str, Json]", own).items())
    if isinstance(own, list) and isinstance(told, list):
        ours, theirs = cast("list[Json]", own), cast("list[Json]", told)
        return len(ours) == len(theirs) and all(map(_is_retold, ours, theirs))
    if isinstance(own, str) and isinstance(told, str):
        return own.strip() == told.strip()
    return _same(own, told)


def _as_double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def _spelled(call: ToolCall) -> str:
    """As a client received it: half a surrogate pair becomes another character."""
    text = json.dumps(call.arguments, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
