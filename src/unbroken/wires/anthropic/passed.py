"""anthropic-messages: what of a stream has reached the client already. Text and thinking are not looked at: only which
block they stand in."""

from __future__ import annotations

from unbroken.wires.jsontext import dumps, exact
from unbroken.wires.passed import Passed, event_of
from unbroken.wires.values import Object, as_dict, as_int, as_list, as_text


class PassedBlock:
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


class MessagesPassed(Passed):
    marks = (b'"input_json_delta"', b'"content_block_st', b'"message_')

    def __init__(self) -> None:
        super().__init__()
        self.started = False
        self.blocks = 0
        self.open: PassedBlock | None = None
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
                self.open = PassedBlock(index, as_dict(event["content_block"]))
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
