"""anthropic-messages: what of a stream has reached the client already. Text and thinking are not looked at: only which
block they stand in."""

from __future__ import annotations

from unbroken.wires.passed import Passed, event_of
from unbroken.wires.values import Object, as_dict, as_int, as_list, as_text


class PassedBlock:
    """The block that is open at the client."""

    __slots__ = ("id", "index", "kind", "pieces", "whole")

    def __init__(self, index: int, block: Object) -> None:
        self.index = index
        self.kind = as_text(block.get("type"))
        self.id = as_text(block.get("id"))
        self.pieces: list[str] = []
        """Of its input, if it is a call."""
        self.whole = bool(block.get("input"))


class MessagesPassed(Passed):
    def __init__(self) -> None:
        super().__init__()
        self.started = False
        self.blocks = 0
        self.open: PassedBlock | None = None
        self.calls: set[str] = set()
        """Ids of the calls that have ended."""
        self.output_tokens = 0
        self.finished = False
        self.done = False

    def read(self, data: bytes) -> None:
        # Nearly all events: text, thinking, signatures.
        if b'_delta"' in data and b'"input_json_delta"' not in data and b'"message_delta"' not in data:
            return
        event = event_of(data)
        match event.get("type"):
            case "content_block_delta":
                if self.open is not None and event.get("index") == self.open.index:
                    self.open.pieces.append(event["delta"]["partial_json"])
            case "content_block_start":
                self.started = True
                index = event["index"]
                self.blocks = max(self.blocks, index + 1)
                self.open = PassedBlock(index, as_dict(event["content_block"]))
            case "content_block_stop":
                if self.open is not None and self.open.kind == "tool_use":
                    self.calls.add(self.open.id)
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
