"""A scripted answer as Anthropic's Messages tells it: `MessagesSpelling`."""

from __future__ import annotations

from typing import Any

from unbroken.models.script import Uses
from unbroken.models.spelling.spelling import Item, Spelling, named
from unbroken.verdicts import Meaning
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import Object


class MessagesSpelling(Spelling):
    """A block of thinking ends with its signature, which the client has to give back."""

    def begin(self) -> bytes:
        message: Object = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        return named({"type": "message_start", "message": {**message, "usage": self._usage(0)}})

    def _opened(self, item: Item) -> bytes:
        return self._block("content_block_start", content_block=self._content(item, whole=False))

    def _grown(self, item: Item, text: str) -> bytes:
        field = {"text": "text", "reasoning": "thinking", "call": "partial_json"}[item.kind]
        type = {"text": "text_delta", "reasoning": "thinking_delta", "call": "input_json_delta"}[item.kind]
        return self._block("content_block_delta", delta={"type": type, field: text})

    def _closed(self, item: Item) -> bytes:
        events = b""
        if item.kind == "reasoning":
            signature = self._content(item)["signature"]
            events = self._block("content_block_delta", delta={"type": "signature_delta", "signature": signature})
        return events + self._block("content_block_stop")

    def end(self, meaning: Meaning) -> bytes:
        delta: Object = {"stop_reason": self._stop(meaning), "stop_sequence": None}
        output = self.usage.output if self.usage else 0
        return named({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}) + named(
            {"type": "message_stop"}
        )

    def body(self, meaning: Meaning) -> bytes:
        body: Object = {**self._head(), "content": [self._content(item) for item in self.items]}
        body |= {"stop_reason": self._stop(meaning), "stop_sequence": None}
        return dumps({**body, "usage": self._usage(self.usage.output if self.usage else 0)})

    def error(self, message: str) -> Object:
        return {"type": "error", "error": {"type": "api_error", "message": message}}

    def error_event(self, message: str) -> bytes:
        return named(self.error(message))

    def _head(self) -> Object:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _content(self, item: Item, whole: bool = True) -> Object:
        text = item.text if whole else ""
        if item.kind == "text":
            return {"type": "text", "text": text}
        if item.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": f"sig-{self.id}" if whole else ""}
        id: Object = {"id": item.id} if item.id else {}
        return {"type": "tool_use", **id, "name": item.name, "input": (item.arguments() or {}) if whole else {}}

    def _stop(self, meaning: Meaning) -> str:
        done = "tool_use" if self.calls else "end_turn"
        return {"length": "max_tokens", "refused": "refusal", "paused": "pause_turn"}.get(meaning, done)

    def _usage(self, output: int) -> Object:
        uses = self.usage or Uses(0, 0)
        return {
            "input_tokens": uses.input - uses.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": uses.cached,
            "output_tokens": output,
        }

    def _block(self, type: str, **fields: Any) -> bytes:
        return named({"type": type, "index": len(self.items) - 1, **fields})
