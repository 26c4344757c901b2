from typing import Any

from unbroken import Agent, CallContext, Event, Middleware, ScriptedModel, ToolCall, ToolResult
from unbroken.tools.caller import Caller


class Wrong(Middleware):
    def on_event(self, event: str) -> None:  # wrong
        pass

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> str:  # wrong
        return str(call.args["name"])


class Late(Middleware):
    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        return call_next(call, context)  # wrong


def listen(event: Event, more: int) -> None:
    pass


Agent(ScriptedModel("Hello."), middleware=Wrong())  # wrong
Agent(ScriptedModel("Hello."), sinks=[listen])  # wrong
