"""Tools of an MCP server: a program that is started and spoken to over its pipes, or a server at an address.

This file is the interface for the rest of the library and has no dependencies; `session` speaks the protocol, needs the
extra `mcp`, and is loaded when the first server is opened. A server that died is restarted by the next call. The
call in which it died is not repeated (it may have taken effect) but fails with an error.

Runs and agents can share a server: it is open while any of them is inside its `async with`, or from `open` to `aclose`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from unbroken.errors import InvalidTool, UserError, needs_extra
from unbroken.mcp.client.target import OPENING, OUTAGE, OAuth, PromptTemplate, Resource, Target
from unbroken.tools.results import ToolFailed
from unbroken.tools.tool import TIMEOUT, AfterCrash, Tool, check_after_crash
from unbroken.tools.toolbox import ToolServer
from unbroken_wires.messages import Message, Part
from unbroken_wires.validation import checked

if TYPE_CHECKING:
    from unbroken.mcp.client.oauth import SignIn
    from unbroken.mcp.client.session import Session


@checked
class MCPServer(ToolServer):
    """A server by its `command` (over stdio) or its `url` (streamable HTTP, or SSE where a server knows only that).

    ```python
    async with MCPServer("npx -y @modelcontextprotocol/server-filesystem /tmp", prefix="fs_") as server:
        agent = Agent(model, tools=[server])
    ```

    An agent enters its servers, and the last one to leave closes them. A server may be used by many calls, runs and
    agents at once, in one event loop at a time. Tools that the server marks as read-only have the effect `read`, all
    others `write`, and all get `after_crash`. A program gets `env` and the basic variables of our environment (PATH,
    HOME), nothing else.

    A question that the server asks the user while a call runs goes to the approver of the run, as a `Question`. With
    `resources=True` the model can list and read the server's resources. With `sampling=True`, or a model in its place,
    the server may ask a model. `auth=OAuth()` signs in to a server over HTTP. A call that the server runs as a task
    goes to the background; with `tasks=False` no call is a task.
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
        outage: float = OUTAGE,
        after_crash: AfterCrash | None = None,
        resources: bool = False,
        sampling: bool | Any = False,
        auth: OAuth | None = None,
        tasks: bool = True,
    ) -> None:
        words = _words_of(command) if isinstance(command, str) else tuple(command)
        if bool(words) == bool(url):
            raise UserError("an MCP server has either a command or a url; give MCPServer one of them")
        if url and urlsplit(url).scheme not in ("http", "https"):
            raise UserError("the url of an MCP server starts with http:// or https://; a program is given as command")
        if after_crash is not None:
            check_after_crash("MCPServer", after_crash)
        if not (isinstance(sampling, bool) or callable(getattr(sampling, "stream", None))):
            raise UserError(f"MCPServer(sampling={sampling!r}): expected True, False or a model, as in connect(…)")
        if auth is not None and not url:
            raise UserError("MCPServer(auth=…) is for a server at a url; a program gets its keys with env=…")
        self._target = Target(
            command=words,
            url=url,
            env=dict(env or {}),
            cwd=str(cwd),
            headers=dict(headers or {}),
            name=name,
            prefix=prefix,
            timeout=timeout,
            opening=opening,
            outage=outage,
            after_crash=after_crash,
            resources=resources,
            sampling=sampling,
            auth=auth,
            tasks=tasks,
        )
        self._sign_in: SignIn | None = None
        self._claiming = threading.Lock()  # two event loops are two threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._users = 0
        self._held = False
        """Opened with `open`: it stays open until `aclose`."""
        self._session: Session | None = None
        self._retired: list[Session] = []
        """Sessions that have a successor, while calls are still running in them."""

    def __repr__(self) -> str:
        return f"MCPServer({self._target.label!r})"

    @property
    def _label(self) -> str:
        return f"MCP server `{self._target.label}`"

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed. If its program has died, the next call restarts it."""
        return self._session is not None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that it offers now, which may change while it is open. Raises `InvalidTool` if it is not open."""
        return self._current().tools

    async def resources(self) -> tuple[Resource, ...]:
        """What can be read at the server now, and templates for more. Raises `ToolFailed` if the server fails."""
        return await (await self._opened()).catalog.resources()

    async def read(self, uri: str) -> tuple[Part, ...]:
        """A resource as parts of a prompt: `agent.run([*await server.read(uri), "What does it say?"])`."""
        return await (await self._opened()).catalog.read(uri)

    async def prompts(self) -> tuple[PromptTemplate, ...]:
        """The prompts that the server offers now."""
        return await (await self._opened()).catalog.prompts()

    async def prompt(self, name: str, /, **arguments: str) -> tuple[Message, ...]:
        """A prompt, filled in: `agent.run(history=await server.prompt("review", file="a.py"))`."""
        return await (await self._opened()).catalog.prompt(name, arguments)

    async def watch(self, *uris: str) -> AsyncGenerator[str]:
        """Yields what changes at the server: `"tools"`, `"resources"` or `"prompts"` if that list did, and the address
        of one of these resources if its content did. Ends when the connection does."""
        async with aclosing((await self._opened()).catalog.watch(uris)) as changes:
            async for change in changes:
                yield change

    async def open(self) -> None:
        """Start it, or connect, and fetch its tools; it stays open until `aclose`. Does nothing if it is open."""
        before = self._held
        self._claim(held=True)
        try:
            await self._connect()
        except BaseException:
            self._held = before
            raise
        self._held = True  # another `open` may have failed meanwhile

    async def aclose(self) -> None:
        """Close it, even if it is in use: running calls fail. Does nothing if it is not open."""
        if self._loop is None or self._loop.is_closed():
            self._held, self._session, self._retired = False, None, []
            return
        if self._loop is not asyncio.get_running_loop():
            raise UserError(f"{self._label} is open in another event loop; close it there")
        self._held = False
        await self._disconnect()

    async def __aenter__(self) -> Self:
        self._claim(users=1)
        try:
            await self._connect()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    def _claim(self, *, users: int = 0, held: bool = False) -> None:
        """Binds it to the running event loop; another loop would wait for ever."""
        loop = asyncio.get_running_loop()
        with self._claiming:
            if self._loop is not loop:
                in_use = self._users or self._held or self._session is not None or self._lock.locked()
                if in_use and self._loop is not None and not self._loop.is_closed():
                    raise UserError(
                        f"{self._label} is open in another event loop; close it there first, "
                        "or give each loop an MCPServer (and an Agent) of its own"
                    )
                self._loop, self._lock = loop, asyncio.Lock()
                self._users, self._held, self._session, self._retired = 0, False, None, []
            self._users += users
            self._held = self._held or held

    async def _leave(self) -> None:
        self._users -= 1
        if self._users == 0 and not self._held:
            await self._disconnect()

    async def _connect(self) -> None:
        async with self._lock:
            if self._session is not None and self._session.usable:
                return
            before, self._session = self._session, await self._start()
            if before is not None:
                self._retired.append(before)
            for done in [session for session in self._retired if not session.busy]:
                self._retired.remove(done)
                await done.close()

    async def _disconnect(self) -> None:
        async with self._lock:
            sessions = [*self._retired, self._session]
            self._retired, self._session = [], None
            for session in sessions:
                if session is not None:
                    await session.close()
            if self._sign_in is not None:
                self._sign_in.close()

    async def _start(self) -> Session:
        try:
            from unbroken.mcp.client.oauth import SignIn  # noqa: PLC0415 - an optional package
            from unbroken.mcp.client.session import Session  # noqa: PLC0415 - an optional package
        except ImportError as error:
            raise needs_extra(self._label, f"the package mcp ({error})", "mcp") from error
        if self._target.auth is not None and self._sign_in is None:
            self._sign_in = SignIn(self._target.url, self._target.auth)
        session = Session(self._target, self._alive, self._sign_in)
        try:
            await session.start()
        except BaseException:
            if self._sign_in is not None and self._session is None:
                self._sign_in.close()
            raise
        return session

    def _current(self) -> Session:
        if self._session is None:
            raise InvalidTool(f"{self._label} is not open; use `async with`, or give it to an Agent, which opens it")
        return self._session

    async def _opened(self) -> Session:
        self._current()
        return await self._alive()

    async def _alive(self) -> Session:
        """The session for a call; a new one if the last has died."""
        if self._session is None:
            raise ToolFailed(f"{self._label} was closed")
        if not self._session.usable or self._loop is not asyncio.get_running_loop():
            try:
                self._claim()
                await self._connect()
            except UserError as error:
                raise ToolFailed(str(error)) from error
        return self._session


def _words_of(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command, posix=os.name != "nt"))
    except ValueError as error:
        raise UserError(f"the command of an MCP server cannot be read ({error}); give it as a list of words") from error
