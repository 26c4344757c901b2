"""How many tokens a request has: asked of a provider that counts, else estimated, and marked as such.

An estimate is characters by four, as it is for runs without reported usage: good enough for who decides when to
compact, and never a price.
"""

from __future__ import annotations

from unbroken.agent.limits import CHARACTERS_PER_TOKEN, characters
from unbroken.gateway.answering import Asked
from unbroken.gateway.doors import GEMINI, MESSAGES, check_body, read_request
from unbroken.gateway.edge import Response
from unbroken.gateway.passing import ask_raw
from unbroken.messages import Request
from unbroken.wires.jsontext import dumps

ESTIMATED = {"x-unbroken-estimated": "true"}


async def count_tokens(asked: Asked, response: Response) -> None:
    upstream = asked.upstream
    check_body(asked.door, asked.body)
    request = read_request(asked.door, asked.body)
    if upstream.http is not None and asked.wire == upstream.wire == MESSAGES:
        body = {**asked.body, "model": upstream.http.endpoint.model}
        await ask_raw(upstream.http, "POST", "/v1/messages/count_tokens", dumps(body), asked.headers, response)
        return
    tokens = estimate(request)
    counted = {"totalTokens": tokens} if asked.wire == GEMINI else {"input_tokens": tokens}
    await response.whole(200, dumps(counted), ESTIMATED)


def estimate(request: Request) -> int:
    tools = sum(len(tool.name) + len(tool.description) + len(dumps(dict(tool.parameters))) for tool in request.tools)
    return (sum(map(characters, request.messages)) + tools) // CHARACTERS_PER_TOKEN + 1
