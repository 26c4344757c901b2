"""Errors in each wire's own format: what its clients read, as a body and inside a stream."""

from __future__ import annotations

from typing import Any

import pytest

from unbroken import decode
from unbroken.models.error_responses import Asked, read_failure
from unbroken_wires.decoding.verdict import complaint_of
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.http_api import status_of
from unbroken_wires.wires.jsontext import dumps

every_wire = pytest.mark.parametrize("wire", WIRES)


def marks(wire: str, status: int, kind: str = "") -> Any:
    error = find_wire(wire).error_body(status, "no", kind)["error"]
    assert error["message"].endswith("no")
    if wire == "anthropic-messages":
        return error["type"]
    return (error["code"], error["status"]) if wire == "gemini" else (error["type"], error["code"])


@pytest.mark.parametrize(
    ("status", "openai", "anthropic", "gemini"),
    [
        (400, ("invalid_request_error", None), "invalid_request_error", "INVALID_ARGUMENT"),
        (401, ("invalid_request_error", "invalid_api_key"), "authentication_error", "UNAUTHENTICATED"),
        (403, ("permission_error", None), "permission_error", "PERMISSION_DENIED"),
        (404, ("invalid_request_error", "model_not_found"), "not_found_error", "NOT_FOUND"),
        (405, ("invalid_request_error", None), "invalid_request_error", "INVALID_ARGUMENT"),
        (413, ("invalid_request_error", None), "request_too_large", "INVALID_ARGUMENT"),
        (429, ("rate_limit_error", "rate_limit_exceeded"), "rate_limit_error", "RESOURCE_EXHAUSTED"),
        (431, ("invalid_request_error", None), "invalid_request_error", "INVALID_ARGUMENT"),
        (500, ("server_error", None), "api_error", "INTERNAL"),
        (502, ("server_error", None), "api_error", "UNAVAILABLE"),
        (503, ("service_unavailable_error", "server_is_overloaded"), "api_error", "UNAVAILABLE"),
        (504, ("server_error", None), "timeout_error", "DEADLINE_EXCEEDED"),
        (529, ("service_unavailable_error", "server_is_overloaded"), "overloaded_error", "UNAVAILABLE"),
    ],
)
def test_each_status_has_the_format_of_its_provider(status: int, openai: Any, anthropic: str, gemini: str) -> None:
    assert marks("openai-chat", status) == marks("openai-responses", status) == openai
    assert marks("anthropic-messages", status) == anthropic
    assert marks("gemini", status) == (status, gemini)


@pytest.mark.parametrize(
    ("status", "type"),
    [
        (400, "ValidationException"),
        (403, "AccessDeniedException"),
        (404, "ResourceNotFoundException"),
        (429, "ThrottlingException"),
        (500, "InternalServerException"),
        (503, "ServiceUnavailableException"),
        (504, "ModelTimeoutException"),
    ],
)
def test_each_status_has_its_exception_on_bedrock(status: int, type: str) -> None:
    assert find_wire("bedrock-converse").error_body(status, "no") == {"__type": type, "message": "no"}


def test_an_exception_of_bedrock_inside_a_stream_is_one_that_streams_have() -> None:
    told = {
        status: decode(find_wire("bedrock-converse").error_event(status, "no"), "bedrock-converse").error
        for status in (400, 403, 429, 500, 503)
    }
    assert {status: error["type"] for status, error in told.items()} == {
        400: "validationException",
        403: "internalServerException",
        429: "throttlingException",
        500: "internalServerException",
        503: "serviceUnavailableException",
    }


def test_a_specific_kind_is_in_openais_code_field() -> None:
    assert marks("openai-chat", 404, "unknown_url") == ("invalid_request_error", "unknown_url")
    assert marks("openai-chat", 404) == ("invalid_request_error", "model_not_found")
    assert marks("openai-chat", 400, "unknown_url") == ("invalid_request_error", "unknown_url")
    assert marks("anthropic-messages", 400, "unknown_url") == "invalid_request_error"


@every_wire
@pytest.mark.parametrize("status", [400, 413])
def test_a_client_can_tell_that_its_history_is_too_long(wire: str, status: int) -> None:
    body = find_wire(wire).error_body(status, "the model takes 8192 tokens", "too_long")
    assert complaint_of(body) == "too_long"
    inside: Any = body.get("error", body)
    words: str = inside if isinstance(inside, str) else inside["message"]
    match wire:
        case "ollama":
            assert body == {"error": "the input length exceeds the context length: the model takes 8192 tokens"}
        case "cohere-v2":
            assert body == {"message": "too many tokens: the model takes 8192 tokens"}
        case "bedrock-converse":
            assert body["__type"] == "ValidationException"
            assert words == "Input is too long for requested model: the model takes 8192 tokens"
        case "anthropic-messages":
            assert words == "prompt is too long: the model takes 8192 tokens"
            assert body["error"]["type"] == "invalid_request_error"
        case "gemini":
            assert body["error"]["status"] == "INVALID_ARGUMENT"
        case _:
            assert body["error"]["code"] == "context_length_exceeded"
            assert words == "the model takes 8192 tokens"
    assert find_wire(wire).error_body(status, words, "too_long") == body


@every_wire
@pytest.mark.parametrize(
    ("status", "kind", "read_as"),
    [
        (400, "too_long", "ContextTooLong"),
        (401, "", "Unauthorized"),
        (404, "", "ModelNotFound"),
        (429, "limited", "RateLimited"),
        (400, "", "RequestRefused"),
        (500, "", "Unavailable"),
        (503, "unavailable", "Unavailable"),
        (504, "silent", "Unavailable"),
        (529, "", "Unavailable"),
    ],
)
def test_a_refusal_is_recognised_by_a_client_of_the_gateway(wire: str, status: int, kind: str, read_as: str) -> None:
    asked = Asked(provider="gateway", model="m", address="http://127.0.0.1/v1", key="k", key_variable="KEY")
    error = read_failure(
        asked, status, {}, dumps(find_wire(wire).error_body(status, "the model said no", kind)), now=0.0
    )
    assert type(error).__name__ == read_as


@every_wire
@pytest.mark.parametrize(("kind", "read_as"), [("too_long", "too_long"), ("limited", "error"), ("lost", "error")])
def test_an_error_inside_a_stream_ends_it_as_failed(wire: str, kind: str, read_as: str) -> None:
    verdict = decode(find_wire(wire).error_event(status_of(kind), "it broke", kind), wire).verdict
    assert (verdict.kind, "it broke" in verdict.reason) == (read_as, True)


def test_codes_that_codex_handles_are_in_a_failed_response() -> None:
    told = {
        kind: decode(find_wire("openai-responses").error_event(status_of(kind), "no", kind), "openai-responses").error[
            "code"
        ]
        for kind in ("too_long", "limited", "unavailable", "lost")
    }
    assert told == {
        "too_long": "context_length_exceeded",
        "limited": "rate_limit_exceeded",
        "unavailable": "server_is_overloaded",
        "lost": "server_error",
    }
