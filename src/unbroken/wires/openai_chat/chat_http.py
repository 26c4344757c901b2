"""openai-chat over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.messages import Json
from unbroken.wires.http_api import HttpApi, Operation
from unbroken.wires.values import as_dict


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
    takes_texts = True

    def wants_usage(self, body: Mapping[str, Json]) -> bool:
        return bool(as_dict(body.get("stream_options")).get("include_usage"))
