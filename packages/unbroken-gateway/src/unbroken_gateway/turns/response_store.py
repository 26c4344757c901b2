"""Stored responses: a client can read one again, continue from it, refer to the items in it, or delete it.

A response has two entries under one digest: the messages after its parent, which continuing reads, and the response
object as the client received it. The id of the response, and the ids of its items, are lists of such digests, because a
provider may use an id twice. Then it is ambiguous, and nothing is found: a client must never continue in another
conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from unbroken.errors import StreamError, UserError
from unbroken_gateway.stores.store import Store
from unbroken_gateway.turns.turn import (
    VERSION,
    Listed,
    conversation_key,
    item_key,
    read_value,
    response_key,
    unpack,
    write_value,
)
from unbroken_wires.messages import Message
from unbroken_wires.transcript import from_json, to_json
from unbroken_wires.wires.http_api import HttpApi
from unbroken_wires.wires.json_access import Object, as_dict, as_text
from unbroken_wires.wires.jsontext import loads_faithful

LONGEST_CHAIN = 1000
"""Maximum responses that are read to continue by `previous_response_id`; `WHOLE_EVERY` in `responder` keeps it far
lower."""
_CONVERSATION, _OBJECT = "conversation:", "object:"
_CHECK = 8
"""Bytes of the checksum before an object."""


class ResponseStore:
    """`ttl` in seconds. Every method raises `StoreUnavailable` if the store does not answer: a client that continues by
    id has no other history."""

    def __init__(self, store: Store, ttl: float) -> None:
        self._store = store
        self._ttl = ttl

    def with_ttl(self, ttl: float) -> ResponseStore:
        return ResponseStore(self._store, ttl)

    async def keep(
        self,
        scope: str,
        id: str,
        parent: str,
        depth: int,
        messages: Sequence[Message],
        data: bytes,
        items: Iterable[str],
    ) -> None:
        """Stores the messages after `parent`, and `data`: the response, or the event that ends its stream. `depth` is
        its position in the chain, `items` are the ids of its items."""
        saved = write_value({"v": VERSION, "id": id, "parent": parent, "depth": depth, "messages": to_json(messages)})
        key = conversation_key(scope, saved)
        entries = {key: saved, _object_key(key): blake2b(data, digest_size=_CHECK).digest() + data}
        listed = Listed(key).packed()
        names = [response_key(scope, id), *(item_key(scope, item) for item in items)]
        await self._store.put(entries, self._ttl, dict.fromkeys(names, listed))

    async def conversation(self, scope: str, id: str) -> tuple[tuple[Message, ...] | None, int]:
        """The conversation up to the end of this response, and its position in the chain; None if it, or one before it,
        is not stored or is ambiguous."""
        parts: list[tuple[Message, ...]] = []
        depth = 0
        while id:
            key = await self._only_key(response_key(scope, id))
            (value,) = await self._store.get([key]) if key else [None]
            saved = read_value(value)
            if saved is None or len(parts) > LONGEST_CHAIN:
                return None, 0
            try:
                parts.append(from_json(saved["messages"]))
                depth = depth or int(saved.get("depth", 0))
                id = as_text(saved["parent"])
            except (UserError, KeyError, TypeError, ValueError):
                return None, 0
        return tuple(message for part in reversed(parts) for message in part), depth

    async def response(self, scope: str, id: str) -> Object | None:
        """The response object; None if it is not stored."""
        key = await self._only_key(response_key(scope, id))
        return None if not key else (await self._objects([key]))[0]

    async def items(self, scope: str, ids: Sequence[str], http: HttpApi) -> dict[str, Object]:
        """The items with these ids that are stored and not ambiguous, as a request may contain them."""
        lists = await self._store.get([item_key(scope, id) for id in ids])
        keys: dict[str, list[str]] = {}
        for id, data in zip(ids, lists, strict=True):
            listed, complete = unpack(data or b"", _CONVERSATION)
            if listed and complete:
                keys[id] = [entry.key for entry in listed]
        wanted = list(dict.fromkeys(key for group in keys.values() for key in group))
        objects = dict(zip(wanted, await self._objects(wanted), strict=True)) if wanted else {}
        found: dict[str, Object] = {}
        for id, group in keys.items():
            items = [http.stored_items(one).get(id) for key in group if (one := objects[key]) is not None]
            first = items[0] if items else None
            if first is not None and all(item == first for item in items):
                found[id] = first
        return found

    async def delete(self, scope: str, id: str) -> bool:
        """Whether there was something to delete."""
        name = response_key(scope, id)
        key = await self._only_key(name)
        if not key:
            return False
        await self._store.put({name: b"", key: b"", _object_key(key): b""}, self._ttl)
        return True

    async def _only_key(self, name: str) -> str:
        (listed,) = await self._store.get([name])
        keys = [entry.key for entry in unpack(listed or b"", _CONVERSATION)[0]]
        return keys[0] if len(keys) == 1 else ""

    async def _objects(self, keys: Sequence[str]) -> list[Object | None]:
        return [_read_object(value) for value in await self._store.get([_object_key(key) for key in keys])]


def _object_key(conversation: str) -> str:
    return _OBJECT + conversation.removeprefix(_CONVERSATION)


def _read_object(value: bytes | None) -> Object | None:
    if not value or blake2b(value[_CHECK:], digest_size=_CHECK).digest() != value[:_CHECK]:
        return None
    return response_in(value[_CHECK:])


def response_in(data: bytes) -> Object | None:
    """The response in a body, or in the event that ends a stream; None if it cannot be read."""
    try:
        said = as_dict(loads_faithful(data))
    except StreamError:
        return None
    return as_dict(said["response"]) if "response" in said and "output" not in said else said


def final_object(last: bytes) -> bytes:
    """The end of an answer as it is stored: the complete body, or the last event of the stream that has the response.
    `last` is what the client is sent last."""
    if last[:1] == b"{":
        return last
    lines = (line[5:].strip() for line in reversed(last.splitlines()) if line.startswith(b"data:"))
    return next((line for line in lines if b'"response"' in line), b"")


class LastResponse:
    """The last response of a WebSocket connection. The client may continue from it although it was made with
    `store: false`: nothing of it outlives the connection."""

    def __init__(self) -> None:
        self._id = ""
        self._messages: tuple[Message, ...] = ()

    def keep(self, id: str, messages: tuple[Message, ...]) -> None:
        self._id, self._messages = id, messages

    def conversation(self, id: str) -> tuple[Message, ...] | None:
        return self._messages if id and id == self._id else None

    def forget(self, id: str) -> None:
        """After a request that continued from it has failed."""
        if id == self._id:
            self.keep("", ())
