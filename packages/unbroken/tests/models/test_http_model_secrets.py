"""Keys, passwords and tokens are in no error, verdict or repr, even if the provider quotes them."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode, encodebytes
from collections.abc import Awaitable
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from model_servers import (
    CHAT,
    HELLO,
    KEY,
    answers,
    collect,
    play,
    refusal,
    serve,
    serve_bytes,
    streams,
    verdict,
)

from unbroken.errors import (
    Unauthorized,
    Unavailable,
    UnbrokenError,
    Unreachable,
)
from unbroken.models.connect import connect
from unbroken.models.secrets import collect as collect_secrets
from unbroken.models.secrets import mask, mask_json

SECRET = "plain0123456789"


def chain(error: BaseException | None) -> str:
    """An error with all its causes, as logs and debuggers show them."""
    said = ""
    while error is not None:
        said += f"{error} {error!r} "
        error = error.__cause__ or error.__context__
    return said


def error_event(message: str) -> bytes:
    return f"data: {json.dumps({'error': {'message': message, 'details': [{message: 1}]}})}\n\n".encode()


def test_an_error_inside_a_non_streaming_body_does_not_quote_the_key() -> None:
    deltas, _ = play(answers(200, refusal(f"Incorrect API key provided: {KEY}")))
    assert verdict(deltas).kind == "error"
    assert "Incorrect API key provided: ***" in verdict(deltas).reason
    assert KEY not in repr(deltas)


def test_an_error_event_does_not_quote_a_key_of_unknown_form() -> None:
    async def run() -> None:
        async with serve(streams([CHAT[0], error_event(f"bad key {SECRET}!")])) as server:
            for key in (SECRET, lambda: SECRET):
                deltas = await collect(connect("openai:m", base_url=server.url, api_key=key).model)
                assert verdict(deltas).reason == "the provider sent an error: bad key ***!"
                assert SECRET not in repr(deltas)

    asyncio.run(run())


def test_a_page_that_is_cut_in_the_middle_of_a_key_shows_none_of_it() -> None:
    page = "x" * 190 + KEY
    deltas, _ = play(answers(200, page))
    assert verdict(deltas).kind == "foreign"
    assert KEY[:8] not in verdict(deltas).reason


def test_keys_in_query_headers_and_user_are_not_quoted() -> None:
    def quotes(request: web.Request) -> Awaitable[web.StreamResponse]:
        head = " ".join([str(request.rel_url), *request.headers.values()])
        return answers(500, refusal(head))(request)

    async def run() -> str:
        async with serve(quotes) as server:
            base = server.url.replace("http://", "http://me:secret-of-user@")
            model = connect(
                "openai:m",
                base_url=f"{base}/v1?key=secret-of-address",
                query={"token": "secret of query"},
                headers={"X-Auth": "secret-of-header"},
            )
            with pytest.raises(Unavailable) as caught:
                await collect(model)
            return chain(caught.value)

    said = asyncio.run(run())
    assert "secret" not in said
    assert b64encode(b"me:secret-of-user").decode() not in said
    assert "/v1/chat/completions?key=***&token=***" in said


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
)
def test_the_causes_of_an_error_contain_no_key_and_mention_that_there_was_a_response(answer: bytes) -> None:
    async def run() -> str:
        async with serve_bytes(answer) as url:
            model = connect("openai:m", base_url=f"{url}/v1?key=secret-of-address", api_key=SECRET)
            with pytest.raises(
                Unreachable, match=r"an answer that cannot be read \(http://\S+\): .*check base_url"
            ) as caught:
                await collect(model)
            assert "that the server runs" not in str(caught.value)
            return chain(caught.value)

    said = asyncio.run(run())
    assert SECRET not in said
    assert "secret-of-address" not in said


def test_no_cause_of_an_error_contains_the_password_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serve_bytes(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n") as url:
            for scheme in ("http", "https"):
                monkeypatch.setenv(f"{scheme}_proxy", url.replace("http://", "http://me:secret-of-proxy@"))
                monkeypatch.delenv("no_proxy", raising=False)
                monkeypatch.delenv("NO_PROXY", raising=False)
                model = connect("openai:m", base_url=f"{scheme}://models.example/v1", api_key=SECRET)
                with pytest.raises(Unauthorized) as caught:
                    await collect(model)
                assert str(caught.value) == (
                    f"the proxy {url} answered 407: check {scheme.upper()}_PROXY or set NO_PROXY"
                )
                said = chain(caught.value)
                assert SECRET not in said
                assert "secret-of-proxy" not in said
                assert b64encode(b"me:secret-of-proxy").decode() not in said

    asyncio.run(run())


def test_masking_replaces_the_longest_secret_first_and_keeps_short_values() -> None:
    found = collect_secrets(["abcd", "abcdefgh", "2", "a b/c"])
    assert mask("abcdefgh abcd v=2 a%20b%2Fc a b/c", found) == "*** *** v=2 *** ***"


def test_masking_handles_any_json_up_to_a_depth() -> None:
    value: Any = {SECRET: [1, None, {"x": f"<{SECRET}>"}]}
    assert mask_json(value, (SECRET,)) == {"***": [1, None, {"x": "<***>"}]}
    deep: Any = SECRET
    for _ in range(5000):
        deep = [deep]
    assert SECRET not in repr(mask_json(deep, (SECRET,)))


def test_a_key_that_a_library_quotes_as_bytes_is_masked() -> None:
    key = 'sk"we/ird\\\\key+0123456789'
    quoted = f"Bad status line: {key.encode()!r}"
    assert mask(quoted, (key,)) == "Bad status line: b'***'"


STRANGE = "Pr0j/Te+st_K3y:9f8e7d6c5b4a=&x"


@pytest.mark.parametrize(
    "quoted",
    [
        quote(STRANGE, safe=""),
        "".join(f"%{byte:02x}" for byte in STRANGE.encode()),
        b64encode(STRANGE.encode()).decode(),
        b64encode(f"user:{STRANGE}".encode()).decode(),
        encodebytes(f"{'x' * 48}{STRANGE}".encode()).decode(),
        STRANGE.encode().hex(),
        STRANGE.replace("/", "\\/"),
    ],
)
def test_a_key_that_a_provider_quotes_encoded_is_masked(quoted: str) -> None:
    async def run() -> None:
        for answer in (answers(401, refusal(f"bad key {quoted}!")), streams([CHAT[0], error_event(quoted)])):
            async with serve(answer) as server:
                model = connect("openai:m", base_url=f"{server.url}/v1", api_key=STRANGE, attempts=1)
                with pytest.raises(UnbrokenError) as failed:
                    _ = [delta async for deltas in model.stream(HELLO) for delta in deltas]
                said = f"{chain(failed.value)} {failed.value.verdicts}"
                assert "***" in said
                assert quoted[-20:-8] not in said

    asyncio.run(run())


def test_the_key_before_the_last_that_a_function_returned_is_masked_too() -> None:
    given = iter(["key-number-one-0123", "key-number-two-4567"])
    model = connect("openai:m", api_key=lambda: next(given)).model
    asyncio.run(model.headers())
    asyncio.run(model.headers())
    assert model.masked("not key-number-one-0123, but key-number-two-4567") == "not ***, but ***"
