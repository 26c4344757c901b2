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
import os
import re
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.agent import Agent, Conversation, Image, Limits, Output, Policy, Prices, Result
    from unbroken.agent.sentences import sentences
    from unbroken.agent.steps import steps
    from unbroken.agent.streaming import collect
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
    from unbroken.mcp.client.server import MCPServer
    from unbroken.middleware import Middleware
    from unbroken.models.connect import connect
    from unbroken.models.model import Model
    from unbroken.models.retrying import RetryingModel
    from unbroken.models.scripted import ScriptedModel
    from unbroken.run_view import RunView
    from unbroken.tools.approval import Allow, Deny, Edit, Wait
    from unbroken.tools.context import CallContext, RunContext
    from unbroken.tools.results import Retry, ToolFailed, ToolOutput
    from unbroken.tools.schedule import Schedule
    from unbroken.tools.todo import todo_write
    from unbroken.tools.tool import Tool, client_tool, tool
    from unbroken.tools.toolbox import Toolbox
    from unbroken.trajectory.alerts import Alerts
    from unbroken.trajectory.metrics import Metrics
    from unbroken.trajectory.otel import OpenTelemetry
    from unbroken.trajectory.recorder import Recorder
    from unbroken_wires.decoding import Decoder, Response, decode
    from unbroken_wires.deltas import CallReady, Ended, TextDelta, Verdict
    from unbroken_wires.messages import (
        Assistant,
        Message,
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
    from unbroken_wires.transcript import Transcript, repair
    from unbroken_wires.wires.chain import validate_tool_chain
    from unbroken_wires.wires.writer import ResponseWriter

__version__ = "0.2.0"

logging.getLogger("unbroken").addHandler(logging.NullHandler())  # applications turn our log lines on

_HOMES = {
    "unbroken.agent": "Agent Conversation Image Limits Output Policy Prices Result",
    "unbroken.agent.sentences": "sentences",
    "unbroken.agent.steps": "steps",
    "unbroken.agent.streaming": "collect",
    "unbroken_wires.decoding": "Decoder Response decode",
    "unbroken_wires.deltas": "CallReady Ended TextDelta Verdict",
    "unbroken.errors": "ChainBroken ProviderError UnbrokenError UserError",
    "unbroken.events": (
        "CallFinished CallStarted Event RequestSent RunFailed RunFinished RunStarted TextAdded TextReplaced "
        "ToolCallsDetected"
    ),
    "unbroken_wires.messages": (
        "Assistant Message Request Sampling System Text ToolCall ToolMessage ToolResult Usage User"
    ),
    "unbroken.middleware": "Middleware",
    "unbroken.models.connect": "connect",
    "unbroken.models.model": "Model",
    "unbroken.models.retrying": "RetryingModel",
    "unbroken.models.scripted": "ScriptedModel",
    "unbroken.run_view": "RunView",
    "unbroken.tools.approval": "Allow Deny Edit Wait",
    "unbroken.tools.context": "CallContext RunContext",
    "unbroken.mcp.client.server": "MCPServer",
    "unbroken.tools.results": "Retry ToolFailed ToolOutput",
    "unbroken.tools.schedule": "Schedule",
    "unbroken.tools.todo": "todo_write",
    "unbroken.tools.tool": "Tool client_tool tool",
    "unbroken.tools.toolbox": "Toolbox",
    "unbroken.trajectory.alerts": "Alerts",
    "unbroken.trajectory.metrics": "Metrics",
    "unbroken.trajectory.otel": "OpenTelemetry",
    "unbroken.trajectory.recorder": "Recorder",
    "unbroken_wires.transcript": "Transcript repair",
    "unbroken_wires.wires.chain": "validate_tool_chain",
    "unbroken_wires.wires.writer": "ResponseWriter",
}
"""The names of each module. It is imported at first use, so a program that only decodes loads no HTTP client."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        if home := _other_home(name):
            raise ImportError(f"cannot import name {name!r} from 'unbroken': {home}", name="unbroken", path=__file__)
        raise AttributeError(f"module 'unbroken' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


_ELSEWHERE = (
    "unbroken.guardrails unbroken_testing unbroken.agent unbroken.errors unbroken.events unbroken_wires.messages "
    "unbroken_wires.deltas unbroken_wires.transcript unbroken.compaction unbroken_wires.server_tools unbroken.clock "
    "unbroken.read_more unbroken.middleware unbroken_testing.evals unbroken_gateway unbroken_dph unbroken_viewer "
    "unbroken.mcp unbroken_wires.decoding unbroken_wires.wires unbroken_wires.wires.chain "
    "unbroken_wires.wires.pydantic_ai unbroken.models.http unbroken.tools.approval unbroken.tools.caller "
    "unbroken.tools.handles unbroken.agent.limits unbroken.agent.ui_messages "
    "unbroken.agent.ui_history unbroken.agent.streaming unbroken.agent.run_state unbroken.agent.steps "
    "unbroken.agent.sentences unbroken.trajectory.alerts unbroken.trajectory.metrics unbroken.trajectory.prometheus "
    "unbroken.trajectory.recording unbroken.trajectory.replay unbroken.run_view unbroken_dph.dolphin"
)
"""The modules with public names that are not here, of this package and of the others."""
_OTHER_NAMES = {
    "ModelRetry": "Retry",
    "UsageLimits": "Limits",
    "function_tool": "tool",
    "RunContextWrapper": "CallContext",
    "ToolRuntime": "CallContext",
    "MCPServerStdio": "MCPServer",
    "AIMessage": "Assistant",
    "HumanMessage": "User",
    "SystemMessage": "System",
}
"""What other libraries call names of ours."""


def _other_home(name: str) -> str:
    """Where to import a name from that is not here, in words."""
    if name in _OTHER_NAMES:
        return f"it is called `{_OTHER_NAMES[name]}` here"
    defined = re.compile(rf'^(?:class |def |async def |    "|__all__ = .*"){name}\b|^{name}(?:: .*)? = ', re.MULTILINE)
    for module in _ELSEWHERE.split():
        package, *below = module.split(".")
        found = find_spec(package)
        if found is None or not found.origin:  # not installed
            continue
        path = os.path.join(os.path.dirname(found.origin), *below)
        path = os.path.join(path, "__init__.py") if os.path.isdir(path) else f"{path}.py"
        with suppress(OSError), open(path, encoding="utf-8") as source:  # not there in a zip
            if defined.search(source.read()):
                return f"write `from {module} import {name}`"
    return ""


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Agent",
    "Alerts",
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
    "Message",
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
    "Retry",
    "RetryingModel",
    "RunContext",
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
    "Toolbox",
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
    "sentences",
    "steps",
    "todo_write",
    "tool",
    "validate_tool_chain",
]
