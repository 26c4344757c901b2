"""bedrock-converse, reading responses, streamed or as one body.

An event is an object with one field, its type: that is how the binary frames are read (`event_stream`), and what
clients of Amazon keep of them. A text begins with its first delta, without an event for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from unbroken_wires.deltas import Meaning
from unbroken_wires.messages import Json, ServerCall, Usage
from unbroken_wires.wires.bedrock.converse_content import blocks_of
from unbroken_wires.wires.bedrock.converse_requests import is_call, plain, text_of
from unbroken_wires.wires.content_parts import call_from_text
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_list, as_text, dicts
from unbroken_wires.wires.jsontext import dump_arguments, exact
from unbroken_wires.wires.wire import Receiver

_MEANINGS: dict[str, Meaning] = {
    "end_turn": "done",
    "tool_use": "done",
    "stop_sequence": "done",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "refused",
    "content_filtered": "refused",
}
_FAILURES = ("malformed_tool_use", "malformed_model_output")
"""The model wrote something that could not be read, so there is no answer to continue with."""

_TOOLS = {"nova_grounding": "web_search", "nova_code_interpreter": "code_execution"}
"""What the tools do that Amazon runs, by their names."""

MARKS = (b"messageStart", b"contentBlockDelta", b"contentBlockStart", b'"stopReason"')
"""One of these is near the beginning of every stream; in a body, somewhere in it."""

_EVENTS = frozenset(("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop"))


def recognises(event: Object) -> bool:
    """Is it an event or a body of this wire?"""
    if not _EVENTS.isdisjoint(event):
        return True
    return isinstance(event.get("output"), dict) and isinstance(event.get("stopReason"), str)


class _Block:
    """One block while it arrives: `value` is what its only field will hold, joined once at the end."""

    __slots__ = ("ended", "field", "key", "pieces", "signature", "value")

    def __init__(self, key: int, field: str, value: Object) -> None:
        self.key = key
        self.field = field
        self.value = value
        self.pieces: list[str] = []
        self.signature = ""
        self.ended = False

    @property
    def is_call(self) -> bool:
        return self.field == "toolUse" and is_call({"toolUse": self.value})

    def whole(self) -> Object:
        """The block in its request form."""
        self.pieces = ["".join(self.pieces)]
        match self.field:
            case "text":
                return {"text": self.pieces[0]}
            case "reasoningContent" if not self.value:
                text: Object = {"text": self.pieces[0]}
                return {
                    self.field: {"reasoningText": {**text, "signature": self.signature} if self.signature else text}
                }
            case "toolUse" if self.pieces[0]:
                return {self.field: {**self.value, "input": self.parsed() or {}}}
            case "toolUse":
                return {self.field: {"input": {}, **self.value}}
            case _:
                return {self.field: self.value}

    def parsed(self) -> Object | None:
        self.pieces = ["".join(self.pieces)]
        return call_from_text("", "", self.pieces[0], 0).arguments


class ConverseDecoder:
    """Streamed events by their type, and non-streaming bodies."""

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._blocks: list[_Block] = []
        self._body_blocks: list[Object] | None = None
        self._at: dict[Json, _Block] = {}
        """The block that was last begun at each index."""
        self._searches = 0
        self._charged = 0
        """Searches, and other calls that the provider charges for."""

    def feed(self, event: Object, data: bytes) -> None:
        if "contentBlockDelta" in event:
            self.recognised = True
            inner = event["contentBlockDelta"]
            self._delta(inner.get("contentBlockIndex"), inner["delta"])
        elif "contentBlockStart" in event:
            self.recognised = True
            inner = as_dict(event["contentBlockStart"])
            self._start(inner.get("contentBlockIndex"), as_dict(inner.get("start")))
        elif "contentBlockStop" in event:
            self.recognised = True
            block = self._at.get(as_dict(event["contentBlockStop"]).get("contentBlockIndex"))
            if block is not None:
                self._stop(block)
        else:
            self._rare(event, data)

    def native(self) -> Json:
        if self._body_blocks is not None:
            blocks = self._body_blocks
        else:
            # Reasoning that never ended has no signature, a server's call that never ended no input.
            done = [block for block in self._blocks if block.ended or block.field == "text" or block.is_call]
            blocks = [block.whole() for block in done]
        return None if plain(blocks) else blocks

    def kept(self) -> object:
        return self._body_blocks or [(block.value, block.pieces, block.signature) for block in self._blocks]

    def _rare(self, event: Object, data: bytes) -> None:
        """What comes once in a response: its beginning and end, usage, a body, an error."""
        if "messageStart" in event:
            self.recognised = True
        elif "messageStop" in event:
            self.recognised = True
            self._finish(as_dict(event["messageStop"]).get("stopReason"))
        elif "metadata" in event:
            self.recognised = True
            self._usage(as_dict(event["metadata"]).get("usage"))
        elif isinstance(event.get("output"), dict):
            self.recognised = True
            self._body(exact(event, data, event["output"]))
        else:
            self._error(event)

    def _error(self, event: Object) -> None:
        name = next((name for name in event if name.endswith("Exception")), "")
        if name:
            self.recognised = True
            self._to.error({"type": name, **as_dict(event[name])})
        elif error := event.get("error"):
            self.recognised = True
            self._to.error(error)
        elif isinstance(event.get("message") or event.get("Message"), str):
            self.recognised = True
            self._to.error(event)

    def _begin(self, index: Json, field: str, value: Object) -> _Block:
        block = _Block(len(self._blocks), field, value)
        self._blocks.append(block)
        self._at[index] = block
        return block

    def _start(self, index: Json, start: Object) -> None:
        for field in ("toolUse", "toolResult", "image"):
            if isinstance(start.get(field), dict):
                block = self._begin(index, field, dict(as_dict(start[field])))
                if block.is_call:
                    self._to.open(block.key, as_text(block.value.get("toolUseId")), as_text(block.value.get("name")))
                elif field == "image":
                    self._to.other()
                return

    def _delta(self, index: Json, delta: Object) -> None:
        block = self._at.get(index)
        if "text" in delta:
            text = delta["text"]
            if block is None or block.field != "text" or block.ended:
                block = self._begin(index, "text", {})
            if isinstance(text, str) and text:
                block.pieces.append(text)
                self._to.text(text)
        elif "toolUse" in delta:
            self._grow_call(block, as_dict(delta["toolUse"]).get("input"))
        elif "reasoningContent" in delta:
            self._reason(index, block, as_dict(delta["reasoningContent"]))
        elif "toolResult" in delta and block is not None and block.field == "toolResult":
            block.value["content"] = [*as_list(block.value.get("content")), *as_list(delta["toolResult"])]
        # A citation belongs to a text that can go back without it.

    def _grow_call(self, block: _Block | None, input: Json) -> None:
        if block is None or block.field != "toolUse":
            raise ValueError("a piece of a call's input belongs to no call")
        if isinstance(input, str):
            if input:
                block.pieces.append(input)
                if block.is_call:
                    self._to.arguments(block.key, input)
        elif input is not None:
            block.value["input"] = input

    def _reason(self, index: Json, block: _Block | None, reasoning: Object) -> None:
        if block is None or block.field != "reasoningContent" or block.ended:
            block = self._begin(index, "reasoningContent", {})
        text, hidden = reasoning.get("text"), reasoning.get("redactedContent")
        if text and isinstance(text, str):
            block.pieces.append(text)
            self._to.reasoning(text)
        block.signature += as_text(reasoning.get("signature"))
        if hidden and isinstance(hidden, str):
            block.value["redactedContent"] = as_text(block.value.get("redactedContent")) + hidden

    def _stop(self, block: _Block) -> None:
        if block.ended:
            return
        block.ended = True
        if block.is_call:
            self._close(block.key, None if block.pieces else block.value.get("input") or None)
        elif block.field == "toolUse":
            arguments = block.parsed() if block.pieces else block.value.get("input")
            self._server_call(block.value, arguments, block.whole())
        elif block.field == "toolResult":
            self._server_result(block.value)

    def _close(self, key: int, input: Json) -> None:
        if input is not None and not isinstance(input, dict | str):
            input = dump_arguments(input) or "?"  # not an object: reported as it is, to be refused
        self._to.close(key, cast("Object | str | None", input))

    def _server_call(self, use: Object, arguments: Json, item: Object) -> None:
        name = as_text(use.get("name"))
        call = ServerCall(
            type=as_text(use.get("type")),
            id=as_text(use.get("toolUseId")) or None,
            name=name or None,
            arguments=cast("Object", arguments) if isinstance(arguments, dict) else None,
            tool=_TOOLS.get(name, ""),
        )
        self._to.server_call_opened(call)
        self._to.server_call(replace(call, item=item))
        self._searches += call.tool == "web_search"
        self._charged += call.tool == "code_execution"

    def _server_result(self, result: Object) -> None:
        error = "failed" if result.get("status") == "error" else ""
        id = as_text(result.get("toolUseId")) or None
        self._to.server_call_ended(ServerCall(as_text(result.get("type")), id), error)

    def _body(self, body: Object) -> None:
        self._body_blocks = blocks_of(as_dict(as_dict(body["output"]).get("message")).get("content"))
        reason = body.get("stopReason")
        calls = [block for block in self._body_blocks if is_call(block)]
        cut = calls[-1:] if _MEANINGS.get(as_text(reason)) == "length" else []
        for key, block in enumerate(self._body_blocks):
            self._body_block(key, block, cut=block is self._body_blocks[-1] and block in cut)
        self._usage(body.get("usage"))
        if reason is not None:
            self._finish(reason)
            self._to.ended()

    def _body_block(self, key: int, block: Object, cut: bool) -> None:
        use = as_dict(block.get("toolUse"))
        if is_call(block):
            self._to.open(key, as_text(use.get("toolUseId")), as_text(use.get("name")))
            if cut:
                # The limit fell into this call. The input in a body was repaired by the server, to `{}` in a recorded
                # one: no end is reported, so it never counts as complete.
                self._to.arguments(key, dump_arguments(use.get("input")) or "")
            else:
                self._close(key, use.get("input"))
        elif use:
            self._server_call(use, use.get("input"), block)
        elif isinstance(block.get("toolResult"), dict):
            self._server_result(block["toolResult"])
        elif text := text_of(block):
            self._to.text(text)
        elif reasoning := as_text(as_dict(as_dict(block.get("reasoningContent")).get("reasoningText")).get("text")):
            self._to.reasoning(reasoning)
        elif "image" in block or "video" in block:
            self._to.other()

    def _finish(self, reason: Json) -> None:
        if not (reason and isinstance(reason, str)):
            self._to.ended()
            return
        if reason in _FAILURES:
            self._to.error({"type": reason, "message": f"{reason}: the model's answer could not be used"})
        self._to.finish(reason, _MEANINGS.get(reason, "other"))

    def _usage(self, usage: Json) -> None:
        if usage and isinstance(usage, dict):
            counted = _read_usage(cast("Object", usage))
            if self._searches or self._charged:
                counted = replace(counted, web_searches=self._searches, server_calls=self._charged)
            self._to.usage(counted)


def _read_usage(raw: Object) -> Usage:
    cached, written = as_int(raw.get("cacheReadInputTokens")), as_int(raw.get("cacheWriteInputTokens"))
    return Usage(
        input_tokens=as_int(raw.get("inputTokens")) + cached + written,
        output_tokens=as_int(raw.get("outputTokens")),
        cached_tokens=cached,
        cache_write_tokens=written,
        raw=raw,
        cache_write_1h_tokens=sum(
            as_int(each.get("inputTokens")) for each in dicts(raw.get("cacheDetails")) if each.get("ttl") == "1h"
        ),
    )
