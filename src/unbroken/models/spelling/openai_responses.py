"""A scripted answer as OpenAI's Responses tells it: `ResponsesSpelling`."""

from __future__ import annotations

from typing import Any

from unbroken.models.script import Uses
from unbroken.models.spelling.spelling import Item, Spelling, named
from unbroken.verdicts import Meaning
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import Object


class ResponsesSpelling(Spelling):
    def __init__(self, model: str, id: str) -> None:
        super().__init__(model, id)
        self._sequence = 0

    def begin(self) -> bytes:
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _opened(self, item: Item) -> bytes:
        events = self._event(
            "response.output_item.added", output_index=self._index(), item=self._output(item, "in_progress", False)
        )
        if item.kind == "text":
            events += self._part("response.content_part.added", part=_text_part(""))
        elif item.kind == "reasoning":
            events += self._part("response.reasoning_summary_part.added", part=_summary_part(""))
        return events

    def _grown(self, item: Item, text: str) -> bytes:
        match item.kind:
            case "text":
                return self._part("response.output_text.delta", delta=text, logprobs=[])
            case "reasoning":
                return self._part("response.reasoning_summary_text.delta", delta=text)
            case "call":
                return self._part("response.function_call_arguments.delta", delta=text)

    def _closed(self, item: Item) -> bytes:
        match item.kind:
            case "text":
                events = self._part("response.output_text.done", text=item.text, logprobs=[])
                events += self._part("response.content_part.done", part=_text_part(item.text))
            case "reasoning":
                events = self._part("response.reasoning_summary_text.done", text=item.text)
                events += self._part("response.reasoning_summary_part.done", part=_summary_part(item.text))
            case "call" if item.whole:
                events = self._part("response.function_call_arguments.done", arguments=item.text)
            case "call":
                events = b""
        done = self._output(item, "completed" if item.whole else "incomplete")
        return events + self._event("response.output_item.done", output_index=self._index(), item=done)

    def end(self, meaning: Meaning) -> bytes:
        status = self._status(meaning)
        return self._event(f"response.{status}", response=self._response(status, meaning))

    def body(self, meaning: Meaning) -> bytes:
        return dumps(self._response(self._status(meaning), meaning))

    def error(self, message: str) -> Object:
        return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}

    def error_event(self, message: str) -> bytes:
        response = {**self._response("failed"), "error": {"code": "server_error", "message": message}}
        return self._event("response.failed", response=response)

    def _status(self, meaning: Meaning) -> str:
        return "incomplete" if meaning in ("length", "refused") else "completed"

    def _output(self, item: Item, status: str = "completed", whole: bool = True) -> Object:
        text = item.text if whole else ""
        id = self._item_id(item)
        match item.kind:
            case "text":
                content = [_text_part(text)] if whole else []
                return {"id": id, "type": "message", "status": status, "role": "assistant", "content": content}
            case "reasoning":
                return {"id": id, "type": "reasoning", "summary": [_summary_part(text)] if whole else []}
            case "call":
                call: Object = {"call_id": item.id} if item.id else {}
                head: Object = {"id": id, "type": "function_call", "status": status}
                return {**head, **call, "name": item.name, "arguments": text}

    def _item_id(self, item: Item) -> str:
        number = next(n for n, other in enumerate(self.items) if other is item)
        return f"{ {'text': 'msg', 'reasoning': 'rs', 'call': 'fc'}[item.kind] }_{self.id}_{number}"

    def _index(self) -> int:
        return len(self.items) - 1

    def _part(self, type: str, **fields: Any) -> bytes:
        item = self.items[-1]
        place: Object = {"item_id": self._item_id(item), "output_index": self._index()}
        if item.kind != "call":
            place["content_index" if item.kind == "text" else "summary_index"] = 0
        return self._event(type, **place, **fields)

    def _response(self, status: str, meaning: Meaning = "done") -> Object:
        reason = "content_filter" if meaning == "refused" else "max_output_tokens"
        running = status == "in_progress"
        return {
            "id": self.id,
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": [] if running else [self._output(item, _item_status(item)) for item in self.items],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None if running or self.usage is None else self._usage(self.usage),
        }

    def _usage(self, uses: Uses) -> Object:
        return {
            "input_tokens": uses.input,
            "input_tokens_details": {"cached_tokens": uses.cached},
            "output_tokens": uses.output,
            "output_tokens_details": {"reasoning_tokens": uses.reasoning},
            "total_tokens": uses.input + uses.output,
        }

    def _event(self, type: str, **fields: Any) -> bytes:
        event: Object = {"type": type, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return named(event)


def _item_status(item: Item) -> str:
    return "completed" if item.whole else "incomplete"


def _text_part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary_part(text: str) -> Object:
    return {"type": "summary_text", "text": text}
