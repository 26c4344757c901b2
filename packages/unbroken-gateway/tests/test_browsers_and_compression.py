"""Requests of web pages (CORS), and requests with a compressed body."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import aiohttp
import pytest
from gateway_client import run, serving, settings_for

from unbroken.errors import UserError
from unbroken_gateway.config import read_config
from unbroken_gateway.settings import UpstreamSettings

DEMO = UpstreamSettings("demo", "demo")
BODY = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}).encode()
PAGE = {"origin": "https://app.example.org"}
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
CHAT = "/v1/chat/completions"


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # without the time, so that every worker of pytest has the same parameters


def bare_deflate(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(data) + packing.flush()


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", zipped(BODY)),
        ("GZIP", zipped(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", bare_deflate(BODY)),
        ("identity", BODY),
        ("gzip", zipped(BODY.replace(b"Hello", b"Hello " * 100_000))),
    ],
)
def test_compressed_bodies_are_read(encoding: str, data: bytes) -> None:
    async def story() -> None:
        async with (
            serving(settings_for(DEMO)) as url,
            aiohttp.ClientSession(url) as session,
            session.post(CHAT, data=data, headers={"content-encoding": encoding}) as answer,
        ):
            assert answer.status == 200, await answer.text()
            assert "You said" in (await answer.json())["choices"][0]["message"]["content"]

    run(story)


@pytest.mark.parametrize(
    ("encoding", "data", "status", "words"),
    [
        ("br", BODY, 415, "gzip, deflate"),
        ("gzip, gzip", zipped(zipped(BODY)), 415, "gzip, deflate"),
        ("gzip", BODY, 400, "not valid gzip"),
        ("gzip", zipped(BODY)[:-9], 400, "not complete"),
        ("gzip", zipped(BODY) + b"more", 400, "something follows"),
        ("gzip", zipped(b" " * 3_000_000), 413, "after decompression"),
        ("gzip", zipped(b" " * 30_000_000), 413, "after decompression"),
    ],
    ids=["brotli", "twice", "plain", "cut", "longer", "bomb", "large bomb"],
)
def test_other_encodings_broken_ones_and_bombs_are_refused(encoding: str, data: bytes, status: int, words: str) -> None:
    async def story() -> None:
        async with (
            serving(settings_for(DEMO, max_body=1 << 20)) as url,
            aiohttp.ClientSession(url) as session,
            session.post(CHAT, data=data, headers={"content-encoding": encoding}) as answer,
        ):
            assert answer.status == status
            assert words in (await answer.json())["error"]["message"]

    run(story)


def test_an_allowed_page_may_use_the_api_and_nothing_else() -> None:
    async def story() -> None:
        settings = settings_for(DEMO, cors_origins=("https://app.example.org",))
        async with serving(settings) as url, aiohttp.ClientSession(url) as session:
            async with session.options(CHAT, headers={**PAGE, **ASKS}) as answer:
                assert answer.status == 204
                assert answer.headers["access-control-allow-origin"] == PAGE["origin"]
                assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
                assert "POST" in answer.headers["access-control-allow-methods"]
                assert "access-control-allow-credentials" not in answer.headers
            for body, status in ((BODY, 200), (b"{", 400)):
                async with session.post(CHAT, data=body, headers=PAGE) as answer:
                    assert answer.status == status
                    assert answer.headers["access-control-allow-origin"] == PAGE["origin"]
                    exposed = set(answer.headers["access-control-expose-headers"].split(", "))
                    assert exposed >= {"x-unbroken-request-id", "x-unbroken-budget", "x-unbroken-guardrails"}
                    assert answer.headers["vary"] == "origin"
            for path in ("/", "/status.json", "/metrics", "/admin/v1/keys", "/recordings/"):
                async with session.get(path, headers=PAGE) as answer:
                    assert "access-control-allow-origin" not in answer.headers, path
                async with session.options(path, headers={**PAGE, **ASKS}) as answer:
                    assert answer.status in (403, 404), path
                    assert "access-control-allow-origin" not in answer.headers, path
            other = {"origin": "https://evil.example"}
            async with session.options(CHAT, headers={**other, **ASKS}) as answer:
                assert answer.status == 403
                assert "access-control-allow-origin" not in answer.headers
                said = (await answer.json())["error"]["message"]
                assert "https://evil.example" in said
                assert "`cors_origins` in [server]" in said
            async with session.post(CHAT, data=BODY, headers=other) as answer:
                assert answer.status == 403

    run(story)


def test_without_keys_a_star_lets_no_page_in_and_without_origins_nothing_changes() -> None:
    async def story() -> None:
        for origins in (("*",), ()):
            async with (
                serving(settings_for(DEMO, cors_origins=origins)) as url,
                aiohttp.ClientSession(url) as session,
                session.post(CHAT, data=BODY, headers=PAGE) as answer,
            ):
                assert answer.status == 403
                assert answer.headers.get("access-control-allow-origin") == ("*" if origins else None)

    run(story)


def test_an_origin_with_a_path_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "u.toml"
    file.write_text('[server]\ncors_origins = ["https://app.example.org/"]\n[[models]]\nmodel = "demo"\n')
    with pytest.raises(UserError, match="not an origin"):
        read_config(str(file))
