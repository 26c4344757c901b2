"""How many tokens a request has: asked of a provider that counts, else estimated, and marked as such.

An estimate is characters by four, as it is for runs without reported usage: good enough for who decides when to
compact, and never a price.
"""

from __future__ import annotations

from unbroken.gateway.asked import Asked
from unbroken.gateway.doors import GEMINI, MESSAGES, check_body, read_request
from unbroken.gateway.edge import Response
from unbroken.gateway.passing import ask_raw
from unbroken.messages import Request
from unbroken.transcript.size import CHARACTERS_PER_TOKEN, characters
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import as_dict

ESTIMATED = {"x-unbroken-estimated": "true"}


async def count_tokens(asked: Asked, response: Response) -> None:
    upstream = asked.upstream
    # Gemini's clients put the whole request into a field of its own where it has a configuration.
    body = as_dict(asked.body.get("generateContentRequest")) or asked.body
    check_body(asked.door, body)
    request = read_request(asked.door, body)
    if upstream.http is not None and asked.wire == upstream.wire == MESSAGES:
        data = dumps({**asked.body, "model": upstream.http.endpoint.model})
        headers = {**asked.headers, "content-type": "application/json"}
        await ask_raw(upstream.http, "POST", "/v1/messages/count_tokens", data, headers, response)
        return
    tokens = estimate(request)
    counted = {"totalTokens": tokens} if asked.wire == GEMINI else {"input_tokens": tokens}
    await response.whole(200, dumps(counted), ESTIMATED)


def estimate(request: Request) -> int:
    tools = sum(len(tool.name) + len(tool.description) + len(dumps(dict(tool.parameters))) for tool in request.tools)
    return (sum(map(characters, request.messages)) + tools) // CHARACTERS_PER_TOKEN + 1
