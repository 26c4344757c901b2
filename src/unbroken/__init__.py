"""Unbroken reads the tool calls of language models: any provider's response in, complete calls out, none half received.

```python
response = decode(body, wire="openai-chat")
for call in response.calls:
    print(call.name, call.arguments, call.complete)
```
"""

from unbroken.decoding import Decoder, Response, Shown, StillToSay, decode, guess_wire
from unbroken.deltas import (
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
    CannotEncode,
    InvalidRequest,
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
from unbroken.transcript import (
    NO_RESULT,
    Drop,
    Edit,
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
from unbroken.wires.chain import repair_raw
from unbroken.wires.writer import ResponseWriter

__version__ = "0.1.0"

__all__ = [
    "NO_RESULT",
    "WIRES",
    "Assistant",
    "CallArguments",
    "CallOpened",
    "CallReady",
    "CallSpoiled",
    "CallWithdrawn",
    "CannotEncode",
    "Decoder",
    "Delta",
    "Drop",
    "Edit",
    "Ended",
    "Insert",
    "InvalidRequest",
    "InvalidStep",
    "Media",
    "Message",
    "Move",
    "Native",
    "NotAResponse",
    "OneTool",
    "Place",
    "ReasoningDelta",
    "Rename",
    "Request",
    "Response",
    "ResponseWriter",
    "Restarted",
    "Sampling",
    "ServerCall",
    "ServerCallSeen",
    "Shown",
    "StillToSay",
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
    "Wire",
    "__version__",
    "decode",
    "find_wire",
    "from_json",
    "guess_wire",
    "repair",
    "repair_raw",
    "to_json",
]
