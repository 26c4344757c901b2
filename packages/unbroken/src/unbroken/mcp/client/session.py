"""One connection to an MCP server, spoken by the `mcp` package. Imported by name only, when a server is opened.

The connection lives in a task of its own from the handshake to the end, because the package's cancel scopes must be
left by the task that entered them, while calls come from any task of the loop. Another task fetches the list of tools
again when the server reports a change.

A call is sent again, in a new session, only if the server certainly did not run it. The old session stays until the
calls that are running in it have ended.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import httpx2
import mcp_types as types
from mcp.client import Client, ClientSession, IncomingMessage
from mcp.client.auth import OAuthFlowError
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from unbroken.errors import InvalidTool
from unbroken.mcp.client.catalog import Catalog, Changed, Changes, NotTaken, list_tools, printable
from unbroken.mcp.client.oauth import SignIn, in_short
from unbroken.mcp.client.questions import Questions
from unbroken.mcp.client.target import Target
from unbroken.mcp.client.tasks import TaskEnded, TaskLost, Tasks, call_as_task, marks
from unbroken.mcp.client.transports import Answer, LastWords, noting, transport
from unbroken.mcp.content import own_version, read_result, well_formed_inside
from unbroken.tools.context import CallContext
from unbroken.tools.results import ToolFailed
from unbroken.tools.tool import Tool
from unbroken_wires.messages import Json, Part

T = TypeVar("T")

CLOSING = 10.0
"""Seconds that a server has to end."""

_TOKENS = itertools.count(1)

NOT_TAKEN = ("Session terminated", "Session not found", "No valid session ID", "Server not initialized")
"""Error texts of servers for an unknown session, before they process the call."""

# Without a handler Python prints its warnings (a line of a server that is not JSON) to the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class Session:
    """`alive` returns the session to use for a call: this one, or its successor if it can no longer be used."""

    def __init__(self, target: Target, alive: Callable[[], Awaitable[Session]], sign_in: SignIn | None) -> None:
        self.tools: tuple[Tool, ...] = ()
        self.dead = False
        self._target = target
        self._alive = alive
        self._sign_in = sign_in
        self._words = LastWords()
        self._questions = Questions(lambda: self.label, target.sampling, target.outage)
        self._changes = Changes()
        self._client: Client | None = None
        self.catalog: Catalog
        """Once it is ready: resources and prompts."""
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = Changed()
        self._over = asyncio.Event()
        self._stale = False
        self._calls = 0
        self._reports: dict[str | int, ProgressFnT] = {}
        """Of the calls that are tasks: the package forgets their tokens with the first answer."""
        self._name = target.name

    @property
    def label(self) -> str:
        return f"MCP server `{self._name or self._target.label}`"

    @property
    def usable(self) -> bool:
        return not self.dead and not self._stale

    @property
    def busy(self) -> bool:
        return not self.dead and self._calls > 0

    async def start(self) -> None:
        try:
            await self._start(old=False)
        except MCPError as error:
            if not self._target.url:
                await self._words.wait()
                raise self._refusal(error) from error
            # Probably no streamable HTTP. Servers from before 2025 speak SSE at their address.
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
        self._over.clear()
        task = self._task = asyncio.create_task(self._live(old=old), name=f"unbroken {self.label}")
        try:
            waiting: set[asyncio.Future[None]] = {task, self._ready}
            while True:
                await asyncio.wait(waiting, timeout=self._target.opening, return_when=asyncio.FIRST_COMPLETED)
                if task.done() or self._ready.done() or self._sign_in is None or not self._sign_in.waiting:
                    break  # a person who signs in has a time limit of their own
        except asyncio.CancelledError:
            await _end(task)  # the caller is gone
            raise
        if self._ready.done():
            return
        late = not task.done()
        await _end(task)
        error = None if task.cancelled() else task.exception()
        if error is None and (late or task.cancelled()):
            raise TimeoutError
        raise _first(error or ToolFailed("it ended at once"))

    async def _live(self, *, old: bool) -> None:
        try:
            async with Client(
                transport(self._target, self._words, self._ended, self._sign_in, old=old),
                message_handler=self._hear,
                elicitation_callback=self._questions.elicit,
                sampling_callback=self._questions.sample if self._target.sampling else None,
                client_info=types.Implementation(name="unbroken", version=own_version()),
                extensions=[Tasks(self._questions.running, self._reconnected)] if self._target.tasks else None,
            ) as client:
                self._client = client
                self.catalog = Catalog(client, self._ask, self._changes)
                self._name = self._target.name or printable(client.server_info.name if client.server_info else "")
                self.tools = await list_tools(client, self._target, self.label, self._alive)
                self._ready.set_result(None)
                async with asyncio.TaskGroup() as group:
                    beside = [group.create_task(self._listen(client)), group.create_task(self._keep_tools(client))]
                    await self._over.wait()
                    for task in beside:
                        task.cancel()
        finally:
            self.dead = True
            self._changes.end()

    async def _keep_tools(self, client: Client) -> None:
        while True:
            await self._changed.wait()
            try:
                async with asyncio.timeout(self._target.opening):
                    self.tools = await list_tools(client, self._target, self.label, self._alive)
            except (MCPError, ValueError, TimeoutError):
                continue  # keep the known tools; if the server is gone, the next call will find out

    async def _listen(self, client: Client) -> None:
        """Newer servers report changes only to subscribers."""
        try:
            async with client.listen(
                tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
            ) as changes:
                self._changed.set()  # they may have changed before the subscription
                async for _ in changes:
                    pass  # `_hear` gets them too
        except (MCPError, RuntimeError, OSError, httpx2.HTTPError):
            return  # older servers notify everybody; without it we only miss changes

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()
        elif isinstance(message, types.ProgressNotification):
            said = message.params
            if (report := self._reports.get(said.progress_token)) is not None:
                await report(said.progress, said.total, said.message)
        self._changes.hear(message)

    def _ended(self) -> None:
        self.dead = True
        self._over.set()

    def retire(self) -> None:
        """Starts no further calls in it; it ends with the last one."""
        self._stale = True
        if self._calls == 0:
            self._over.set()

    async def close(self) -> None:
        self._over.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSING)
            await _end(self._task)

    async def _ask(self, asking: Awaitable[T]) -> T:
        """A request that is not the call of a tool, with its failure in words."""
        with self._under_way():
            try:
                async with asyncio.timeout(self._target.timeout):
                    return await asking
            except MCPError as error:
                if error.code == types.CONNECTION_CLOSED or self.dead:
                    raise ToolFailed(f"{self.label} was lost{self._last_words()}") from error
                raise ToolFailed(self._target.without_secrets(f"{self.label}: {error.message}")) from error
            except TimeoutError as error:
                raise ToolFailed(f"{self.label} did not answer within {self._target.timeout:g} s") from error

    @contextmanager
    def _under_way(self) -> Generator[None]:
        """The session stays until the block ends, and what fails on the way is put into words."""
        self._calls += 1
        try:
            yield
        except (httpx2.HTTPError, OSError, OAuthFlowError) as error:
            raise ToolFailed(f"{self.label} could not be reached: {self._in_words(error)}") from error
        except (ValidationError, RuntimeError) as error:  # the package has validated the result
            raise ToolFailed(f"{self.label} gave a result that cannot be read: {self._in_words(error)}") from error
        finally:
            self._calls -= 1
            if self._stale:
                self.retire()

    async def call(
        self, name: str, arguments: dict[str, Json], context: CallContext[Any], *, as_task: bool
    ) -> tuple[Part, ...]:
        assert self._client is not None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            done = min(progress / total, 1.0) if total else None
            call.report(message or f"{progress:g}" + (f" of {total:g}" if total else ""), done)

        self._reports[token := f"unbroken-{next(_TOKENS)}"] = report
        with self._under_way(), noting() as answer, self._questions.during(name, context) as call:
            try:
                given = well_formed_inside(arguments)
                if as_task:
                    return read_result(await call_as_task(self._client.session, call, given, token, self._reconnected))
                return read_result(
                    await self._client.call_tool(name, given, progress_callback=report, meta=marks(context))
                )
            except TaskLost as error:
                raise await self._lost_task(name, error) from error
            except TaskEnded as error:
                raise ToolFailed(self._target.without_secrets(f"{self.label}: {error}")) from error
            except MCPError as error:
                if _not_taken(error, answer):
                    self.retire()
                    raise NotTaken from error
                raise await self._lost_or_failed(name, error, answer) from error
            finally:
                del self._reports[token]

    async def _reconnected(self) -> ClientSession | None:
        """For a task: those of a program end with it, those of a server over HTTP do not end with a connection."""
        if not self._target.url:
            return None
        client = (await self._alive())._client  # pyright: ignore[reportPrivateUsage] - of the same class
        return client.session if client is not None else None

    async def _lost_task(self, name: str, error: TaskLost) -> ToolFailed:
        """It is not called again: it may have taken effect, and may still run."""
        if self._target.url:
            self.retire()
        if self.dead:
            await self._words.wait()
        why = self._target.without_secrets(str(error)) + self._last_words()
        return ToolFailed(f"{self.label}: the task of `{name}` was lost, and may have taken effect: {why}")

    async def _lost_or_failed(self, name: str, error: MCPError, answer: Answer) -> ToolFailed:
        """Over HTTP the end of one answer is not the end of the others. A 400 or 404 may mean that the server does not
        know the session: then the next call gets a new one."""
        lost = error.code == types.CONNECTION_CLOSED or self.dead
        if self._target.url and (lost or (answer.in_session and answer.status in (400, 404))):
            self.retire()
        elif lost:
            self._ended()
        if lost:
            await self._words.wait()
            return ToolFailed(f"{self.label} was lost while `{name}` was running{self._last_words()}")
        status = f"HTTP status {answer.status}: " if answer.status >= 400 else ""
        # The package reports parse errors in many lines, with links.
        said = error.message.partition("\n")[0] if error.code == types.PARSE_ERROR else error.message
        return ToolFailed(self._target.without_secrets(f"{self.label}: {status}{said}") + _pages_to_open(error))

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
            return f"HTTP status {error.response.status_code}"  # its own text has the complete address
        if isinstance(error, OAuthFlowError):
            return self._target.without_secrets(in_short(error))
        text = (str(error).splitlines() or [""])[0]
        if isinstance(error, ValidationError):
            text = _misfit(error)
        if isinstance(error, MCPError) and (status := self._words.status):
            text = f"HTTP status {status} ({text})" + (
                "; give its key with headers=..., or sign in with auth=OAuth()" if status in (401, 403) else ""
            )
        return self._target.without_secrets(text or type(error).__name__)

    def _last_words(self) -> str:
        words = str(self._words)
        return f" (it wrote: {self._target.without_secrets(words)})" if words else ""


def _pages_to_open(error: MCPError) -> str:
    """A server of 2025 may refuse a call until the user has opened pages."""
    if error.code != types.URL_ELICITATION_REQUIRED:
        return ""
    try:
        needed = types.ElicitationRequiredErrorData.model_validate(error.data).elicitations
    except ValidationError:
        return ""
    return "".join(f"\nThe user has to open {each.url} first: {each.message}" for each in needed)


def _not_taken(error: MCPError, answer: Answer) -> bool:
    """A restarted server does not know our session: by the specification it answers 404. Servers based on the examples
    of the TypeScript package answer 400, which can mean anything, so their text decides."""
    if not answer.in_session or answer.status not in (400, 404) or error.code == types.METHOD_NOT_FOUND:
        return False
    return answer.status == 404 or any(words in error.message for words in NOT_TAKEN)


def _misfit(error: ValidationError) -> str:
    """The first of its errors, since a union has one for each of its types."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    where = ".".join(map(str, found[0]["loc"]))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{error.title}: `{where}`: {found[0]['msg']}{more}"


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # errors while it ended do not matter


def _first(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error
