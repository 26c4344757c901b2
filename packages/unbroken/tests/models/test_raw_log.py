"""The raw log: the exact bytes sent and received, without secrets, and `unbroken decode` of it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
from base64 import b64encode
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import loaded_command
import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st
from model_servers import (
    CHAT,
    HELLO,
    KEY,
    SEARCH,
    Handler,
    answers,
    begin,
    refusal,
    serve,
    serve_bytes,
    streams,
)
from yarl import URL

from unbroken.errors import ProviderError, UnbrokenError, UserError
from unbroken.models.connect import connect
from unbroken.models.masking import Masker, Passage
from unbroken.models.model import closing
from unbroken.models.raw_log import Exchange, RawLog, read_exchanges
from unbroken.models.secrets import base64_forms
from unbroken_testing import Call, ScriptedServer
from unbroken_wires.deltas import Delta, Ended
from unbroken_wires.messages import Request

SECRET = "plain0123456789"
WIRES = {
    "openai-chat": "openai:m",
    "openai-responses": "openai-responses:m",
    "anthropic-messages": "anthropic:m",
    "gemini": "gemini:m",
    "ollama": "ollama:m",
    "cohere-v2": "cohere:m",
    "bedrock-converse": "bedrock:m",
}


def unbroken(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return loaded_command.run(*arguments, stdin=stdin, env=os.environ)


async def ask(url: str, path: Path, request: Request = HELLO, **settings: Any) -> list[Delta]:
    """One request and its outcome; an error is only in the log."""
    settings = {"api_key": KEY, "attempts": 1, **settings}
    model = connect("openai:m", base_url=f"{url}/v1", raw_log=path, **settings)
    try:
        return [delta async for deltas in model.stream(request) for delta in deltas]
    except UnbrokenError:
        return []


def play(handler: Handler, path: Path, request: Request = HELLO, **settings: Any) -> list[Delta]:
    async def run() -> list[Delta]:
        async with serve(handler) as server:
            return await ask(server.url, path, request, **settings)

    return asyncio.run(run())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def exchanges(path: Path) -> list[Exchange]:
    unreadable: list[int] = []
    found = list(
        read_exchanges(path.read_bytes().splitlines(keepends=True), lambda number, _: unreadable.append(number))
    )
    assert unreadable == []
    return found


def drips(body: bytes) -> Handler:
    """Byte by byte, each in a separate packet as far as the system allows."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        for byte in body:
            await response.write(bytes([byte]))
            await asyncio.sleep(0)
        return response

    return handler


def test_a_request_and_its_response_are_logged_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    sent: list[bytes] = []

    async def run() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            sent.append(await request.read())
            return await streams(CHAT)(request)

        async with serve(handler) as server:
            await ask(server.url, path)

    asyncio.run(run())
    request, head, *chunks, end = lines(path)
    assert [request["kind"], head["kind"], end["kind"]] == ["request", "head", "end"]
    assert (request["method"], request["model"], request["wire"], request["stream"]) == (
        "POST",
        "openai:m",
        "openai-chat",
        True,
    )
    assert request["at"].endswith("Z")
    assert request["body"].encode() == sent[0]
    assert (head["status"], head["headers"]["content-type"]) == (200, "text/event-stream")
    assert "".join(chunk["text"] for chunk in chunks) == b"".join(CHAT).decode()
    assert [chunk["after"] for chunk in chunks] == sorted(chunk["after"] for chunk in chunks)
    assert (end["how"], end["reason"]) == ("end", "")
    assert {line["exchange"] for line in lines(path)} == {request["exchange"]}


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    RawLog(tmp_path / "raw.jsonl")
    assert stat.S_IMODE((tmp_path / "raw.jsonl").stat().st_mode) == 0o600


def test_bytes_that_are_not_text_are_logged_too(tmp_path: Path) -> None:
    path, body = tmp_path / "raw.jsonl", "data: 你好\n\n".encode() + b"\xff\xfe\x00"
    play(answers(200, body), path)
    assert b"".join(exchanges(path)[0].chunks) == body
    assert any("base64" in line for line in lines(path))


@pytest.mark.parametrize(
    ("settings", "status", "how"),
    [({"idle": 0.05}, 200, "silent"), ({"total": 0.1}, 200, "late")],
)
def test_the_end_shows_how_it_happened(tmp_path: Path, settings: dict[str, Any], status: int, how: str) -> None:
    path = tmp_path / "raw.jsonl"

    async def run() -> None:
        over = asyncio.Event()

        async def hangs(request: web.Request) -> web.StreamResponse:
            response = await begin(request)
            await response.write(CHAT[0])
            await over.wait()
            return response

        async with serve(hangs) as server:
            await ask(server.url, path, **settings)
            over.set()

    asyncio.run(run())
    (exchange,) = exchanges(path)
    assert (exchange.status, exchange.how, exchange.chunks) == (status, how, [CHAT[0]])


def test_a_response_that_is_not_read_to_its_end_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"

    async def run() -> None:
        over = asyncio.Event()

        async def hangs(request: web.Request) -> web.StreamResponse:
            response = await begin(request)
            await response.write(CHAT[0] + CHAT[1])
            await over.wait()
            return response

        async with serve(hangs) as server:
            model = connect("openai:m", base_url=f"{server.url}/v1", api_key=KEY, raw_log=path).model
            async with closing(model.stream(HELLO)) as stream:
                await anext(stream)
            over.set()

    asyncio.run(run())
    assert exchanges(path)[0].how == "closed"


def test_a_request_without_an_answer_is_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"

    async def run() -> None:
        async with serve_bytes(b"") as url:
            await ask(url, path)

    asyncio.run(run())
    (exchange,) = exchanges(path)
    assert (exchange.status, exchange.how) == (None, "lost")
    assert "closed the connection without an answer" in exchange.reason


def test_a_refusal_is_in_the_log_with_its_body(tmp_path: Path) -> None:
    path, body = tmp_path / "raw.jsonl", refusal("slow down")
    play(answers(429, body, **{"Retry-After": "7", "Set-Cookie": "session=abc"}), path)
    (exchange,) = exchanges(path)
    assert (exchange.status, exchange.how, b"".join(exchange.chunks)) == (429, "end", body.encode())
    assert exchange.headers["retry-after"] == "7"
    assert "set-cookie" not in exchange.headers


def test_each_attempt_is_a_separate_exchange(tmp_path: Path) -> None:
    path, tries = tmp_path / "raw.jsonl", iter([answers(503, "no"), streams(CHAT)])
    play(lambda request: next(tries)(request), path, attempts=2)
    assert [exchange.status for exchange in exchanges(path)] == [503, 200]


def test_a_request_that_was_resent_after_a_dead_connection_is_one_exchange_that_shows_it(
    tmp_path: Path,
) -> None:
    path, seen = tmp_path / "raw.jsonl", 0

    async def answers_once(request: web.Request) -> web.StreamResponse:
        nonlocal seen
        seen += 1
        if seen == 2 and request.transport is not None:
            request.transport.abort()
        return await streams(CHAT)(request)

    async def run() -> None:
        async with serve(answers_once) as server:
            for _ in range(2):
                await ask(server.url, path)

    asyncio.run(run())
    first, second = exchanges(path)
    assert (seen, first.resent, second.resent, second.how) == (3, False, True, "end")


def test_the_log_contains_no_secret_wherever_the_provider_quotes_it(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"

    def quotes(request: web.Request) -> Awaitable[web.StreamResponse]:
        head = " ".join([str(request.rel_url), *request.headers.values()])
        return answers(400, refusal(head), **{"X-Request-Id": f"for-{KEY}"})(request)

    async def run() -> None:
        async with serve(quotes) as server:
            model = connect(
                "openai:m",
                base_url=f"{server.url}/v1?key=secret-of-address",
                query={"token": "secret of query"},
                headers={"X-Auth": 'secret-"of"/header'},
                api_key=KEY,
                extra={"user": f"I am {KEY}"},
                raw_log=path,
                attempts=1,
            )
            with pytest.raises(ProviderError):
                _ = [delta async for deltas in model.stream(HELLO) for delta in deltas]

    asyncio.run(run())
    said = path.read_text()
    assert KEY not in said
    assert "secret" not in said
    (exchange,) = exchanges(path)
    assert "/v1/chat/completions?key=***&token=***" in exchange.url
    assert json.loads(exchange.body)["user"] == "I am ***"
    assert json.loads(b"".join(exchange.chunks))["error"]["message"].count("***") >= 4


def test_a_secret_that_arrives_byte_by_byte_is_masked_and_the_rest_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    play(drips(f"plain plain01234 {SECRET}{SECRET[:9]}! {SECRET[:8]}".encode()), path, api_key=lambda: SECRET)
    assert b"".join(exchanges(path)[0].chunks) == b"plain plain01234 ***plain0123! ***"


SECRETS = ("abcdef", "abcdefgh-ijkl", "defg--hij", "ab/\"c'd", "k\u00e9y-of-mine")


@given(
    st.lists(st.sampled_from([*SECRETS, "abcd", "def", "ab\\/", "efgh-", " ", "x", "\u00e9"]), max_size=12),
    st.lists(st.integers(0, 80), max_size=8),
)
@example(["abcdef", "efgh-", "x"], [3, 6])
def test_masking_in_pieces_equals_masking_at_once(texts: list[str], cuts: list[int]) -> None:
    masker, data = Masker(SECRETS), "".join(texts).encode()
    passage, shown, at = Passage(masker), b"", 0
    for cut in [*sorted(cuts), len(data)]:
        shown += passage.feed(data[at:cut])
        at = max(at, cut)
    shown += passage.flush()
    at_once = Passage(masker)
    assert shown == at_once.feed(data) + at_once.flush()
    assert Passage(masker).feed(data + b"\0") == masker.mask(data) + b"\0"
    assert not any(secret in shown for secret in masker.secrets)


BROKEN = "pass-word:0123456789"


@given(
    st.lists(st.sampled_from(["x", "user:", BROKEN, "pass-", "y" * 50]), max_size=6),
    st.sampled_from([60, 64, 76]),
    st.sampled_from(["\n", "\r\n", "\\n", "\\\\r\\\\n", "\n  "]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_base64_that_is_broken_over_lines_is_masked_however_it_arrives(
    texts: list[str], width: int, line_break: str, cuts: list[int]
) -> None:
    encoded = b64encode("".join(texts).encode()).decode()
    data = line_break.join(encoded[at : at + width] for at in range(0, len(encoded), width)).encode()
    masker = Masker([BROKEN])
    passage, shown, at = Passage(masker), b"", 0
    for cut in [*sorted(cuts), len(data)]:
        shown += passage.feed(data[at:cut])
        at = max(at, cut)
    shown += passage.flush()
    assert (b"***" in shown) >= (BROKEN in "".join(texts))
    left = shown.decode().replace(line_break, "")
    assert not any(form in left for form in base64_forms(BROKEN))
    if BROKEN not in "".join(texts) and "pass-" not in texts:
        assert shown == data


@pytest.mark.parametrize("placeholder", ["none", "EMPTY", "null", "true", "tool", "12345"])
def test_a_placeholder_key_does_not_change_bodies(placeholder: str) -> None:
    body = b'{"tool_choice": "none", "stream": true, "stop": null, "created": 1712345678}'
    assert Masker([placeholder]).mask(body) == body


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone/raw.jsonl", "there is no folder {0}/gone; make it, or name another"),
        (".", "it is a folder; name a file in it"),
        ("notes.txt", "is a file of another kind: name a new one, or an existing raw log"),
    ],
)
def test_a_log_that_cannot_be_written_is_refused_when_the_model_is_connected(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    with pytest.raises(UserError) as caught:
        connect("openai:m", api_key=KEY, raw_log=tmp_path / name)
    assert message.format(tmp_path) in str(caught.value)
    assert str(caught.value).startswith(f"raw_log={tmp_path}")
    assert (tmp_path / "notes.txt").read_text() == "Buy milk.\n"


def test_a_log_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(UserError, match=r"raw_log=3\): expected a string, PathLike or None, got int"):
        connect("openai:m", api_key=KEY, raw_log=3)  # pyright: ignore[reportArgumentType] - that is the point


def test_a_log_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="raw_log is empty: give the name of a file, or None for no log"):
        connect("openai:m", api_key=KEY, raw_log="")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full at once, where the system has one")
def test_a_full_disk_ends_the_log_with_one_warning_and_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "unbroken"):
        deltas = play(streams(CHAT), Path("/dev/full"))
    assert isinstance(deltas[-1], Ended)
    assert deltas[-1].verdict.whole
    warnings = [record.getMessage() for record in caplog.records if record.name == "unbroken.models"]
    assert warnings == ["raw_log=/dev/full is not written any more: No space left on device"]


def test_an_incomplete_line_is_closed_before_the_log_continues(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    play(streams(CHAT), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    play(streams(CHAT), path)
    unreadable: list[int] = []
    first, second = read_exchanges(
        path.read_bytes().splitlines(keepends=True), lambda number, _: unreadable.append(number)
    )
    assert (first.how, second.how, unreadable) == (None, "end", [len(whole.splitlines())])


def test_exchanges_of_several_logs_and_tasks_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"

    async def run() -> None:
        async with serve(drips(b"".join(CHAT)[:200])) as server, asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(ask(server.url, path))

    asyncio.run(run())
    found = exchanges(path)
    assert len({exchange.id for exchange in found}) == 6
    assert {b"".join(exchange.chunks) for exchange in found} == {b"".join(CHAT)[:200]}
    assert [exchange.number for exchange in found] == [1, 2, 3, 4, 5, 6]


def test_the_log_of_a_killed_process_is_complete_so_far(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    program = f"""
import os, signal
from yarl import URL
from unbroken.models.raw_log import RawLog
raw_log = RawLog({str(path)!r})
log = raw_log.begin(model="openai:m", wire="openai-chat", url=URL("http://h/v1"), body=b"{{}}", stream=True)
log.head(200, {{}})
log.feed({CHAT[0]!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    (exchange,) = exchanges(path)
    assert (exchange.status, exchange.chunks, exchange.how) == (200, [CHAT[0]], None)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
def test_decode_shows_each_exchange_of_any_wire(tmp_path: Path, wire: str, stream: bool) -> None:
    path = tmp_path / "raw.jsonl"

    async def run() -> None:
        answer = ["Let me see.", Call("search", q="x")]
        async with ScriptedServer(answer, "Found.", loop_last=True) as server:
            model = connect(
                WIRES[wire], base_url=server.base_url(wire), api_key=KEY, raw_log=path, stream=stream, wire=wire
            )
            for _ in range(2):
                _ = [delta async for deltas in model.stream(SEARCH) for delta in deltas]

    asyncio.run(run())
    done = unbroken("decode", "--json", str(path))
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["exchange"], first["wire"], first["status"], first["how"]) == (1, wire, 200, "end")
    assert (first["text"], [call["arguments"] for call in first["calls"]]) == ("Let me see.", [{"q": "x"}])
    assert (second["exchange"], second["text"], second["verdict"]["kind"]) == (2, "Found.", "whole")


@pytest.fixture
def log_of_three(tmp_path: Path) -> Path:
    """A complete response, a refusal, and a stream that was cut off."""
    path = tmp_path / "raw.jsonl"
    play(streams(CHAT), path)
    play(answers(429, refusal("slow down")), path)
    play(streams(CHAT[:1]), path)
    return path


def test_decode_shows_how_each_exchange_ended(log_of_three: Path) -> None:
    done = unbroken("decode", str(log_of_three))
    assert (done.returncode, done.stderr) == (1, b"")
    first, second, third = done.stdout.decode().split("\n\n")
    assert first.splitlines()[0].startswith("exchange 1: 20")
    assert "openai:m  openai-chat  200, end after " in first
    assert first.splitlines()[1:] == ["text: Hello there", "complete; finish: stop, 3 tokens in, 2 out"]
    assert "429, end after" in second
    assert "broken: limited: provider `openai` answered 429: slow down" in second
    assert "broken: unfinished: the body ended without the terminal sign of its wire" in third


def test_decode_picks_one_exchange_by_number_or_id(log_of_three: Path) -> None:
    id = lines(log_of_three)[0]["exchange"]
    for which in ("1", id):
        done = unbroken("decode", "--exchange", which, "-", stdin=log_of_three.read_bytes())
        assert done.returncode == 0
        assert done.stdout.decode().splitlines()[1] == "text: Hello there"
    done = unbroken("decode", "--exchange", "4", str(log_of_three))
    told = b"it contains no exchange 4; they are numbered from 1 to 3"
    assert (done.returncode, told in done.stderr) == (2, True)


def test_decode_heads_an_exchange_the_same_way_whether_it_follows_or_not(log_of_three: Path) -> None:
    heads = [
        unbroken("decode", *options, "--exchange", "1", str(log_of_three)).stdout.splitlines()[0]
        for options in ((), ("--follow",))
    ]
    assert heads[0].startswith(b"exchange 1: ")
    assert heads[0] == heads[1]


def test_decode_skips_an_incomplete_last_line_and_reports_it(log_of_three: Path) -> None:
    log_of_three.write_bytes(log_of_three.read_bytes()[:-10])
    done = unbroken("decode", str(log_of_three), "--exchange", "3")
    assert done.returncode == 1
    assert b"200, not ended after" in done.stdout
    assert b"the log ends before the response does" in done.stdout
    assert b"the last line was skipped: it is incomplete" in done.stderr


def test_decode_continues_after_unreadable_lines(log_of_three: Path) -> None:
    good = log_of_three.read_bytes().splitlines(keepends=True)
    stranger = b'{"raw_log":1,"exchange":"gone-1-1","kind":"end","after":1,"how":"end","reason":""}\n'
    log_of_three.write_bytes(b"".join([good[0][:50] + b"\n", b"[1]\n", stranger, *good]))
    done = unbroken("decode", "--exchange", "1", str(log_of_three))
    assert (done.returncode, b"text: Hello there" in done.stdout) == (0, True)
    assert b"lines 1, 2, 3 skipped" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["-"], b'{"raw_log":1,"exch', "it contains no complete exchange"),
        (["-"], b'{"raw_log":9,"exchange":"a-1-1","kind":"request"}\n', "is of format 9, and 1 can be read"),
        (["--exchange", "2", "-"], CHAT[0], "--exchange 2: - is not a raw log; leave out the option"),
    ],
)
def test_bad_input_gives_one_clear_line_and_exit_code_2(arguments: list[str], stdin: bytes, message: str) -> None:
    done = unbroken("decode", *arguments, stdin=stdin)
    assert done.returncode == 2
    assert message in done.stderr.decode()


def test_decode_follows_the_bytes_of_a_log(log_of_three: Path) -> None:
    done = unbroken("decode", "--follow", "--chunk", "1", "--exchange", "1", str(log_of_three))
    assert done.returncode == 0
    assert b"exchange 1" in done.stdout
    assert b"Hello there\n" in done.stdout


def test_a_call_that_leaked_into_text_is_recovered_from_the_log_as_it_was_live(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"

    async def run() -> None:
        leaked = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
        async with ScriptedServer(leaked) as server:
            await ask(server.url, path, SEARCH)

    asyncio.run(run())
    assert exchanges(path)[0].recovers
    assert b'call: search {"q": "x"}' in unbroken("decode", str(path)).stdout


def test_a_shown_log_contains_no_secrets(tmp_path: Path) -> None:
    log = RawLog(tmp_path / "raw.jsonl")
    logged = log.begin(
        model="openai:m", wire="openai-chat", url=URL("http://h"), body=b"{}", stream=True, secrets=(SECRET,)
    )
    assert SECRET not in f"{log!r} {logged!r}"
