"""Other paths of OpenAI, passed through: embeddings, files, images. The provider is the one whose alias the body names,
or the first whose wire has such paths. Nothing is read of a body but the model's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, urlencode

from unbroken.gateway.doors import CHAT, PASSED_ON, RESPONSES
from unbroken.gateway.edge import Refused, Response, Scope
from unbroken.gateway.keys import GatewayKey
from unbroken.gateway.upstreams import Upstream
from unbroken.models import HTTPModel
from unbroken.models.relaying import relayed
from unbroken.wires.jsontext import Damaged, dumps, loads_faithful
from unbroken.wires.values import Object, as_dict, as_text

_KEPT = ("content-type", "accept", *PASSED_ON)
_MOST_OF_AN_ERROR = 64 * 1024
_RETURNED = ("content-disposition", "retry-after")


def choose(
    path: str, headers: Mapping[str, str], data: bytes, upstreams: Iterable[Upstream], key: GatewayKey | None
) -> tuple[str, HTTPModel, bytes]:
    """Who is asked: its alias, the model behind it, and what it is sent."""
    if "/../" in f"{path}/" or "//" in path or "\\" in path:
        raise Refused(400, "the path is not one that can be passed on")
    speaking = [each for each in upstreams if each.http is not None and each.wire in (CHAT, RESPONSES)]
    body: Object = {}
    if headers.get("content-type", "").startswith("application/json") and data:
        try:
            body = as_dict(loads_faithful(data))
        except Damaged:
            raise Refused(400, "the body is not JSON") from None
    asked = as_text(body.get("model"))
    for each in speaking:
        if each.alias == asked and each.http is not None and (key is None or key.allows(asked)):
            return asked, each.http, dumps({**body, "model": each.http.endpoint.model})
    if key is not None and key.aliases:  # what it asks for may be any model of the provider
        raise Refused(
            404, f"{path[:200]}: this key may ask for {', '.join(key.aliases)}, and the body names none of them"
        )
    first = speaking[0].http if speaking else None
    if first is None:
        raise Refused(404, f"{path[:200]} is passed on to a provider of OpenAI's wires, and there is none here")
    return speaking[0].alias, first, data


async def pass_through(
    scope: Scope, headers: Mapping[str, str], data: bytes, model: HTTPModel, response: Response
) -> None:
    # Some clients send their key so, and it is not for the provider.
    said = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    query = urlencode([(name, value) for name, value in said if name != "key"])
    kept = {name: headers[name] for name in _KEPT if name in headers}
    await ask_raw(model, scope["method"], scope["path"].removeprefix("/v1"), data, kept, response, query)


async def ask_raw(
    model: HTTPModel,
    method: str,
    path: str,
    data: bytes,
    headers: Mapping[str, str],
    response: Response,
    query: str = "",
) -> None:
    async with relayed(model, method, path, query, headers, data) as answer:
        if 300 <= answer.status < 400 and answer.status != 304:
            raise Refused(502, "the provider points elsewhere, and redirects are not followed")
        if not 200 <= answer.status < 600:
            raise Refused(502, f"the provider answered {answer.status}, which is no answer")
        returned = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
        content_type = answer.headers.get("content-type", "application/json").encode("latin-1", "replace")
        if answer.status >= 400:  # providers quote keys in their errors
            told = b""
            while len(told) < _MOST_OF_AN_ERROR and (part := await answer.content.readany()):
                told += part
            words = model.masked(told.decode("utf-8", "replace"))
            await response.whole(answer.status, words.encode(), returned, content_type)
            return
        await response.begin(answer.status, content_type, returned, None)
        async for chunk in answer.content.iter_any():
            await response.send(chunk)
        await response.send(b"", more=False)


def failed_by(status: int) -> str:
    """What kind of failure this answer is, if it is the provider's and not what the client asked for."""
    return "limited" if status == 429 else "refused" if status in (401, 403) else "unavailable" if status >= 500 else ""
