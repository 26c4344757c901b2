"""`unbroken faults`, as a user runs it: a separate process that serves until it is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO
from urllib.error import HTTPError

import pytest
from terminals import in_pipe

from unbroken import Request, User, decode
from unbroken_testing import FAULTS
from unbroken_testing.faulty import TOOLS
from unbroken_wires.wires import WIRES, find_wire

ASKED = Request((User.of("What is the weather?"),), tools=TOOLS, model="any", stream=False)


class Serving:
    def __init__(self, process: subprocess.Popen[str], out: IO[str]) -> None:
        self._process = process
        self._out = out
        self.urls = dict(self.line().split() for _ in WIRES)
        self.words = self.line()

    def line(self) -> str:
        return self._out.readline().rstrip("\n")

    def post(self, url: str, body: bytes) -> int:
        try:
            with urllib.request.urlopen(url, body) as answer:
                assert decode(answer.read()).verdict.whole
                return answer.status
        except HTTPError as error:
            error.close()
            return error.code

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(30)


@contextmanager
def serving(*arguments: str) -> Generator[Serving]:
    command = [sys.executable, "-m", "unbroken", "faults", "serve", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Serving(process, process.stdout)
        finally:
            process.kill()


def test_a_server_breaks_as_often_as_requested_and_stops_on_an_interrupt() -> None:
    body = find_wire("openai-chat").write_request(ASKED)
    with serving("--fault", "status_503", "--times", "2") as server:
        assert list(server.urls) == list(WIRES)
        assert server.words == "breaks the first 2: status_503; Ctrl-C stops it"
        url = f"{server.urls['openai-chat']}/chat/completions"
        assert [server.post(url, body) for _ in range(3)] == [503, 503, 200]
        came = f"openai-chat unstreamed any {len(body):,} bytes"
        assert server.line().startswith(f"0 {came} -> 503, ")
        assert server.line().endswith("bytes: status_503")
        assert server.line().startswith(f"2 {came} -> 200, ")
        assert server.stop() == 0


def test_one_server_tests_many_faults() -> None:
    body = find_wire("openai-chat").write_request(ASKED)
    with serving() as server:
        assert server.words.startswith("breaks what the client chooses: http://127.0.0.1:")
        base = server.urls["gemini"]
        for name, status in (("status_429", 429), ("html_502", 502)):
            url = f"{base}/fault/{name}/v1/chat/completions"
            assert [server.post(url, body) for _ in range(2)] == [status, 200]
            assert [server.line().rpartition(": ")[2] for _ in range(2)] == [name, "good"]


def test_mistakes_in_setting_up_a_client_get_a_line_each() -> None:
    body = b'{"model": "any", "messages": [{"role": "user", "content": "Hi."}]}'
    with serving() as server:
        base = server.urls["openai-chat"]
        root = base.removesuffix("/v1")
        assert server.post(f"{base}/chat/completions", b"nonsense") == 400
        assert server.line().startswith("- POST /v1/chat/completions -> 400: the body is not JSON: ")
        assert server.post(f"{root}/chat/completions?key=not-for-a-log", body) == 404
        told = f"there is no such path; the base URL is {base} for clients of OpenAI, {root} for others"
        assert server.line() == f"- POST /chat/completions -> 404: {told}"
        with pytest.raises(HTTPError, match="405") as raised:
            urllib.request.urlopen(f"{base}/chat/completions")
        raised.value.close()
        assert server.line() == "- GET /v1/chat/completions -> 405: requests to a model use POST"
        with urllib.request.urlopen(f"{base}/models") as answer:
            assert answer.status == 200
        assert server.line() == "- GET /v1/models -> 200: the list of models"
        assert server.post(f"{base}/chat/completions", body.replace(b"any", b"fault:zzz")) == 400
        assert server.line().endswith("refused: there is no fault 'zzz'; `unbroken faults list` shows them all")
        assert server.post(f"{base}/chat/completions", b'{"model": "any"}') == 400
        assert server.line().endswith(" bytes: refused: messages: none")
        assert server.post(f"{base}/chat/completions", body) == 200
        assert server.line().endswith(" bytes: good")


def test_the_faults_are_listed() -> None:
    rows = [line.split("\t") for line in in_pipe("faults", "list").stdout.splitlines()]
    assert [row[1] for row in rows] == list(FAULTS)
    listed = json.loads(in_pipe("faults", "list", "--json").stdout)
    assert [fault["name"] for fault in listed] == list(FAULTS)
    reset = next(fault for fault in listed if fault["name"] == "reset")
    assert (reset["row"], reset["damages"], reset["outcome"], reset["lasting"]) == (
        11,
        True,
        "answered",
        "typed:ChainBroken",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "rest"], "there is no fault 'rest'; did you mean reset"),
        (["--times", "often"], "--times often: give a whole number above 0, or all"),
        (["--times", "0"], "--times 0: give a whole number above 0, or all"),
        (["--times", "-1"], "--times -1: give a whole number above 0, or all"),
        (["--fault", "zzz"], "there is no fault 'zzz'; `unbroken faults list` shows them all"),
        (["--fault", "no_type", "--wire", "gemini"], "--fault no_type happens on openai-chat only"),
    ],
)
def test_wrong_use_gives_one_clear_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = in_pipe("faults", "serve", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
