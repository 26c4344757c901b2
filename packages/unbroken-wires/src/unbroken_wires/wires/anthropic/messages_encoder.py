"""anthropic-messages, writing responses: for a client (`MessagesEncoder`), or as a provider does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unbroken_wires.deltas import Delta, Meaning, TextDelta
from unbroken_wires.messages import Json, Request, ToolCall, Usage
from unbroken_wires.wires.anthropic.messages_content import UNSIGNED
from unbroken_wires.wires.anthropic.messages_relay import RelayedBlock, RelayedMessages
from unbroken_wires.wires.anthropic.messages_requests import encode_call
from unbroken_wires.wires.content_parts import exact_object, outgoing_arguments
from unbroken_wires.wires.http_api import TOO_LONG, beginning_with
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.raw_history import same_input
from unbroken_wires.wires.wire import DeltaEncoder, ProviderCall

_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(status: int, message: str, kind: str = "") -> Object:
    """A body for a response with this status. For the kind "too_long" clients shorten their history."""
    type = _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    if kind == TOO_LONG:
        type, message = "invalid_request_error", beginning_with("prompt is too long", message)
    return {"type": "error", "error": {"type": type, "message": message}}


def error_event(status: int, message: str, kind: str = "") -> bytes:
    """The last event of a stream that has begun."""
    return _event(error_body(status, message, kind))


class MessagesEncoder(DeltaEncoder):
    """A call is written when it is complete: a client never sees half of one.

    Only the model and the id are used: this wire has no time of a response, and usage is not a client's choice.
    """

    signature = UNSIGNED
    """Ends each block of thinking."""

    def __init__(
        self,
        model: str = "",
        id: str = "msg_0",
        *,
        created: int = 0,
        include_usage: bool = True,
        request: Mapping[str, Json] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._head: Object = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._content: list[Object] = []
        self._texts: list[str] = []
        self._index = -1
        """Of the last block that was begun, here or in what was passed."""
        self._open = ""
        """The kind of the block that is being written, which is also the name of its field."""
        self._before_text = b""
        """What stands before the text of a delta while a block of text is open."""
        self._started = False
        self._relayed = RelayedMessages()
        self._torn: set[str] = set()
        """Calls that were closed before they were known to be complete, or that differ from what the client has."""
        self._stop_reason = ""
        self._container: Object = {}
        """Where the code of the answer ran, as its last event says."""
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._before_text = b""
        self._relayed.add(data)

    def feed(self, delta: Delta) -> bytes:
        if self._before_text and isinstance(delta, TextDelta) and delta.text:
            self._texts.append(delta.text)
            return self._before_text + dumps(delta.text) + b"}}\n\n"
        if self._relayed.catch_up():
            self._go_on()
        return self.write(delta)

    def _text(self, text: str) -> bytes:
        return self._grow("text", text) if text else b""

    def _reasoning(self, text: str) -> bytes:
        return self._grow("thinking", text) if text else b""

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        self._end_block()
        reason = self._stop_reason or "end_turn"
        body = {**self._head, **self._container, "content": self._content, "stop_reason": reason, "stop_sequence": None}
        return dumps({**body, "usage": _encode_usage(self._usage or Usage())})

    def _go_on(self) -> None:
        passed = self._relayed
        self._started = self._started or passed.started
        self._index = max(self._index, passed.blocks - 1)
        if passed.open is not None:
            self._open = passed.open.kind
            self._content.append({})

    def keep_alive(self, relays: bool) -> bytes:
        return _event({"type": "ping"})

    def begin(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        message: Object = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = {**_encode_usage(self._usage or Usage()), "output_tokens": 0}
        return _event({"type": "message_start", "message": message})

    def _grow(self, field: str, text: str) -> bytes:
        before = self.begin()
        if self._open != field:
            before += self._end_block()
            block: Object = {"type": field, field: ""}
            if field == "thinking":
                block["signature"] = ""  # it comes at the end of the block, as the provider's own does
            before += self._begin_block(block)
            self._open = field
        self._texts.append(text)
        if field == "text":
            self._before_text = self._delta({"type": "text_delta", "text": ""}).removesuffix(b'""}}\n\n')
        return before + self._delta({"type": f"{field}_delta", field: text})

    def _call(self, call: ToolCall) -> bytes:
        block = encode_call(call, None)
        raw = dumps(block["input"]).decode() if call.kind == "custom" else outgoing_arguments(call)
        if (half := self._relayed.open) is not None and half.kind == "tool_use" and half.id == call.id:
            return self._rest_of(half, raw)
        if (said := self._relayed.calls.get(call.id)) is not None:
            # One without arguments is only sure at the end, perhaps after it had to be closed.
            (self._torn.discard if same_input(said, raw) else self._torn.add)(call.id)
            return b""
        written = self.begin() + self._end_block() + self._begin_block({**block, "input": {}})
        self._content[-1] = block
        return written + self._delta({"type": "input_json_delta", "partial_json": raw}) + self._stop_block()

    def _rest_of(self, half: RelayedBlock, raw: str) -> bytes:
        more = b""
        if not same_input(half.input, raw) and raw.startswith(half.input):
            rest = raw[len(half.input) :]
            more = self._delta({"type": "input_json_delta", "partial_json": rest})
            half.pieces.append(rest)
        ended = self._end_block()
        if same_input(half.input, raw):
            self._torn.discard(half.id)
        return more + ended

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        self._error = error_body(status, message, kind)
        return b"" if self._relayed.done else error_event(status, message, kind)

    def end(self, told: Meaning) -> bytes:
        passed = self._relayed
        ending = self.begin() + self._end_block()
        calls = bool(passed.calls) or any(block.get("type") == "tool_use" for block in self._content)
        # Half a call that the client has seen cannot be taken back: the response ends as if it was cut.
        self._stop_reason = _stop_reason("length" if self._torn and told == "done" else told, calls)
        if passed.done:
            return b""
        if not passed.finished:
            last: Object = {**self._container, "stop_reason": self._stop_reason, "stop_sequence": None}
            # The input was counted at the beginning, which was sent already; there is no better number here.
            usage = {"output_tokens": passed.output_tokens} if passed.started else _encode_usage(Usage())
            usage = usage if self._usage is None else _encode_usage(self._usage)
            ending += _event({"type": "message_delta", "delta": last, "usage": usage})
        return ending + _event({"type": "message_stop"})

    def _begin_block(self, block: Object) -> bytes:
        self._content.append(block)
        self._index += 1
        return _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Object) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _end_block(self) -> bytes:
        """End the block that is open, if any."""
        if not self._open:
            return b""
        half, self._relayed.open = self._relayed.open, None
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": self.signature})
            self._content[-1]["signature"] = self.signature
        if half is None:
            self._content[-1][self._open] = "".join(self._texts)
        elif half.kind == "tool_use":
            self._relayed.calls[half.id] = half.input
            self._torn.add(half.id)
        self._texts.clear()
        self._open = ""
        self._before_text = b""
        return signed + self._stop_block()

    def _stop_block(self) -> bytes:
        return _event({"type": "content_block_stop", "index": self._index})


class MessagesProviderWriter(MessagesEncoder):
    """Signs its thinking, and writes the input of a call as it comes."""

    call_prefix = "toolu"

    def __init__(self, request: Request, id: str) -> None:
        super().__init__(request.model, id)
        self.signature = f"sig-{id}"
        self._fragments: list[str] = []
        self._id = id
        given = request.extra.get("container")
        self._in_container = as_text(as_dict(given).get("id") or given)
        self._served = 0
        """Calls of tools that the provider runs."""

    def open_call(self, id: str, name: str) -> bytes:
        call: Object = {"id": id} if id else {}
        before = self.begin() + self._end_block()
        return before + self._begin_block({"type": "tool_use", **call, "name": name, "input": {}})

    def grow_call(self, text: str) -> bytes:
        self._fragments.append(text)
        return self._delta({"type": "input_json_delta", "partial_json": text})

    def close_call(self, complete: bool) -> bytes:
        self._content[-1]["input"] = exact_object("".join(self._fragments)) or {}
        self._fragments.clear()
        return self._stop_block()

    def provider_call(self, call: ProviderCall) -> bytes:
        name = _PROVIDER_TOOLS.get(call.tool)
        if name is None:
            return super().provider_call(call)
        self._served += call.part != "result"
        if call.tool == "code_execution":
            expires = "2030-01-01T00:00:00Z"
            self._container = {
                "container": {"id": self._in_container or f"container_{self._id}", "expires_at": expires}
            }
        id = call.id or f"srvtoolu_{self._id}_{self._served}"
        written = self.begin() + self._end_block()
        if call.part != "result":
            kind = "mcp_tool_use" if call.tool == "mcp" else "server_tool_use"
            named: Object = {"name": call.name, "server_name": "mcp"} if call.tool == "mcp" else {"name": name}
            written += self._begin_block({"type": kind, "id": id, **named, "input": {}})
            self._content[-1] = {**self._content[-1], "input": dict(call.arguments)}
            written += self._delta({"type": "input_json_delta", "partial_json": dumps(dict(call.arguments)).decode()})
            written += self._stop_block()
        if call.part != "call":
            written += self._begin_block(_provider_result(call, name, id)) + self._stop_block()
        return written


_PROVIDER_TOOLS = {
    "web_search": "web_search",
    "web_fetch": "web_fetch",
    "code_execution": "bash_code_execution",
    "tool_search": "tool_search_tool_bm25",
    "mcp": "mcp",
}


def _provider_result(call: ProviderCall, name: str, id: str) -> Object:
    """The block with what came of a tool that the provider ran."""
    kind = "tool_search_tool_result" if call.tool == "tool_search" else f"{name}_tool_result"
    content: Json
    if call.tool == "mcp":
        content = [{"type": "text", "text": call.error or str(call.result)}]
        return {"type": kind, "tool_use_id": id, "is_error": bool(call.error), "content": content}
    if call.error:
        content = {"type": f"{kind}_error", "error_code": call.error}
    elif call.tool == "web_search":
        page = {"type": "web_search_result", "url": "https://example.org/", "title": str(call.result)}
        content = [{**page, "encrypted_content": f"encrypted-{id}", "page_age": None}]
    elif call.tool == "web_fetch":
        source: Object = {"type": "text", "media_type": "text/plain", "data": str(call.result)}
        document: Object = {"type": "document", "source": source, "title": None, "citations": None}
        url = str(call.arguments.get("url", "https://example.org/"))
        content = {"type": "web_fetch_result", "url": url, "content": document, "retrieved_at": None}
    elif call.tool == "tool_search":
        names = as_list(call.result) or [call.result]
        found = [{"type": "tool_reference", "tool_name": name} for name in names]
        content = {"type": "tool_search_tool_search_result", "tool_references": found}
    else:
        output: Object = {"stdout": str(call.result), "stderr": "", "return_code": 0, "content": []}
        content = {"type": "bash_code_execution_result", **output}
    return {"type": kind, "tool_use_id": id, "content": content}


def _event(event: Object) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + dumps(event) + b"\n\n"


def _stop_reason(meaning: Meaning, calls: bool) -> str:
    done = "tool_use" if calls else "end_turn"
    return {"length": "max_tokens", "refused": "refusal", "paused": "pause_turn"}.get(meaning, done)


def _encode_usage(usage: Usage) -> Object:
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        **({"server_tool_use": {"web_search_requests": usage.web_searches}} if usage.web_searches else {}),
    }
