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
import re
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar, cast

import httpx2
import mcp_types as types
from mcp.client import Client, ClientSession, IncomingMessage
from mcp.client.auth import OAuthFlowError
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from unbroken.errors import InvalidTool
from unbroken.tools.context import CallContext
from unbroken.tools.mcp import Target
from unbroken.tools.mcp_bounds import LONGEST_REPORT, Changed, Reports, printable
from unbroken.tools.mcp_catalog import Catalog, Changes, all_pages, described
from unbroken.tools.mcp_content import IN_RESULTS, read_result, well_formed_inside
from unbroken.tools.mcp_oauth import SignIn, in_short
from unbroken.tools.mcp_questions import Questions
from unbroken.tools.mcp_tasks import TASKS, TaskEnded, TaskLost, Tasks, call_as_task, marks
from unbroken.tools.mcp_transports import Answer, LastWords, noting, transport
from unbroken.tools.results import ToolFailed
from unbroken.tools.schema import NAME, Signature
from unbroken.tools.tool import Tool
from unbroken_wires.messages import Json, Part, ToolSpec

CONTEXT = "unbroken context"
"""The name of the parameter that takes the context, which no tool of a server can have."""

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
        self._questions = Questions(lambda: self.label, target.sampling)
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
            await asyncio.wait(waiting, timeout=self._target.opening, return_when=asyncio.FIRST_COMPLETED)
            while self._sign_in is not None and self._sign_in.waiting and not (task.done() or self._ready.done()):
                # A person signs in, which has its own time limit.
                await asyncio.wait(waiting, timeout=self._target.opening, return_when=asyncio.FIRST_COMPLETED)
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
                client_info=types.Implementation(name="unbroken", version=_version()),
                extensions=[Tasks(self._questions.running, self._reconnected)] if self._target.tasks else None,
            ) as client:
                self._client = client
                self.catalog = Catalog(client, self._ask, self._changes)
                self._name = self._target.name or printable(client.server_info.name if client.server_info else "")
                self.tools = await self._list(client)
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
                    self.tools = await self._list(client)
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

    async def _list(self, client: Client) -> tuple[Tool, ...]:
        names: set[str] = set()
        listed: list[Tool] = []
        capabilities = client.server_capabilities
        if capabilities.tools is not None:
            pages = await all_pages(lambda cursor: client.list_tools(cursor=cursor, cache_mode="refresh"))
            listed = [self._tool(one, names, capabilities) for page in pages for one in page.tools]
        if self._target.resources and capabilities.resources is not None:
            listed += self._catalog_tools(names)
        return tuple(listed)

    def _catalog_tools(self, names: set[str]) -> list[Tool]:
        """Let the model list and read resources."""

        async def list_resources() -> list[dict[str, Json]]:
            return [described(one) for one in await (await self._alive()).catalog.resources()]

        async def read_one(uri: str) -> tuple[Part, ...]:
            return await (await self._alive()).catalog.read(uri, IN_RESULTS)

        made: list[Tool] = []
        for wanted, description, properties, function in (
            ("list_resources", f"List what can be read at {self.label}.", {}, list_resources),
            ("read_resource", f"Read a resource of {self.label}.", {"uri": {"type": "string"}}, read_one),
        ):
            name = _free_name(f"{self._target.prefix}{wanted}", names)
            names.add(name)
            made_of: dict[str, Json] = {"type": "object", "properties": properties, "required": [*properties]}
            signature = Signature(name, description, made_of, dict, is_async=True)
            spec = ToolSpec(name, description, made_of)
            made.append(Tool(spec, function, signature, effect="read", timeout=self._target.timeout))
        return made

    async def _ask(self, asking: Awaitable[T]) -> T:
        """A request that is not the call of a tool, with its failure in words."""
        self._calls += 1
        try:
            async with asyncio.timeout(self._target.timeout):
                return await asking
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED or self.dead:
                raise ToolFailed(f"{self.label} was lost{self._last_words()}") from error
            raise ToolFailed(self._target.without_secrets(f"{self.label}: {error.message}")) from error
        except TimeoutError as error:
            raise ToolFailed(f"{self.label} did not answer within {self._target.timeout:g} s") from error
        except (httpx2.HTTPError, OSError, OAuthFlowError) as error:
            raise ToolFailed(f"{self.label} could not be reached: {self._in_words(error)}") from error
        except (ValidationError, RuntimeError) as error:
            raise ToolFailed(f"{self.label} gave a result that cannot be read: {self._in_words(error)}") from error
        finally:
            self._calls -= 1
            if self._stale:
                self.retire()

    def _tool(self, found: types.Tool, names: set[str], capabilities: types.ServerCapabilities) -> Tool:
        name = _free_name(f"{self._target.prefix}{found.name}", names)
        names.add(name)
        parameters: dict[str, Json] = {"type": "object", "properties": {}, **found.input_schema}
        description = found.description or found.title or ""
        signature = Signature(name, description, parameters, dict, CONTEXT, is_async=True)
        reads = found.annotations is not None and found.annotations.read_only_hint is True
        policy = None if reads else self._target.after_crash
        asked = self._target.tasks and _is_task(found, capabilities)
        offered = self._target.tasks and TASKS in (capabilities.extensions or {})
        return Tool(
            ToolSpec(name, description, parameters),
            _RemoteTool(found.name, f"{self.label}, tool `{printable(found.name)}`", self._alive, as_task=asked),
            signature,
            effect="read" if reads else "write",
            timeout=self._target.timeout,
            after_crash=policy,
            role="task" if (asked or offered) and policy != "wait" else "",
        )

    async def call(
        self, name: str, arguments: dict[str, Json], context: CallContext[Any], *, as_task: bool
    ) -> tuple[Part, ...]:
        assert self._client is not None

        reports = Reports()

        async def report(progress: float, total: float | None, message: str | None) -> None:
            done = min(progress / total, 1.0) if total else None
            if reports.allowed():
                said = message or f"{progress:g}" + (f" of {total:g}" if total else "")
                context.report(said[:LONGEST_REPORT], done)

        self._calls += 1
        self._reports[token := f"unbroken-{next(_TOKENS)}"] = report
        with noting() as answer, self._questions.during(name, context) as call:
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
                    raise _NotTaken from error
                raise await self._lost_or_failed(name, error, answer) from error
            except (httpx2.HTTPError, OSError, OAuthFlowError) as error:
                raise ToolFailed(f"{self.label} could not be reached: {self._in_words(error)}") from error
            except (ValidationError, RuntimeError) as error:  # the package has validated the result
                raise ToolFailed(f"{self.label} gave a result that cannot be read: {self._in_words(error)}") from error
            finally:
                self._calls -= 1
                del self._reports[token]
                if self._stale:
                    self.retire()

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


class _NotTaken(Exception):
    """The server certainly did not run the call, because it no longer knows the session."""


def _not_taken(error: MCPError, answer: Answer) -> bool:
    """A restarted server does not know our session: by the specification it answers 404. Servers based on the examples
    of the TypeScript package answer 400, which can mean anything, so their text decides."""
    if not answer.in_session or answer.status not in (400, 404) or error.code == types.METHOD_NOT_FOUND:
        return False
    return answer.status == 404 or any(words in error.message for words in NOT_TAKEN)


class _RemoteTool:
    """The function of a tool that a server has."""

    def __init__(self, name: str, origin: str, alive: Callable[[], Awaitable[Session]], *, as_task: bool) -> None:
        self.origin = origin
        self._name = name
        self._alive = alive
        self._as_task = as_task

    async def __call__(self, /, **arguments: Any) -> tuple[Part, ...]:
        context: CallContext[Any] = arguments.pop(CONTEXT, None) or CallContext()
        session = await self._alive()
        try:
            return await session.call(self._name, arguments, context, as_task=self._as_task)
        except _NotTaken:
            pass
        try:
            return await (await self._alive()).call(self._name, arguments, context, as_task=self._as_task)
        except _NotTaken as error:
            raise ToolFailed(f"{session.label} loses its session at once; nothing was run") from error


def _is_task(found: types.Tool, capabilities: types.ServerCapabilities) -> bool:
    """Does a server of 2025-11-25 run calls of this tool as tasks, if the client asks for it?"""
    requests = capabilities.tasks.requests if capabilities.tasks is not None else None
    if requests is None or requests.tools is None or requests.tools.call is None or found.execution is None:
        return False
    return found.execution.task_support in ("optional", "required")


def _free_name(wanted: str, taken: set[str]) -> str:
    """A name that every provider accepts; a server's may have dots, slashes or any length."""
    plain = wanted if NAME.fullmatch(wanted) else re.sub(r"[^a-zA-Z0-9_-]", "_", wanted)[:64] or "tool"
    numbered = (f"{plain[: 63 - len(str(number))]}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([plain], numbered) if name not in taken)


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


def _version() -> str:
    try:
        return version("unbroken")
    except PackageNotFoundError:
        return "0"
