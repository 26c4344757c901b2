"""cohere-v2 in a gateway: relaying responses unchanged, raw messages and their repair, HTTP.

Text and plans are skipped: only the block that is open matters, and the calls.
"""

from __future__ import annotations

import re

from unbroken_wires.messages import ToolCall
from unbroken_wires.wires.http_api import HttpApi, Operation
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.raw_history import (
    MessageHistory,
    Relay,
    RelayedStream,
    StreamCheck,
    event_of,
    field,
    one_call_in,
)


class RelayedCall:
    """A call as far as the client knows it."""

    __slots__ = ("ended", "id", "index", "name", "pieces")

    def __init__(self, index: int, call: Object) -> None:
        function = as_dict(call.get("function"))
        self.index = index
        self.id = as_text(call.get("id"))
        self.name = as_text(function.get("name"))
        self.pieces = [as_text(function.get("arguments"))]
        self.ended = False

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class RelayedCohere(RelayedStream):
    marks = (b"tool-call-", b"content-start", b"content-end", b"message-")

    def __init__(self) -> None:
        super().__init__()
        self.started = False
        self.blocks = 0
        self.open_block = ""
        """The kind of the content block that is open."""
        self.calls: list[RelayedCall] = []
        self.finished = False

    def find(self, call: ToolCall) -> RelayedCall | None:
        for place, one in enumerate(self.calls):
            if one.id == call.id if one.id else (one.name, place) == (call.name, call.index):
                return one
        return None

    def read(self, data: bytes) -> None:
        event = event_of(data)
        message = as_dict(as_dict(event.get("delta")).get("message"))
        match event.get("type"):
            case "message-start":
                self.started = self.begun = True
            case "content-start":
                self.blocks = max(self.blocks, event["index"] + 1)
                self.open_block = as_text(as_dict(message["content"]).get("type"))
            case "content-end":
                self.open_block = ""
            case "tool-call-start":
                self.calls.append(RelayedCall(event["index"], as_dict(message["tool_calls"])))
            case "tool-call-delta":
                self.calls[-1].pieces.append(message["tool_calls"]["function"]["arguments"])
            case "tool-call-end":
                self.calls[-1].ended = True
            case "message-end":
                self.finished = True
            case _:
                pass


class CohereCheck(StreamCheck):
    marks = (b"tool-call-start", b"tool-call-delta")
    start = b"tool-call-start"
    named = True

    def conforms(self, event: Object) -> bool:
        call = as_dict(as_dict(as_dict(event.get("delta")).get("message")).get("tool_calls"))
        function = as_dict(call.get("function"))
        if not isinstance(function.get("arguments", ""), str):
            return False
        if event.get("type") == "tool-call-start":
            return self.is_next(event.get("index")) and bool(as_text(call.get("id")) and as_text(function.get("name")))
        return event.get("index") == self._next - 1


def _body_conforms(body: Object) -> bool:
    calls = [as_dict(call) for call in as_list(as_dict(body.get("message")).get("tool_calls"))]
    functions = [as_dict(call.get("function")) for call in calls]
    texts = all(as_text(each.get("name")) and isinstance(each.get("arguments"), str) for each in functions)
    return texts and all(as_text(call.get("id")) for call in calls)


RELAY = Relay(CohereCheck, _body_conforms, end=re.compile(rb'"message-end"|message-end\n'))


# cohere-v2, raw messages: taken apart for repair, and a body with only its first call.


class CohereHistory(MessageHistory):
    def has_links(self, message: Object) -> bool:
        """What only this wire has: a plan beside the calls, results that are documents."""
        if "tool_plan" in message and as_list(message.get("tool_calls")):
            return True
        documents = any(block.get("type") == "document" for block in dicts(message.get("content")))
        return field(message, "role") == "tool" and documents


HISTORY = CohereHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first of its calls, under `new_id` if there is one; nothing else changes. The
    same object where nothing has to change."""
    message = as_dict(body.get("message"))
    trimmed = one_call_in(HISTORY, message, "assistant", new_id)
    return body if trimmed is message else {**body, "message": trimmed}


# cohere-v2 over HTTP.


class CohereHttp(HttpApi):
    short_name = "cohere"
    provider = "cohere"
    base_url_variable = "CO_API_URL"
    path = "/v2/chat"
    operations = {path: Operation()}  # noqa: RUF012 - annotated in the base class
    endings = ("/v2/chat",)
    error_paths = ("/v2/",)
    error_name = "CohereError"
    roles = "system, user, assistant or tool"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "tool_choice": (str,),
        "strict_tools": (bool,),
        "thinking": (dict,),
        "p": (int, float),
        "seed": (int,),
        "stop_sequences": (list,),
    }
    message_fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.message_fields,
        "tool_calls": (list,),
        "tool_plan": (str,),
        "tool_call_id": (str,),
    }
