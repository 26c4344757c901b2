"""bedrock-converse, writing responses: for a client (`ConverseEncoder`), or as the provider does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unbroken_wires.deltas import Delta, Meaning
from unbroken_wires.messages import Json, Request, ToolCall, Usage
from unbroken_wires.wires.bedrock.converse_content import UNSIGNED
from unbroken_wires.wires.bedrock.converse_relay import RelayedBlock, RelayedConverse
from unbroken_wires.wires.bedrock.converse_requests import encode_call
from unbroken_wires.wires.content_parts import exact_object, outgoing_arguments
from unbroken_wires.wires.framing import EVENT_STREAM
from unbroken_wires.wires.http_api import TOO_LONG, beginning_with
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.raw_history import same_input
from unbroken_wires.wires.wire import DeltaEncoder

_ERROR_TYPES = {
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
    529: "ServiceUnavailableException",
}
_IN_STREAM = ("ThrottlingException", "ServiceUnavailableException", "ValidationException")
"""What a stream can end with; anything else is an internal error there."""


def error_body(status: int, message: str, kind: str = "") -> Object:
    """A body for a response with this status. For the kind "too_long" clients shorten their history. Clients of Amazon
    take the type from a header, or from here."""
    type = _ERROR_TYPES.get(status) or ("ValidationException" if status < 500 else "InternalServerException")
    if kind == TOO_LONG:
        type, message = "ValidationException", beginning_with("Input is too long for requested model", message)
    return {"__type": type, "message": message}


def error_event(status: int, message: str, kind: str = "") -> bytes:
    """The last event of a stream that has begun."""
    error = error_body(status, message, kind)
    type = error["__type"] if error["__type"] in _IN_STREAM else "InternalServerException"
    return _event(type[:1].lower() + type[1:], message=error["message"])


class ConverseEncoder(DeltaEncoder):
    """A call is written when it is complete: a client never sees half of one.

    This wire has neither an id nor a time of a response, and usage is not a client's choice: `id`, `created` and
    `include_usage` change nothing.
    """

    signature = UNSIGNED
    """Ends each block of reasoning."""

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
        self._content: list[Object] = []
        self._texts: list[str] = []
        self._index = -1
        """Of the last block that was begun, here or in what was passed."""
        self._open = ""
        """The kind of the block that is being written."""
        self._started = False
        self._relayed = RelayedConverse()
        self._torn: set[str] = set()
        """Calls that were closed before they were known to be complete, or that differ from what the client has."""
        self._stop_reason = ""
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._relayed.add(data)

    def feed(self, delta: Delta) -> bytes:
        if self._relayed.catch_up():
            self._go_on()
        return self.write(delta)

    def _text(self, text: str) -> bytes:
        return self._grow("text", text, {"text": text}) if text else b""

    def _reasoning(self, text: str) -> bytes:
        return self._grow("reasoningContent", text, {"reasoningContent": {"text": text}}) if text else b""

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        self._end_block()
        message = {"role": "assistant", "content": self._content}
        body: Object = {"output": {"message": message}, "stopReason": self._stop_reason or "end_turn"}
        return dumps({**body, "usage": _encode_usage(self._usage or Usage()), "metrics": {"latencyMs": 0}})

    def _go_on(self) -> None:
        passed = self._relayed
        self._started = self._started or passed.started
        self._index = max(self._index, passed.blocks - 1)
        if passed.open is not None:
            self._open = passed.open.kind or "other"
            self._content.append({})

    def begin(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return _event("messageStart", role="assistant")

    def _grow(self, kind: str, text: str, delta: Object) -> bytes:
        before = self.begin()
        if self._open != kind:
            before += self._end_block()
            self._content.append({})
            self._index += 1
            self._open = kind
        self._texts.append(text)
        return before + self._delta(delta)

    def _call(self, call: ToolCall) -> bytes:
        block = encode_call(call, None)
        use = block["toolUse"]
        raw = dumps(use["input"]).decode() if call.kind == "custom" else outgoing_arguments(call)
        if (half := self._relayed.open) is not None and half.kind == "toolUse" and half.id == call.id:
            return self._rest_of(half, raw)
        if (said := self._relayed.calls.get(call.id)) is not None:
            # One without arguments is only sure at the end, perhaps after it had to be closed.
            (self._torn.discard if same_input(said, raw) else self._torn.add)(call.id)
            return b""
        written = self.begin() + self._end_block() + self._begin_call(use["toolUseId"], call.name)
        self._content[-1] = block
        return written + self._delta({"toolUse": {"input": raw}}) + self._stop_block()

    def _begin_call(self, id: str, name: str) -> bytes:
        self._content.append({})
        self._index += 1
        use: Object = {"toolUseId": id, "name": name} if id else {"name": name}
        return _event("contentBlockStart", start={"toolUse": use}, contentBlockIndex=self._index)

    def _rest_of(self, half: RelayedBlock, raw: str) -> bytes:
        more = b""
        if not same_input(half.input, raw) and raw.startswith(half.input):
            rest = raw[len(half.input) :]
            more = self._delta({"toolUse": {"input": rest}})
            half.pieces.append(rest)
        ended = self._end_block()
        if same_input(half.input, raw):
            self._torn.discard(half.id)
        return more + ended

    def keep_alive(self, relays: bool) -> bytes:
        # An event of a type that clients do not know. Amazon may add types at any time, so its clients skip those.
        return EVENT_STREAM.write(b'{"keepAlive":{}}')

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        self._error = error_body(status, message, kind)
        return b"" if self._relayed.finished else error_event(status, message, kind)

    def end(self, told: Meaning) -> bytes:
        passed = self._relayed
        ending = self.begin() + self._end_block()
        calls = bool(passed.calls) or any("toolUse" in block for block in self._content)
        # Half a call that the client has seen cannot be taken back: the response ends as if it was cut.
        self._stop_reason = _stop_reason("length" if self._torn and told == "done" else told, calls)
        if passed.usage and passed.finished:
            return b""
        if not passed.finished:
            ending += _event("messageStop", stopReason=self._stop_reason)
        if passed.usage:
            return ending
        return ending + _event("metadata", usage=_encode_usage(self._usage or Usage()), metrics={"latencyMs": 0})

    def _delta(self, delta: Object) -> bytes:
        return _event("contentBlockDelta", delta=delta, contentBlockIndex=self._index)

    def _end_block(self) -> bytes:
        """End the block that is open, if any."""
        if not self._open:
            return b""
        half, self._relayed.open = self._relayed.open, None
        signed, text = b"", "".join(self._texts)
        if self._open == "reasoningContent":
            signed = self._delta({"reasoningContent": {"signature": self.signature}})
        if half is not None:
            if half.kind == "toolUse":
                self._relayed.calls[half.id] = half.input
                self._torn.add(half.id)
            self._content.pop()
        elif self._open == "text":
            self._content[-1] = {"text": text}
        elif self._open == "reasoningContent":
            reasoning = {"reasoningText": {"text": text, "signature": self.signature}}
            self._content[-1] = {"reasoningContent": reasoning}
        self._texts.clear()
        self._open = ""
        return signed + self._stop_block()

    def _stop_block(self) -> bytes:
        return _event("contentBlockStop", contentBlockIndex=self._index)


class ConverseProviderWriter(ConverseEncoder):
    """Signs its reasoning, and writes the input of a call as it comes."""

    call_prefix = "tooluse"

    def __init__(self, request: Request, id: str) -> None:
        super().__init__(request.model, id)
        self.signature = f"sig-{id}"
        self._fragments: list[str] = []

    def open_call(self, id: str, name: str) -> bytes:
        before = self.begin() + self._end_block() + self._begin_call(id, name)
        use: Object = {"toolUseId": id} if id else {}
        self._content[-1] = {"toolUse": {**use, "name": name, "input": {}}}
        return before

    def grow_call(self, text: str) -> bytes:
        self._fragments.append(text)
        return self._delta({"toolUse": {"input": text}})

    def close_call(self, complete: bool) -> bytes:
        self._content[-1]["toolUse"]["input"] = exact_object("".join(self._fragments)) or {}
        self._fragments.clear()
        return self._stop_block()


def _event(kind: str, **fields: Json) -> bytes:
    return EVENT_STREAM.write(dumps({kind: fields}))


def _stop_reason(meaning: Meaning, calls: bool) -> str:
    done = "tool_use" if calls else "end_turn"
    return {"length": "max_tokens", "refused": "content_filtered"}.get(meaning, done)


def _encode_usage(usage: Usage) -> Object:
    return {
        "inputTokens": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
        "cacheReadInputTokens": usage.cached_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
    }
