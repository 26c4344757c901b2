"""anthropic-messages over HTTP."""

from __future__ import annotations

from unbroken.wires.http_api import HttpApi, Operation


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
