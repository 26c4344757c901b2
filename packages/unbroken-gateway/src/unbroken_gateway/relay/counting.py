"""Counts the tokens of a request: asks the provider where client and model speak its wire, otherwise estimates."""

from __future__ import annotations

from unbroken.asgi import Response
from unbroken.models.http import HTTPModel
from unbroken_gateway.http.routes import ClientRequest, check_body, read_request
from unbroken_gateway.relay.passthrough import relayed, send_on
from unbroken_gateway.relay.stored_responses import StoredResponses
from unbroken_wires.messages import Request
from unbroken_wires.transcript.shorten import CHARACTERS_PER_TOKEN, characters
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.http_api import HttpApi
from unbroken_wires.wires.json_access import as_text
from unbroken_wires.wires.jsontext import dumps

ESTIMATED = {"x-unbroken-estimated": "true"}
"""An estimate is a quarter of the characters, as for runs without reported usage: enough to decide when to compact."""


async def count_tokens(incoming: ClientRequest, stored: StoredResponses, response: Response) -> None:
    http = incoming.route.http
    body = http.body_to_count(incoming.body)
    check_body(incoming.route, body)
    parent = ""
    if http.stores:
        incoming = await stored.resolve(incoming)
        body = incoming.body
        parent = as_text(body.get("previous_response_id"))
    request = read_request(incoming.route, body)
    if parent:
        request, _, _ = await stored.continue_from(incoming, request, parent)
    if not await _forwarded(incoming, request, response):
        await response.complete(200, dumps(http.counted(_estimate(request))), ESTIMATED)


async def _forwarded(incoming: ClientRequest, request: Request, response: Response) -> bool:
    """Whether the provider counted, or refused for another reason than that it cannot."""
    model, http = incoming.upstream.http, incoming.route.http
    guarded = incoming.upstream.guards is not None  # the provider must not see what they would replace
    if model is None or guarded or incoming.wire != incoming.upstream.wire or not _counts(model, http):
        return False
    body = {**incoming.body, "model": model.endpoint.model}
    if http.stores and body.pop("previous_response_id", None):  # an id of ours
        body[http.messages_field] = find_wire(incoming.wire).encode_request(request)[http.messages_field]
    headers = {**incoming.headers, "content-type": "application/json"}
    async with relayed(model, "POST", http.count_path, "", headers, dumps(body)) as answer:
        if answer.status in http.count_lacking:
            return False
        await send_on(model, answer, response)
        return True


def _counts(model: HTTPModel, http: HttpApi) -> bool:
    """Only a provider with the wire's own paths has one for counting."""
    return bool(http.count_path) and model.endpoint.whole_url.path.endswith(http.path)


def _estimate(request: Request) -> int:
    tools = sum(len(tool.name) + len(tool.description) + len(dumps(dict(tool.parameters))) for tool in request.tools)
    return (sum(map(characters, request.messages)) + tools) // CHARACTERS_PER_TOKEN + 1
