"""Guesses the wire of a body from its first events, for files of unknown origin.

Never used for a request of our own: then the wire is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import orjson

from unbroken.messages import Json
from unbroken.wires import WIRES
from unbroken.wires.jsontext import Damaged, loads, shallow
from unbroken.wires.sse import Framer
from unbroken.wires.values import Object
from unbroken.wires.wire import Plain, Wire

EVENTS_LOOKED_AT = 50
HEAD = 4096


def guess_wire(body: bytes) -> str | None:
    """The name of the wire, or None when no event looks like any of them."""
    for event in _events(body):
        # The first wire comes last: most servers imitate it, so its errors are the least specific.
        for wire in reversed(WIRES.values()):
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
