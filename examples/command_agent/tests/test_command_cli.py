"""The command line, as a user meets it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from command_agent.__main__ import app

EXAMPLES = Path(__file__).parents[2]


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_in_a_pipe_the_words_are_on_standard_output_and_the_commands_beside_it() -> None:
    code, words, aside = call("say", "give me three diamonds", "--pace", "0")
    assert (code, words) == (0, "One moment: 3 × diamond for you.\nDone. You have 3 × diamond now.\n")
    assert "→ give item=diamond count=3" in aside
    assert "← player1 got 3 diamond (command 1)" in aside


def test_json_is_every_event_on_a_line() -> None:
    code, out, _ = call("say", "给我一个钻石", "--json", "--whole", "--pace", "0")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [event["event_type"] for event in events] == [
        *("content", "tool_call", "tool_return", "tool_call", "tool_return", "content", "content")
    ]
    assert events[-1]["metadata"]["is_complete"] is True


def test_a_broken_line_is_heard_of_and_the_words_that_count_are_said_once() -> None:
    code, words, aside = call("say", "give me a diamond", "--faults", "reset", "--reworded", "--pace", "0")
    assert code == 0
    assert words.count("One moment") == 1
    assert "asking again" in aside
    assert "answered after a restart" in aside


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["say", "hi", "--model", "nonsense"], 2, "error: `nonsense` does not name a model"),
        (["say", "hi", "--faults", "nonsense"], 2, "error: there is no fault 'nonsense' of a stream"),
        (["say", "hi", "--base-url", "http://127.0.0.1:9"], 2, "error: --base-url is the address of a model"),
        (["say", "hi", "--faults", "reset", "--base-url", "http://127.0.0.1:9"], 2, "error: --faults plays its own"),
        (["say", "  "], 2, "error: a wish has a text: say what you wish"),
        (["say", "give me a diamond", "--faults", "refusal_inside", "--pace", "0"], 1, "error: the answer of "),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], code: int, error: str) -> None:
    ended, _, aside = call(*arguments)
    assert ended == code
    assert aside.startswith(error)
    assert aside.count("\n") == 1


def test_the_server_says_where_it_is_and_ends_when_it_is_told_to() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "command_agent", "serve", "--port", "0", "--pace", "0"),
            cwd=EXAMPLES,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.endswith("  model: scripted:wishes; Ctrl-C ends it\n")
        async with aiohttp.ClientSession() as session, session.get(f"{line.split()[0]}world") as answer:
            assert (await answer.json())["number"] == 0
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")

    asyncio.run(main())
