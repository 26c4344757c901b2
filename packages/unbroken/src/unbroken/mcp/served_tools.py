"""Tools served by our MCP server, as their declarations say: what may run side by side, what needs an approval, the
time-out. A client that cancels its call cancels the tool."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unbroken.agent.toolset import ToolSet
from unbroken.clock import current_clock
from unbroken.mcp.client_user import Progress, Waiting, approver, can_ask, decision, questions
from unbroken.mcp.content import described, read_result
from unbroken.tools.approval import NOBODY_APPROVES, Allow, Deny, ask
from unbroken.tools.caller import Prepared, ResultCache, ToolCaller, failure, not_executed, prepare, run_safely
from unbroken.tools.context import CallContext, RunContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.messages import ToolCall
from unbroken_wires.transcript import Transcript


class ServedTools:
    """All tools of one server."""

    def __init__(self, tools: ToolSet, deps: Any, waiting: Waiting) -> None:
        self.tools = tools
        self._deps = deps
        self._waiting = waiting
        self._order = _Order()
        self._results = ResultCache()

    async def toolbox(self) -> Toolbox:
        """As it is now: the tools of a server may change. Without those that run at a client of ours."""
        found = await self.tools.toolbox(RunContext(deps=self._deps), Transcript())
        return Toolbox(*(tool for tool in found if tool.function is not None))

    async def descriptions(self) -> list[types.Tool]:
        return [described(tool) for tool in await self.toolbox()]

    async def call(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams, toolbox: Toolbox
    ) -> types.CallToolResult | types.InputRequiredResult:
        call = ToolCall(f"mcp_{secrets.token_hex(8)}", params.name, params.arguments or {})
        prepared = prepare(call, toolbox)
        if prepared.refusal or prepared.tool is None:
            return read_result(failure(call, prepared.refusal, "not_executed"))
        answered: ToolCall | None = self._waiting.take(params)
        if prepared.asks:
            on_approval = approver(context)
            if answered is not None:
                verdict = decision((params.input_responses or {}).get(answered.id))
            elif on_approval is not None:
                verdict = await ask(on_approval, call)
            elif can_ask(context) and context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return questions((call,), self._waiting.keep(params, call))
            else:
                return read_result(failure(call, NOBODY_APPROVES, "not_executed"))
            if not isinstance(verdict, Allow):
                reason = verdict.reason if isinstance(verdict, Deny) else ""
                return read_result(not_executed(call, f"denied: {reason}" if reason else "denied"))
        return await self._run(context, prepared, prepared.tool, toolbox)

    async def _run(
        self, context: ServerRequestContext[Any], prepared: Prepared, tool: Tool, toolbox: Toolbox
    ) -> types.CallToolResult:
        call, progress = prepared.call, Progress(context)
        inside: CallContext[Any] = CallContext(
            run=call.id,
            call_id=call.id,
            name=call.name,
            fingerprint=prepared.fingerprint,
            deps=self._deps,
            arguments=prepared.arguments,
            say=progress.say,
            approver=approver(context),
        )
        caller = ToolCaller(toolbox, current_clock(), self._results)
        async with progress.sending(), self._order.turn(tool, prepared.key):
            result = await run_safely(caller, call, inside)
        return read_result(result)


@dataclass(slots=True)
class _Order:
    """Calls of different requests run side by side as their tools allow it: reads always, writes one after another (or
    one after another for each key), an exclusive one alone."""

    running: int = 0
    idle: asyncio.Condition = field(default_factory=asyncio.Condition)
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    locks: dict[Any, tuple[asyncio.Lock, int]] = field(default_factory=dict[Any, "tuple[asyncio.Lock, int]"])
    """By key, None for writes without one; and how many calls use it."""

    @asynccontextmanager
    async def turn(self, tool: Tool, key: Any) -> AsyncGenerator[None]:
        if tool.effect == "read" or tool.overlap:
            async with self._beside(tool):
                yield
            return
        lock, users = self.locks.get(key, (asyncio.Lock(), 0))
        self.locks[key] = lock, users + 1
        try:
            async with lock, self._beside(tool):
                yield
        finally:
            lock, users = self.locks.pop(key)
            if users > 1:
                self.locks[key] = lock, users - 1

    @asynccontextmanager
    async def _beside(self, tool: Tool) -> AsyncGenerator[None]:
        if tool.effect == "exclusive":
            async with self.alone, self.idle:
                await self.idle.wait_for(lambda: self.running == 0)
                yield
            return
        async with self.alone:  # waits for an exclusive one
            self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            async with self.idle:
                self.idle.notify_all()
