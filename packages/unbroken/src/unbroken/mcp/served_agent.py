"""An agent as a tool of our MCP server. A client that cancels its call cancels the run."""

from __future__ import annotations

import re
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unbroken.agent import Agent
from unbroken.agent.result import Result
from unbroken.errors import UnbrokenError
from unbroken.mcp.client_user import Progress, Waiting, approver, can_ask, decision, questions
from unbroken.mcp.content import failed, typed
from unbroken.middleware import Middleware
from unbroken.tools.approval import Approval, Deny, OnApproval, Question, Wait
from unbroken.tools.mcp_content import well_formed
from unbroken_wires.messages import ToolCall

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
            output_schema=None if agent.output_type is None else dict(agent.output_type.schema),
        )

    async def call(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        prompt = (params.arguments or {}).get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            return failed(f'`{self.name}` needs a prompt: {{"prompt": "…"}}')
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
            return failed(str(error))
        if not result.pending:
            return self._answer(result)
        names = ", ".join(f"`{call.name}`" for call in result.pending)
        box = self.agent.toolset.fixed
        if any(box is not None and (one := box.get(call.name)) and one.function is None for call in result.pending):
            return failed(f"the agent waits for the result of {names}, which runs at the client of the agent")
        if not can_ask(context) or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return failed(f"the agent waits for a decision about {names}, for which nobody can be asked here")
        return questions(result.pending, self._waiting.keep(params, result))

    def _answer(self, result: Result[Any]) -> types.CallToolResult:
        kind = self.agent.output_type
        if kind is None:
            return types.CallToolResult(content=[types.TextContent(text=well_formed(result.text))])
        return typed(kind.text_of(result.output), kind.object_of(result.output))


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
