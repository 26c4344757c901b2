"""Unbroken runs tool calls for language models: every call answered exactly once, in order, no chain left broken.

```python
response = decode(body, wire="openai-chat")
for call in response.calls:
    print(call.name, call.arguments, call.complete)
```
"""

from unbroken.decoding import Decoder, Response, Shown, decode, guess_wire
from unbroken.deltas import (
    CallArguments,
    CallOpened,
    CallReady,
    CallSpoiled,
    Delta,
    Ended,
    ReasoningDelta,
    ServerCallSeen,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken.errors import (
    CannotEncode,
    InvalidStep,
    NotAResponse,
    StreamError,
    TooDeep,
    TooLarge,
    UnbrokenError,
    UnknownWire,
    UserError,
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
from unbroken.transcript import Transcript, repair
from unbroken.wires.chain import repair_raw
from unbroken.wires.writer import ResponseWriter

__version__ = "0.1.0"

__all__ = [
    "Assistant",
    "CallArguments",
    "CallOpened",
    "CallReady",
    "CallSpoiled",
    "CannotEncode",
    "Decoder",
    "Delta",
    "Ended",
    "InvalidStep",
    "Media",
    "Message",
    "Native",
    "NotAResponse",
    "OneTool",
    "ReasoningDelta",
    "Request",
    "Response",
    "ResponseWriter",
    "Sampling",
    "ServerCall",
    "ServerCallSeen",
    "Shown",
    "StreamError",
    "System",
    "Text",
    "TextDelta",
    "TooDeep",
    "TooLarge",
    "ToolCall",
    "ToolMessage",
    "ToolResult",
    "ToolSpec",
    "Transcript",
    "UnbrokenError",
    "UnknownWire",
    "Usage",
    "UsageReported",
    "User",
    "UserError",
    "Verdict",
    "__version__",
    "decode",
    "guess_wire",
    "repair",
    "repair_raw",
]
