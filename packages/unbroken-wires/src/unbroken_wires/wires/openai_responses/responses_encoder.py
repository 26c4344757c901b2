"""openai-responses, writing responses: `ResponsesEncoder` for a client, `ResponsesProviderWriter` as a provider does.

Text and reasoning are written as they arrive. A call is written when it is complete, so a client never sees half of
one. Tools that a provider ran itself and encrypted content are not made up here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unbroken_wires.deltas import Delta, Meaning, TextDelta
from unbroken_wires.messages import Json, Request, ToolCall
from unbroken_wires.wires.history_losses import Citation
from unbroken_wires.wires.http_api import openai_error
from unbroken_wires.wires.json_access import NAMESPACE, Object, as_list, as_text, dicts
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.openai_responses.responses_messages import encode_call
from unbroken_wires.wires.openai_responses.responses_object import encode_usage, new_response
from unbroken_wires.wires.openai_responses.responses_relay import CALLS, KINDS, PartKind, RelayedResponse, Writing
from unbroken_wires.wires.openai_responses.responses_requests import encode_request
from unbroken_wires.wires.raw_history import same_input
from unbroken_wires.wires.wire import DeltaEncoder, ProviderCall

_TEXT, _SUMMARY = KINDS["output_text"], KINDS["summary_text"]
_PREFIXES = {"function_call": "fc", "custom_tool_call": "ctc"}
_BEFORE_TEXT = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":'
_AFTER_TEXT = b',"logprobs":[]}\n\n'


def error_body(status: int, message: str, kind: str = "") -> Object:
    """A body for a response with this status. For the kind "too_long" clients shorten their history."""
    return openai_error(status, message, kind, "input")


def error_event(status: int, message: str, kind: str = "") -> bytes:
    """The last event of a stream that has begun. An encoder that has written some of the stream, or has followed it,
    writes a better one: feed it `Ended`."""
    error = _response_error(status, message, kind)
    response: Object = {**new_response("", "", 0, {}), "status": "failed", "error": error}
    event = {"type": "response.failed", "sequence_number": 0, "response": response}  # Codex ignores the event `error`
    return b"event: response.failed\ndata: " + dumps(event) + b"\n\n"


def _response_error(status: int, message: str, kind: str) -> Object:
    """The error of a response that has failed. It has few codes, and clients know them all."""
    code = error_body(status, message, kind)["error"]["code"]
    return {"code": code if code in _RESPONSE_CODES else "server_error", "message": message}


_ENCRYPTED = "reasoning.encrypted_content"
_RESPONSE_CODES = ("context_length_exceeded", "rate_limit_exceeded", "server_is_overloaded")


class ResponsesEncoder(DeltaEncoder):
    """`include_usage` changes nothing: on this wire it is not a client's to choose."""

    def __init__(
        self,
        model: str = "",
        id: str = "resp_0",
        *,
        created: int = 0,
        include_usage: bool = True,
        request: Mapping[str, Json] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._model = model
        self._id = id
        self._created = created
        self._request = request or {}
        self._begun: Object = {}
        """The response as it began."""
        self._now = now
        self._sequence = 0
        self._items = 0
        self._output: dict[int, Object] = {}
        """By their place, which the items that have not ended have too."""
        self._writing: Writing | None = None
        self._place = b""
        """Where the text stands that is being written, as it is said in each event about it; empty if none is."""
        self._relayed = RelayedResponse()
        self._torn = False
        """A call is another than the one that the client was passed under its id."""
        self._told: Meaning = "done"
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._place = b""
        self._relayed.add(data)

    def feed(self, delta: Delta) -> bytes:
        if self._place and isinstance(delta, TextDelta) and self._writing is not None:
            text, number = delta.text, self._sequence
            self._writing.texts.append(text)
            self._sequence = number + 1
            return b"%b%d%b%b%b" % (_BEFORE_TEXT, number, self._place, dumps(text), _AFTER_TEXT)
        events = self._go_on() if self._relayed.catch_up() else b""
        if self._relayed.done:
            return b""
        events += self.begin()
        return events + self.write(delta)

    def _text(self, text: str) -> bytes:
        return self._say("message", text)

    def _reasoning(self, text: str) -> bytes:
        return self._say("reasoning", text)

    def cite(self, citations: Sequence[Citation]) -> bytes | None:
        """Only while the text is open: once a call follows, nothing can be added to it."""
        item = self._writing
        if item is None or item.kind is not _TEXT or item.ended:
            return None
        annotations = [
            {"type": "url_citation", "url": one.url, "title": one.title, "start_index": one.start, "end_index": one.end}
            for one in citations
        ]
        item.part = {**item.part, "annotations": annotations}
        return b"".join(
            self._about(item, "annotation.added", annotation_index=at, annotation=one)
            for at, one in enumerate(annotations)
        )

    def body(self) -> bytes:
        self._end_item()
        return dumps(self._response(self._status()))

    def keep_alive(self, relays: bool) -> bytes:
        """The event that says the response is in progress. Codex does not count comments as life."""
        if not relays:
            return self.begin() or self._event("response.in_progress", response=self._response("in_progress"))
        self._relayed.read_up()
        if not self._relayed.response:
            return super().keep_alive(relays)
        number = max(0, self._relayed.sequence - 1)  # not a new one: the next belongs to the other server
        response = {**self._relayed.response, "status": "in_progress"}
        event = {"type": "response.in_progress", "sequence_number": number, "response": response}
        return b"event: response.in_progress\ndata: " + dumps(event) + b"\n\n"

    def begin(self) -> bytes:
        if self._sequence:
            return b""
        created = self._event("response.created", response=self._response("in_progress"))
        return created + self._event("response.in_progress", response=self._response("in_progress"))

    def _go_on(self) -> bytes:
        passed = self._relayed
        self._sequence = max(self._sequence, passed.sequence)
        self._items = max(self._items, passed.items)
        self._output |= passed.output
        self._writing = passed.speech or self._writing
        if passed.done:
            return b""
        # A call whose arguments have ended was reported already and will not come again: only its end is missing.
        events = b""
        for item in [item for item in passed.open.values() if item.type in CALLS and item.ended]:
            stream, key = CALLS[item.type]
            events += self._arguments(item, stream, key, {key: item.text})
            passed.calls[as_text(item.value.get("call_id"))] = self._output[item.index]
            del passed.open[item.index]
        return events

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        self._error = _response_error(status, message, kind)
        return self.end("done")

    def end(self, told: Meaning) -> bytes:
        self._told = told
        status = self._status()
        events = self._end_item("completed" if status == "completed" else "incomplete")
        return events + self._event(f"response.{status}", response=self._response(status))

    # Text and reasoning: one item, and one part in it, are open until something else is said

    def _say(self, type: str, text: str) -> bytes:
        events = b""
        item = self._writing
        if item is None or item.type != type:
            events = self._end_item()
            item, begun = self._begin_item(type)
            events += begun
        if item.kind is None or item.kind.type == "refusal" or item.ended:
            events += self._end_part(item) + self._begin_part(item, _TEXT if type == "message" else _SUMMARY)
        item.texts.append(text)
        if type != "message":
            return events + self._about(item, "delta", delta=text)
        self._place = b',"item_id":%b,"output_index":%d,"content_index":%d,"delta":' % (
            dumps(item.value.get("id")),
            item.index,
            item.number,
        )
        return events + self._about(item, "delta", delta=text, logprobs=[])

    def _begin_item(self, type: str) -> tuple[Writing, bytes]:
        index = self._next_index()
        value: Object = {"id": self._item_id("rs", index), "type": type}
        if type == "message":
            value = {"id": self._item_id("msg", index), "type": type, "status": "in_progress", "role": "assistant"}
        self._writing = item = Writing(index, value)
        place = "content" if type == "message" else "summary"
        return item, self._item("added", index, {**value, place: []})

    def _begin_part(self, item: Writing, kind: PartKind) -> bytes:
        more: Object = {"annotations": [], "logprobs": []} if kind is _TEXT else {}
        item.begin(kind, {"type": kind.type, kind.field: "", **more})
        return self._framed(item, kind, "added", item.part)

    def _end_part(self, item: Writing) -> bytes:
        kind = item.kind
        if kind is None:
            return b""
        events, text = b"", item.text
        if not item.ended:
            more: Object = {"logprobs": []} if kind is _TEXT else {}
            events = self._about(item, "done", **{kind.field: text}, **more)
        part = {**item.part, kind.field: text}
        events += self._framed(item, kind, "done", part)
        item.finish(part)
        return events

    def _end_item(self, status: str = "completed") -> bytes:
        item, self._writing, self._place = self._writing, None, b""
        if item is None:
            return b""
        return self._end_part(item) + self._done(item.index, item.done(status))

    def _about(self, item: Writing, moment: str, **fields: object) -> bytes:
        kind = item.kind or _TEXT
        place = {"item_id": item.value.get("id"), "output_index": item.index, kind.numbering: item.number}
        return self._event(f"response.{kind.stream}.{moment}", **place, **fields)

    def _framed(self, item: Writing, kind: PartKind, moment: str, part: Object) -> bytes:
        place = {"item_id": item.value.get("id"), "output_index": item.index, kind.numbering: item.number}
        return self._event(f"response.{kind.frame}.{moment}", **place, part=part)

    # Calls

    def _call(self, call: ToolCall) -> bytes:
        item = encode_call(call, None)
        if (done := self._relayed.calls.get(call.id)) is not None:
            _, key = CALLS.get(item["type"], ("", ""))
            self._torn = self._torn or (bool(key) and not same_input(as_text(done.get(key)), item[key]))
            return b""
        half = self._relayed.half(call.id)
        if half is not None:
            return self._end_item() + self._rest_of(half, item)
        events, index = self._end_item(), self._next_index()
        value: Object = {"id": self._item_id(_PREFIXES.get(item["type"], "call"), index), **item}
        stream, key = CALLS.get(item["type"], ("", ""))
        begun: Object = {**value, "status": "in_progress"}
        if key:
            begun[key] = ""
        events += self._item("added", index, begun)
        return events + self._arguments(Writing(index, value), stream, key, item)

    def _rest_of(self, half: Writing, item: Object) -> bytes:
        """Nothing, if the call turns out to differ from what the client has: it stays without an end."""
        stream, key = CALLS.get(half.type, ("", ""))
        if half.type != item["type"] or (key and not item[key].startswith(half.text)):
            return b""
        del self._relayed.open[half.index]
        return self._arguments(half, stream, key, item)

    def _arguments(self, begun: Writing, stream: str, key: str, item: Object) -> bytes:
        events = b""
        if key:
            place: Object = {"item_id": begun.value.get("id"), "output_index": begun.index}
            rest = item[key][len(begun.text) :]
            if rest or not begun.texts:
                events += self._event(f"response.{stream}.delta", **place, delta=rest)
            if not begun.ended:
                events += self._event(f"response.{stream}.done", **place, **{key: item[key]})
        return events + self._done(begun.index, {**begun.value, **item, "status": "completed"})

    # Events

    def _next_index(self) -> int:
        self._items += 1
        return self._items - 1

    def _item_id(self, prefix: str, index: int) -> str:
        return f"{prefix}_{self._id.removeprefix('resp_')}_{index}"

    def _item(self, moment: str, index: int, item: Object) -> bytes:
        return self._event(f"response.output_item.{moment}", output_index=index, item=item)

    def _done(self, index: int, item: Object) -> bytes:
        self._output[index] = item
        return self._item("done", index, item)

    def _event(self, type: str, **fields: object) -> bytes:
        event = {"type": type, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + type.encode() + b"\ndata: " + dumps(event) + b"\n\n"

    def _response(self, status: str) -> Object:
        self._begun = self._begun or new_response(self._id, self._model, self._created, self._request)
        response: Object = {**self._begun, **self._relayed.response}
        response["status"] = status
        response["output"] = [item for _, item in sorted(self._output.items())]
        response["usage"] = None if self._usage is None or status == "in_progress" else encode_usage(self._usage)
        if status == "completed":
            response["completed_at"] = self._created if self._now is None else int(self._now())
        if status == "failed":
            response["error"] = self._error
        if status == "incomplete":
            reason = "content_filter" if self._told == "refused" else "max_output_tokens"
            response["incomplete_details"] = {"reason": reason}
        return response

    def _status(self) -> str:
        if self._error is not None:
            return "failed"
        # Nothing takes back a call that the client has seen half of: the response ends as one that was cut.
        half = self._torn or any(item.value.get("call_id") for item in self._relayed.open.values())
        return "incomplete" if half or self._told in ("length", "refused") else "completed"


class ResponsesProviderWriter(ResponsesEncoder):
    """Writes the arguments of a call as they come, and ends a cut call as incomplete. Reasoning is also encrypted
    if the request asks for that. A tool of a namespace is called as `namespace__name`."""

    call_prefix = "call"

    def __init__(self, request: Request, id: str) -> None:
        super().__init__(request.model, id)
        body = encode_request(request)
        self._encrypts = _ENCRYPTED in as_list(body.get("include"))
        self._tools = dicts(body.get("tools"))
        self._names = {tool.name.replace(NAMESPACE, "__"): tool.name for tool in request.tools}
        self._open_call = Writing(0, {})

    def _done(self, index: int, item: Object) -> bytes:
        if self._encrypts and item["type"] == "reasoning":
            item = {**item, "encrypted_content": f"encrypted-{item['id']}"}
        return super()._done(index, item)

    def open_call(self, id: str, name: str) -> bytes:
        events, index = self._end_item(), self._next_index()
        call: Object = {"call_id": id} if id else {}
        namespace, _, bare = self._names.get(name, name).rpartition(NAMESPACE)
        named = {"namespace": namespace, "name": bare} if namespace else {"name": name}
        value: Object = {"id": self._item_id("fc", index), "type": "function_call", **call, **named}
        self._open_call = Writing(index, value)
        return events + self._item("added", index, {**value, "status": "in_progress", "arguments": ""})

    def grow_call(self, text: str) -> bytes:
        self._open_call.texts.append(text)
        return self._event("response.function_call_arguments.delta", **self._place_of_call(), delta=text)

    def close_call(self, complete: bool) -> bytes:
        call, arguments, events = self._open_call, self._open_call.text, b""
        if complete:
            events = self._event("response.function_call_arguments.done", **self._place_of_call(), arguments=arguments)
        status = "completed" if complete else "incomplete"
        return events + self._done(call.index, {**call.value, "status": status, "arguments": arguments})

    def provider_call(self, call: ProviderCall) -> bytes:
        made = _PROVIDER_TOOLS.get(call.tool)
        if made is None or call.part != "both":
            return super().provider_call(call)
        type, prefix = made
        events, index = self.begin() + self._end_item(), self._next_index()
        item: Object = {"id": call.id or self._item_id(prefix, index), "type": type}
        events += self._item("added", index, {**item, "status": "in_progress"})
        done: Object = {**item, "status": "failed" if call.error else "completed", **_provider_fields(call)}
        events += self._done(index, done)
        if call.tool == "tool_search":
            named = as_list(call.result) or [call.result]
            tools = [tool for tool in self._tools if tool.get("name") in named]
            index = self._next_index()
            found: Object = {"id": self._item_id("tso", index), "type": "tool_search_output", "call_id": None}
            found |= {"execution": "server", "status": "completed", "tools": tools}
            events += self._item("added", index, found) + self._done(index, found)
        return events

    def _place_of_call(self) -> Object:
        return {"item_id": self._open_call.value["id"], "output_index": self._open_call.index}


_PROVIDER_TOOLS = {
    "web_search": ("web_search_call", "ws"),
    "file_search": ("file_search_call", "fs"),
    "code_execution": ("code_interpreter_call", "ci"),
    "image_generation": ("image_generation_call", "ig"),
    "mcp": ("mcp_call", "mcp"),
    "tool_search": ("tool_search_call", "tsc"),
}


def _provider_fields(call: ProviderCall) -> Object:
    """What the item of a tool that the provider ran has beside its id, type and status."""
    arguments = dict(call.arguments)
    match call.tool:
        case "web_search":
            return {"action": {"type": "search", **arguments}}
        case "file_search":
            return {"queries": list(arguments.values()), "results": None}
        case "code_execution":
            outputs = [{"type": "logs", "logs": str(call.result)}]
            return {"code": arguments.get("code"), "container_id": "cntr_scripted", "outputs": outputs}
        case "image_generation":
            return {"result": call.result}
        case "tool_search":
            return {"arguments": arguments, "call_id": None, "execution": "server"}
        case _:
            error = {"type": "mcp_tool_execution_error", "content": call.error} if call.error else None
            text = dumps(arguments).decode()
            output = None if call.error else str(call.result)
            return {"name": call.name, "server_label": "mcp", "arguments": text, "output": output, "error": error}
