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
    from unbroken.agent import Agent, Conversation, Image, Limits, Prices, Result, RunStream
    from unbroken.agent.collect import Collected, CollectedCall, collect
    from unbroken.agent.limits import StopReason
    from unbroken.agent.run import CallRecord
    from unbroken.agent.sentences import Sentences, sentences
    from unbroken.agent.ui_history import answers_from_ui_messages, from_ui_messages
    from unbroken.agent.ui_messages import UI_MESSAGE_HEADERS, ui_messages
    from unbroken.clock import Clock, RealClock, VirtualClock
    from unbroken.decoding import Decoder, Response, Shown, StillToSay, decode, guess_wire
    from unbroken.deltas import (
        AttemptFailed,
        CallArguments,
        CallOpened,
        CallReady,
        CallSpoiled,
        CallWithdrawn,
        Delta,
        Ended,
        ReasoningDelta,
        Restarted,
        ServerCallSeen,
        TextDelta,
        UsageReported,
    )
    from unbroken.errors import (
        AnswerInvalid,
        CannotEncode,
        ChainBroken,
        ContextTooLong,
        InvalidRequest,
        InvalidStep,
        InvalidTool,
        MissingKey,
        ModelNotFound,
        NotAResponse,
        ProviderError,
        RateLimited,
        RecordingFailed,
        RequestRefused,
        RunTaken,
        StreamError,
        TimedOut,
        TooDeep,
        TooLarge,
        Unauthorized,
        Unavailable,
        UnbrokenError,
        UnknownProvider,
        UnknownWire,
        Unreachable,
        UserError,
    )
    from unbroken.events import (
        ApprovalAsked,
        CallFinished,
        CallProgress,
        CallsIgnored,
        CallStarted,
        Event,
        LimitReached,
        ReasoningAdded,
        ReasoningReplaced,
        RecordingIncomplete,
        RequestRetried,
        RequestSent,
        RoundFinished,
        RunFailed,
        RunFinished,
        RunStarted,
        Said,
        Sink,
        TextAdded,
        TextReplaced,
        TodoUpdated,
        ToolCallsDetected,
        ToolLate,
        event_from_json,
        event_to_json,
    )
    from unbroken.messages import (
        Assistant,
        Media,
        Message,
        Native,
        OneTool,
        Request,
        Sampling,
        ServerCall,
        System,
        Text,
        ToolCall,
        ToolMessage,
        ToolResult,
        ToolSpec,
        Usage,
        User,
    )
    from unbroken.middleware import Middleware, RunStart
    from unbroken.models.connect import connect
    from unbroken.models.guarded import Guarded
    from unbroken.models.http import HTTPModel
    from unbroken.models.model import Model
    from unbroken.models.scripted import ScriptedModel
    from unbroken.tools.approval import Allow, Approval, Deny, Edit, OnApproval, Wait
    from unbroken.tools.caller import Caller
    from unbroken.tools.context import CallContext
    from unbroken.tools.mcp import MCPServer
    from unbroken.tools.results import ToolFailed, ToolOutput
    from unbroken.tools.schedule import Schedule
    from unbroken.tools.todo import todo_write
    from unbroken.tools.tool import Tool, client_tool, tool
    from unbroken.tools.toolbox import Toolbox
    from unbroken.trajectory.alerts import ALERTS, Alert, Alerts
    from unbroken.trajectory.divergence import ReplayDiverged
    from unbroken.trajectory.metrics import Metrics, ToolMetrics
    from unbroken.trajectory.otel import OpenTelemetry
    from unbroken.trajectory.prometheus import PrometheusMetrics
    from unbroken.trajectory.recorder import Recorder
    from unbroken.trajectory.recording import Recording, Summary, list_recordings, read_recording
    from unbroken.trajectory.replay import Playback, RecordingEnded, replay
    from unbroken.transcript import (
        NO_RESULT,
        Drop,
        HistoryEdit,
        Insert,
        Move,
        Place,
        Rename,
        Transcript,
        from_json,
        repair,
        to_json,
    )
    from unbroken.verdicts import Verdict
    from unbroken.wires import WIRES, Wire, find_wire
    from unbroken.wires.chain import ChainStatus, chain_status, repair_raw, validate_tool_chain
    from unbroken.wires.writer import ResponseWriter

__version__ = "0.1.0"

logging.getLogger("unbroken").addHandler(logging.NullHandler())  # applications turn our log lines on

_HOMES: dict[str, tuple[str, ...]] = {
    "unbroken.agent": (
        "Agent",
        "Conversation",
        "Image",
        "Limits",
        "Prices",
        "Result",
        "RunStream",
        "RunTaken",
    ),
    "unbroken.agent.collect": (
        "Collected",
        "CollectedCall",
        "collect",
    ),
    "unbroken.agent.limits": ("StopReason",),
    "unbroken.agent.run": ("CallRecord",),
    "unbroken.agent.sentences": (
        "Sentences",
        "sentences",
    ),
    "unbroken.agent.ui_history": (
        "answers_from_ui_messages",
        "from_ui_messages",
    ),
    "unbroken.agent.ui_messages": (
        "UI_MESSAGE_HEADERS",
        "ui_messages",
    ),
    "unbroken.clock": (
        "Clock",
        "RealClock",
        "VirtualClock",
    ),
    "unbroken.decoding": (
        "Decoder",
        "Response",
        "Shown",
        "StillToSay",
        "decode",
        "guess_wire",
    ),
    "unbroken.deltas": (
        "CallArguments",
        "CallOpened",
        "CallReady",
        "CallSpoiled",
        "CallWithdrawn",
        "Delta",
        "Ended",
        "ReasoningDelta",
        "Restarted",
        "AttemptFailed",
        "ServerCallSeen",
        "TextDelta",
        "UsageReported",
    ),
    "unbroken.errors": (
        "AnswerInvalid",
        "CannotEncode",
        "ChainBroken",
        "InvalidRequest",
        "InvalidStep",
        "InvalidTool",
        "MissingKey",
        "ModelNotFound",
        "NotAResponse",
        "ProviderError",
        "RateLimited",
        "RecordingFailed",
        "RequestRefused",
        "RunTaken",
        "StreamError",
        "TimedOut",
        "TooDeep",
        "TooLarge",
        "Unauthorized",
        "Unavailable",
        "ContextTooLong",
        "UnbrokenError",
        "UnknownProvider",
        "UnknownWire",
        "Unreachable",
        "UserError",
    ),
    "unbroken.events": (
        "ApprovalAsked",
        "CallFinished",
        "CallProgress",
        "CallStarted",
        "CallsIgnored",
        "Event",
        "LimitReached",
        "ReasoningAdded",
        "TextReplaced",
        "RequestRetried",
        "ReasoningReplaced",
        "RecordingIncomplete",
        "RequestSent",
        "RoundFinished",
        "RunFailed",
        "RunFinished",
        "RunStarted",
        "Said",
        "Sink",
        "TextAdded",
        "TodoUpdated",
        "ToolCallsDetected",
        "ToolLate",
        "event_from_json",
        "event_to_json",
    ),
    "unbroken.messages": (
        "Assistant",
        "Media",
        "Message",
        "Native",
        "OneTool",
        "Request",
        "Sampling",
        "ServerCall",
        "System",
        "Text",
        "ToolCall",
        "ToolMessage",
        "ToolResult",
        "ToolSpec",
        "Usage",
        "User",
    ),
    "unbroken.models.connect": ("connect",),
    "unbroken.models.guarded": ("Guarded",),
    "unbroken.models.http": ("HTTPModel",),
    "unbroken.models.model": ("Model",),
    "unbroken.models.scripted": ("ScriptedModel",),
    "unbroken.tools.approval": (
        "Allow",
        "Approval",
        "Deny",
        "Edit",
        "OnApproval",
        "Wait",
    ),
    "unbroken.tools.caller": ("Caller",),
    "unbroken.tools.context": ("CallContext",),
    "unbroken.tools.schedule": ("Schedule",),
    "unbroken.tools.mcp": ("MCPServer",),
    "unbroken.tools.results": (
        "ToolFailed",
        "ToolOutput",
    ),
    "unbroken.tools.todo": ("todo_write",),
    "unbroken.tools.tool": (
        "Tool",
        "client_tool",
        "tool",
    ),
    "unbroken.tools.toolbox": ("Toolbox",),
    "unbroken.trajectory.alerts": ("ALERTS", "Alert", "Alerts"),
    "unbroken.middleware": ("Middleware", "RunStart"),
    "unbroken.trajectory.divergence": ("ReplayDiverged",),
    "unbroken.trajectory.metrics": ("Metrics", "ToolMetrics"),
    "unbroken.trajectory.otel": ("OpenTelemetry",),
    "unbroken.trajectory.prometheus": ("PrometheusMetrics",),
    "unbroken.trajectory.recorder": ("Recorder",),
    "unbroken.trajectory.recording": ("Recording", "Summary", "list_recordings", "read_recording"),
    "unbroken.trajectory.replay": ("Playback", "RecordingEnded", "replay"),
    "unbroken.transcript": (
        "Drop",
        "HistoryEdit",
        "Insert",
        "Move",
        "NO_RESULT",
        "Place",
        "Rename",
        "Transcript",
        "from_json",
        "repair",
        "to_json",
    ),
    "unbroken.verdicts": ("Verdict",),
    "unbroken.wires": (
        "WIRES",
        "Wire",
        "find_wire",
    ),
    "unbroken.wires.chain": ("ChainStatus", "chain_status", "repair_raw", "validate_tool_chain"),
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
    "ALERTS",
    "NO_RESULT",
    "UI_MESSAGE_HEADERS",
    "WIRES",
    "Agent",
    "Alert",
    "Alerts",
    "Allow",
    "AnswerInvalid",
    "Approval",
    "ApprovalAsked",
    "Assistant",
    "AttemptFailed",
    "CallArguments",
    "CallContext",
    "CallFinished",
    "CallOpened",
    "CallProgress",
    "CallReady",
    "CallRecord",
    "CallSpoiled",
    "CallStarted",
    "CallWithdrawn",
    "Caller",
    "CallsIgnored",
    "CannotEncode",
    "ChainBroken",
    "ChainStatus",
    "Clock",
    "Collected",
    "CollectedCall",
    "ContextTooLong",
    "Conversation",
    "Decoder",
    "Delta",
    "Deny",
    "Drop",
    "Edit",
    "Ended",
    "Event",
    "Guarded",
    "HTTPModel",
    "HistoryEdit",
    "Image",
    "Insert",
    "InvalidRequest",
    "InvalidStep",
    "InvalidTool",
    "LimitReached",
    "Limits",
    "MCPServer",
    "Media",
    "Message",
    "Metrics",
    "Middleware",
    "MissingKey",
    "Model",
    "ModelNotFound",
    "Move",
    "Native",
    "NotAResponse",
    "OnApproval",
    "OneTool",
    "OpenTelemetry",
    "Place",
    "Playback",
    "Prices",
    "PrometheusMetrics",
    "ProviderError",
    "RateLimited",
    "RealClock",
    "ReasoningAdded",
    "ReasoningDelta",
    "ReasoningReplaced",
    "Recorder",
    "Recording",
    "RecordingEnded",
    "RecordingFailed",
    "RecordingIncomplete",
    "Rename",
    "ReplayDiverged",
    "Request",
    "RequestRefused",
    "RequestRetried",
    "RequestSent",
    "Response",
    "ResponseWriter",
    "Restarted",
    "Result",
    "RoundFinished",
    "RunFailed",
    "RunFinished",
    "RunStart",
    "RunStarted",
    "RunStream",
    "RunTaken",
    "Said",
    "Sampling",
    "Schedule",
    "ScriptedModel",
    "Sentences",
    "ServerCall",
    "ServerCallSeen",
    "Shown",
    "Sink",
    "StillToSay",
    "StopReason",
    "StreamError",
    "Summary",
    "System",
    "Text",
    "TextAdded",
    "TextDelta",
    "TextReplaced",
    "TimedOut",
    "TodoUpdated",
    "TooDeep",
    "TooLarge",
    "Tool",
    "ToolCall",
    "ToolCallsDetected",
    "ToolFailed",
    "ToolLate",
    "ToolMessage",
    "ToolMetrics",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "Toolbox",
    "Transcript",
    "Unauthorized",
    "Unavailable",
    "UnbrokenError",
    "UnknownProvider",
    "UnknownWire",
    "Unreachable",
    "Usage",
    "UsageReported",
    "User",
    "UserError",
    "Verdict",
    "VirtualClock",
    "Wait",
    "Wire",
    "__version__",
    "answers_from_ui_messages",
    "chain_status",
    "client_tool",
    "collect",
    "connect",
    "decode",
    "event_from_json",
    "event_to_json",
    "find_wire",
    "from_json",
    "from_ui_messages",
    "guess_wire",
    "list_recordings",
    "read_recording",
    "repair",
    "repair_raw",
    "replay",
    "sentences",
    "to_json",
    "todo_write",
    "tool",
    "ui_messages",
    "validate_tool_chain",
]
