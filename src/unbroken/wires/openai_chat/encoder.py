"""openai-chat, the corner that writes responses: `ChatEncoder`."""

from __future__ import annotations

from unbroken.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken.messages import Usage
from unbroken.verdicts import Meaning
from unbroken.wires.jsontext import dumps
from unbroken.wires.openai_chat.history import encode_call
from unbroken.wires.values import Object


class ChatEncoder:
    """A call is written whole, when it is ready: a client never sees half of one.

    `include_usage` is what the client said in `stream_options`. One that did not ask for usage gets none in a stream,
    as from OpenAI: the chunk that carries it has no choices, and such clients look at the first of them. A whole body
    always has it.
    """

    def __init__(
        self, model: str = "", id: str = "chatcmpl-0", created: int = 0, *, include_usage: bool = True
    ) -> None:
        self.include_usage = include_usage
        self._begun = False
        self._head: Object = {"id": id, "created": created, "model": model}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Object] = []
        self._usage: Usage | None = None
        self._finish = ""
        self._error: Object | None = None

    def feed(self, delta: Delta) -> bytes:
        match delta:
            case TextDelta(text):
                self._text.append(text)
                return self._chunk({"content": text})
            case ReasoningDelta(text):
                self._reasoning.append(text)
                return self._chunk({"reasoning_content": text})
            case CallReady(call):
                encoded = encode_call(call)
                self._calls.append(encoded)
                return self._chunk({"tool_calls": [{"index": len(self._calls) - 1, **encoded}]})
            case UsageReported(usage):
                self._usage = usage
                return b""
            case Ended(verdict) if verdict.failed:
                self._error = {"error": {"message": verdict.reason, "type": "server_error", "code": verdict.kind}}
                return b"data: " + dumps(self._error) + b"\n\n"
            case Ended(verdict):
                self._finish = _finish(verdict.told, bool(self._calls))
                last = self._chunk({}, self._finish)
                if self._usage is not None and self.include_usage:
                    last += self._event({"choices": [], "usage": _encode_usage(self._usage)})
                return last + b"data: [DONE]\n\n"
            case _:
                return b""

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        message: Object = {"role": "assistant", "content": "".join(self._text) or None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        body: Object = {**self._head, "object": "chat.completion"}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": self._finish or "stop"}]
        if self._usage is not None:
            body["usage"] = _encode_usage(self._usage)
        return dumps(body)

    def _chunk(self, delta: Object, finish: str | None = None) -> bytes:
        if not self._begun:  # the clients of OpenAI take the role from the first chunk, and one of them insists on it
            delta = {"role": "assistant", **delta}
            self._begun = True
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, event: Object) -> bytes:
        return b"data: " + dumps({**self._head, "object": "chat.completion.chunk", **event}) + b"\n\n"


def _finish(meaning: Meaning, calls: bool) -> str:
    if meaning == "length":
        return "length"
    if meaning == "refused":
        return "content_filter"
    return "tool_calls" if calls else "stop"


def _encode_usage(usage: Usage) -> Object:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
