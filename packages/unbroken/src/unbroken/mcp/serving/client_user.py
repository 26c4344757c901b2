"""The user of an MCP client, as far as our server can reach them: approvals as questions, and progress.

Older clients are asked while the call runs. Newer ones get the question as the answer to their call, and call again
with what the user said; each such answer is taken once.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unbroken.events import CallFinished, CallProgress, CallStarted, Event
from unbroken.mcp.content import well_formed
from unbroken.tools.approval import Allow, Approval, Deny, Edit, OnApproval, Question, Wait
from unbroken_wires.messages import Json, ToolCall

MOST_WAITING = 1000
"""Calls that wait for an answer of a user. Beyond it the oldest is forgotten."""

FORM: dict[str, Json] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Run it?"},
        "reason": {"type": "string", "title": "If not, why?"},
    },
    "required": ["approve"],
}
"""What a user is asked about a call."""


class Waiting:
    """Calls that wait for answers, each under a secret that the client gives back once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, Any, Any]] = OrderedDict()

    def keep(self, params: types.CallToolRequestParams, value: Any) -> str:
        secret = secrets.token_urlsafe(32)
        self._kept[secret] = params.name, params.arguments, value
        while len(self._kept) > MOST_WAITING:
            self._kept.popitem(last=False)
        return secret

    def take(self, params: types.CallToolRequestParams) -> Any:
        """What was kept for exactly this call; None if this call is a new one."""
        if params.request_state is None:
            return None
        name, arguments, value = self._kept.pop(params.request_state, ("", None, None))
        if value is None or (name, arguments) != (params.name, params.arguments):
            raise MCPError(types.INVALID_PARAMS, "this call is not waiting for an answer, or was answered before")
        return value


def can_ask(context: ServerRequestContext[Any]) -> bool:
    known = context.session.client_capabilities
    return known is not None and known.elicitation is not None


def approver(context: ServerRequestContext[Any]) -> OnApproval | None:
    """Asks the user while the call runs; None if the client or its protocol cannot."""
    if not can_ask(context) or context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return None
    session, request = context.session, context.request_id

    async def ask(call: ToolCall) -> Approval:
        if isinstance(call, Question) and call.kind == "url":
            result = await session.elicit_url(call.message, call.url, secrets.token_hex(8), request)
            return Allow() if result.action == "accept" else Deny(f"the user chose to {result.action}")
        if isinstance(call, Question) and call.kind == "form":
            result = await session.elicit_form(call.message, dict(call.schema), request)
            return _values(result)
        return decision(await session.elicit_form(_asked(call), FORM, request))

    return ask


def _values(result: types.ElicitResult) -> Approval:
    if result.action == "accept":
        return Edit(dict(result.content or {}))
    return Wait() if result.action == "cancel" else Deny("the user declined")


def decision(result: Any) -> Approval:
    if not isinstance(result, types.ElicitResult) or result.action != "accept":
        return Deny("the user declined")
    content: Mapping[str, Any] = result.content or {}
    return Allow() if content.get("approve") is True else Deny(str(content.get("reason") or "the user said no"))


def _asked(call: ToolCall) -> str:
    if isinstance(call, Question):
        return well_formed(f"{call.server} asks the model: {call.message}")
    return well_formed(f"Run `{call.name}` with {json.dumps(call.arguments or {}, ensure_ascii=False)}?")


def questions(calls: tuple[ToolCall, ...], secret: str) -> types.InputRequiredResult:
    """The answer to a newer client: these questions, and the secret to call again with."""
    requests: dict[str, types.InputRequest] = {
        call.id: types.ElicitRequest(params=types.ElicitRequestFormParams(message=_asked(call), requested_schema=FORM))
        for call in calls
    }
    return types.InputRequiredResult(input_requests=requests, request_state=secret)


class Progress:
    """Sends reports as progress of the request, in their order. It may be called from any thread."""

    def __init__(self, context: ServerRequestContext[Any]) -> None:
        self._session = context.session
        self._loop = asyncio.get_running_loop()
        self._reports: asyncio.Queue[tuple[str, float | None] | None] = asyncio.Queue()

    def report(self, message: str, done: float | None = None) -> None:
        self._loop.call_soon_threadsafe(self._reports.put_nowait, (message, done))

    def say(self, kind: type[Event], *fields: Any) -> None:
        """What a tool says of itself: its `CallContext.say`."""
        if kind is CallProgress:
            _, _, _, message, done = fields
            self.report(message, done)

    def on_event(self, event: Event) -> None:
        match event:
            case CallStarted():
                self.report(f"{event.name} started")
            case CallProgress():
                self.report(f"{event.name}: {event.message}")
            case CallFinished():
                self.report(f"{event.name} {'failed' if event.error else 'done'}")
            case _:
                pass

    @asynccontextmanager
    async def sending(self) -> AsyncGenerator[None]:
        """All reports of the block are sent when it ends."""
        task = asyncio.create_task(self._send())
        try:
            yield
            self._loop.call_soon(self._reports.put_nowait, None)
            await task
        finally:
            task.cancel()

    async def _send(self) -> None:
        sent = 0.0
        while (report := await self._reports.get()) is not None:
            message, done = report
            if done is not None and sent < done <= 1:
                sent, total = done, 1.0
            else:
                sent, total = sent + 1, None  # it has to grow
            await self._session.report_progress(sent, total, well_formed(message))
