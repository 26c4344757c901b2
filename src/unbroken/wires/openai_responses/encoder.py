"""openai-responses, the corner that writes responses: events for a client of the Responses API, or one body.

Made from the deltas of any wire. Text and reasoning pass as they come, a call is written whole when it is ready: a
client never sees half of one. What a provider ran by itself, and what is encrypted, is not invented here.
"""

from __future__ import annotations

from unbroken.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken.messages import ToolCall, Usage
from unbroken.verdicts import Verdict
from unbroken.wires.jsontext import dumps
from unbroken.wires.openai_responses.outgoing import encode_call
from unbroken.wires.openai_responses.passed import ResponsesPassed
from unbroken.wires.openai_responses.writing import CALLS, KINDS, PartKind, Writing
from unbroken.wires.passed import same_input
from unbroken.wires.refusals import response_error, status_of
from unbroken.wires.values import Object, as_text

_TEXT, _SUMMARY = KINDS["output_text"], KINDS["summary_text"]
_PREFIXES = {"function_call": "fc", "custom_tool_call": "ctc"}
_BEFORE_TEXT = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":'
_AFTER_TEXT = b',"logprobs":[]}\n\n'


class ResponsesEncoder:
    """`include_usage` changes nothing: on this wire it is not a client's to choose."""

    def __init__(self, model: str = "", id: str = "resp_0", *, created: int = 0, include_usage: bool = True) -> None:
        self._model = model
        self._id = id
        self._created = created
        self._sequence = 0
        self._items = 0
        self._output: dict[int, Object] = {}
        """By their place, which the items that have not ended have too."""
        self._writing: Writing | None = None
        self._place = b""
        """Where the text stands that is being written, as it is said in each event about it; empty if none is."""
        self._passed = ResponsesPassed()
        self._torn = False
        """A call is another than the one that the client was passed under its id."""
        self._usage: Usage | None = None
        self._verdict: Verdict | None = None

    def follow(self, data: bytes) -> None:
        self._place = b""
        self._passed.add(data)

    def feed(self, delta: Delta) -> bytes:
        if self._place and isinstance(delta, TextDelta) and self._writing is not None:
            text, number = delta.text, self._sequence
            self._writing.texts.append(text)
            self._sequence = number + 1
            return b"%b%d%b%b%b" % (_BEFORE_TEXT, number, self._place, dumps(text), _AFTER_TEXT)
        events = self._go_on() if self._passed.catch_up() else b""
        if self._passed.done:
            return b""
        if not self._sequence:
            events += self._event("response.created", response=self._response("in_progress"))
            events += self._event("response.in_progress", response=self._response("in_progress"))
        match delta:
            case TextDelta(text):
                return events + self._say("message", text)
            case ReasoningDelta(text):
                return events + self._say("reasoning", text)
            case CallReady(call):
                return events + self._call(call)
            case UsageReported(usage):
                self._usage = usage
                return events
            case Ended(verdict):
                return events + self._end(verdict)
            case _:
                return events

    def body(self) -> bytes:
        self._end_item()
        return dumps(self._response(self._status()))

    def _go_on(self) -> bytes:
        passed = self._passed
        self._sequence = max(self._sequence, passed.sequence)
        self._items = max(self._items, passed.items)
        self._output |= passed.output
        self._writing = passed.speech or self._writing
        if passed.done:
            return b""
        # A call whose arguments have ended is one already, so nobody will tell of it again: only its end is missing.
        events = b""
        for item in [item for item in passed.open.values() if item.type in CALLS and item.ended]:
            stream, key = CALLS[item.type]
            events += self._arguments(item, stream, key, {key: item.text})
            passed.calls[as_text(item.value.get("call_id"))] = self._output[item.index]
            del passed.open[item.index]
        return events

    def _end(self, verdict: Verdict) -> bytes:
        self._verdict = verdict
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
        item = encode_call(call)
        if (done := self._passed.calls.get(call.id)) is not None:
            _, key = CALLS.get(item["type"], ("", ""))
            self._torn = self._torn or (bool(key) and not same_input(as_text(done.get(key)), item[key]))
            return b""
        half = self._passed.half(call.id)
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
        """Nothing more of a call that turns out to be another than the client was told of: it stays without an end."""
        stream, key = CALLS.get(half.type, ("", ""))
        if half.type != item["type"] or (key and not item[key].startswith(half.text)):
            return b""
        del self._passed.open[half.index]
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
        response: Object = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
            **self._passed.response,
        }
        response["status"] = status
        response["output"] = [item for _, item in sorted(self._output.items())]
        response["usage"] = None if self._usage is None or status == "in_progress" else _encode_usage(self._usage)
        if self._verdict is not None and status == "failed":
            kind = self._verdict.kind
            response["error"] = response_error(status_of(kind), self._verdict.reason, kind)
        if self._verdict is not None and status == "incomplete":
            reason = "content_filter" if self._verdict.told == "refused" else "max_output_tokens"
            response["incomplete_details"] = {"reason": reason}
        return response

    def _status(self) -> str:
        verdict = self._verdict
        if verdict is None:
            return "completed"
        if verdict.failed:
            return "failed"
        # Nothing takes back a call that the client has seen half of: it is told that the answer was cut.
        half = self._torn or any(item.value.get("call_id") for item in self._passed.open.values())
        return "incomplete" if half or verdict.told in ("length", "refused") else "completed"


def _encode_usage(usage: Usage) -> Object:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
