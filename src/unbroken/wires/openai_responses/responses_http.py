"""openai-responses over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.messages import Json
from unbroken.wires.http_api import HttpApi, Operation
from unbroken.wires.values import as_dict, as_list


class ResponsesHttp(HttpApi):
    short_name = "responses"
    provider = "openai"
    base_url_variable = "OPENAI_BASE_URL"
    base_path = "/v1"
    path = "/responses"
    operations = dict.fromkeys(("/v1/responses", "/responses"), Operation())
    endings = ("/responses",)
    messages_field = "input"
    takes_texts = True
    response_id = "resp_"
    stores = True

    def messages_of(self, body: Mapping[str, Json]) -> Json:
        messages = body.get("input")
        if isinstance(messages, str):
            return [messages]
        if messages is None and (body.get("previous_response_id") or body.get("prompt")):
            return [""]
        return messages

    def held_by_provider(self, body: Mapping[str, Json]) -> str:
        if "item_reference" in [as_dict(item).get("type") for item in as_list(body.get("input"))]:
            return "item_reference"
        return next((name for name in ("conversation", "prompt", "background") if body.get(name)), "")
