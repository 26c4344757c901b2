"""anthropic-messages, relaying: what part of a stream the client has received already, for the encoder to continue.

Text and thinking are skipped: only the block that they belong to matters.
"""

from __future__ import annotations

import re

from unbroken.wires.jsontext import dumps, exact
from unbroken.wires.relay import Relay, RelayedStream, StreamCheck, event_of
from unbroken.wires.values import Object, as_dict, as_int, as_list, as_text, dicts


class RelayedBlock:
    """The block that is open at the client."""

    __slots__ = ("id", "index", "kind", "pieces")

    def __init__(self, index: int, block: Object) -> None:
        self.index = index
        self.kind = as_text(block.get("type"))
        self.id = as_text(block.get("id"))
        self.pieces = [dumps(block["input"]).decode()] if block.get("input") else []
        """Of its input, if it is a call; some begin with all of it."""

    @property
    def input(self) -> str:
        return "".join(self.pieces)


class RelayedMessages(RelayedStream):
    marks = (b'"input_json_delta"', b'"content_block_st', b'"message_')

    def __init__(self) -> None:
        super().__init__()
        self.started = False
        self.blocks = 0
        self.open: RelayedBlock | None = None
        self.calls: dict[str, str] = {}
        """The input of each call that has ended, by its id."""
        self.output_tokens = 0
        self.finished = False
        self.done = False

    def read(self, data: bytes) -> None:
        self.begun = True
        event = event_of(data)
        match event.get("type"):
            case "content_block_delta":
                if self.open is not None and event.get("index") == self.open.index:
                    self.open.pieces.append(event["delta"]["partial_json"])
            case "content_block_start":
                self.started = True
                event = exact(event, data, event["content_block"])
                index = event["index"]
                self.blocks = max(self.blocks, index + 1)
                self.open = RelayedBlock(index, as_dict(event["content_block"]))
            case "content_block_stop":
                if self.open is not None and self.open.kind == "tool_use":
                    self.calls[self.open.id] = self.open.input
                self.open = None
            case "message_start":
                self.started = True
                message = as_dict(event["message"])
                self.blocks = len(as_list(message.get("content")))
                self.output_tokens = as_int(as_dict(message.get("usage")).get("output_tokens"))
            case "message_delta":
                self.finished = self.finished or bool(as_dict(event["delta"]).get("stop_reason"))
                self.output_tokens = as_int(as_dict(event.get("usage")).get("output_tokens")) or self.output_tokens
            case "message_stop":
                self.done = True
            case _:
                pass


class MessagesCheck(StreamCheck):
    marks = (b"content_block_start", b"input_json_delta")
    named = True

    def conforms(self, event: Object) -> bool:
        if event.get("type") == "content_block_start":
            block = as_dict(event.get("content_block"))
            return self.is_next(event.get("index")) and isinstance(block.get("input", {}), dict)
        delta = as_dict(event.get("delta"))
        return event.get("index") == self._next - 1 and isinstance(delta.get("partial_json"), str)


def _body_conforms(body: Object) -> bool:
    return all(isinstance(block.get("input", {}), dict) for block in dicts(body.get("content")))


RELAY = Relay(MessagesCheck, _body_conforms, end=re.compile(rb"message_stop"))
