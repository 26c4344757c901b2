"""How each provider says no: the body of an HTTP error in its wire's own shape, and the same inside a stream.

Only the spelling. Which status a failure has, and what is said of it, is decided by who answers.
"""

from __future__ import annotations

from unbroken.wires.jsontext import dumps
from unbroken.wires.values import Object

_OPENAI = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "server_is_overloaded"),
    529: ("service_unavailable_error", "server_is_overloaded"),
}
_ANTHROPIC = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GEMINI = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}

# By the kinds of `Verdict`. The rest, a stream that broke, is a bad gateway to whoever asked.
_STATUSES = {
    "too_long": 400,
    "limited": 429,
    "unavailable": 503,
    "unanswered": 504,
    "silent": 504,
    "late": 504,
}

TOO_LONG = "too_long"


def status_of(kind: str) -> int:
    """The status of a failure of that kind (of `Verdict`), where there is still one to be sent."""
    return _STATUSES.get(kind, 502)


UNKNOWN_URL = "unknown_url"
"""The kind of a 404 that is about the path, and no model."""


def refusal(wire: str, status: int, message: str, kind: str = "") -> Object:
    """The body of an error. `kind` is one of `Verdict`, or any code that OpenAI has for it: "too_long" is spelled so
    that each provider's clients shorten their history, others only stand where the wire has a place for a code."""
    too_long, asker = kind == TOO_LONG, status < 500
    if wire == "anthropic-messages":
        type = _ANTHROPIC.get(status) or ("invalid_request_error" if asker else "api_error")
        if too_long:
            type, message = "invalid_request_error", _begun(message, "prompt is too long")
        return {"type": "error", "error": {"type": type, "message": message}}
    if wire == "gemini":
        name = _GEMINI.get(status) or ("INVALID_ARGUMENT" if asker else "INTERNAL")
        if too_long:
            words = "The input token count exceeds the maximum number of tokens allowed"
            name, message = "INVALID_ARGUMENT", _begun(message, words)
        return {"error": {"code": status, "message": message, "status": name}}
    type, code = _OPENAI.get(status) or ("invalid_request_error" if asker else "server_error", None)
    param = None
    if too_long:
        type, code = "invalid_request_error", "context_length_exceeded"
        param = "input" if wire == "openai-responses" else "messages"
    return {
        "error": {
            "message": message,
            "type": type,
            "param": param,
            "code": kind if kind == UNKNOWN_URL else code or kind or None,
        }
    }


def _begun(message: str, words: str) -> str:
    """Clients look for these words: whatever else is said comes after them."""
    return message if message.startswith(words) else f"{words}: {message}"


def error_event(wire: str, status: int, message: str, kind: str = "") -> bytes:
    """The same as the last event of a stream that has begun. (An encoder that has written some of the stream, or has
    followed it, says it better: let it have `Ended`.)"""
    error = refusal(wire, status, message, kind)
    if wire == "anthropic-messages":
        return b"event: error\ndata: " + dumps(error) + b"\n\n"
    if wire == "openai-responses":  # not its event `error`, which Codex takes no notice of
        response: Object = {"id": "", "object": "response", "created_at": 0, "status": "failed", "output": []}
        response["error"] = response_error(status, message, kind)
        event = {"type": "response.failed", "sequence_number": 0, "response": response}
        return b"event: response.failed\ndata: " + dumps(event) + b"\n\n"
    return b"data: " + dumps(error) + b"\n\n"


def response_error(status: int, message: str, kind: str = "") -> Object:
    """What stands in a response of openai-responses that has failed. It has few codes, and clients know them all."""
    code = refusal("openai-responses", status, message, kind)["error"]["code"]
    return {"code": code if code in _RESPONSE_CODES else "server_error", "message": message}


_RESPONSE_CODES = ("context_length_exceeded", "rate_limit_exceeded", "server_is_overloaded")
