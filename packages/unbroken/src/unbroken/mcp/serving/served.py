"""What our MCP server serves. An agent is a tool that takes a prompt. Tools run as their declarations say: what may run
side by side, what needs an approval, the time-out. A client that cancels its call cancels the run or the tool."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unbroken.agent import Agent
from unbroken.agent.result import Result
from unbroken.agent.toolset import ToolSet
from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError
from unbroken.mcp.content import well_formed, write_failure, write_result, write_tool, write_typed
from unbroken.mcp.serving.client_user import Progress, Waiting, approver, can_ask, decision, questions
from unbroken.middleware import Middleware
from unbroken.tools.approval import NOBODY_APPROVES, Allow, Approval, Deny, OnApproval, Question, Wait, ask
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
        return [write_tool(tool) for tool in await self.toolbox()]

    async def call(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams, toolbox: Toolbox
    ) -> types.CallToolResult | types.InputRequiredResult:
        call = ToolCall(f"mcp_{secrets.token_hex(8)}", params.name, params.arguments or {})
        prepared = prepare(call, toolbox)
        if prepared.refusal or prepared.tool is None:
            return write_result(failure(call, prepared.refusal, "not_executed"))
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
                return write_result(failure(call, NOBODY_APPROVES, "not_executed"))
            if not isinstance(verdict, Allow):
                reason = verdict.reason if isinstance(verdict, Deny) else ""
                return write_result(not_executed(call, f"denied: {reason}" if reason else "denied"))
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
        return write_result(result)


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


_ODD = re.compile(r"[^a-zA-Z0-9_-]")


class ServedAgent:
    """An agent that answers a prompt. Each call is a run of its own."""

    def __init__(self, agent: Agent[Any, Any], name: str, description: str, deps: Any, waiting: Waiting) -> None:
        self.agent = agent
        self._deps = deps
        self._waiting = waiting
        self.name = name or (_ODD.sub("_", agent.name)[:64] if agent.name != "main" else "ask")
        properties = {"prompt": {"type": "string", "description": "What it should do."}}
        self.description = types.Tool(
            name=self.name,
            description=description or "Give a task to an agent with tools of its own, and get its answer.",
            input_schema={"type": "object", "properties": properties, "required": ["prompt"]},
            output_schema=None if agent.settings.output is None else dict(agent.settings.output.schema),
        )

    async def call(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        prompt = (params.arguments or {}).get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            return write_failure(f'`{self.name}` needs a prompt: {{"prompt": "…"}}')
        progress = Progress(context)
        paused: Result[Any] | None = self._waiting.take(params)
        sinks = (progress.on_event, _AsksClient(approver(context), can_ask(context)))
        options: dict[str, Any] = {"sinks": sinks} | ({} if self._deps is None else {"deps": self._deps})
        try:
            async with progress.sending():
                if paused is None:
                    result = await self.agent.run(prompt, **options)
                else:
                    answers = params.input_responses or {}
                    decisions = {call.id: decision(answers.get(call.id)) for call in paused.pending}
                    result = await self.agent.resume(paused, decisions, **options)
        except UnbrokenError as error:
            return write_failure(str(error))
        if not result.pending:
            return self._answer(result)
        names = ", ".join(f"`{call.name}`" for call in result.pending)
        box = self.agent.settings.tools.fixed
        if any(box is not None and (one := box.get(call.name)) and one.function is None for call in result.pending):
            return write_failure(f"the agent waits for the result of {names}, which runs at the client of the agent")
        if not can_ask(context) or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return write_failure(f"the agent waits for a decision about {names}, for which nobody can be asked here")
        return questions(result.pending, self._waiting.keep(params, result))

    def _answer(self, result: Result[Any]) -> types.CallToolResult:
        kind = self.agent.settings.output
        if kind is None:
            return types.CallToolResult(content=[types.TextContent(text=well_formed(result.text))])
        return write_typed(kind.text_of(result.output), kind.object_of(result.output))


class _AsksClient(Middleware):
    """Approves calls of a run whose agent has no approver of its own."""

    def __init__(self, ask: OnApproval | None, can_wait: bool) -> None:
        self._ask = ask
        self._can_wait = can_wait

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        if on_approval is not None or self._ask is not None:
            return on_approval or self._ask
        return _wait if self._can_wait else None


def _wait(call: ToolCall) -> Approval:
    return Deny() if isinstance(call, Question) else Wait()
