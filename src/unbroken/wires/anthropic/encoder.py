"""anthropic-messages, the corner that writes responses: `MessagesEncoder`."""

from __future__ import annotations

from unbroken.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken.messages import ToolCall, Usage
from unbroken.verdicts import Meaning
from unbroken.wires.anthropic.requests import encode_call
from unbroken.wires.jsontext import dumps
from unbroken.wires.parts import outgoing_arguments
from unbroken.wires.values import Object


class MessagesEncoder:
    """A call is written whole, when it is ready: a client never sees half of one."""

    def __init__(self, model: str = "", id: str = "msg_0") -> None:
        self._head: Object = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._content: list[Object] = []
        self._texts: list[str] = []
        self._open = ""
        """The kind of the block that is being written, which is also the name of its field."""
        self._started = False
        self._usage = Usage()
        self._stop_reason = ""
        self._error: Object | None = None

    def feed(self, delta: Delta) -> bytes:
        match delta:
            case TextDelta(text):
                return self._grow("text", text) if text else b""
            case ReasoningDelta(text):
                return self._grow("thinking", text) if text else b""
            case CallReady(call):
                return self._start() + self._end_block() + self._call(call)
            case UsageReported(usage):
                self._usage = usage
                return b""
            case Ended(verdict) if verdict.failed:
                self._error = {"type": "error", "error": {"type": "api_error", "message": verdict.reason}}
                return _event(self._error)
            case Ended(verdict):
                calls = any(block["type"] == "tool_use" for block in self._content)
                self._stop_reason = _stop_reason(verdict.told, calls)
                last: Object = {"stop_reason": self._stop_reason, "stop_sequence": None}
                return (
                    self._start()
                    + self._end_block()
                    + _event({"type": "message_delta", "delta": last, "usage": _encode_usage(self._usage)})
                    + _event({"type": "message_stop"})
                )
            case _:
                return b""

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        self._end_block()
        reason = self._stop_reason or "end_turn"
        body = {**self._head, "content": self._content, "stop_reason": reason, "stop_sequence": None}
        return dumps({**body, "usage": _encode_usage(self._usage)})

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        message: Object = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = {**_encode_usage(self._usage), "output_tokens": 0}
        return _event({"type": "message_start", "message": message})

    def _grow(self, field: str, text: str) -> bytes:
        before = self._start()
        if self._open != field:
            before += self._end_block()
            block: Object = {"type": field, field: ""}
            if field == "thinking":
                block["signature"] = ""  # clients expect one; `encode_request` leaves out what comes back with this
            before += self._begin_block(block)
            self._open = field
        self._texts.append(text)
        return before + self._delta({"type": f"{field}_delta", field: text})

    def _call(self, call: ToolCall) -> bytes:
        block = encode_call(call)
        raw = dumps(block["input"]).decode() if call.kind == "custom" else outgoing_arguments(call)
        written = self._begin_block({**block, "input": {}})
        self._content[-1] = block
        return written + self._delta({"type": "input_json_delta", "partial_json": raw}) + self._stop_block()

    def _begin_block(self, block: Object) -> bytes:
        self._content.append(block)
        index = len(self._content) - 1
        return _event({"type": "content_block_start", "index": index, "content_block": block})

    def _delta(self, delta: Object) -> bytes:
        return _event({"type": "content_block_delta", "index": len(self._content) - 1, "delta": delta})

    def _end_block(self) -> bytes:
        """End the text or thinking that is being written, if any."""
        if not self._open:
            return b""
        self._content[-1][self._open] = "".join(self._texts)
        self._texts.clear()
        self._open = ""
        return self._stop_block()

    def _stop_block(self) -> bytes:
        return _event({"type": "content_block_stop", "index": len(self._content) - 1})


def _event(event: Object) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + dumps(event) + b"\n\n"


def _stop_reason(meaning: Meaning, calls: bool) -> str:
    if meaning == "done":
        return "tool_use" if calls else "end_turn"
    return {"length": "max_tokens", "refused": "refusal", "paused": "pause_turn"}[meaning]


def _encode_usage(usage: Usage) -> Object:
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
