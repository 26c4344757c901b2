"""A shortcut for non-streaming bodies that are exactly as their wire documents; the decoder reads all others.

For a body with two calls it takes 26 us, the decoder 143; a request through the gateway takes 270 to 460 in all.
"""

from __future__ import annotations

import orjson

from unbroken.wires.jsontext import shallow
from unbroken.wires.wire import Plain, Wire


def look_at(wire: Wire, body: bytes, max_tokens: object = None) -> Plain | None:
    """What is in it, if nothing in it is in doubt (but whether its ids are new to a history). `max_tokens`: as many
    tokens as it was allowed."""
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
        return None  # some say that they were done though the limit cut them
    return plain
