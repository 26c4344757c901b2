"""No response, or an error response: one typed error in one line each, over real local HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from model_servers import (
    KEY,
    answers,
    collect,
    fail,
    play_hanging,
    refusal,
    serve_bytes,
)

from unbroken.errors import (
    ContextTooLong,
    ModelNotFound,
    ProviderError,
    RateLimited,
    RequestRefused,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unreachable,
    UserError,
)
from unbroken.models.connect import connect
from unbroken.models.error_responses import Asked, read_failure
from unbroken.models.sessions import close_session

# Before the first byte


def test_no_first_byte_in_time_is_an_error() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        raise AssertionError

    error = fail(handler, first_byte=0.05)
    assert isinstance(error, TimedOut)
    assert "`openai` sent nothing within first_byte=0.05 s (http://127.0.0.1" in str(error)


def test_a_head_without_a_body_is_not_a_first_byte() -> None:
    with pytest.raises(TimedOut, match=r"first_byte=0\.05"):
        play_hanging([], first_byte=0.05)


def test_total_counts_before_the_first_byte_too() -> None:
    with pytest.raises(TimedOut, match=r"not done within total=0\.05 s"):
        play_hanging([], total=0.05)


def test_a_connection_that_is_not_made_in_time_is_an_error() -> None:
    async def run() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.create_connection(("127.0.0.1", port))]  # nobody accepts: the queue is full
            try:
                model = connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1", connect_timeout=0.05)
                with pytest.raises(
                    TimedOut, match=r"no connection to provider `openai` within connect_timeout=0\.05 s"
                ):
                    await collect(model)
            finally:
                for connection in waiting:
                    connection.close()
        await close_session()

    asyncio.run(run())


def test_a_closed_port_is_an_error() -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(Unreachable) as caught:
            await collect(connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY))
        message = str(caught.value)
        assert f"`openai` cannot be reached at http://127.0.0.1:{port}/v1/chat/completions" in message
        assert "check base_url" in message
        await close_session()

    asyncio.run(run())


def test_an_unknown_host_is_an_error() -> None:
    async def run() -> None:
        with pytest.raises(Unreachable, match=r"cannot be reached at http://nowhere\.invalid"):
            await collect(connect("openai:m", base_url="http://nowhere.invalid/v1"))
        await close_session()

    asyncio.run(run())


def test_a_server_that_hangs_up_is_an_error() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert isinstance(fail(handler), Unreachable)


def test_a_server_without_http_is_an_error() -> None:
    async def run() -> None:
        class Greets(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(b"220 mail.example ESMTP\r\n")

        server = await asyncio.get_running_loop().create_server(Greets, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable):
            await collect(connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1"))
        server.close()
        await close_session()

    asyncio.run(run())


# An answer that is an error


def test_a_wrong_key_is_an_error() -> None:
    error = fail(answers(401, refusal(f"Incorrect API key provided: {KEY}.", code="invalid_api_key")))
    assert isinstance(error, Unauthorized)
    assert error.status == 401
    assert str(error) == (
        "provider `openai` answered 401: Incorrect API key provided: ***.; check OPENAI_API_KEY and its permissions"
    )


def test_an_unknown_model_is_an_error() -> None:
    error = fail(answers(404, refusal("The model `m` does not exist", code="model_not_found")))
    assert isinstance(error, ModelNotFound)
    assert "check the name of model `m`" in str(error)


def test_an_unknown_page_points_at_the_base_url() -> None:
    error = fail(answers(404, "<html><head><style>p {}</style></head><h1>Not Found</h1></html>"))
    assert isinstance(error, ModelNotFound)
    assert "answered 404: Not Found; there is nothing at http://127.0.0.1" in str(error)
    assert "check base_url" in str(error)


def test_a_refused_request_is_an_error() -> None:
    error = fail(answers(400, refusal("Unsupported value: 'temperature'\nonly 1 is supported")))
    assert isinstance(error, RequestRefused)
    assert str(error).endswith("400: Unsupported value: 'temperature' only 1 is supported")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_too_many_requests_is_an_error(headers: dict[str, str], seconds: float | None) -> None:
    error = fail(answers(429, refusal("Slow down"), **headers))
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


def test_retry_after_may_be_a_date_or_geminis_own_field() -> None:
    asked = Asked("p", "m", "http://h")
    at_date = read_failure(asked, 503, {"retry-after": formatdate(1_000_030, usegmt=True)}, b"", now=1_000_000)
    assert at_date.retry_after == 30
    past = read_failure(asked, 503, {"retry-after": formatdate(999_000, usegmt=True)}, b"", now=1_000_000)
    assert past.retry_after == 0
    body = json.dumps({"error": {"code": 429, "message": "Quota", "details": [{"retryDelay": "34s"}]}}).encode()
    assert read_failure(asked, 429, {}, body, now=0).retry_after == 34


def test_no_credit_is_not_a_rate_limit() -> None:
    error = fail(answers(429, refusal("You exceeded your current quota", code="insufficient_quota")))
    assert isinstance(error, RequestRefused)
    assert "no credit" in str(error)
    assert error.status == 429


@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 529])
def test_an_unavailable_provider_is_an_error(status: int) -> None:
    error = fail(answers(status, refusal("Overloaded")))
    assert isinstance(error, Unavailable)
    assert error.status == status


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": "API key not valid. Please pass a valid API key."}}, Unauthorized),
        (
            400,
            {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa"},
            Unauthorized,
        ),
        (400, {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}, ModelNotFound),
        (400, {"message": "Invalid model: foo", "type": "invalid_model", "code": "1500"}, ModelNotFound),
        (402, {"error": {"message": "Insufficient Balance"}}, RequestRefused),
        (403, {"error": {"message": "Region not supported"}}, Unauthorized),
        (413, {"error": {"message": "Request too large"}}, ContextTooLong),
        (413, "<html><h1>413 Request Entity Too Large</h1></html>", ContextTooLong),
        (400, {"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}, ContextTooLong),
        (400, "the prompt is too long", ContextTooLong),
        (422, {"error": "`inputs` must have less than 4095 tokens. Given: 5000"}, ContextTooLong),
        (
            429,
            {"error": {"message": "Request too large for m on tokens per min (TPM)", "type": "tokens"}},
            ContextTooLong,
        ),
        (500, {"error": {"message": "input length exceeds the context length", "type": "api_error"}}, ContextTooLong),
        (401, {"error": {"message": "prompt is too long"}}, Unauthorized),
        (
            400,
            {"error": {"message": "Failed", "type": "invalid_request_error", "code": "tool_use_failed"}},
            Unavailable,
        ),
        (400, {"error": {"message": "max_tokens is too large: 9. At most 8 completion tokens"}}, RequestRefused),
        (429, {"error": {"message": "Your account is in arrears, please recharge", "code": "1113"}}, RequestRefused),
        (
            429,
            {"error": {"code": 429, "message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}},
            RateLimited,
        ),
        (422, {"detail": [{"msg": "field required"}]}, RequestRefused),
    ],
)
def test_providers_use_other_statuses_for_the_same(status: int, body: Any, kind: type[ProviderError]) -> None:
    sent = body if isinstance(body, str) else json.dumps(body)
    assert type(read_failure(Asked("p", "m", "http://h", key="k"), status, {}, sent.encode(), 0)) is kind


def test_a_missing_key_is_distinguished_from_a_wrong_one() -> None:
    error = read_failure(Asked("openai", "m", "http://h", "OPENAI_API_KEY"), 401, {}, b"", 0)
    assert str(error).endswith("401 without a word; the key is missing: set OPENAI_API_KEY or pass api_key=…")


def test_long_messages_are_shortened_and_any_key_is_masked() -> None:
    asked = Asked("p", "m", "http://h", key="plain-key")
    words = f"Bearer abcdefgh and plain-key and AIzaSyA1234567890123 and sk-proj-abcdefghi {'x' * 500}"
    message = str(read_failure(asked, 400, {}, words.encode(), 0))
    assert "Bearer *** and *** and *** and ***" in message
    assert len(message) < 400


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    error = fail(answers(status, "", Location=f"https://elsewhere.example/v1/?key={KEY}"))
    assert isinstance(error, RequestRefused)
    assert f"answered {status} and points to https://elsewhere.example/v1/; redirects are not followed" in str(error)


def test_an_absurd_or_distant_date_is_not_a_time_to_wait() -> None:
    asked = Asked("p", "m", "http://h")
    for date in (
        "Wed, 21 Oct 99999999999999999999 07:28:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2300",
        "Wed, 21 Oct 2099 07:28:00 GMT",
    ):
        assert read_failure(asked, 429, {"retry-after": date}, b"", now=0).retry_after is None


@pytest.mark.parametrize("piece", [b"<", b"<script ", b"<style>", b"<a ", b"a"])
def test_a_page_of_broken_tags_is_parsed_in_linear_time(piece: bytes) -> None:
    page = b"<" + piece * (65536 // len(piece))
    start = time.process_time()
    read_failure(Asked("p", "m", "http://h"), 500, {}, page, now=0)
    assert time.process_time() - start < 0.5  # it was seconds


def test_scripts_and_styles_of_a_page_are_not_its_text() -> None:
    page = b"<STYLE>p { } </style ><script>if (a < b) { x('</p>') }</script><h1 class='a'>Bad</h1> gateway"
    assert str(read_failure(Asked("p", "m", "http://h"), 502, {}, page, now=0)).endswith("502: Bad gateway")


def test_total_counts_while_an_error_is_read() -> None:
    async def run() -> float:
        async with serve_bytes(b"HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nhalf", hangs=True) as url:
            start = time.monotonic()
            with pytest.raises(Unavailable, match="answered 500: half"):
                await collect(connect("openai:m", base_url=url, total=0.1))
            return time.monotonic() - start

    assert asyncio.run(run()) < 5


def test_https_on_a_server_without_it_is_reported() -> None:
    async def run() -> None:
        async with serve_bytes(b"", hangs=True) as url:
            model = connect("openai:m", base_url=url.replace("http:", "https:"), connect_timeout=0.1)
            with pytest.raises(TimedOut, match=r"connect_timeout=0\.1 s .* write http:// in base_url"):
                await collect(model)

    asyncio.run(run())


def test_a_failing_key_function_is_one_typed_error() -> None:
    def raises() -> str:
        raise RuntimeError("the vault is down")

    def gives_a_number() -> Any:
        return 5

    async def run() -> None:
        with pytest.raises(Unauthorized, match="no key for provider `openai`: the api_key function raised Run"):
            await collect(connect("openai:m", api_key=raises))
        with pytest.raises(UserError, match="the key of provider `openai` is of the type int"):
            await collect(connect("openai:m", api_key=gives_a_number))

    asyncio.run(run())
