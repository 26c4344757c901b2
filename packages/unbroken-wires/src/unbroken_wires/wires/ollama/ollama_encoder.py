"""ollama, writing responses: `OllamaEncoder` for a client, `OllamaProviderWriter` as the server writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from unbroken_wires.deltas import Delta, Meaning
from unbroken_wires.messages import Json, Request, ToolCall
from unbroken_wires.wires.content_parts import exact_object
from unbroken_wires.wires.framing import JSON_LINES
from unbroken_wires.wires.http_api import TOO_LONG, beginning_with
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.ollama.ollama_messages import encode_call
from unbroken_wires.wires.ollama.ollama_relay import RelayedOllama
from unbroken_wires.wires.wire import DeltaEncoder


def error_body(status: int, message: str, kind: str = "") -> Object:
    """A body for a response with this status. For the kind "too_long" clients shorten their history."""
    if kind == TOO_LONG:
        message = beginning_with("the input length exceeds the context length", message)
    return {"error": message}


def error_event(status: int, message: str, kind: str = "") -> bytes:
    """The last event of a stream that has begun."""
    return JSON_LINES.write(dumps(error_body(status, message, kind)))


class OllamaEncoder(DeltaEncoder):
    """A call is written when it is complete, with its id: a client never sees half of one.

    The response has no id here, and usage is not a client's choice: `id` and `include_usage` change nothing.
    """

    def __init__(
        self,
        model: str = "",
        id: str = "",
        *,
        created: int = 0,
        include_usage: bool = True,
        request: Mapping[str, Json] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._head: Object = {"model": model, "created_at": at}
        self._relayed = RelayedOllama()
        self._torn = False
        """A call is another than the one that the client was passed."""
        self._said: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[Object] = []
        self._reason = "stop"
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._relayed.add(data)

    def feed(self, delta: Delta) -> bytes:
        if self._relayed.catch_up():
            self._head = {**self._head, **self._relayed.head}
        return self.write(delta)

    def _text(self, text: str) -> bytes:
        self._said.append(text)
        return self._line({"content": text})

    def _reasoning(self, text: str) -> bytes:
        self._thinking.append(text)
        return self._line({"content": "", "thinking": text})

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        message: Object = {"role": "assistant", "content": "".join(self._said)}
        if self._thinking:
            message["thinking"] = "".join(self._thinking)
        if self._calls:
            message["tool_calls"] = self._calls
        return dumps({**self._head, "message": message, **self._done()})

    def keep_alive(self, relays: bool) -> bytes:
        return self._line({"content": ""})

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        self._error = error_body(status, message, kind)
        return b"" if self._relayed.finished else error_event(status, message, kind)

    def end(self, told: Meaning) -> bytes:
        if told == "done" and self._torn:
            told = "length"
        # The server itself never refuses; a client takes a reason that it does not know for some other end.
        self._reason = {"length": "length", "refused": "content_filter"}.get(told, "stop")
        return b"" if self._relayed.finished else self._line({"content": ""}, **self._done())

    def _call(self, call: ToolCall) -> bytes:
        encoded = encode_call(call, None, len(self._relayed.calls) + len(self._calls))
        if (passed := self._relayed.find(call)) is not None:
            self._torn = self._torn or passed.get("arguments") != encoded["function"]["arguments"]
            return b""
        return self._write_call(encoded)

    def _write_call(self, encoded: Object) -> bytes:
        self._calls.append(encoded)
        return self._line({"content": "", "tool_calls": [encoded]})

    def _done(self) -> Object:
        counts: Object = {}
        if self._usage is not None:
            counts = {"prompt_eval_count": self._usage.input_tokens, "eval_count": self._usage.output_tokens}
        return {"done": True, "done_reason": self._reason, **counts}

    def _line(self, message: Object, **more: object) -> bytes:
        return JSON_LINES.write(
            dumps({**self._head, "message": {"role": "assistant", **message}, **(more or {"done": False})})
        )


class OllamaProviderWriter(OllamaEncoder):
    """A call is one object, never in fragments. One that is cut is not sent: the server then ends the response with the
    error for a call that it could not read itself."""

    call_prefix = "call"

    def __init__(self, request: Request, id: str) -> None:
        super().__init__(request.model, id)
        self._open: Object = {}
        self._fragments: list[str] = []
        self._malformed = ""

    def begin(self) -> bytes:
        return b""

    def open_call(self, id: str, name: str) -> bytes:
        self._open = {"id": id, "name": name}
        return b""

    def grow_call(self, text: str) -> bytes:
        self._fragments.append(text)
        return b""

    def close_call(self, complete: bool) -> bytes:
        raw = "".join(self._fragments)
        self._fragments.clear()
        arguments = exact_object(raw)
        if arguments is None:
            self._malformed = raw
            return b""
        id: Object = {"id": self._open["id"]} if self._open["id"] else {}
        function = {"index": len(self._calls), "name": self._open["name"], "arguments": arguments}
        return self._write_call({**id, "function": function})

    def end(self, told: Meaning) -> bytes:
        if not self._malformed:
            return super().end(told)
        return self.fail(500, f"error parsing tool call: raw='{self._malformed}', err=unexpected end of JSON input")
