"""What a request takes from stored responses, and what an answer leaves there: `previous_response_id`, references to
items, compacted histories; and the paths on which a client reads or deletes a stored response."""

from __future__ import annotations

from dataclasses import replace
from typing import cast
from urllib.parse import parse_qs

from unbroken.asgi import Refused, Response, Scope
from unbroken.errors import InvalidRequest, StreamError
from unbroken_gateway.http.large_requests import off_loop
from unbroken_gateway.http.routes import ClientRequest
from unbroken_gateway.relay.exchange import Exchange
from unbroken_gateway.turns.response_store import ResponseStore, final_object, response_in
from unbroken_wires.messages import Assistant, Json, Message, Request, ToolMessage
from unbroken_wires.wires.http_api import NO_ITEM, NO_PREVIOUS_RESPONSE, NOT_FOUND, HttpApi, StoredPath
from unbroken_wires.wires.json_access import Object, as_dict, as_text
from unbroken_wires.wires.jsontext import dumps, loads

WHOLE_EVERY = 50
"""After this many responses in a chain, the complete conversation is stored again, so a long chain needs few reads."""
SUMMARY = "This conversation was compacted. A summary of everything before this message:\n\n"
"""Begins the message that takes the place of a compaction item."""
MOST_LISTED = 100
"""Maximum items of a page of input items."""
_LISTED = 20
_DIGITS = 10
"""Maximum digits of a number in a query."""
_MESSAGE = 200
"""Approximate bytes of a message."""


class StoredResponses:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def with_ttl(self, ttl: float) -> StoredResponses:
        return StoredResponses(self._store.with_ttl(ttl))

    async def resolve(self, incoming: ClientRequest) -> ClientRequest:
        """The request with stored items in the place of references to them, and with our own compactions as messages.
        A reference that is not stored here is left to a provider of the same wire; for any other it is an error."""
        http, body = incoming.route.http, incoming.body
        said = body.get(http.messages_field)
        if not http.stores or not isinstance(said, list):
            return incoming
        messages = [as_dict(message) for message in cast("list[Json]", said)]
        wanted = list(dict.fromkeys(id for message in messages if (id := http.reference_in(message))))
        summaries = {at: text for at, message in enumerate(messages) if (text := http.summary_in(message)) is not None}
        if not wanted and not summaries:
            return incoming
        found = await self._store.items(incoming.scope, wanted, http) if wanted else {}
        unknown = [id for id in wanted if id not in found]
        if unknown and incoming.upstream.wire != incoming.wire:
            raise Refused(
                404,
                f"Item with id '{unknown[0][:100]}' not found. Items are not persisted when `store` is set to false. "
                "Try again with `store` set to true, or remove this item from your input.",
                kind=NO_ITEM,
            )
        resolved = [
            {"type": "message", "role": "user", "content": SUMMARY + summaries[at]}
            if at in summaries
            else found.get(http.reference_in(message), message)
            for at, message in enumerate(messages)
        ]
        return replace(incoming, body={**body, http.messages_field: resolved})

    async def continue_from(self, incoming: ClientRequest, request: Request, parent: str) -> tuple[Request, str, int]:
        """The request with the conversation up to `parent` before it; `parent`, if the store has it, and the number of
        responses before this one."""
        last = incoming.last_response
        before, depth = (last.conversation(parent) if last is not None else None), 0
        stored = before is None
        if before is None:
            before, depth = await self._store.conversation(incoming.scope, parent)
        if before is None:
            raise Refused(
                400,
                f"Previous response with id '{parent[:100]}' not found: it, or one that it continues, is unknown, "
                "deleted, too old, not unique, or was made with store=false; send the complete conversation in `input`",
                kind=NO_PREVIOUS_RESPONSE,
            )
        first = 1 if incoming.body.get("instructions") else 0
        messages = (*request.messages[:first], *before, *request.messages[first:])
        if last is not None:
            _refuse_unknown_calls(messages, len(before) + first)
        extra = {name: value for name, value in request.extra.items() if name != "previous_response_id"}
        return replace(request, messages=messages, extra=extra), parent if stored else "", depth

    async def keep(self, exchange: Exchange, message: Assistant | None, head: bytes, last: bytes) -> None:
        """Stores an answer. `head` and `last` are the first and the last bytes that the client gets. Nothing is stored
        for a client that does not want it, except on its connection."""
        incoming, http = exchange.incoming, exchange.incoming.route.http
        if not http.stores:
            return
        id = _id_in(head) or exchange.id
        systems = 1 if incoming.body.get("instructions") else 0
        answer = () if message is None else (message,)
        whole = (*exchange.request.messages[systems:], *answer)
        if incoming.body.get("store") is False:
            if incoming.last_response is not None:
                incoming.last_response.keep(id, whole)
            return
        data = final_object(last)
        items = await off_loop(len(data), lambda: http.item_ids(response_in(data) or {}))
        depth = exchange.depth + 1
        chained = exchange.parent and depth % WHOLE_EVERY
        await self._store.keep(
            incoming.scope,
            id,
            exchange.parent if chained else "",
            depth,
            (*exchange.said[systems:], *answer) if chained else whole,
            data,
            items,
        )

    # Paths

    async def has(self, stored: StoredPath, scope: str) -> bool:
        return await self._store.response(scope, stored.id) is not None

    async def answer(self, http: HttpApi, stored: StoredPath, asked: Scope, scope: str, response: Response) -> None:
        """Sends the response, or the items of its input, or deletes it. `asked` is the request."""
        method: str = asked["method"]
        if stored.part == "cancel" and method == "POST":
            raise Refused(400, "only a response with `background` can be cancelled, and there are none here")
        allowed = ("GET", "HEAD") if stored.part else ("GET", "HEAD", "DELETE")
        if method not in allowed or stored.part == "cancel":
            raise Refused(405, f"{asked['path'][:200]} needs {allowed[-1]} or GET", {"allow": ", ".join(allowed)})
        query = asked.get("query_string", b"").decode("latin-1")
        if method == "DELETE":
            deleted = await self._store.delete(scope, stored.id)
            body = {"id": stored.id, "object": "response", "deleted": True} if deleted else None
        elif stored.part == "input_items":
            body = await self._input_items(http, stored.id, scope, query)
        else:
            body = await self._store.response(scope, stored.id)
        if body is not None and method == "GET" and parse_qs(query).get("stream") == ["true"]:
            # The provider also streams only those with `background`: the events of others are stored nowhere.
            raise Refused(
                400,
                "This response cannot be streamed: only one with `background` can be, and there are none here. "
                "Retrieve it without `stream`.",
            )
        if body is None:
            raise Refused(404, f"Response with id '{stored.id[:100]}' not found.", kind=NOT_FOUND)
        await response.complete(200, dumps(body))

    async def _input_items(self, http: HttpApi, id: str, scope: str, query: str) -> Object | None:
        messages, _ = await self._store.conversation(scope, id)
        if messages is None:
            if await self._store.response(scope, id) is None:
                return None
            raise Refused(
                404,
                f"The items of response '{id[:100]}' are not complete: a response that it continues was deleted, or "
                "has expired.",
                kind=NOT_FOUND,
            )
        before = messages[:-1] if messages and isinstance(messages[-1], Assistant) else messages
        items = await off_loop(_MESSAGE * len(before), lambda: http.input_items(before, id))
        return _page_of(items, query)


def _refuse_unknown_calls(messages: tuple[Message, ...], new: int) -> None:
    """On a connection, the history is the gateway's own: a result that answers none of its calls is a mistake that no
    repair can guess. `new`: where the client's messages begin."""
    calls = {call.id for message in messages if isinstance(message, Assistant) for call in message.calls}
    for message in messages[new:]:
        for result in message.results if isinstance(message, ToolMessage) else ():
            if result.call_id not in calls:
                raise InvalidRequest(
                    f"No tool call found for function call output with call_id {result.call_id[:100]}."
                )


def _page_of(items: list[Object], query: str) -> Object:
    asked = parse_qs(query)
    limit = (asked.get("limit") or [""])[0] or str(_LISTED)
    order = (asked.get("order") or ["desc"])[0]
    after = (asked.get("after") or [""])[0]
    if not limit.isdecimal() or len(limit) > _DIGITS or not 1 <= int(limit) <= MOST_LISTED:
        raise InvalidRequest(f"`limit` has to be a number from 1 to {MOST_LISTED}")
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` has to be asc or desc")
    if order == "desc":
        items = items[::-1]
    if after:
        items = items[next((at + 1 for at, item in enumerate(items) if item["id"] == after), len(items)) :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }


def _id_in(head: bytes) -> str:
    """The id of a response, from a body or from the first event that has it."""
    lines = [head] if head[:1] == b"{" else [line[5:] for line in head.splitlines() if line.startswith(b"data:")]
    for line in lines:
        try:
            said = as_dict(loads(line))
        except StreamError:  # `[DONE]`, or something that is not JSON
            continue
        if id := as_text(as_dict(said.get("response", said)).get("id")):
            return id
    return ""
