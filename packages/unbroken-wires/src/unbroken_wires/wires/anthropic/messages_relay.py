"""anthropic-messages in a gateway: relaying responses unchanged, raw messages and their repair, HTTP.

Text and thinking are skipped: only the block that they belong to matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from unbroken_wires.messages import Json, Managed
from unbroken_wires.transcript import Piece
from unbroken_wires.wires.claude_models import LATER_SYSTEM, PREFIX_CHECKED
from unbroken_wires.wires.http_api import HttpApi, Operation
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_list, as_text, dicts
from unbroken_wires.wires.jsontext import dumps, exact
from unbroken_wires.wires.raw_history import RawHistory, Relay, RelayedStream, StreamCheck, event_of, field, one_call_in


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
    start = b"content_block_start"
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


# anthropic-messages, raw messages: taken apart for repair, and a body with only its first call.
#
# Results come first in the user message directly after their calls. The provider reads neighbouring messages of the
# assistant as one, and refuses an id that occurs twice in a request.


class MessagesHistory(RawHistory):
    unique = True

    def run(self, message: Json) -> str:
        return "assistant" if field(as_dict(message), "role") == "assistant" else ""

    def pieces(self, message: Json) -> list[Piece]:
        content = as_dict(message).get("content")
        if isinstance(content, str) and content:
            return [Piece("speech", {"type": "text", "text": content})]
        blocks = as_list(content)
        return [self._piece(block, self.run(message)) for block in blocks] or [Piece("speech", content or None)]

    def _piece(self, block: Json, run: str) -> Piece:
        fields = as_dict(block)
        match field(fields, "type"):
            case "tool_use" if run:
                return Piece("call", block, field(fields, "id"), field(fields, "name"))
            case "tool_result":
                return Piece("result", block, field(fields, "tool_use_id"))
            case _:
                return Piece("speech", block)

    def build(self, message: Json, values: list[Json]) -> Json:
        return {**message, "content": [value for value in values if value is not None]}

    def holds(self, message: Json) -> bool:
        return field(as_dict(message), "role") == "user"

    def wrap(self, results: list[Json]) -> list[Json]:
        return [{"role": "user", "content": results}]

    def error(self, call: Object, text: str) -> Json:
        return {"type": "tool_result", "tool_use_id": field(call, "id"), "content": text, "is_error": True}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "id" if piece.kind == "call" else "tool_use_id": id}

    def has_links(self, message: Object) -> bool:
        return any(field(block, "type") in ("tool_use", "tool_result") for block in dicts(message.get("content")))


HISTORY = MessagesHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first of its calls, under `new_id` if there is one; nothing else changes. The
    same object where nothing has to change."""
    return one_call_in(HISTORY, body, "assistant", new_id)


# anthropic-messages over HTTP.


class MessagesHttp(HttpApi):
    short_name = "anthropic"
    provider = "anthropic"
    base_url_variable = "ANTHROPIC_BASE_URL"
    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"
    operations = {path: Operation(), count_path: Operation("count")}  # noqa: RUF012 - annotated in the base class
    key_header = "x-api-key"
    headers = {"anthropic-version": "2023-06-01"}  # noqa: RUF012 - annotated in the base class
    endings = ("/messages",)
    error_paths = ("/v1/messages",)
    response_id = "msg_"
    manages = frozenset({"compact", "clear"})
    later_system = LATER_SYSTEM
    account_bound = PREFIX_CHECKED
    error_name = "AnthropicError"
    roles = "user or assistant"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "system": (str, list),
        "tool_choice": (dict,),
        "thinking": (dict,),
        "stop_sequences": (list,),
    }

    def headers_of(self, managed: Managed) -> Mapping[str, str]:
        betas = ("compact-2026-01-12",) if managed.compact_at is not None else ()
        betas += ("context-management-2025-06-27",) if managed.clear_at is not None else ()
        return {"anthropic-beta": ",".join(betas)}

    def mistake_in(self, message: Object) -> str:
        """Of results: other blocks have objects in `content`."""
        for block in dicts(message.get("content")):
            if block.get("type") == "tool_result" and not isinstance(block.get("content"), str | list | None):
                return "has a `tool_result` whose `content` is not a text or a list"
        return ""
