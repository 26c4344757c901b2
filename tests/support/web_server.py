"""A real HTTP server for an ASGI application, in the loop of a test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator

import uvicorn
from starlette.types import ASGIApp


@contextlib.asynccontextmanager
async def serve(app: ASGIApp, port: int = 0) -> AsyncGenerator[int, None]:
    """A real HTTP server in this loop; gives its port."""
    listening = socket.create_server(("127.0.0.1", port))
    web = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1))
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(listening)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(web.serve([listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            web.should_exit = True
