"""gemini, the corner that writes responses: `GeminiEncoder`."""

from __future__ import annotations

from typing import Any

from unbroken.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken.messages import ToolCall, Usage
from unbroken.wires.gemini.contents import encode_arguments
from unbroken.wires.gemini.media import NAME
from unbroken.wires.gemini.parts import Parts
from unbroken.wires.gemini.passed import GeminiPassed
from unbroken.wires.jsontext import dumps
from unbroken.wires.refusals import error_event, refusal, status_of
from unbroken.wires.values import Object, as_dict

_SILENT: Object = {"text": ""}
"""What a content has that says nothing: google-genai drops a whole turn from its history for one without parts."""


class GeminiEncoder:
    """A call is written whole, when it is ready, with its id: a client never sees half of one.

    This wire says neither when a response was made nor, by a client's choice, what it cost: `created` and
    `include_usage` change nothing.
    """

    def __init__(
        self, model: str = "", id: str = "response-0", *, created: int = 0, include_usage: bool = True
    ) -> None:
        self._head: Object = {"modelVersion": model, "responseId": id}
        self._around_text = b"", b""
        """What stands before and after the text of a chunk; known after the first one."""
        self._passed = GeminiPassed()
        self._torn = False
        """A call is another than the one that the client was passed."""
        self._parts = Parts()
        self._usage: Usage | None = None
        self._finish = "STOP"
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._around_text = b"", b""
        self._passed.add(data)

    def feed(self, delta: Delta) -> bytes:
        before, after = self._around_text
        if before and isinstance(delta, TextDelta):
            self._parts.text(delta.text)
            return before + dumps(delta.text) + after
        if self._passed.catch_up():
            self._head = {**self._head, **self._passed.head}
        match delta:
            case TextDelta(text):
                self._parts.text(text)
                before, _, after = self._chunk([{"text": ""}]).partition(b'""')
                self._around_text = before, after
                return self._chunk([{"text": text}])
            case ReasoningDelta(text):
                self._parts.text(text, thought=True)
                return self._chunk([{"text": text, "thought": True}])
            case CallReady(call):
                return self._call(call)
            case UsageReported(usage):
                self._usage = usage
                return b""
            case Ended(verdict) if verdict.failed:
                failure = (NAME, status_of(verdict.kind), verdict.reason, verdict.kind)
                self._error = refusal(*failure)
                return b"" if self._passed.finished else error_event(*failure)
            case Ended(verdict):
                told = "length" if (self._passed.half or self._torn) and verdict.told == "done" else verdict.told
                self._finish = {"length": "MAX_TOKENS", "refused": "SAFETY"}.get(told, "STOP")
                return b"" if self._passed.finished else self._chunk([_SILENT], self._finish)
            case _:
                return b""

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        return dumps(self._response(self._parts.whole() or [_SILENT], self._finish))

    def _call(self, call: ToolCall) -> bytes:
        arguments = encode_arguments(call)
        if (passed := self._passed.find(call)) is not None:
            self._torn = self._torn or ("args" in passed and as_dict(passed["args"]) != arguments)
            return b""
        part = {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
        self._parts.add(part)
        return self._chunk([part])

    def _chunk(self, parts: list[Object], finish: str = "") -> bytes:
        return b"data: " + dumps(self._response(parts, finish)) + b"\n\n"

    def _response(self, parts: list[Object], finish: str) -> Object:
        candidate: Object = {"content": {"parts": parts, "role": "model"}, "index": 0}
        response: dict[str, Any] = {"candidates": [candidate]}
        if finish:
            candidate["finishReason"] = finish
            if self._usage is not None:
                response["usageMetadata"] = _encode_usage(self._usage)
        return {**response, **self._head}


def _encode_usage(usage: Usage) -> Object:
    return {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": max(0, usage.output_tokens - usage.reasoning_tokens),
        "totalTokenCount": usage.total_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
    }
