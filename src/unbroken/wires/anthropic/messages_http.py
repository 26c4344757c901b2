"""anthropic-messages over HTTP."""

from __future__ import annotations

from unbroken.wires.http_api import HttpApi, Operation
from unbroken.wires.values import Object, dicts


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
    error_name = "AnthropicError"
    roles = "user or assistant"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "system": (str, list),
        "tool_choice": (dict,),
        "thinking": (dict,),
        "stop_sequences": (list,),
    }

    def mistake_in(self, message: Object) -> str:
        """Of results: other blocks have objects in `content`."""
        for block in dicts(message.get("content")):
            if block.get("type") == "tool_result" and not isinstance(block.get("content"), str | list | None):
                return "has a `tool_result` whose `content` is not a text or a list"
        return ""
