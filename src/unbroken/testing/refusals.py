"""How each provider says no: the HTTP body of an error in its wire's own shape."""

from __future__ import annotations

from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]

_OPENAI = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_GEMINI = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def refusal(wire: str, status: int, message: str) -> Object:
    if wire == "anthropic-messages":
        return {"type": "error", "error": {"type": _ANTHROPIC.get(status, "api_error"), "message": message}}
    if wire == "gemini":
        return {"error": {"code": status, "message": message, "status": _GEMINI.get(status, "INTERNAL")}}
    type, code = _OPENAI.get(status, ("server_error", None))
    return {"error": {"message": message, "type": type, "param": None, "code": code}}
