"""openai-responses over HTTP: its paths and bodies, stored responses and the items in them, compaction.

OpenAI's compaction items can be read by OpenAI alone. Ours contain a summary that the model wrote: any replica reads
it back, and sends it to a model of any wire as a message.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping, Sequence
from typing import cast, get_args

from unbroken_wires.errors import InvalidRequest
from unbroken_wires.messages import Json, Message, Usage
from unbroken_wires.wires.http_api import HttpApi, Operation, StoredPart, StoredPath
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.openai_responses.responses_items import as_input
from unbroken_wires.wires.openai_responses.responses_messages import encode_messages
from unbroken_wires.wires.openai_responses.responses_object import encode_usage

_ROLES = ("user", "assistant", "system", "developer")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_STORED = re.compile(r"/(?:v1/)?responses/([^/]+)(?:/(input_items|cancel))?")
_ITEM_ID = re.compile(r"[A-Za-z]{1,8}_[A-Za-z0-9_-]{1,200}")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_OURS = "unbroken-1."
"""Begins the content of our compaction items."""


class ResponsesHttp(HttpApi):
    short_name = "responses"
    provider = "openai"
    base_url_variable = "OPENAI_BASE_URL"
    base_path = "/v1"
    path = "/responses"
    operations = {  # noqa: RUF012 - annotated in the base class
        **dict.fromkeys(("/v1/responses", "/responses"), Operation()),
        **dict.fromkeys(("/v1/responses/compact", "/responses/compact"), Operation("compact")),
        **dict.fromkeys(("/v1/responses/input_tokens", "/responses/input_tokens"), Operation("count")),
    }
    count_path = "/responses/input_tokens"
    count_lacking = (404, 405, 501)
    manages = frozenset({"compact"})
    compact_path = "/responses/compact"
    endings = ("/responses",)
    messages_field = "input"
    response_id = "resp_"
    stores = True
    socket_paths = ("/v1/responses", "/responses")
    roles = "system, developer, user or assistant, if it is a message"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "instructions": (str,),
        "tool_choice": (str, dict),
        "reasoning": (dict,),
        "text": (dict,),
        "store": (bool,),
    }
    refused_content = (None,)
    message_fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.message_fields,
        "type": (str,),
    }

    def messages_of(self, body: Mapping[str, Json]) -> Json:
        messages = body.get("input")
        if isinstance(messages, str):
            return [{"role": "user", "content": messages}]
        if messages is None and (body.get("previous_response_id") or body.get("prompt")):
            return [{"role": "user", "content": ""}]
        return messages

    def mistake_in(self, message: Object) -> str:
        type, role = message.get("type"), message.get("role")
        if type is None and role is None:  # with an id, it is a reference to a stored item
            return "" if message.get("id") else "has neither a `type` nor a `role`"
        if type in (None, "message") and role not in _ROLES:
            return f"has a `role` that is none of {', '.join(_ROLES)}"
        if type in _RESULTS and not isinstance(message.get("output"), str | list | None):
            return "has an `output` that is not a text or a list"
        return ""

    def not_supported(self, body: Mapping[str, Json]) -> str:
        if not body.get("background"):
            return ""
        return (
            "`background` is not supported: an answer is made while its request is open. Leave it out; with `stream`, "
            "a long answer does not run into time limits, and with `store` it can be read again"
        )

    def held_by_provider(self, body: Mapping[str, Json]) -> str:
        if "compaction" in [as_dict(item).get("type") for item in as_list(body.get("input"))]:
            return "compaction"
        return next((name for name in ("conversation", "prompt") if body.get(name)), "")

    def counted(self, tokens: int) -> Object:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def socket_body(self, body: Object) -> Object:
        if (type := body.get("type")) != "response.create":
            raise InvalidRequest(f"a message has to be of the type `response.create`, this is `{str(type)[:100]}`")
        return {**{name: value for name, value in body.items() if name != "type"}, "stream": True}

    # Stored responses

    def find_stored(self, path: str) -> StoredPath | None:
        found = _STORED.fullmatch(path)
        if found is None or path in self.operations:
            return None
        part = found[2] or ""
        assert part in get_args(StoredPart)
        return StoredPath(found[1], cast("StoredPart", part))

    def item_ids(self, response: Object) -> Sequence[str]:
        """Of the output alone: a response repeats `metadata` and `tools` of its request, with any ids in them."""
        ids = (as_text(item.get("id")) for item in dicts(response.get("output")))
        return list(dict.fromkeys(id for id in ids if _ITEM_ID.fullmatch(id) and not id.startswith(self.response_id)))

    def stored_items(self, response: Object) -> Mapping[str, Object]:
        return {as_text(item.get("id")): as_input(item) for item in dicts(response.get("output")) if item.get("id")}

    def reference_in(self, message: Object) -> str:
        kind = message.get("type")
        is_reference = kind == "item_reference" or (not kind and "role" not in message)
        return as_text(message.get("id")) if is_reference else ""

    def input_items(self, messages: Sequence[Message], id: str) -> list[Object]:
        stem = id.removeprefix(self.response_id)
        return [_listed(item, f"{stem}_in_{at}") for at, item in enumerate(encode_messages(messages, stateless=False))]

    # Compaction

    def compaction(self, id: str, created: int, summary: str, usage: Usage) -> Object:
        content = _OURS + b64encode(summary.encode("utf-8", "replace")).decode("ascii")
        stem = id.removeprefix(self.response_id)
        return {
            "id": id,
            "object": "response.compaction",
            "created_at": created,
            "output": [{"id": f"cmp_{stem}_0", "type": "compaction", "encrypted_content": content}],
            "usage": encode_usage(usage),
        }

    def summary_in(self, message: Object) -> str | None:
        content = as_text(message.get("encrypted_content"))
        if message.get("type") != "compaction" or not content.startswith(_OURS):
            return None
        try:
            return b64decode(content.removeprefix(_OURS), validate=True).decode("utf-8", "replace")
        except (Error, ValueError):
            return None


def _listed(item: Object, stem: str) -> Object:
    """An item as a list of stored items has it: with an id, a status, and content in parts."""
    type = as_text(item.get("type")) or "message"
    listed: Object = {"id": f"{_PREFIXES.get(type, 'item')}_{stem}", "type": type, "status": "completed", **item}
    content = item.get("content")
    if type == "message" and isinstance(content, str):
        answer = item.get("role") == "assistant"
        listed["content"] = [
            {"type": "output_text", "text": content, "annotations": []}
            if answer
            else {"type": "input_text", "text": content}
        ]
    return listed
