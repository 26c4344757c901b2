"""gemini, the corner that writes responses: `GeminiEncoder`."""

from __future__ import annotations

from typing import Any

from unbroken.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken.messages import Usage
from unbroken.wires.gemini.contents import encode_arguments
from unbroken.wires.gemini.parts import Parts
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import Object


class GeminiEncoder:
    """A call is written whole, when it is ready, with its id: a client never sees half of one."""

    def __init__(self, model: str = "", id: str = "response-0") -> None:
        self._head: Object = {"modelVersion": model, "responseId": id}
        self._parts = Parts()
        self._usage: Usage | None = None
        self._finish = "STOP"
        self._error: Object | None = None

    def feed(self, delta: Delta) -> bytes:
        match delta:
            case TextDelta(text):
                self._parts.text(text)
                return self._chunk([{"text": text}])
            case ReasoningDelta(text):
                self._parts.text(text, thought=True)
                return self._chunk([{"text": text, "thought": True}])
            case CallReady(call):
                part = {"functionCall": {"id": call.id, "name": call.name, "args": encode_arguments(call)}}
                self._parts.add(part)
                return self._chunk([part])
            case UsageReported(usage):
                self._usage = usage
                return b""
            case Ended(verdict) if verdict.failed:
                self._error = {"error": {"code": 502, "message": verdict.reason, "status": "UNAVAILABLE"}}
                return b"data: " + dumps(self._error) + b"\n\n"
            case Ended(verdict):
                self._finish = {"length": "MAX_TOKENS", "refused": "SAFETY"}.get(verdict.told, "STOP")
                return self._chunk([], self._finish)
            case _:
                return b""

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        return dumps(self._response(self._parts.whole(), self._finish))

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
