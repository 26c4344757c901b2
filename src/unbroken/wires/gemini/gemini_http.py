"""gemini over HTTP: the model and the choice of a stream are part of the path."""

from __future__ import annotations

import re

from unbroken.wires.http_api import HttpApi, Operation, Wanted
from unbroken.wires.values import Object, as_dict

_METHODS: dict[str, tuple[Wanted, bool]] = {
    "generateContent": ("answer", False),
    "streamGenerateContent": ("answer", True),
    "countTokens": ("count", False),
}
_PATH = re.compile(rf"/(?:v1|v1beta|v1alpha)/models/(?P<model>[^:]+(?::[^:]+)*?):(?P<method>{'|'.join(_METHODS)})")


class GeminiHttp(HttpApi):
    short_name = "gemini"
    provider = "gemini"
    base_url_variable = "GOOGLE_GEMINI_BASE_URL"
    path = "/v1beta/models/{model}:{method}"
    methods = ("generateContent", "streamGenerateContent")
    stream_query = {"alt": "sse"}  # noqa: RUF012 - annotated in the base class
    key_header = "x-goog-api-key"
    endings = (":generateContent", ":streamGenerateContent")
    error_paths = ("/v1beta/", "/v1alpha/")
    messages_field = "contents"
    count_field = "totalTokens"
    error_name = "GeminiError"
    roles = "user or model"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        **dict.fromkeys(("systemInstruction", "system_instruction"), (str, dict)),
        **dict.fromkeys(("generationConfig", "generation_config", "toolConfig", "tool_config"), (dict,)),
    }
    message_fields = {"role": (str,), "parts": (str, list, dict)}  # noqa: RUF012 - annotated in the base class
    parts_field = "parts"
    part_fields = {"text": (str,)}  # noqa: RUF012 - annotated in the base class

    def find(self, path: str) -> Operation | None:
        if (found := _PATH.fullmatch(path)) is None:
            return None
        wanted, stream = _METHODS[found["method"]]
        return Operation(wanted, found["model"], stream)

    def body_to_count(self, body: Object) -> Object:
        """Its clients wrap a request that has a configuration."""
        return as_dict(body.get("generateContentRequest")) or body

    def wants_array(self, query: str) -> bool:
        return "alt=sse" not in query
