"""gemini, writing responses: `GeminiEncoder` for a client, `GeminiProviderWriter` as a provider writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unbroken_wires.deltas import Delta, Meaning, TextDelta
from unbroken_wires.messages import Json, Request, ToolCall, Usage
from unbroken_wires.wires.content_parts import exact_object
from unbroken_wires.wires.gemini.gemini_contents import encode_arguments
from unbroken_wires.wires.gemini.gemini_parts import Parts
from unbroken_wires.wires.gemini.gemini_relay import RelayedGemini
from unbroken_wires.wires.http_api import TOO_LONG, beginning_with
from unbroken_wires.wires.json_access import Object, as_dict
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.wire import DeltaEncoder, ProviderCall

_SILENT: Object = {"text": ""}
"""An empty content: google-genai drops a turn from its history for one without parts."""


_STATUS_NAMES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}


def error_body(status: int, message: str, kind: str = "") -> Object:
    """A body for a response with this status. For the kind "too_long" clients shorten their history."""
    name = _STATUS_NAMES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    if kind == TOO_LONG:
        words = "The input token count exceeds the maximum number of tokens allowed"
        name, message = "INVALID_ARGUMENT", beginning_with(words, message)
    return {"error": {"code": status, "message": message, "status": name}}


def error_event(status: int, message: str, kind: str = "") -> bytes:
    """The last event of a stream that has begun."""
    return b"data: " + dumps(error_body(status, message, kind)) + b"\n\n"


class GeminiEncoder(DeltaEncoder):
    """A call is written when it is complete, with its id: a client never sees half of one.

    Only the model and the id are used: this wire has no time of a response, and usage is not a client's choice.
    """

    def __init__(
        self,
        model: str = "",
        id: str = "response-0",
        *,
        created: int = 0,
        include_usage: bool = True,
        request: Mapping[str, Json] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._head: Object = {"modelVersion": model, "responseId": id}
        self._around_text = b"", b""
        """What stands before and after the text of a chunk; known after the first one."""
        self._relayed = RelayedGemini()
        self._torn = False
        """A call is another than the one that the client was passed."""
        self._parts = Parts()
        self._finish = "STOP"
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._around_text = b"", b""
        self._relayed.add(data)

    def feed(self, delta: Delta) -> bytes:
        before, after = self._around_text
        if before and isinstance(delta, TextDelta):
            self._parts.text(delta.text)
            return before + dumps(delta.text) + after
        if self._relayed.catch_up():
            self._head = {**self._head, **self._relayed.head}
        return self.write(delta)

    def _text(self, text: str) -> bytes:
        self._parts.text(text)
        before, _, after = self._chunk([{"text": ""}]).partition(b'""')
        self._around_text = before, after
        return self._chunk([{"text": text}])

    def _reasoning(self, text: str) -> bytes:
        self._parts.text(text, thought=True)
        return self._chunk([{"text": text, "thought": True}])

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        return dumps(self._response(self._parts.whole() or [_SILENT], self._finish))

    def keep_alive(self, relays: bool) -> bytes:
        return b"\n"  # google-genai reads a comment as an answer

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        self._error = error_body(status, message, kind)
        return b"" if self._relayed.finished else error_event(status, message, kind)

    def end(self, told: Meaning) -> bytes:
        if told == "done" and (self._relayed.half or self._torn):
            told = "length"
        self._finish = {"length": "MAX_TOKENS", "refused": "SAFETY"}.get(told, "STOP")
        return b"" if self._relayed.finished else self._chunk([_SILENT], self._finish)

    def _call(self, call: ToolCall) -> bytes:
        arguments = encode_arguments(call)
        if (passed := self._relayed.find(call)) is not None:
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


class GeminiProviderWriter(GeminiEncoder):
    """A call is one part, never in fragments. One that is cut is not sent: the provider then ends the response with its
    finish reason for a call that it could not read itself."""

    call_prefix = "call"

    def __init__(self, request: Request, id: str) -> None:
        super().__init__(request.model, id)
        self._open: Object = {}
        self._fragments: list[str] = []
        self._malformed = False
        self._served = 0
        """Calls of tools that the provider runs."""

    def begin(self) -> bytes:
        return b""

    def open_call(self, id: str, name: str) -> bytes:
        self._open = {"id": id, "name": name} if id else {"name": name}
        return b""

    def grow_call(self, text: str) -> bytes:
        self._fragments.append(text)
        return b""

    def close_call(self, complete: bool) -> bytes:
        arguments = exact_object("".join(self._fragments))
        self._fragments.clear()
        if arguments is None:
            self._malformed = True
            return b""
        part: Object = {"functionCall": {**self._open, "args": arguments}}
        self._parts.add(part)
        return self._chunk([part])

    def provider_call(self, call: ProviderCall) -> bytes:
        kind = {"web_search": "GOOGLE_SEARCH_WEB", "web_fetch": "URL_CONTEXT", "file_search": "FILE_SEARCH"}
        self._served += 1
        id = call.id or f"served-{self._served}"
        if call.tool == "code_execution":
            code: Object = {"id": id, "language": "PYTHON", "code": call.arguments.get("code")}
            outcome = "OUTCOME_FAILED" if call.error else "OUTCOME_OK"
            made: Object = {"executableCode": code}
            came: Object = {
                "codeExecutionResult": {"id": id, "outcome": outcome, "output": call.error or str(call.result)}
            }
        elif call.tool in kind and call.part == "both":
            typed: Object = {"toolType": kind[call.tool], "id": id}
            made = {"toolCall": {**typed, "args": dict(call.arguments)}, "thoughtSignature": f"sig-{id}"}
            came = {"toolResponse": {**typed, "response": {"result": call.result}}, "thoughtSignature": f"sig-r-{id}"}
        else:
            return super().provider_call(call)
        self._parts.add(made)
        self._parts.add(came)
        return self._chunk([made]) + self._chunk([came])

    def end(self, told: Meaning) -> bytes:
        if not self._malformed:
            return super().end(told)
        self._finish = "MALFORMED_FUNCTION_CALL"
        return self._chunk([_SILENT], self._finish)


def _encode_usage(usage: Usage) -> Object:
    return {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": max(0, usage.output_tokens - usage.reasoning_tokens),
        "totalTokenCount": usage.total_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
    }
