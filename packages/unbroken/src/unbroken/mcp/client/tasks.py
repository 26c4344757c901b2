"""Calls that an MCP server runs as tasks: it answers at once with a task, which is polled until it has a result.

There are two forms. A server of 2026 decides for each call, if the client has declared the extension `TASKS`: the task
contains its questions and its result. A server of 2025-11-25 declares which tools can be tasks, the client asks for
one, and a second request waits for the questions and the result.

The package has the first form as an extension of its client. It refuses the answer of the second form, which has no
content, so `as_result` wraps the task when it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, cast

import httpx2
import mcp_types as types
from mcp.client import ClientRequestContext, ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from unbroken.mcp.client.questions import LONGEST_REPORT, RunningCall
from unbroken.tools.context import CallContext
from unbroken.tools.results import ToolFailed

TASKS = "io.modelcontextprotocol/tasks"
KEY = "io.modelcontextprotocol/idempotencyKey"
"""The name under which servers look for the key of a call, though the proposal for it was closed (SEP-3182)."""
_WRAPPED = "unbroken/task"
"""The key in the metadata of a result under which `as_result` puts a task."""

INTERVAL = 1.0
"""Seconds between polls if the server names no interval; and the limits of what it may name."""
SHORTEST, LONGEST = 0.05, 60.0

_SLOWEST = 5.0
"""Maximum seconds between the attempts to reach a server that is away."""

_CANCELLING = 2.0
"""Seconds that a server has to confirm that a task is cancelled."""


class Created(types.Result):
    """The answer of a server of 2026 to a call that it runs as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: types.TaskStatus
    status_message: str | None = None
    poll_interval_ms: float | None = None


class _State(types.Result):
    """A task as `tasks/get` returns it, in either form."""

    task_id: str
    status: types.TaskStatus
    status_message: str | None = None
    poll_interval_ms: float | None = None
    poll_interval: float | None = None
    input_requests: types.InputRequests | None = None
    result: dict[str, Any] | None = None
    error: types.ErrorData | None = None


class _Get(types.Request[types.GetTaskRequestParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class _Cancel(types.Request[types.CancelTaskRequestParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


class _Answers(types.RequestParams):
    task_id: str
    input_responses: types.InputResponses


class _Update(types.Request[_Answers, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


Reconnect: TypeAlias = Callable[[], Awaitable[ClientSession | None]]
"""Returns the session to use after the connection was lost, or None if the server's tasks are lost with it. Raises
`ToolFailed` if the server cannot be reached."""


class TaskEnded(ToolFailed):
    """The task has ended without a result."""


class TaskLost(ToolFailed):
    """Nobody knows how the task ends: the server, or what it knew about the task, is gone."""


class Tasks(ClientExtension):
    """Declares that calls may become tasks. `running` returns the call that runs here."""

    identifier = TASKS

    def __init__(self, running: Callable[[], RunningCall], reconnect: Reconnect) -> None:
        self._running = running
        self._reconnect = reconnect

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, claim: ClaimContext) -> types.CallToolResult:
        state = _State.model_validate(created.model_dump())
        return await _NewerTask(claim.session, self._running(), state, self._reconnect).end()


def marks(context: CallContext[Any]) -> types.RequestParamsMeta | None:
    """What tells a server that a call may be a repetition: the same key on every attempt and after a resume. Servers
    that do not know it ignore it."""
    return cast("types.RequestParamsMeta", {KEY: context.key}) if context.run else None


async def call_as_task(
    session: ClientSession, call: RunningCall, arguments: dict[str, Any], token: str, reconnect: Reconnect
) -> types.CallToolResult:
    """Calls a tool of a server of 2025-11-25 as a task. Its progress has this token until the end."""
    params = types.CallToolRequestParams(name=call.name, arguments=arguments, task=types.TaskMetadata())
    params.meta = cast("types.RequestParamsMeta", {"progressToken": token, **(marks(call.context) or {})})
    result = await session.send_request(types.CallToolRequest(params=params), types.CallToolResult)
    wrapped = (result.meta or {}).get(_WRAPPED)
    if wrapped is not None:
        result = await _OlderTask(session, call, _State.model_validate(wrapped), reconnect).end()
    if not result.is_error:
        await session.validate_tool_result(call.name, result)
    return result


def as_result(item: Any) -> Any:
    """A message of the server; if it is the task of a server of 2025-11-25, in the metadata of an empty result."""
    if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
        result = item.message.result
        if isinstance(result.get("task"), dict) and "content" not in result:
            wrapped: dict[str, Any] = {"content": [], "_meta": {_WRAPPED: result["task"]}}
            return SessionMessage(item.message.model_copy(update={"result": wrapped}), metadata=item.metadata)
    return item


class _Task:
    """One task, until it has ended. If the call ends before, the task is cancelled at the server."""

    def __init__(self, session: ClientSession, call: RunningCall, state: _State, reconnect: Reconnect) -> None:
        self.session = session
        self.call = call
        self.state = state
        self.id = state.task_id
        self._reconnect = reconnect
        self._reported = ""

    async def end(self) -> types.CallToolResult:
        self.call.task = self.id
        try:
            if self.is_open:
                self.call.context.to_background()
            else:
                self.state = await self._poll()  # the answer to the call has no result in it
            return await self._follow()
        except TaskLost:
            raise
        except BaseException:
            if self.is_open:
                await self.cancel()
            raise

    @property
    def is_open(self) -> bool:
        return self.state.status in ("working", "input_required")

    async def _follow(self) -> types.CallToolResult:
        while True:
            message = (self.state.status_message or "")[:LONGEST_REPORT]
            if message and message != self._reported:
                self._reported = message
                self.call.report(message)
            if self.state.status == "input_required":
                await self.answer()
            elif self.state.status != "working":
                return await self.result()
            if (early := await self.pause(self._interval())) is not None:
                return early
            self.state = await self._poll()

    def _interval(self) -> float:
        named = self.state.poll_interval_ms or self.state.poll_interval
        return min(max(named / 1000, SHORTEST), LONGEST) if named is not None else INTERVAL

    async def _poll(self) -> _State:
        params, away, wait = types.GetTaskRequestParams(task_id=self.id), 0.0, self._interval()
        session: ClientSession | None = self.session
        while session is not None:
            self.session = session
            try:
                return await session.send_request(_Get(params=params), _State)
            except (MCPError, httpx2.HTTPError, OSError) as error:
                refused = isinstance(error, MCPError) and error.code != types.CONNECTION_CLOSED
                if refused or away >= self.call.outage:
                    raise TaskLost(str(error).partition("\n")[0] or type(error).__name__) from error
            if away:
                await asyncio.sleep(wait)
            away, wait = away + wait, min(wait * 2, _SLOWEST)
            with suppress(ToolFailed):  # it is still away
                session = await self._reconnect()
        raise TaskLost("the connection was lost")

    async def cancel(self) -> None:
        """As far as the server can be reached; a task that has ended meanwhile cannot be cancelled."""
        params = types.CancelTaskRequestParams(task_id=self.id)
        with suppress(MCPError, ValidationError, httpx2.HTTPError, OSError, TimeoutError):
            async with asyncio.timeout(_CANCELLING):
                await self.session.send_request(_Cancel(params=params), types.EmptyResult)

    async def pause(self, seconds: float) -> types.CallToolResult | None:
        """Waits until the next poll. Returns the result if it arrives earlier."""
        await asyncio.sleep(seconds)
        return None

    async def answer(self) -> None:
        """The task waits for answers of the user."""
        raise NotImplementedError

    async def result(self) -> types.CallToolResult:
        """Of a task that has ended."""
        raise NotImplementedError


class _NewerTask(_Task):
    """The task contains its open questions, each with a key of its own, and its result."""

    def __init__(self, session: ClientSession, call: RunningCall, state: _State, reconnect: Reconnect) -> None:
        super().__init__(session, call, state, reconnect)
        self._answered: set[str] = set()
        self._callbacks = session
        """It knows which call asks."""

    async def answer(self) -> None:
        answers: types.InputResponses = {}
        for key, request in (self.state.input_requests or {}).items():
            if key in self._answered:
                continue  # the server has not read the answer yet
            asking = ClientRequestContext(session=self._callbacks, request_id=key)
            answer = await self._callbacks.dispatch_input_request(asking, request)
            if isinstance(answer, types.ErrorData):
                raise TaskEnded(f"the task was cancelled, because its question has no answer: {answer.message}")
            answers[key] = answer
        if answers:
            params = _Answers(task_id=self.id, input_responses=answers)
            await self.session.send_request(_Update(params=params), types.EmptyResult)
            self._answered |= answers.keys()

    async def result(self) -> types.CallToolResult:
        state = self.state
        if state.status == "completed" and state.result is not None:
            return types.CallToolResult.model_validate(state.result)
        why = state.error.message if state.error is not None else state.status_message or ""
        raise _ended(state.status, why)


class _OlderTask(_Task):
    """`tasks/result` waits for the end. Questions may arrive only while it waits."""

    def __init__(self, session: ClientSession, call: RunningCall, state: _State, reconnect: Reconnect) -> None:
        super().__init__(session, call, state, reconnect)
        self._waiting: asyncio.Task[types.CallToolResult] | None = None

    async def end(self) -> types.CallToolResult:
        try:
            return await super().end()
        finally:
            if self._waiting is not None:
                self._waiting.cancel()

    async def answer(self) -> None:
        self._wait_for_result()

    async def pause(self, seconds: float) -> types.CallToolResult | None:
        if self._waiting is None:
            return await super().pause(seconds)
        done, _ = await asyncio.wait({self._waiting}, timeout=seconds)
        return await self.result() if done else None

    async def result(self) -> types.CallToolResult:
        try:
            result = await self._wait_for_result()
        except MCPError as error:
            if self.state.status == "cancelled":
                raise _ended("cancelled", self.state.status_message or "") from error
            raise
        if self.state.status == "cancelled":
            raise _ended("cancelled", self.state.status_message or "")
        return result

    async def cancel(self) -> None:
        capabilities = self.session.server_capabilities
        if capabilities is not None and capabilities.tasks is not None and capabilities.tasks.cancel is not None:
            await super().cancel()

    def _wait_for_result(self) -> asyncio.Task[types.CallToolResult]:
        if self._waiting is None:
            params = types.GetTaskPayloadRequestParams(task_id=self.id)
            asking = self.session.send_request(types.GetTaskPayloadRequest(params=params), types.CallToolResult)
            self._waiting = asyncio.create_task(asking)
        return self._waiting


def _ended(status: types.TaskStatus, why: str) -> TaskEnded:
    words = "was cancelled at the server" if status == "cancelled" else "failed"
    return TaskEnded(f"the task {words}{f': {why}' if why else ''}")
