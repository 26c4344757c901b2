"""Error responses: the status of each kind of failure, and the error object that both wires of OpenAI share.

The shape of an error on each wire is in its encoder. The caller decides on status and message.
"""

from __future__ import annotations

from unbroken.wires.values import Object

# By the kinds of `Verdict`. All others, such as a stream that broke, are a bad gateway to the client.
_STATUSES = {
    "too_long": 400,
    "limited": 429,
    "unavailable": 503,
    "unanswered": 504,
    "silent": 504,
    "late": 504,
}

TOO_LONG = "too_long"

UNKNOWN_URL = "unknown_url"
"""The kind of a 404 that is about the path, not about a model."""

NOT_FOUND = "not_found"
"""The kind of a 404 that is about a file or another thing that the provider holds. OpenAI has no code for it."""


def status_of(kind: str) -> int:
    """The HTTP status of a failure of that kind (of `Verdict`)."""
    return _STATUSES.get(kind, 502)


def beginning_with(words: str, message: str) -> str:
    """The message with `words` in front, which clients look for."""
    return message if message.startswith(words) else f"{words}: {message}"


_OPENAI = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "server_is_overloaded"),
    529: ("service_unavailable_error", "server_is_overloaded"),
}


def openai_error(status: int, message: str, kind: str, messages_field: str) -> Object:
    """`kind` is one of `Verdict`, or any code that OpenAI has for the error."""
    type, code = _OPENAI.get(status) or ("invalid_request_error" if status < 500 else "server_error", None)
    param = None
    if kind == TOO_LONG:
        type, code, param = "invalid_request_error", "context_length_exceeded", messages_field
    code = kind if kind == UNKNOWN_URL else None if kind == NOT_FOUND else code or kind or None
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
