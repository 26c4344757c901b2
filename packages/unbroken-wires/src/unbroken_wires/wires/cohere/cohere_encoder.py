"""cohere-v2, writing responses: `CohereEncoder` for a client, `CohereProviderWriter` as the provider writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unbroken_wires.deltas import Delta, Meaning
from unbroken_wires.messages import Json, Request, ToolCall, Usage
from unbroken_wires.wires.cohere.cohere_messages import encode_call
from unbroken_wires.wires.cohere.cohere_relay import RelayedCall, RelayedCohere
from unbroken_wires.wires.framing import SSE
from unbroken_wires.wires.http_api import TOO_LONG, beginning_with
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.raw_history import same_input
from unbroken_wires.wires.wire import DeltaEncoder


def error_body(status: int, message: str, kind: str = "") -> Object:
    """A body for a response with this status. For the kind "too_long" clients shorten their history."""
    return {"message": beginning_with("too many tokens", message) if kind == TOO_LONG else message}


def error_event(status: int, message: str, kind: str = "") -> bytes:
    """The last event of a stream that has begun."""
    words = error_body(status, message, kind)["message"]
    return _event("message-end", delta={"finish_reason": "ERROR", "error": words})


class CohereEncoder(DeltaEncoder):
    """A call is written when it is complete: a client never sees half of one. Reasoning is thinking: this wire's plans
    belong to calls, and whether any follow is not known yet.

    This wire has no time of a response, and usage is not a client's choice: `created` and `include_usage` change
    nothing.
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
        self._id = id
        self._started = False
        self._relayed = RelayedCohere()
        self._torn = False
        """A call that the client has in part, or in another form, cannot be completed."""
        self._open = ""
        """The kind of the content block that is being written, which is also the name of its field."""
        self._blocks: list[Object] = []
        self._texts: list[str] = []
        self._calls: list[Object] = []
        self._reason = "COMPLETE"
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._relayed.add(data)

    def feed(self, delta: Delta) -> bytes:
        if self._relayed.catch_up():
            self._started = self._started or self._relayed.started
            self._open = self._relayed.open_block or self._open
        return self.write(delta)

    def _text(self, text: str) -> bytes:
        return self._grow("text", text) if text else b""

    def _reasoning(self, text: str) -> bytes:
        return self._grow("thinking", text) if text else b""

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        self._end_block()
        message: Object = {"role": "assistant"}
        if self._blocks:
            message["content"] = self._blocks
        if self._calls:
            message["tool_calls"] = self._calls
        body: Object = {"id": self._id, "message": message, "finish_reason": self._reason}
        return dumps({**body, "usage": _encode_usage(self._usage or Usage())})

    def begin(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        message: Object = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        return _event("message-start", id=self._id, delta={"message": message})

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        self._error = error_body(status, message, kind)
        return b"" if self._relayed.finished else error_event(status, message, kind)

    def end(self, told: Meaning) -> bytes:
        passed = self._relayed
        ending = self.begin() + self._end_block()
        cut = self._torn or any(not call.ended for call in passed.calls)
        self._reason = _reason("length" if cut and told == "done" else told, bool(self._calls or passed.calls))
        if passed.finished:
            return b""
        delta: Object = {"finish_reason": self._reason, "usage": _encode_usage(self._usage or Usage())}
        return ending + _event("message-end", delta=delta)

    def _grow(self, field: str, text: str) -> bytes:
        before = self.begin()
        if self._open != field:
            before += self._end_block()
            self._open = field
            before += _event("content-start", index=self._index, delta=_content({"type": field, field: ""}))
        self._texts.append(text)
        return before + _event("content-delta", index=self._index, delta=_content({field: text}))

    @property
    def _index(self) -> int:
        """Of the content block that is open."""
        return self._relayed.blocks + len(self._blocks) - bool(self._relayed.open_block)

    def _end_block(self) -> bytes:
        if not self._open:
            return b""
        ended = _event("content-end", index=self._index)
        if self._relayed.open_block:
            self._relayed.open_block = ""
        else:
            self._blocks.append({"type": self._open, self._open: "".join(self._texts)})
        self._texts.clear()
        self._open = ""
        return ended

    def _call(self, call: ToolCall) -> bytes:
        encoded = encode_call(call, None)
        if (passed := self._relayed.find(call)) is not None:
            return self._rest_of(passed, encoded["function"]["arguments"])
        before = self.begin() + self._end_block() + self._begin_call(encoded["id"], call.name)
        self._calls.append(encoded)
        return before + self._call_delta(encoded["function"]["arguments"]) + self._end_call()

    def _rest_of(self, passed: RelayedCall, whole: str) -> bytes:
        said = passed.arguments
        if same_input(said, whole) or (not passed.ended and whole.startswith(said)):
            rest = whole[len(said) :] if not same_input(said, whole) else ""
            more = self._call_delta(rest, passed.index) if rest else b""
            ended = b"" if passed.ended else self._end_call(passed.index)
            passed.pieces, passed.ended = [whole], True
            return more + ended
        self._torn = True
        return b""

    def _begin_call(self, id: str, name: str) -> bytes:
        call: Object = {"id": id} if id else {}
        call |= {"type": "function", "function": {"name": name, "arguments": ""}}
        return _event("tool-call-start", index=self._next_call, delta={"message": {"tool_calls": call}})

    @property
    def _next_call(self) -> int:
        return len(self._relayed.calls) + len(self._calls)

    def _call_delta(self, text: str, index: int | None = None) -> bytes:
        at = self._next_call - 1 if index is None else index
        call: Object = {"function": {"arguments": text}}
        return _event("tool-call-delta", index=at, delta={"message": {"tool_calls": call}})

    def _end_call(self, index: int | None = None) -> bytes:
        return _event("tool-call-end", index=self._next_call - 1 if index is None else index)


class CohereProviderWriter(CohereEncoder):
    """Writes the arguments of a call as they come."""

    call_prefix = "call"

    def __init__(self, request: Request, id: str) -> None:
        super().__init__(request.model, id)
        self._fragments: list[str] = []

    def open_call(self, id: str, name: str) -> bytes:
        before = self.begin() + self._end_block() + self._begin_call(id, name)
        call: Object = {"id": id} if id else {}
        self._calls.append({**call, "type": "function", "function": {"name": name, "arguments": ""}})
        return before

    def grow_call(self, text: str) -> bytes:
        self._fragments.append(text)
        return self._call_delta(text)

    def close_call(self, complete: bool) -> bytes:
        self._calls[-1]["function"]["arguments"] = "".join(self._fragments)
        self._fragments.clear()
        return self._end_call()


def _event(kind: str, **fields: object) -> bytes:
    return SSE.write(dumps({"type": kind, **fields}), kind)


def _content(content: Object) -> Object:
    return {"message": {"content": content}}


def _reason(meaning: Meaning, calls: bool) -> str:
    done = "TOOL_CALL" if calls else "COMPLETE"
    return {"length": "MAX_TOKENS", "refused": "ERROR_TOXIC"}.get(meaning, done)


def _encode_usage(usage: Usage) -> Object:
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return {"billed_units": tokens, "tokens": tokens, "cached_tokens": usage.cached_tokens}
