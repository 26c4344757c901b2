"""The command line, as a user meets it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from command_agent.cli import app
from unbroken.trajectory.recording import list_recordings
from unbroken_testing import Call, Say, serve

EXAMPLES = Path(__file__).parents[2]


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_in_a_pipe_the_text_goes_to_standard_output_and_the_commands_to_standard_error() -> None:
    code, words, aside = call("say", "give me three diamonds", "--pace", "0")
    assert (code, words) == (0, "One moment: 3 × diamond for you.\nDone. You have 3 × diamond now.\n")
    assert "→ give item=diamond count=3" in aside
    assert "← player1 got 3 diamond (command 1)" in aside


def test_json_prints_every_event_on_a_line() -> None:
    code, out, _ = call("say", "给我一个钻石", "--json", "--whole", "--pace", "0")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [event["event_type"] for event in events] == [
        "content",
        "tool_call",
        "tool_return",
        "tool_call",
        "tool_return",
        "content",
        "content",
    ]
    assert events[-1]["metadata"]["is_complete"] is True


def test_a_broken_connection_is_noted_and_the_final_text_is_printed_once() -> None:
    code, words, aside = call("say", "give me a diamond", "--faults", "reset", "--reworded", "--pace", "0")
    assert code == 0
    assert words.count("One moment") == 1
    assert "retrying" in aside
    assert "answered after 3 retries (lost, lost, lost)" in aside


def test_the_bytes_and_the_log_lines_can_be_kept(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    code, _, aside = call(
        "say",
        "give me a diamond",
        "--faults",
        "reset",
        "--pace",
        "0",
        "--raw-log",
        str(raw),
        "--log-level",
        "warning",
        "--log-json",
    )
    assert code == 0
    assert raw.read_text("utf-8").count('"kind":"request"') >= 3
    lines = [json.loads(line) for line in aside.splitlines() if line.startswith("{")]
    assert any(line["logger"] == "unbroken.chain" for line in lines)


def test_what_a_model_says_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    evil = "\x1b]0;owned\x07Hi\r\x1b[1A\u202e."
    calls = [Call("say", text=f"{evil}\n  ← forged"), Call("give", item="\x1b[2J", count=[1])]
    with serve([Say(evil), *calls], f"Done{evil}") as server:
        code, words, aside = call("say", "hi", "--model", "openai:x", "--base-url", server.base_url())
    assert (code, words) == (0, "]0;ownedHi[1A.\nDone]0;ownedHi[1A.\n")
    assert not {letter for letter in aside if ord(letter) < 32 or letter == "\u202e"} - {"\n"}
    assert "→ give item=[2J count=[1]" in aside
    assert "→ say text=]0;ownedHi [1A.   ← forged" in aside


def test_a_wish_that_a_limit_ends_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with serve(lambda request: Call("say", text=str(len(request.messages)))) as server:
        code, _, aside = call("say", "talk!", "--model", "openai:x", "--base-url", server.base_url())
    assert code == 1
    assert aside.endswith("not completed: round_limit\n")


def test_an_interrupt_during_the_imports_ends_it_without_a_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], cwd=EXAMPLES, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "command_agent.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.path.insert(0, ".")
runpy.run_module("command_agent", run_name="__main__")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_gives_one_line_and_exit_code_1() -> None:
    words = [sys.executable, "-m", "command_agent", "say", "what time is it?", "--json", "--pace", "0"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(words, cwd=EXAMPLES, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert ended.stderr == b"error: standard output cannot be written to: No space left on device\n"
    assert ended.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["say", "hi", "--model", "nonsense"], 2, "error: `nonsense` does not name a model"),
        (["say", "hi", "--faults", "nonsense"], 2, "error: there is no stream fault 'nonsense'"),
        (["say", "hi", "--base-url", "http://127.0.0.1:9"], 2, "error: --base-url needs a model"),
        (["say", "hi", "--faults", "reset", "--base-url", "http://127.0.0.1:9"], 2, "error: --faults uses its own"),
        (["say", "hi", "--raw-log", "x"], 2, "error: --raw-log needs a model that is reached over HTTP"),
        (["say", "hi", "--faults", "reset", "--raw-log", "/no/x"], 2, "error: raw_log=/no/x cannot be written"),
        (["say", "  "], 2, "error: the wish is empty: write what you wish"),
        (["say", "give me a diamond", "--faults", "refusal_inside", "--pace", "0"], 1, "error: the answer of "),
    ],
)
def test_invalid_input_gives_one_line(arguments: list[str], code: int, error: str) -> None:
    ended, _, aside = call(*arguments)
    assert ended == code
    assert aside.startswith(error)
    assert aside.count("\n") == 1


def test_the_server_prints_its_address_and_stops_on_a_signal() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "command_agent",
            "serve",
            "--port",
            "0",
            "--pace",
            "0",
            cwd=EXAMPLES,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.endswith("  model: scripted:wishes; Ctrl-C stops it\n")
        async with aiohttp.ClientSession() as session, session.get(f"{line.split()[0]}world") as answer:
            assert (await answer.json())["number"] == 0
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")

    asyncio.run(main())


def test_wishes_are_recorded_in_the_folder_that_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "wishes"
    code, _, _ = call("say", "give me three diamonds", "--pace", "0", "--record", str(folder))
    assert code == 0
    (recorded,) = list_recordings(folder)
    assert recorded.prompt == "give me three diamonds"
