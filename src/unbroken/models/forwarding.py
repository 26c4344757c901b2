"""Forwards other requests to a provider unchanged, with its key: lists of models, embeddings, files.

No wire is decoded here and nothing is retried. The address is the provider's own: only the path after its base URL may
be chosen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO

from aiohttp import ClientError, ClientResponse, ClientTimeout
from yarl import URL

from unbroken.errors import TimedOut, Unreachable
from unbroken.models.http import HTTPModel
from unbroken.models.sessions import open_session
from unbroken.wires import find_wire


def base_of(model: HTTPModel) -> URL:
    """The base URL that the paths of its wire are added to."""
    endpoint = model.endpoint
    path = find_wire(endpoint.wire).http.path.partition("{")[0]
    whole = endpoint.whole_url.with_query(None)
    return whole.with_path(whole.path[: whole.path.rindex(path)] or "/", encoded=False)


@asynccontextmanager
async def relayed(
    model: HTTPModel, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
) -> AsyncGenerator[ClientResponse]:
    """The provider's response, its body not read yet. Redirects are not followed: the key would go there too."""
    base = base_of(model)
    url = base.with_path(base.path.rstrip("/") + path)
    if query:
        url = URL(f"{url}?{query}", encoded=True)
    session = await open_session()
    timeouts = model.timeouts
    limits = ClientTimeout(total=timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.first_byte)
    name = model.endpoint.provider
    try:
        async with session.request(
            method,
            url,
            data=BytesIO(body) if body else None,
            headers={**await model.headers(), **headers},
            allow_redirects=False,
            timeout=limits,
            proxy=model.proxy,  # otherwise the provider would receive the credentials for the proxy
            proxy_headers=model.proxy_headers,
        ) as response:
            yield response
    except TimeoutError:
        raise TimedOut(f"provider `{name}` did not answer {method} {path} in time") from None
    except (ClientError, OSError) as error:
        raise Unreachable(f"provider `{name}` cannot be reached for {method} {path}: {type(error).__name__}") from None
