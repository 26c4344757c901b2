"""anthropic-messages, reading responses, streamed or as one body.

The decoder reports what it finds. It does not decide whether the arguments of an ended block are complete.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from unbroken_wires.deltas import Meaning
from unbroken_wires.messages import Json, ServerCall, Usage
from unbroken_wires.wires.anthropic.messages_content import blocks_of
from unbroken_wires.wires.anthropic.messages_requests import plain
from unbroken_wires.wires.anthropic.messages_turns import CONTAINER
from unbroken_wires.wires.content_parts import call_from_text
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_list, as_text, dicts
from unbroken_wires.wires.jsontext import dump_arguments, exact
from unbroken_wires.wires.wire import Receiver

_MEANINGS: dict[str, Meaning] = {
    "end_turn": "done",
    "tool_use": "done",
    "stop_sequence": "done",
    "stop": "done",  # ollama
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "pause_turn": "paused",
}


PROVIDER_TOOLS = {
    "web_search": "web_search",
    "web_fetch": "web_fetch",
    "code_execution": "code_execution",
    "bash_code_execution": "code_execution",
    "text_editor_code_execution": "code_execution",
    "tool_search_tool_regex": "tool_search",
    "tool_search_tool_bm25": "tool_search",
}
"""What the tools do that Anthropic runs, by their names."""


MARKS = (b'"message_start"', b'"content_block')
"""Either is near the beginning of every stream."""

_EVENTS = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "message",
)


def recognises(event: Object) -> bool:
    """Is it an event or a body of this wire?"""
    kind = event.get("type")
    if kind in _EVENTS or (kind == "error" and isinstance(event.get("error"), dict)):
        return True
    return event.get("role") == "assistant" and isinstance(event.get("content"), list)


class _Block:
    """One content block while it arrives: `value` as it began, and what has grown since, joined once at the end."""

    __slots__ = ("citations", "ended", "json", "key", "kind", "texts", "value")

    def __init__(self, key: int, value: Object) -> None:
        self.key = key
        self.value = value
        self.kind = str(value.get("type"))
        self.json: list[str] = []
        self.citations: list[Json] = []
        self.texts: dict[str, list[str]] = {}
        self.ended = False

    def grow(self, field: str, text: str) -> str:
        """Take one more piece of a text; gives back what is new in it."""
        texts = self.texts.get(field)
        if texts is None:
            texts = self.texts[field] = []
            # MiniMax begins a block with a text and repeats it in the first delta (cline#9215).
            text = text.removeprefix(as_text(self.value.get(field)))
        texts.append(text)
        return text

    def whole(self) -> Object:
        """The block in its request form."""
        for field, texts in self.texts.items():
            self.value[field] = "".join((str(self.value.get(field) or ""), *texts))
        self.texts.clear()
        if self.citations:
            self.value["citations"] = [*as_list(self.value.get("citations")), *self.citations]
            self.citations = []
        if self.json:
            self.value["input"] = self.parsed_json() or {}
        return self.value

    def parsed_json(self) -> Object | None:
        self.json = ["".join(self.json)]
        return call_from_text("", "", self.json[0], 0).arguments


class MessagesDecoder:
    """Streamed events and non-streaming bodies (`type: message`, or what is clearly one), by their type."""

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._arguments = receiver.arguments
        self._blocks: list[_Block] = []
        self._at: dict[Json, _Block] = {}
        """The block that was last begun at each index: it stays after its end, so that what comes late is noticed."""
        self._names: dict[str, str] = {}
        """The tool of each call, by the call's id."""
        self._ends_told = 0
        """How many blocks have had their end reported by the end of the message, at the latest."""
        self._cut = False
        self._usage: Object = {}
        self._container: Object = {}
        self._code_runs = 0
        """How often the provider ran code, which it charges for by time."""

    def feed(self, event: Object, data: bytes) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            delta = event["delta"]
            kind = delta.get("type")
            block = self._at.get(event.get("index")) or self._stray(event.get("index"), kind)
            if kind == "input_json_delta":
                text = delta["partial_json"]
                if text:
                    if text.__class__ is not str or not block.kind.endswith("tool_use"):
                        raise ValueError("a piece of arguments is not text, or stands in a block that is no call")
                    block.json.append(text)
                    self._arguments(block.key, text)
            else:
                self._delta(block, kind, delta)
        elif kind == "content_block_start":
            self.recognised = True
            event = exact(event, data, event["content_block"])
            self._at[event.get("index")] = block = self._start(event["content_block"])
            self._say_text(block)
        elif kind == "content_block_stop":
            self.recognised = True
            if (block := self._at.get(event.get("index"))) is not None:
                self._stop(block)
        else:
            self._rare(kind, event, data)

    def native(self) -> Json:
        # Thinking that never ended has no signature, a server's call that never ended no input: they cannot go back.
        blocks = [block.whole() for block in self._blocks if block.ended or block.kind in ("text", "tool_use")]
        if self._container:
            blocks.insert(0, {**self._container, "type": CONTAINER})
        return None if plain(blocks) else blocks

    def kept(self) -> object:
        blocks = [(block.value, block.json, block.citations, block.texts) for block in self._blocks]
        return blocks, self._container, self._usage

    def _rare(self, kind: Json, event: Object, data: bytes) -> None:
        """What comes once in a response, or belongs to no block."""
        match kind:
            case "message_start":
                self.recognised = True
                self._begin(as_dict(exact(event, data, event.get("message")).get("message")))
            case "message_delta":
                self.recognised = True
                self._merge_usage(event.get("usage"))
                delta = as_dict(event.get("delta"))
                self._keep_container(delta)
                self._finish(delta.get("stop_reason"))
            case "message_stop":
                self.recognised = True
                self._end_blocks()
                self._to.ended(last=True)
            case "message":
                self.recognised = True
                self._body(exact(event, data, event.get("content")))
            case "ping":
                self.recognised = True
            case _:
                if kind == "error" or event.get("error"):  # some proxies leave the type out
                    self.recognised = True
                    self._to.error(event.get("error") or event)
                elif kind is None and event.get("role") == "assistant" and isinstance(event.get("content"), list):
                    self.recognised = True  # a body whose type some proxies leave out
                    self._body(exact(event, data, event["content"]))

    def _begin(self, message: Object) -> None:
        """The message as it begins: empty, except for calls of Anthropic's code execution, which are complete."""
        for index, value in enumerate(dicts(message.get("content"))):
            self._at[index] = block = self._start(value)
            self._say_text(block)
        self._keep_container(message)
        self._note_dropped(message)
        self._merge_usage(message.get("usage"))
        self._finish(message.get("stop_reason"))

    def _start(self, value: Object) -> _Block:
        block = _Block(len(self._blocks), value)
        self._blocks.append(block)
        if id := as_text(value.get("id")):
            self._names.setdefault(id, as_text(value.get("name")))
        if block.kind == "tool_use":
            self._to.open(block.key, id, as_text(value.get("name")))
        return block

    def _say_text(self, block: _Block) -> None:
        """The text that a block begins with: all of it in a non-streaming body, usually none in a stream."""
        field = block.kind
        text = as_text(block.value.get(field))
        if text and field == "text":
            self._to.text(text)
        elif text and field == "thinking":
            self._to.reasoning(text)

    def _stray(self, index: Json, kind: Json) -> _Block:
        """A delta of a block whose beginning is missing: text is still text, but arguments have lost their call."""
        field = str(kind).removesuffix("_delta")
        if field not in ("text", "thinking"):
            raise ValueError(f"a {kind} belongs to no block")
        self.recognised = True
        self._at[index] = block = self._start({"type": field, field: ""})
        return block

    def _delta(self, block: _Block, kind: Json, delta: Object) -> None:
        if block.kind == "tool_use" and kind in ("text_delta", "thinking_delta"):
            raise ValueError(f"a {kind} stands in a block that is a call")
        if kind == "text_delta":
            text = delta["text"]
            if text.__class__ is str and text:
                self._to.text(block.grow("text", text))
        elif kind == "thinking_delta":
            text = delta["thinking"]
            if text.__class__ is str and text:
                self._to.reasoning(block.grow("thinking", text))
        elif kind == "signature_delta":
            block.value["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block.citations.append(delta["citation"])
        else:
            # Kinds to come, and beta ones like compaction_delta: texts grow, of anything else the last value counts.
            for field, value in delta.items():
                if field != "type":
                    if isinstance(value, str):
                        block.grow(field, value)
                    else:
                        block.value[field] = value

    def _stop(self, block: _Block) -> None:
        if block.ended:
            return
        block.ended = True
        if block.kind == "tool_use":
            # A call that a server tool makes comes with its complete input in the start of the block.
            self._close(block, None if block.json else block.value.get("input") or None)
        elif block.kind.endswith("_tool_use"):
            self._server_call(block)
        elif block.kind.endswith("_tool_result"):
            self._server_result(block.value)

    def _close(self, block: _Block, input: Json) -> None:
        if input is not None and not isinstance(input, dict | str):
            input = dump_arguments(input) or "?"  # not an object: reported as it is, to be refused
        self._to.close(block.key, cast("Object | str | None", input))

    def _server_call(self, block: _Block) -> None:
        arguments = block.parsed_json() if block.json else block.value.get("input")
        name = as_text(block.value.get("name"))
        call = ServerCall(
            type=block.kind,
            id=as_text(block.value.get("id")) or None,
            name=name or None,
            arguments=cast("Object", arguments) if isinstance(arguments, dict) else None,
            tool="mcp" if block.kind == "mcp_tool_use" else PROVIDER_TOOLS.get(name, ""),
        )
        self._to.server_call_opened(call)
        self._to.server_call(replace(call, item=block.whole()))
        if call.tool == "code_execution":
            self._code_runs += 1

    def _server_result(self, block: Object) -> None:
        """The result of a call, perhaps of one in the answer before: a turn may be paused between the two."""
        kind = as_text(block.get("type")).removesuffix("_tool_result")
        tool = (
            "mcp"
            if kind == "mcp"
            else PROVIDER_TOOLS.get(kind, "tool_search" if kind.startswith("tool_search") else "")
        )
        content = as_dict(block.get("content"))
        error = as_text(content.get("error_code")) if as_text(content.get("type")).endswith("_error") else ""
        if block.get("is_error"):
            error = error or "".join(as_text(each.get("text")) for each in blocks_of(block.get("content"))) or "failed"
        id = as_text(block.get("tool_use_id")) or None
        name = self._names.get(id or "") or None
        self._to.server_call_ended(ServerCall("server_tool_use", id, name, tool=tool), error)

    def _end_blocks(self) -> None:
        """The message has ended: so have the blocks whose own end is missing."""
        blocks = self._blocks[self._ends_told :]
        self._ends_told = len(self._blocks)
        for block in blocks:
            # A call in pieces is left to the end of the stream, and so is the one that the limit fell into. One that
            # has shown nothing yet is not known to have no arguments: they may be what was lost.
            whole = block.value.get("input") and not block.json
            if block.kind == "tool_use" and (not whole or (self._cut and block is blocks[-1])):
                continue
            self._stop(block)

    def _body(self, body: Object) -> None:
        # MiniMax sums up a stream with the complete message (one-api#2406): what was reported is not reported again.
        values = [] if self._blocks else blocks_of(body.get("content"))
        cut = _meaning(body.get("stop_reason")) == "length"
        for position, value in enumerate(values):
            block = self._start(value)
            self._say_text(block)
            if block.kind != "tool_use":
                self._stop(block)
            elif cut and position == len(values) - 1:
                # The limit fell into this call. The input in a body was repaired by the server: no end is reported, so
                # it never counts as complete.
                self._arguments(block.key, dump_arguments(value.get("input")) or "")
            else:
                block.ended = True
                self._close(block, value.get("input"))
        self._keep_container(body)
        self._note_dropped(body)
        self._merge_usage(body.get("usage"))
        self._finish(body.get("stop_reason"))
        self._to.ended()

    def _keep_container(self, message: Object) -> None:
        if as_text(as_dict(message.get("container")).get("id")):
            self._container = message["container"]

    def _note_dropped(self, message: Object) -> None:
        if any(each.get("type") == "thinking_dropped" for each in dicts(message.get("input_transformations"))):
            self._to.left_out("messages.thinking")

    def _finish(self, reason: Json) -> None:
        if reason and isinstance(reason, str):
            self._cut = self._cut or _meaning(reason) == "length"
            self._end_blocks()
            self._to.finish(reason, _meaning(reason))

    def _merge_usage(self, usage: Json) -> None:
        """The start of a stream counts the input, its end the output, and some count the input again."""
        if usage and isinstance(usage, dict):
            for key, value in cast("Object", usage).items():
                if value is not None or key not in self._usage:
                    self._usage[key] = value
            counted = _usage(dict(self._usage))
            self._to.usage(replace(counted, server_calls=self._code_runs) if self._code_runs else counted)


def _meaning(reason: Json) -> Meaning:
    return _MEANINGS.get(as_text(reason), "other")


def _usage(raw: Object) -> Usage:
    usage = _counts(raw)
    # Outside of the list, the tokens of a compaction are not counted.
    compactions = [each for each in dicts(raw.get("iterations")) if each.get("type") == "compaction"]
    for each in compactions:
        usage += _counts(each)
    return replace(usage, raw=raw) if compactions else usage


def _counts(raw: Object) -> Usage:
    cached, written = as_int(raw.get("cache_read_input_tokens")), as_int(raw.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=as_int(raw.get("input_tokens")) + cached + written,
        output_tokens=as_int(raw.get("output_tokens")),
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=as_int(as_dict(raw.get("output_tokens_details")).get("thinking_tokens")),
        raw=raw,
        cache_write_1h_tokens=as_int(as_dict(raw.get("cache_creation")).get("ephemeral_1h_input_tokens")),
        web_searches=as_int(as_dict(raw.get("server_tool_use")).get("web_search_requests")),
    )
