"""A scripted answer as Chat Completions tells it: `ChatSpelling`."""

from __future__ import annotations

from unbroken.models.script import Uses
from unbroken.models.spelling.spelling import Item, Spelling, data
from unbroken.verdicts import Meaning
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import Object


class ChatSpelling(Spelling):
    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def _opened(self, item: Item) -> bytes:
        return (
            self._chunk({"tool_calls": [{"index": len(self.calls) - 1, **self._call(item, "")}]})
            if item.kind == "call"
            else b""
        )

    def _grown(self, item: Item, text: str) -> bytes:
        if item.kind == "call":
            index = len(self.calls) - 1
            return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        return self._chunk({"content" if item.kind == "text" else "reasoning_content": text})

    def end(self, meaning: Meaning) -> bytes:
        events = self._chunk({}, self._finish(meaning))
        if self.usage is not None:
            events += self._event({"choices": [], "usage": self._usage(self.usage)})
        return events + b"data: [DONE]\n\n"

    def body(self, meaning: Meaning) -> bytes:
        message: Object = {"role": "assistant", "content": self._joined("text") or None}
        if reasoning := self._joined("reasoning"):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [self._call(item, item.text) for item in self.calls]
        body: Object = {"id": self.id, "object": "chat.completion", "created": 0, "model": self.model}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": self._finish(meaning)}]
        if self.usage is not None:
            body["usage"] = self._usage(self.usage)
        return dumps(body)

    def error(self, message: str) -> Object:
        return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}

    def _call(self, item: Item, arguments: str) -> Object:
        call: Object = {"id": item.id} if item.id else {}
        return {**call, "type": "function", "function": {"name": item.name, "arguments": arguments}}

    def _finish(self, meaning: Meaning) -> str:
        done = "tool_calls" if self.calls else "stop"
        return {"length": "length", "refused": "content_filter"}.get(meaning, done)

    def _usage(self, uses: Uses) -> Object:
        return {
            "prompt_tokens": uses.input,
            "completion_tokens": uses.output,
            "total_tokens": uses.input + uses.output,
            "prompt_tokens_details": {"cached_tokens": uses.cached},
            "completion_tokens_details": {"reasoning_tokens": uses.reasoning},
        }

    def _chunk(self, delta: Object, finish: str | None = None) -> bytes:
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, event: Object) -> bytes:
        head: Object = {"id": self.id, "object": "chat.completion.chunk", "created": 0, "model": self.model}
        return data({**head, **event})
