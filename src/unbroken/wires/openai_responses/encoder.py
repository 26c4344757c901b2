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
from unbroken.wires.values import Object


class ResponsesEncoder:
    def __init__(self, model: str = "", id: str = "resp_0", created: int = 0) -> None:
        self._model = model
        self._id = id
        self._created = created
        self._sequence = 0
        self._output: list[Object] = []
        self._writing: Object | None = None
        self._text: list[str] = []
        self._usage: Usage | None = None
        self._verdict: Verdict | None = None

    def feed(self, delta: Delta) -> bytes:
        events = b""
        if not self._sequence:
            events += self._event("response.created", response=self._response("in_progress"))
            events += self._event("response.in_progress", response=self._response("in_progress"))
        match delta:
            case TextDelta(text):
                return events + self._say("message", text)
            case ReasoningDelta(text):
                return events + self._say("reasoning", text)
            case CallReady(call):
                return events + self._end_text() + self._call(call)
            case UsageReported(usage):
                self._usage = usage
                return events
            case Ended(verdict):
                self._verdict = verdict
                status = _status(verdict)
                events += self._end_text("completed" if status == "completed" else "incomplete")
                return events + self._event(f"response.{status}", response=self._response(status))
            case _:
                return events

    def body(self) -> bytes:
        self._end_text()
        return dumps(self._response(_status(self._verdict)))

    # Text and reasoning: one item with one part, open until something else is said

    def _say(self, type: str, text: str) -> bytes:
        events = b""
        if self._writing is None or self._writing["type"] != type:
            events = self._end_text() + self._begin_text(type)
        self._text.append(text)
        if type == "message":
            return events + self._part("response.output_text.delta", delta=text, logprobs=[])
        return events + self._part("response.reasoning_summary_text.delta", delta=text)

    def _begin_text(self, type: str) -> bytes:
        self._text = []
        if type == "message":
            self._writing = {"id": self._item_id("msg"), "type": type, "status": "in_progress", "role": "assistant"}
            parts, event = "content", "response.content_part.added"
        else:
            self._writing = {"id": self._item_id("rs"), "type": type}
            parts, event = "summary", "response.reasoning_summary_part.added"
        return self._item("added", {**self._writing, parts: []}) + self._part(event, part=self._whole_part(""))

    def _end_text(self, status: str = "completed") -> bytes:
        item = self._writing
        if item is None:
            return b""
        text = "".join(self._text)
        part = self._whole_part(text)
        if item["type"] == "message":
            events = self._part("response.output_text.done", text=text, logprobs=[])
            events += self._part("response.content_part.done", part=part)
            done = {**item, "status": status, "content": [part]}
        else:
            events = self._part("response.reasoning_summary_text.done", text=text)
            events += self._part("response.reasoning_summary_part.done", part=part)
            done = {**item, "summary": [part]}
        events += self._item("done", done)
        self._writing = None
        self._output.append(done)
        return events

    def _whole_part(self, text: str) -> Object:
        if self._writing is not None and self._writing["type"] == "message":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "summary_text", "text": text}

    def _part(self, type: str, **fields: object) -> bytes:
        item = self._writing or {}
        index = "content_index" if item["type"] == "message" else "summary_index"
        return self._event(type, item_id=item["id"], output_index=len(self._output), **{index: 0}, **fields)

    # Calls

    def _call(self, call: ToolCall) -> bytes:
        item = encode_call(call)
        prefix, key, name = {
            "function_call": ("fc", "arguments", "function_call_arguments"),
            "custom_tool_call": ("ctc", "input", "custom_tool_call_input"),
        }.get(item["type"], ("call", "", ""))
        done: Object = {"id": self._item_id(prefix), **item, "status": "completed"}
        begun: Object = {**done, "status": "in_progress"}
        if key:
            begun[key] = ""
        events = self._item("added", begun)
        if key:
            place: Object = {"item_id": done["id"], "output_index": len(self._output)}
            events += self._event(f"response.{name}.delta", **place, delta=done[key])
            events += self._event(f"response.{name}.done", **place, **{key: done[key]})
        events += self._item("done", done)
        self._output.append(done)
        return events

    # Events

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._id.removeprefix('resp_')}_{len(self._output)}"

    def _item(self, moment: str, item: Object) -> bytes:
        return self._event(f"response.output_item.{moment}", output_index=len(self._output), item=item)

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
            "output": list(self._output),
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None if self._usage is None or status == "in_progress" else _encode_usage(self._usage),
        }
        if self._verdict is not None and status == "failed":
            response["error"] = {"code": "server_error", "message": self._verdict.reason}
        if self._verdict is not None and status == "incomplete":
            reason = "content_filter" if self._verdict.told == "refused" else "max_output_tokens"
            response["incomplete_details"] = {"reason": reason}
        return response


def _status(verdict: Verdict | None) -> str:
    if verdict is None:
        return "completed"
    if verdict.failed:
        return "failed"
    return "incomplete" if verdict.told in ("length", "refused") else "completed"


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
