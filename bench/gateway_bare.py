"""What the gateway is compared with: a pass-through of the same parts (uvicorn, httptools, uvloop, aiohttp) that does
nothing but put in the model's name and the key and pass on, as one writes it by hand. It knows no wire, no errors, no
limits, nobody who goes away, and trusts every byte."""

from __future__ import annotations

import sys
from typing import Any

import aiohttp
import orjson
import uvicorn

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer not-a-real-key"}
MODELS = {model: model for model in ("calls", "burst", "drip", "slow", "marks")}


class Bare:
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["path"] == "/healthz":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})
        else:
            await self._pass(scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._session is not None
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        asked = orjson.loads(body)
        asked["model"] = MODELS[asked["model"]]
        body = orjson.dumps(asked)
        async with self._session.post(self._upstream + scope["path"], data=body, headers=HEADERS) as response:
            kind = (b"content-type", response.headers["Content-Type"].encode())
            if (length := response.headers.get("Content-Length")) is not None:
                answer = await response.read()
                head = [kind, (b"content-length", length.encode())]
                await send({"type": "http.response.start", "status": response.status, "headers": head})
                await send({"type": "http.response.body", "body": answer})
                return
            await send({"type": "http.response.start", "status": response.status, "headers": [kind]})
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    upstream, port = sys.argv[1:]
    uvicorn.run(
        Bare(upstream), port=int(port), log_level="error", access_log=False, loop="uvloop", http="httptools",
        server_header=False, date_header=False,
    )  # fmt: skip
