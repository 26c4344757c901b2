"""Middleware around calls, requests and events."""

from typing import Any

from unbroken import Agent, CallContext, Event, Middleware, ScriptedModel, ToolCall, ToolResult, tool
from unbroken.middleware import NextRequest
from unbroken.tools.caller import Caller
from unbroken_testing import Call


@tool(effect="read")
def look_up(name: str) -> str:
    """Look somebody up."""
    return f"{name} is here"


class Watch(Middleware):
    def __init__(self) -> None:
        self.lines: list[str] = []

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        result = await call_next(call, context)
        self.note(f"{call.args['name']}: {result.text}")
        return result

    async def before_request(self, request: NextRequest) -> None:
        self.note(f"{len(request.messages)} messages")

    def on_event(self, event: Event) -> None:
        assert event.seq >= 0

    def note(self, line: str) -> None:
        self.lines.append(line)


watch = Watch()
Agent(ScriptedModel([Call("look_up", name="Ada")], "Here."), [look_up], middleware=[watch]).run_sync("Where is Ada?")
assert watch.lines == ["1 messages", "Ada: Ada is here", "3 messages"]
