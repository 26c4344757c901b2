"""openai-responses over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.messages import Json
from unbroken.wires.http_api import HttpApi, Operation
from unbroken.wires.values import Object, as_dict, as_list

_ROLES = ("user", "assistant", "system", "developer")
_RESULTS = ("function_call_output", "custom_tool_call_output")


class ResponsesHttp(HttpApi):
    short_name = "responses"
    provider = "openai"
    base_url_variable = "OPENAI_BASE_URL"
    base_path = "/v1"
    path = "/responses"
    operations = dict.fromkeys(("/v1/responses", "/responses"), Operation())
    endings = ("/responses",)
    messages_field = "input"
    response_id = "resp_"
    stores = True
    roles = "system, developer, user or assistant, if it is a message"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "instructions": (str,),
        "tool_choice": (str, dict),
        "reasoning": (dict,),
        "text": (dict,),
        "store": (bool,),
    }
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
        if type is None and role is None:  # with an id, it is a reference to an item that the provider has
            return "" if message.get("id") else "has neither a `type` nor a `role`"
        if type in (None, "message") and role not in _ROLES:
            return f"has a `role` that is none of {', '.join(_ROLES)}"
        if type in _RESULTS and not isinstance(message.get("output"), str | list | None):
            return "has an `output` that is not a text or a list"
        return ""

    def held_by_provider(self, body: Mapping[str, Json]) -> str:
        if "item_reference" in [as_dict(item).get("type") for item in as_list(body.get("input"))]:
            return "item_reference"
        return next((name for name in ("conversation", "prompt", "background") if body.get(name)), "")
