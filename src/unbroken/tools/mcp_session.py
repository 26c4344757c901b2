"""One connection to an MCP server, spoken by the `mcp` package. Imported by name only, when a server is opened.

The connection lives in a task of its own from the handshake to the end, because the package's cancel scopes must be
left by the task that entered them, while calls come from any task of the loop. That task also fetches the list of tools
anew when the server says that it changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import httpx2
import mcp_types as types
from mcp.client import Client, IncomingMessage
from mcp.shared.exceptions import MCPError

from unbroken.errors import InvalidTool
from unbroken.messages import Json, Part, ToolSpec
from unbroken.tools.context import CallContext
from unbroken.tools.mcp import Target
from unbroken.tools.mcp_results import read_result
from unbroken.tools.mcp_transports import LastWords, transport
from unbroken.tools.results import ToolFailed
from unbroken.tools.schema import NAME, Signature
from unbroken.tools.tool import Tool

CONTEXT = "unbroken context"
"""The name of the parameter that takes the context: one that no tool of a server can have taken."""

PAGES = 1000
"""Of tools, at most: a server that always names a next page must not keep us forever."""

# Without any handler Python prints its warnings (a line of a server that is no JSON) over the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class Session:
    """`alive` gives the session to use for a call: this one, or its successor if it has died."""

    def __init__(self, target: Target, alive: Callable[[], Awaitable[Session]]) -> None:
        self.tools: tuple[Tool, ...] = ()
        self.dead = False
        self._target = target
        self._alive = alive
        self._words = LastWords()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake = asyncio.Event()
        self._closing = False
        self._name = target.name

    @property
    def label(self) -> str:
        return f"MCP server `{self._name or self._target.label}`"

    async def start(self) -> None:
        try:
            await self._start(old=False)
        except MCPError as error:
            if not self._target.url:
                await self._words.wait()
                raise self._refusal(error) from error
            # No streamable HTTP there, it seems. Servers from before 2025 speak SSE at their address.
            try:
                await self._start(old=True)
            except Exception as second:
                raise self._refusal(error) from second
        except TimeoutError as error:
            raise InvalidTool(
                f"{self.label} was not ready after {self._target.opening:g} s{self._last_words()}; "
                "give it longer with opening=..."
            ) from error
        except Exception as error:
            await self._words.wait()
            raise self._refusal(error) from error

    async def _start(self, *, old: bool) -> None:
        self.dead = False
        task = self._task = asyncio.create_task(self._live(old=old), name=f"unbroken {self.label}")
        try:
            await asyncio.wait({task, self._ready}, timeout=self._target.opening, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _end(task)  # whoever wanted it is gone
            raise
        if self._ready.done():
            return
        late = not task.done()
        await _end(task)
        if late or task.cancelled():
            raise TimeoutError
        raise _first(task.exception() or ToolFailed("it ended at once"))

    async def _live(self, *, old: bool) -> None:
        try:
            async with Client(
                transport(self._target, self._words, self._ended, old=old),
                message_handler=self._hear,
                client_info=types.Implementation(name="unbroken", version=_version()),
            ) as client:
                self._client = client
                self._name = self._target.name or (client.server_info.name if client.server_info else "")
                self.tools = await self._list(client)
                self._ready.set_result(None)
                async with asyncio.TaskGroup() as group:
                    listening = group.create_task(self._listen(client))
                    await self._keep_tools(client)
                    listening.cancel()
        finally:
            self.dead = True

    async def _keep_tools(self, client: Client) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._closing or self.dead:
                return
            try:
                self.tools = await self._list(client)
            except (MCPError, ValueError):
                continue  # the tools that we know stay; if the server is gone the next call will find out

    async def _listen(self, client: Client) -> None:
        """Newer servers say that their tools changed only to those who asked for it."""
        try:
            async with client.listen(tools_list_changed=True) as changes:
                self._wake.set()  # they may have changed while nobody listened
                async for _ in changes:
                    self._wake.set()
        except (MCPError, RuntimeError, OSError, httpx2.HTTPError):
            return  # older ones tell everybody; and without it we only notice less

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._wake.set()

    def _ended(self) -> None:
        self.dead = True
        self._wake.set()

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # whatever happened while it ended: it has ended

    async def _list(self, client: Client) -> tuple[Tool, ...]:
        if client.server_capabilities.tools is None:
            return ()
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        names: set[str] = set()
        return tuple(self._tool(one, names) for one in found)

    def _tool(self, found: types.Tool, names: set[str]) -> Tool:
        name = _free_name(f"{self._target.prefix}{found.name}", names)
        names.add(name)
        parameters: dict[str, Json] = {"type": "object", "properties": {}, **found.input_schema}
        parameters.pop("$schema", None)
        description = found.description or found.title or ""
        signature = Signature(name, description, parameters, dict, CONTEXT, is_async=True)
        reads = found.annotations is not None and found.annotations.read_only_hint is True
        return Tool(
            ToolSpec(name, description, parameters),
            _RemoteTool(found.name, f"{self.label}, tool `{found.name}`", self._alive),
            signature,
            effect="read" if reads else "write",
            timeout=self._target.timeout,
        )

    async def call(self, name: str, arguments: dict[str, Json], context: CallContext[Any]) -> tuple[Part, ...]:
        assert self._client is not None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            done = min(progress / total, 1.0) if total else None
            context.report(message or f"{progress:g}" + (f" of {total:g}" if total else ""), done)

        try:
            return read_result(await self._client.call_tool(name, arguments, progress_callback=report))
        except MCPError as error:
            if self._forgotten(error):
                raise _Forgotten from error
            if error.code == types.CONNECTION_CLOSED or self.dead:
                self._ended()
                await self._words.wait()
                raise ToolFailed(f"{self.label} was lost while `{name}` was running{self._last_words()}") from error
            raise ToolFailed(self._target.without_secrets(f"{self.label}: {error.message}")) from error
        except (httpx2.HTTPError, OSError) as error:
            raise ToolFailed(f"{self.label} could not be reached: {self._in_words(error)}") from error

    def _forgotten(self, error: MCPError) -> bool:
        """A server that was started anew does not know our session: the specification has it answer 404, and those made
        after the examples of the TypeScript package answer 400. Either way it did not run the call."""
        if error.message == "Session terminated":  # the package's words for that 404
            return True
        return self._words.status in (400, 404) and error.code == types.INTERNAL_ERROR

    def _refusal(self, error: BaseException) -> InvalidTool:
        match error:
            case FileNotFoundError() | NotADirectoryError():
                missing = error.filename or self._target.command[0]
                return InvalidTool(
                    f"{self.label} cannot be started: `{missing}` was not found; install it, or give its path"
                )
            case PermissionError():
                return InvalidTool(f"{self.label} cannot be started: `{self._target.command[0]}` may not be executed")
            case MCPError() if error.code == types.CONNECTION_CLOSED and self._target.command:
                return InvalidTool(f"{self.label} ended before it was ready{self._last_words()}")
            case _:
                act = "cannot be reached" if self._target.url else "did not start"
                return InvalidTool(f"{self.label} {act}: {self._in_words(error)}{self._last_words()}")

    def _in_words(self, error: BaseException) -> str:
        if isinstance(error, httpx2.HTTPStatusError):
            return f"HTTP status {error.response.status_code}"  # its own text has the whole address
        text = (str(error).splitlines() or [""])[0]
        if isinstance(error, MCPError) and (status := self._words.status):
            text = f"HTTP status {status} ({text})" + (
                "; give its key with headers=..." if status in (401, 403) else ""
            )
        return self._target.without_secrets(text or type(error).__name__)

    def _last_words(self) -> str:
        words = str(self._words)
        return f" (it wrote: {self._target.without_secrets(words)})" if words else ""


class _Forgotten(Exception):
    """The server did not run the call, because it no longer knows the session."""


class _RemoteTool:
    """The function of a tool that a server has."""

    def __init__(self, name: str, origin: str, alive: Callable[[], Awaitable[Session]]) -> None:
        self.origin = origin
        self._name = name
        self._alive = alive

    async def __call__(self, /, **arguments: Any) -> tuple[Part, ...]:
        context: CallContext[Any] = arguments.pop(CONTEXT, None) or CallContext()
        session = await self._alive()
        try:
            return await session.call(self._name, arguments, context)
        except _Forgotten:
            session.dead = True
        try:
            return await (await self._alive()).call(self._name, arguments, context)
        except _Forgotten as error:
            raise ToolFailed(f"{session.label} forgets the session at once; nothing was run") from error


def _free_name(wanted: str, taken: set[str]) -> str:
    """A name that every provider takes; a server's may have dots, slashes or any length."""
    name = wanted if NAME.fullmatch(wanted) else re.sub(r"[^a-zA-Z0-9_-]", "_", wanted)[:64] or "tool"
    number = 2
    while name in taken:
        suffix = f"_{number}"
        name, number = name[: 64 - len(suffix)] + suffix, number + 1
    return name


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _first(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error


def _version() -> str:
    try:
        return version("unbroken")
    except PackageNotFoundError:
        return "0"
