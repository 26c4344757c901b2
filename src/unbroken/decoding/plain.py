"""A whole body that is plainly what its wire documents, read at once. None: the decoder has to look at it."""

from __future__ import annotations

import orjson

from unbroken.deltas import Ended
from unbroken.messages import Assistant, Request, Usage
from unbroken.verdicts import Verdict
from unbroken.wires.jsontext import shallow
from unbroken.wires.wire import Wire


def read_plain(wire: Wire, body: bytes, request: Request) -> tuple[Ended, Usage | None] | None:
    if wire.plain is None or body[:1] != b"{" or not shallow(body):
        return None
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    plain = wire.plain(event)
    if plain is None:
        return None
    message, usage = plain.message, plain.usage
    limit = request.sampling.max_tokens
    if limit is not None and (usage is None or usage.output_tokens >= limit):
        return None  # some say that they were done though the limit cut them
    if message.calls and not _are_new({call.id for call in message.calls}, len(message.calls), request):
        return None
    verdict = Verdict("whole", finish=plain.finish, bytes_seen=len(body), text_seen=len(message.text))
    return Ended(verdict, message), usage


def _are_new(ids: set[str], count: int, request: Request) -> bool:
    """No two calls share an id, and none was used before: otherwise ids have to be made."""
    if len(ids) < count or not ids.isdisjoint(request.taken):
        return False
    said = [message for message in request.messages if isinstance(message, Assistant)]
    return all(call.id not in ids for message in said for call in message.calls)
