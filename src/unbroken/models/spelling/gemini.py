"""A scripted answer as Gemini tells it: `GeminiSpelling`."""

from __future__ import annotations

from unbroken.models.script import Uses
from unbroken.models.spelling.spelling import Item, Spelling, data
from unbroken.verdicts import Meaning
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import Object


class GeminiSpelling(Spelling):
    """A call is one part and never in pieces. One that is not whole is not sent: the provider ends with its word for
    a call that it could not read itself."""

    def _grown(self, item: Item, text: str) -> bytes:
        if item.kind == "call":
            return b""
        return self._chunk([{"text": text} if item.kind == "text" else {"text": text, "thought": True}])

    def _closed(self, item: Item) -> bytes:
        return self._chunk(self._parts(item)) if item.kind == "call" else b""

    def end(self, meaning: Meaning) -> bytes:
        return data(self._response([{"text": ""}], self._finish(meaning)))

    def body(self, meaning: Meaning) -> bytes:
        return dumps(self._response([part for item in self.items for part in self._parts(item)], self._finish(meaning)))

    def error(self, message: str) -> Object:
        return {"error": {"code": 500, "message": message, "status": "INTERNAL"}}

    def _parts(self, item: Item) -> list[Object]:
        if item.kind == "text":
            return [{"text": item.text}]
        if item.kind == "reasoning":
            return [{"text": item.text, "thought": True}]
        arguments = item.arguments()
        if arguments is None:
            return []
        call: Object = {"id": item.id} if item.id else {}
        return [{"functionCall": {**call, "name": item.name, "args": arguments}}]

    def _finish(self, meaning: Meaning) -> str:
        if any(item.arguments() is None for item in self.calls):
            return "MALFORMED_FUNCTION_CALL"
        return {"length": "MAX_TOKENS", "refused": "SAFETY"}.get(meaning, "STOP")

    def _chunk(self, parts: list[Object]) -> bytes:
        return data(self._response(parts)) if parts else b""

    def _response(self, parts: list[Object], finish: str = "") -> Object:
        candidate: Object = {"content": {"parts": parts, "role": "model"}, "index": 0}
        response: Object = {"candidates": [candidate], "modelVersion": self.model, "responseId": self.id}
        if finish:
            candidate["finishReason"] = finish
            if self.usage is not None:
                response["usageMetadata"] = self._usage(self.usage)
        return response

    def _usage(self, uses: Uses) -> Object:
        return {
            "promptTokenCount": uses.input,
            "candidatesTokenCount": uses.output - uses.reasoning,
            "thoughtsTokenCount": uses.reasoning,
            "cachedContentTokenCount": uses.cached,
            "totalTokenCount": uses.input + uses.output,
        }
