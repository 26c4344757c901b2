"""Transports to an MCP server for the `mcp` package: each yields its two streams. They also keep the last lines of a
program's stderr and the HTTP status of each call, and notice when a server's stream ends."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, TypeAlias

import anyio
import httpx2
from mcp.client import Transport
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from unbroken.mcp.client.oauth import SignIn
from unbroken.mcp.client.target import Target
from unbroken.mcp.client.tasks import as_result

Ended: TypeAlias = Callable[[], None]

_LONGEST_LINE = 4096
LAST_WORDS = 5
"""Maximum lines of a program's stderr that are kept."""

_READ = 300.0
"""Seconds without a byte from a server over HTTP. Long, because the tool has its own time-out."""


@dataclass(slots=True)
class Answer:
    """The HTTP status of one `tools/call`. Several may be in flight, each with its own status."""

    status: int = 0
    """0 if there is none: no answer arrived, or the transport is not HTTP."""
    in_session: bool = False
    """Did the call name a session that the server should know?"""


_ANSWER: ContextVar[Answer | None] = ContextVar("unbroken_mcp_answer", default=None)


@contextmanager
def noting() -> Generator[Answer]:
    """Records the answers of calls made inside. The package sends a request in the context of its caller."""
    token = _ANSWER.set(answer := Answer())
    try:
        yield answer
    finally:
        _ANSWER.reset(token)


class LastWords:
    """What may explain a failure: the HTTP status (the worst since the last success), the last lines of a program's
    stderr.

    Its pipe is read in a thread (an asyncio pipe would do, but not on Windows) until nobody can write to it any more.
    """

    def __init__(self) -> None:
        self.status = 0
        self._lines: deque[str] = deque(maxlen=LAST_WORDS)
        self._thread: threading.Thread | None = None

    async def see(self, response: httpx2.Response) -> None:
        self.status = max(self.status, response.status_code) if response.status_code >= 400 else 0
        if (answer := _ANSWER.get()) is not None and _is_call(response.request):
            answer.status, answer.in_session = response.status_code, MCP_SESSION_ID in response.request.headers

    def listen(self) -> IO[str]:
        """The write end of the pipe; close it once the program has it."""
        reading, writing = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(reading,), name="unbroken-mcp-stderr", daemon=True)
        self._thread.start()
        return os.fdopen(writing, "w")

    async def wait(self) -> None:
        """Waits until everything was read, but only briefly: another process may still hold a dead program's pipe."""
        for _ in range(20):
            if self._thread is None or not self._thread.is_alive():
                return
            await asyncio.sleep(0.01)

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, encoding="utf-8", errors="replace") as lines:
            while line := lines.readline(_LONGEST_LINE):
                if line.strip():
                    self._lines.append(line.strip()[:500])

    def __str__(self) -> str:
        return " | ".join(self._lines)


@asynccontextmanager
async def over_stdio(target: Target, words: LastWords, ended: Ended) -> AsyncGenerator[Any, None]:
    command, *arguments = target.command
    parameters = StdioServerParameters(
        command=command,
        args=arguments,
        env=dict(target.env) or None,
        cwd=target.cwd or None,
        encoding_error_handler="replace",  # bytes that are not text are noise, not the end
    )
    with words.listen() as errors:
        async with stdio_client(parameters, errlog=errors) as (reading, writing):  # type: ignore[arg-type] - IO[str] does
            errors.close()
            yield _Watched(reading, ended), writing


@asynccontextmanager
async def over_http(
    target: Target, words: LastWords, ended: Ended, sign_in: SignIn | None
) -> AsyncGenerator[Any, None]:
    headers, timeout = dict(target.headers), httpx2.Timeout(target.opening, read=_READ)
    hooks = {"response": [words.see]}
    auth = sign_in.provider if sign_in is not None else None
    async with (
        httpx2.AsyncClient(headers=headers, auth=auth, timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(target.url, http_client=client) as (reading, writing),
    ):
        yield _Watched(reading, ended), writing


@asynccontextmanager
async def over_sse(target: Target, ended: Ended, sign_in: SignIn | None) -> AsyncGenerator[Any, None]:
    headers, auth = dict(target.headers), sign_in.provider if sign_in is not None else None
    async with sse_client(target.url, headers=headers, timeout=target.opening, auth=auth) as (reading, writing):
        yield _Watched(reading, ended), writing


def transport(
    target: Target, words: LastWords, ended: Ended, sign_in: SignIn | None = None, *, old: bool = False
) -> Transport:
    if target.command:
        return over_stdio(target, words, ended)
    return over_sse(target, ended, sign_in) if old else over_http(target, words, ended, sign_in)


def _is_call(request: httpx2.Request) -> bool:
    """Not the list of tools, which the package may request in the middle of a call."""
    return request.method == "POST" and json.loads(request.content).get("method") == "tools/call"


class _Watched:
    """A readable stream of messages, as the package can read them, that reports when it has ended."""

    def __init__(self, stream: Any, ended: Ended) -> None:
        self._stream = stream
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        try:
            return as_result(await self._stream.receive())
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return as_result(await self._stream.__anext__())
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._ended()
            raise

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)
