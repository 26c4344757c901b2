"""Unbroken runs tool calls for language models: every call answered exactly once, in order, as fast as the stream
allows, and no chain of calls ever left broken.

```python
@tool(effect="read")
def get_weather(city: str) -> str:
    '''What the weather is like in a city.'''
    ...

agent = Agent(connect("openai:gpt-5"), tools=[get_weather])
print(agent.run_sync("Rome or Oslo, where should I go?").text)
```
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.agent import Agent, Conversation, Image, Limits, Output, Policy, Prices, Result
    from unbroken.agent.streaming import collect
    from unbroken.decoding import Decoder, Response, decode
    from unbroken.deltas import CallReady, Ended, TextDelta, Verdict
    from unbroken.errors import ChainBroken, ProviderError, UnbrokenError, UserError
    from unbroken.events import (
        CallFinished,
        CallStarted,
        Event,
        RequestSent,
        RunFailed,
        RunFinished,
        RunStarted,
        TextAdded,
        TextReplaced,
        ToolCallsDetected,
    )
    from unbroken.messages import (
        Assistant,
        Request,
        Sampling,
        System,
        Text,
        ToolCall,
        ToolMessage,
        ToolResult,
        Usage,
        User,
    )
    from unbroken.middleware import Middleware
    from unbroken.models.connect import connect
    from unbroken.models.model import Model
    from unbroken.models.retrying import RetryingModel
    from unbroken.models.scripted import ScriptedModel
    from unbroken.run_view import RunView
    from unbroken.tools.approval import Allow, Deny, Edit, Wait
    from unbroken.tools.context import CallContext
    from unbroken.tools.mcp import MCPServer
    from unbroken.tools.results import ToolFailed, ToolOutput
    from unbroken.tools.schedule import Schedule
    from unbroken.tools.tool import Tool, client_tool, tool
    from unbroken.trajectory.metrics import Metrics
    from unbroken.trajectory.otel import OpenTelemetry
    from unbroken.trajectory.recorder import Recorder
    from unbroken.transcript import Transcript, repair
    from unbroken.wires.writer import ResponseWriter

__version__ = "0.2.0"

logging.getLogger("unbroken").addHandler(logging.NullHandler())  # applications turn our log lines on

_HOMES: dict[str, tuple[str, ...]] = {
    "unbroken.agent": (
        "Agent",
        "Conversation",
        "Image",
        "Limits",
        "Output",
        "Policy",
        "Prices",
        "Result",
    ),
    "unbroken.agent.streaming": ("collect",),
    "unbroken.decoding": (
        "Decoder",
        "Response",
        "decode",
    ),
    "unbroken.deltas": (
        "CallReady",
        "Ended",
        "TextDelta",
        "Verdict",
    ),
    "unbroken.errors": (
        "ChainBroken",
        "ProviderError",
        "UnbrokenError",
        "UserError",
    ),
    "unbroken.events": (
        "CallFinished",
        "CallStarted",
        "Event",
        "RequestSent",
        "RunFailed",
        "RunFinished",
        "RunStarted",
        "TextAdded",
        "TextReplaced",
        "ToolCallsDetected",
    ),
    "unbroken.messages": (
        "Assistant",
        "Request",
        "Sampling",
        "System",
        "Text",
        "ToolCall",
        "ToolMessage",
        "ToolResult",
        "Usage",
        "User",
    ),
    "unbroken.middleware": ("Middleware",),
    "unbroken.models.connect": ("connect",),
    "unbroken.models.model": ("Model",),
    "unbroken.models.retrying": ("RetryingModel",),
    "unbroken.models.scripted": ("ScriptedModel",),
    "unbroken.run_view": ("RunView",),
    "unbroken.tools.approval": (
        "Allow",
        "Deny",
        "Edit",
        "Wait",
    ),
    "unbroken.tools.context": ("CallContext",),
    "unbroken.tools.mcp": ("MCPServer",),
    "unbroken.tools.results": (
        "ToolFailed",
        "ToolOutput",
    ),
    "unbroken.tools.schedule": ("Schedule",),
    "unbroken.tools.tool": (
        "Tool",
        "client_tool",
        "tool",
    ),
    "unbroken.trajectory.metrics": ("Metrics",),
    "unbroken.trajectory.otel": ("OpenTelemetry",),
    "unbroken.trajectory.recorder": ("Recorder",),
    "unbroken.transcript": (
        "Transcript",
        "repair",
    ),
    "unbroken.wires.writer": ("ResponseWriter",),
}
"""The module of each name. It is imported at first use, so a program that only decodes loads no HTTP client."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'unbroken' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Agent",
    "Allow",
    "Assistant",
    "CallContext",
    "CallFinished",
    "CallReady",
    "CallStarted",
    "ChainBroken",
    "Conversation",
    "Decoder",
    "Deny",
    "Edit",
    "Ended",
    "Event",
    "Image",
    "Limits",
    "MCPServer",
    "Metrics",
    "Middleware",
    "Model",
    "OpenTelemetry",
    "Output",
    "Policy",
    "Prices",
    "ProviderError",
    "Recorder",
    "Request",
    "RequestSent",
    "Response",
    "ResponseWriter",
    "Result",
    "RetryingModel",
    "RunFailed",
    "RunFinished",
    "RunStarted",
    "RunView",
    "Sampling",
    "Schedule",
    "ScriptedModel",
    "System",
    "Text",
    "TextAdded",
    "TextDelta",
    "TextReplaced",
    "Tool",
    "ToolCall",
    "ToolCallsDetected",
    "ToolFailed",
    "ToolMessage",
    "ToolOutput",
    "ToolResult",
    "Transcript",
    "UnbrokenError",
    "Usage",
    "User",
    "UserError",
    "Verdict",
    "Wait",
    "__version__",
    "client_tool",
    "collect",
    "connect",
    "decode",
    "repair",
    "tool",
]
