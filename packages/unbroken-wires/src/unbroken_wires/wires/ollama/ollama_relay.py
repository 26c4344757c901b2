"""ollama in a gateway: relaying responses unchanged, raw messages and their repair, HTTP.

Every line is complete in itself: only the head, the calls and the end matter to what follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.wires.framing import JSON_LINES
from unbroken_wires.wires.http_api import HttpApi, Operation
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.jsontext import loads_exact
from unbroken_wires.wires.raw_history import MessageHistory, Relay, RelayedStream, StreamCheck, field, one_call_in

_HEAD = ("model", "created_at")


class RelayedOllama(RelayedStream):
    framing = JSON_LINES
    marks = (b'"tool_calls"', b'"done":true', b'"done": true')

    def __init__(self) -> None:
        super().__init__()
        self.head: Object = {}
        self.finished = False
        self.calls: list[Object] = []

    def find(self, call: ToolCall) -> Object | None:
        """The function of the call that the client has. Some calls have no id: then by name and place."""
        for place, one in enumerate(self.calls):
            id, function = as_text(one.get("id")), as_dict(one.get("function"))
            if id == call.id if id else (function.get("name"), place) == (call.name, call.index):
                return function
        return None

    def read(self, data: bytes) -> None:
        event = as_dict(loads_exact(data))
        if not self.head:
            self.head = {key: event[key] for key in _HEAD if event.get(key)}
            self.begun = bool(self.head)
        self.finished = self.finished or event.get("done") is True
        self.calls += dicts(as_dict(event.get("message")).get("tool_calls"))


class OllamaCheck(StreamCheck):
    framing = JSON_LINES
    marks = (b'"tool_calls"',)

    def conforms(self, event: Object) -> bool:
        return _body_conforms(event)


def _body_conforms(body: Object) -> bool:
    calls = as_list(as_dict(body.get("message")).get("tool_calls"))
    functions = [as_dict(as_dict(call).get("function")) for call in calls]
    return all(as_text(each.get("name")) and isinstance(each.get("arguments"), dict) for each in functions)


RELAY = Relay(OllamaCheck, _body_conforms, end=re.compile(rb'"done"\s*:\s*true'), ids_optional=True)


# ollama, raw messages: taken apart for repair, and a body with only its first call.
#
# Ids may be missing in calls and in results.


class OllamaHistory(MessageHistory):
    ids_optional = True
    name_field = "tool_name"

    def error(self, call: Object, text: str) -> Json:
        id: Object = {"tool_call_id": call["id"]} if field(call, "id") else {}
        name = field(as_dict(call.get("function")), "name")
        return {"role": "tool", "content": text, "tool_name": name, **id}

    def has_links(self, message: Object) -> bool:
        """What only this wire has: arguments that are objects, results that name their tool."""
        functions = [as_dict(call.get("function")) for call in dicts(message.get("tool_calls"))]
        objects = any(isinstance(function.get("arguments"), dict) for function in functions)
        return objects or (field(message, "role") == "tool" and "tool_name" in message)


HISTORY = OllamaHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first of its calls, under `new_id` if there is one; nothing else changes. The
    same object where nothing has to change."""
    message = as_dict(body.get("message"))
    trimmed = one_call_in(HISTORY, message, "assistant", new_id)
    return body if trimmed is message else {**body, "message": trimmed}


# ollama over HTTP.


class OllamaHttp(HttpApi):
    short_name = "ollama"
    provider = "ollama"
    base_url_variable = "OLLAMA_HOST"
    path = "/api/chat"
    operations = {path: Operation()}  # noqa: RUF012 - annotated in the base class
    endings = ("/api/chat",)
    error_paths = ("/api/",)
    error_name = "OllamaError"
    roles = "system, user, assistant or tool"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "options": (dict,),
        "think": (bool, str),
        "format": (str, dict),
        "keep_alive": (str, int, float),
    }
    refused_content = ()
    message_fields = {  # noqa: RUF012 - annotated in the base class
        "role": (str,),
        "content": (str,),
        "thinking": (str,),
        "images": (list,),
        "tool_calls": (list,),
        "tool_name": (str,),
        "tool_call_id": (str,),
    }

    def streams(self, body: Mapping[str, Json]) -> bool:
        return body.get("stream") is not False
