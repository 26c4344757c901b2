"""openai-chat in a gateway: relaying responses unchanged, raw messages and their repair, HTTP.

Text is skipped: continuing a stream needs none of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.transcript import Piece
from unbroken_wires.wires.content_parts import call_from_text
from unbroken_wires.wires.http_api import HttpApi, Operation
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_list, as_text, dicts
from unbroken_wires.wires.raw_history import (
    MessageHistory,
    Relay,
    RelayedStream,
    StreamCheck,
    event_of,
    field,
    one_call_in_each,
)

_HEAD = ("id", "created", "model", "system_fingerprint", "service_tier")


class RelayedCall:
    """A call as far as the client knows it. This wire has no end of a call."""

    __slots__ = ("custom", "id", "index", "name", "pieces", "torn", "whole")

    def __init__(self, index: int, id: str, custom: bool) -> None:
        self.index = index
        self.id = id
        self.name = ""
        self.custom = custom
        self.pieces: list[str] = []
        self.whole = False
        """Known to be complete: only where the arguments came as an object."""
        self.torn = False
        """It has turned out to differ from what the client has."""

    @property
    def cut(self) -> bool:
        if self.torn or self.whole or self.custom:
            return self.torn
        return call_from_text("", "", "".join(self.pieces), 0).arguments is None


class RelayedChat(RelayedStream):
    marks = (
        b'"tool_calls"',
        b'"finish_reason":"',
        b'"finish_reason": "',
        b'"usage":{',
        b'"usage": {',
        b"[DONE]",
    )

    def __init__(self) -> None:
        super().__init__()
        self.head: Object = {}
        self.role = False
        self.calls: list[RelayedCall] = []
        self.next_index = 0
        self._latest: dict[int | str, RelayedCall] = {}
        """By index and by id, the last call that began with it."""
        self.finished = False
        self.usage = False
        self.done = False

    def find(self, call: ToolCall) -> RelayedCall | None:
        """The same call in what has passed: by its id, or by name and place if the provider gave none."""
        for place, one in enumerate(self.calls):
            if one.id == call.id if one.id else (one.name, place) == (call.name, call.index):
                return one
        return None

    def read(self, data: bytes) -> None:
        if len(data) < 16 and data.strip().upper() == b"[DONE]":
            self.done = True
            return
        event = event_of(data)
        if not self.begun:
            self._begin(event)
        choices = event.get("choices") or ()
        for choice in choices:
            if choice.get("index"):
                continue
            if choice.get("finish_reason"):
                self.finished = True
            for piece in choice["delta"].get("tool_calls") or ():
                self._piece(piece)
        if event.get("usage") and (self.finished or not choices):  # some count in every chunk
            self.usage = True

    def _begin(self, event: Object) -> None:
        if not self.head and event.get("id"):  # the first event of Azure has neither id nor model
            self.head = {key: event[key] for key in _HEAD if event.get(key) is not None}
        self.role = self.role or any(as_dict(choice.get("delta")).get("role") for choice in dicts(event.get("choices")))
        self.begun = self.role and bool(self.head)

    def _piece(self, piece: Object) -> None:
        inner = piece.get("function")
        custom = inner is None and "custom" in piece
        if inner is None:
            inner = as_dict(piece.get("custom"))
        call = self._call(piece.get("index"), as_text(piece.get("id")), custom)
        call.name = call.name or as_text(inner.get("name"))
        arguments: Json = inner.get("input" if custom else "arguments")
        if isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments is not None:
            call.whole = True

    def _call(self, index: Json, id: str, custom: bool) -> RelayedCall:
        if not id and self.calls and self.calls[-1].index == index:  # nearly all pieces
            return self.calls[-1]
        mark = index if isinstance(index, int) else id
        known = self._latest.get(mark) if mark != "" else self.calls[-1] if self.calls else None
        if known is not None and id in ("", known.id):
            return known
        call = RelayedCall(index if isinstance(index, int) else self.next_index, id, custom)
        self.calls.append(call)
        self._latest[call.index] = self._latest[id] = call
        self.next_index = max(self.next_index, call.index + 1)
        return call


class ChatCheck(StreamCheck):
    marks = (b'"tool_calls"', b'"function_call"')
    start = b'"name"'

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[Json, dict[str, int]] = {}
        """For each choice, the ids of its calls with their indexes."""

    def conforms(self, event: Object) -> bool:
        for choice in dicts(event.get("choices")):
            delta = as_dict(choice.get("delta"))
            if delta.get("function_call") or as_dict(choice.get("message")):
                return False  # the old single call; a message where a delta belongs
            ids = self._ids.setdefault(as_int(choice.get("index")), {})
            if not all(_fragment_conforms(as_dict(piece), ids) for piece in as_list(delta.get("tool_calls"))):
                return False
        return True


def _fragment_conforms(piece: Object, ids: dict[str, int]) -> bool:
    """The first fragment of a call has its id and name, the others have its index and add arguments to it."""
    index, id = piece.get("index"), as_text(piece.get("id"))
    kind = "custom" if "custom" in piece else "function"
    inner = as_dict(piece.get(kind))
    if not isinstance(inner.get("input" if kind == "custom" else "arguments", ""), str):
        return False
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index <= len(ids):
        return False
    if index < len(ids):
        return not as_text(inner.get("name")) and (not id or ids.get(id) == index)
    if not id or id in ids or not as_text(inner.get("name")):
        return False
    ids[id] = index
    return True


def _body_conforms(body: Object) -> bool:
    messages = [as_dict(choice.get("message")) for choice in dicts(body.get("choices"))]
    calls = [as_dict(call) for message in messages for call in as_list(message.get("tool_calls"))]
    return all(map(_call_conforms, calls)) and not any(message.get("function_call") for message in messages)


def _call_conforms(call: Object) -> bool:
    kind = as_text(call.get("type"))
    inner = as_dict(call.get(kind))
    text = inner.get("input" if kind == "custom" else "arguments")
    return bool(as_text(call.get("id")) and as_text(inner.get("name"))) and isinstance(text, str)


def _is_usage(event: Object) -> bool:
    return event.get("choices") == [] and bool(as_dict(event.get("usage")))


RELAY = Relay(
    ChatCheck,
    _body_conforms,
    end=re.compile(rb'"finish_reason"\s*:\s*".*\[DONE\]', re.DOTALL),
    is_usage=_is_usage,
)


# openai-chat, raw messages: taken apart for repair, and a body with only its first call.


class ChatHistory(MessageHistory):
    """The old single call, `function_call`, is the message itself, and its result has the role `function`."""

    def run(self, message: Json) -> str:
        return "results" if field(as_dict(message), "role") == "function" else super().run(message)

    def pieces(self, message: Json) -> list[Piece]:
        fields = as_dict(message)
        if fields.get("role") == "function":
            return [Piece("result", message, None, field(fields, "name"))]
        pieces = super().pieces(message)
        legacy = as_dict(fields.get("function_call"))
        if fields.get("role") == "assistant" and field(legacy, "name") and not as_list(fields.get("tool_calls")):
            return [Piece("call", message, None, field(legacy, "name"))]
        return pieces

    def error(self, call: Object, text: str) -> Json:
        if field(call, "role") == "assistant":
            return {"role": "function", "name": field(as_dict(call.get("function_call")), "name"), "content": text}
        return super().error(call, text)

    def has_links(self, message: Object) -> bool:
        legacy = field(message, "role") == "function" or bool(as_dict(message.get("function_call")))
        return legacy or super().has_links(message)


HISTORY = ChatHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first call of each answer, under `new_id` if there is one; nothing else
    changes. The same object where nothing has to change."""
    return one_call_in_each(HISTORY, body, "choices", "message", "assistant", new_id)


# openai-chat over HTTP.


class ChatHttp(HttpApi):
    short_name = "chat"
    provider = "openai"
    base_url_variable = "OPENAI_BASE_URL"
    base_path = "/v1"
    path = "/chat/completions"
    operations = dict.fromkeys(("/v1/chat/completions", "/chat/completions"), Operation())
    endings = ("/chat/completions",)
    response_id = "chatcmpl-"
    roles = "system, developer, user, assistant or tool"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "tool_choice": (str, dict),
        "reasoning_effort": (str,),
        "stop": (str, list),
        "seed": (int,),
    }
    message_fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.message_fields,
        "tool_calls": (list,),
    }
    refused_content = (None, [])
    takes_texts = True

    def wants_usage(self, body: Mapping[str, Json]) -> bool:
        return bool(as_dict(body.get("stream_options")).get("include_usage"))

    def asking_usage(self, body: Object) -> Object:
        return {**body, "stream_options": {**as_dict(body.get("stream_options")), "include_usage": True}}
