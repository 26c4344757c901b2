"""Tools of an MCP server: a program that is started and spoken to over its pipes, or a server at an address.

This file says what such a server is for the rest of the library and needs nothing; `mcp_session` speaks the protocol,
needs the extra `mcp`, and is loaded when the first server is opened. A server that died is started anew by the next
call that wants it. The call in which it died is not repeated (it may have done its work) but fails in words.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from unbroken.errors import InvalidTool, UserError
from unbroken.tools.results import ToolFailed
from unbroken.tools.tool import TIMEOUT, Tool
from unbroken.tools.toolbox import ToolServer

if TYPE_CHECKING:
    from unbroken.tools.mcp_session import Session

OPENING = 60.0
"""Seconds until a server has to be ready: `npx` and the like may have to fetch it first."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is and how its tools appear. What may be secret is kept out of its `repr`."""

    command: tuple[str, ...] = field(default=(), repr=False)
    url: str = field(default="", repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    name: str = ""
    prefix: str = ""
    timeout: float | None = TIMEOUT
    opening: float = OPENING

    @property
    def label(self) -> str:
        """Without arguments, path and query: tokens stand there."""
        if self.name:
            return self.name
        if self.command:
            return Path(self.command[0]).name
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> Iterator[str]:
        parts = urlsplit(self.url)
        for value in (*self.env.values(), *self.headers.values(), self.url, parts.query, parts.password or ""):
            if len(value) > 3:  # "1" and "on" are no secrets, and everywhere
                yield value
                yield from (word for word in value.split() if len(word) > 8)  # `Bearer ...`


class MCPServer(ToolServer):
    """A server by its `command` (over stdio) or its `url` (streamable HTTP, or SSE where a server knows only that).

    ```python
    async with MCPServer("npx -y @modelcontextprotocol/server-filesystem /tmp", prefix="fs_") as server:
        agent = Agent(model, tools=[server])
    ```

    An agent opens a server that it is given and that is not open. It may be used by many calls and runs at once, in one
    event loop at a time. Tools that the server calls read-only have the effect `read`, all others `write`. A program
    gets `env` and what every program needs of our environment (PATH, HOME), and nothing else of it.
    """

    def __init__(
        self,
        command: str | Sequence[str] = (),
        *,
        url: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "",
        headers: Mapping[str, str] | None = None,
        name: str = "",
        prefix: str = "",
        timeout: float | None = TIMEOUT,
        opening: float = OPENING,
    ) -> None:
        words = _words_of(command) if isinstance(command, str) else tuple(command)
        if bool(words) == bool(url):
            raise UserError("an MCP server has either a command or a url; give MCPServer one of them")
        if url and urlsplit(url).scheme not in ("http", "https"):
            raise UserError("the url of an MCP server starts with http:// or https://; a program is given as command")
        self._target = Target(
            words, url, dict(env or {}), str(cwd), dict(headers or {}), name, prefix, timeout, opening
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._session: Session | None = None

    def __repr__(self) -> str:
        return f"MCPServer({self._target.label!r})"

    @property
    def _label(self) -> str:
        return f"MCP server `{self._target.label}`"

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def tools(self) -> tuple[Tool, ...]:
        if self._session is None:
            raise InvalidTool(f"{self._label} is not open; use `async with`, or give it to an Agent, which opens it")
        return self._session.tools

    async def open(self) -> None:
        """Start it, or connect, and fetch its tools. Does nothing if it is open and alive."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._session is not None and self._loop is not None and not self._loop.is_closed():
                raise UserError(f"{self._label} is open in another event loop; close it there first")
            self._loop, self._lock, self._session = loop, asyncio.Lock(), None
        async with self._lock:
            if self._session is None or self._session.dead:
                before, self._session = self._session, await self._start()
                if before is not None:
                    await before.close()

    async def aclose(self) -> None:
        """End it. Calls that are running fail. Does nothing if it is not open."""
        if self._loop is None or self._loop.is_closed():
            self._session = None
            return
        if self._loop is not asyncio.get_running_loop():
            raise UserError(f"{self._label} is open in another event loop; close it there")
        async with self._lock:
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def __aenter__(self) -> MCPServer:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _start(self) -> Session:
        try:
            session_module = importlib.import_module("unbroken.tools.mcp_session")
        except ImportError as error:
            raise UserError(f"{self._label} needs the extra `mcp` ({error}); pip install 'unbroken[mcp]'") from error
        session: Session = session_module.Session(self._target, self._alive)
        await session.start()
        return session

    async def _alive(self) -> Session:
        """The session for a call; a new one where the last has died."""
        if self._session is None:
            raise ToolFailed(f"{self._label} was closed")
        if self._session.dead or self._loop is not asyncio.get_running_loop():
            try:
                await self.open()
            except UserError as error:
                raise ToolFailed(str(error)) from error
        return self._session


def _words_of(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command, posix=os.name != "nt"))
    except ValueError as error:
        raise UserError(f"the command of an MCP server cannot be read ({error}); give it as a list of words") from error
