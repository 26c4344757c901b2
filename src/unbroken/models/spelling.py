"""How a scripted answer is spelled on each wire: the events that a provider of that wire streams, piece by piece, and
the same as one body.

Not the response encoders of `wires`: those write for a client of ours and give it each call whole; a provider writes
its calls in pieces, and may stop in the middle of one. What is written here is read by the same decoders as a
provider's own bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from unbroken.messages import Json
from unbroken.models.script import Uses
from unbroken.verdicts import Meaning
from unbroken.wires import find_wire
from unbroken.wires.jsontext import dumps

Object: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["text", "reasoning", "call"]


@dataclass(slots=True, eq=False)
class Item:
    """One stretch of an answer: text, reasoning or a call. `id` empty: none is sent."""

    kind: Kind
    id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list[str])
    whole: bool = True

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def arguments(self) -> Object | None:
        """A call's arguments as an object, None where they are not whole."""
        try:
            value: Json = json.loads(self.text)
        except ValueError:
            return None
        return cast("Object", value) if isinstance(value, dict) else None


class Spelling:
    """One answer on one wire. Items follow each other: `open`, `grow` as often as there are pieces, `close`."""

    def __init__(self, model: str, id: str) -> None:
        self.model = model
        self.id = id
        self.items: list[Item] = []
        self.usage: Uses | None = None

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.items if item.kind == "call"]

    def begin(self) -> bytes:
        """What comes before the first item."""
        return b""

    def open(self, item: Item) -> bytes:
        self.items.append(item)
        return self._opened(item)

    def grow(self, text: str) -> bytes:
        self.items[-1].texts.append(text)
        return self._grown(self.items[-1], text)

    def close(self) -> bytes:
        return self._closed(self.items[-1])

    def end(self, meaning: Meaning) -> bytes:
        raise NotImplementedError

    def body(self, meaning: Meaning) -> bytes:
        raise NotImplementedError

    def error(self, message: str) -> Object:
        raise NotImplementedError

    def error_event(self, message: str) -> bytes:
        return _data(self.error(message))

    def _opened(self, item: Item) -> bytes:
        return b""

    def _grown(self, item: Item, text: str) -> bytes:
        return b""

    def _closed(self, item: Item) -> bytes:
        return b""

    def _joined(self, kind: Kind) -> str:
        return "".join(item.text for item in self.items if item.kind == kind)


class ChatSpelling(Spelling):
    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def _opened(self, item: Item) -> bytes:
        return (
            self._chunk({"tool_calls": [{"index": len(self.calls) - 1, **self._call(item, "")}]})
            if item.kind == "call"
            else b""
        )

    def _grown(self, item: Item, text: str) -> bytes:
        if item.kind == "call":
            index = len(self.calls) - 1
            return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        return self._chunk({"content" if item.kind == "text" else "reasoning_content": text})

    def end(self, meaning: Meaning) -> bytes:
        events = self._chunk({}, self._finish(meaning))
        if self.usage is not None:
            events += self._event({"choices": [], "usage": self._usage(self.usage)})
        return events + b"data: [DONE]\n\n"

    def body(self, meaning: Meaning) -> bytes:
        message: Object = {"role": "assistant", "content": self._joined("text") or None}
        if reasoning := self._joined("reasoning"):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [self._call(item, item.text) for item in self.calls]
        body: Object = {"id": self.id, "object": "chat.completion", "created": 0, "model": self.model}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": self._finish(meaning)}]
        if self.usage is not None:
            body["usage"] = self._usage(self.usage)
        return dumps(body)

    def error(self, message: str) -> Object:
        return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}

    def _call(self, item: Item, arguments: str) -> Object:
        call: Object = {"id": item.id} if item.id else {}
        return {**call, "type": "function", "function": {"name": item.name, "arguments": arguments}}

    def _finish(self, meaning: Meaning) -> str:
        done = "tool_calls" if self.calls else "stop"
        return {"length": "length", "refused": "content_filter"}.get(meaning, done)

    def _usage(self, uses: Uses) -> Object:
        return {
            "prompt_tokens": uses.input,
            "completion_tokens": uses.output,
            "total_tokens": uses.input + uses.output,
            "prompt_tokens_details": {"cached_tokens": uses.cached},
            "completion_tokens_details": {"reasoning_tokens": uses.reasoning},
        }

    def _chunk(self, delta: Object, finish: str | None = None) -> bytes:
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, event: Object) -> bytes:
        head: Object = {"id": self.id, "object": "chat.completion.chunk", "created": 0, "model": self.model}
        return _data({**head, **event})


class MessagesSpelling(Spelling):
    """Anthropic's. A block of thinking ends with its signature, which the client has to give back."""

    def begin(self) -> bytes:
        message: Object = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        return _named({"type": "message_start", "message": {**message, "usage": self._usage(0)}})

    def _opened(self, item: Item) -> bytes:
        return self._block("content_block_start", content_block=self._content(item, whole=False))

    def _grown(self, item: Item, text: str) -> bytes:
        field = {"text": "text", "reasoning": "thinking", "call": "partial_json"}[item.kind]
        type = {"text": "text_delta", "reasoning": "thinking_delta", "call": "input_json_delta"}[item.kind]
        return self._block("content_block_delta", delta={"type": type, field: text})

    def _closed(self, item: Item) -> bytes:
        events = b""
        if item.kind == "reasoning":
            signature = self._content(item)["signature"]
            events = self._block("content_block_delta", delta={"type": "signature_delta", "signature": signature})
        return events + self._block("content_block_stop")

    def end(self, meaning: Meaning) -> bytes:
        delta: Object = {"stop_reason": self._stop(meaning), "stop_sequence": None}
        output = self.usage.output if self.usage else 0
        return _named({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}) + _named(
            {"type": "message_stop"}
        )

    def body(self, meaning: Meaning) -> bytes:
        body: Object = {**self._head(), "content": [self._content(item) for item in self.items]}
        body |= {"stop_reason": self._stop(meaning), "stop_sequence": None}
        return dumps({**body, "usage": self._usage(self.usage.output if self.usage else 0)})

    def error(self, message: str) -> Object:
        return {"type": "error", "error": {"type": "api_error", "message": message}}

    def error_event(self, message: str) -> bytes:
        return _named(self.error(message))

    def _head(self) -> Object:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _content(self, item: Item, whole: bool = True) -> Object:
        text = item.text if whole else ""
        if item.kind == "text":
            return {"type": "text", "text": text}
        if item.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": f"sig-{self.id}" if whole else ""}
        id: Object = {"id": item.id} if item.id else {}
        return {"type": "tool_use", **id, "name": item.name, "input": (item.arguments() or {}) if whole else {}}

    def _stop(self, meaning: Meaning) -> str:
        done = "tool_use" if self.calls else "end_turn"
        return {"length": "max_tokens", "refused": "refusal", "paused": "pause_turn"}.get(meaning, done)

    def _usage(self, output: int) -> Object:
        uses = self.usage or Uses(0, 0)
        return {
            "input_tokens": uses.input - uses.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": uses.cached,
            "output_tokens": output,
        }

    def _block(self, type: str, **fields: Any) -> bytes:
        return _named({"type": type, "index": len(self.items) - 1, **fields})


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
        return _named(event)


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
        return _data(self._response([{"text": ""}], self._finish(meaning)))

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
        return _data(self._response(parts)) if parts else b""

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


SPELLINGS: dict[str, Callable[[str, str], Spelling]] = {
    "openai-chat": ChatSpelling,
    "openai-responses": ResponsesSpelling,
    "anthropic-messages": MessagesSpelling,
    "gemini": GeminiSpelling,
}


def find_spelling(wire: str, model: str, id: str) -> Spelling:
    return SPELLINGS[find_wire(wire).name](model, id)


def _item_status(item: Item) -> str:
    return "completed" if item.whole else "incomplete"


def _text_part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary_part(text: str) -> Object:
    return {"type": "summary_text", "text": text}


def _data(event: Object) -> bytes:
    return b"data: " + dumps(event) + b"\n\n"


def _named(event: Object) -> bytes:
    return b"event: " + event["type"].encode() + b"\n" + _data(event)
