"""`unbroken dph run` and `unbroken dph check`, as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from terminals import COMMAND, Terminal, environment, invoke, write_tools

from unbroken import Request, ToolMessage
from unbroken.models.scripted import Answer
from unbroken_testing import Call, Say, ScriptedServer, Uses, serve

PROGRAM = """
/explore/(tools=[weather]) How is it in $city? -> found
"It is so: " + $found.answer -> said
"""


def answer(request: Request) -> Answer:
    if isinstance(request.messages[-1], ToolMessage):
        return [Say("Sunny."), Uses(20, 2)]
    return [Call("weather", city="Oslo"), Uses(10, 5)] if request.tools else [Say("No tools."), Uses(3, 3)]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with serve(answer) as server:
        yield server


def write(folder: Path, text: str, name: str = "p.dph") -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def to(server: ScriptedServer) -> list[str]:
    return ["--model", "openai:m", "--base-url", server.base_url()]


KEY = {"OPENAI_API_KEY": "of-the-tests"}


def test_the_value_is_on_standard_output_and_progress_on_standard_error(server: ScriptedServer, tmp_path: Path) -> None:
    program = write(tmp_path, PROGRAM)
    done = invoke("dph", "run", program, *to(server), "-t", write_tools(tmp_path), "-v", "city=Oslo", env=KEY)
    assert (done.exit_code, done.stdout) == (0, "It is so: Sunny.\n")
    assert "p.dph:2 /explore/ found: started\n" in done.stderr
    assert 'p.dph:2 /explore/ found: call weather(city="Oslo")\n' in done.stderr
    assert "a tool prints this" in done.stderr
    assert "done · 2 requests · 30 tokens in, 7 out" in done.stderr


def test_every_event_is_a_line_of_json_and_the_last_has_all_variables(server: ScriptedServer, tmp_path: Path) -> None:
    program = write(tmp_path, PROGRAM)
    tools = write_tools(tmp_path)
    done = invoke("dph", "run", program, *to(server), "-t", tools, "-v", 'city="Oslo"', "--json", env=KEY)
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["type"] for line in lines[:-1]} == {"BlockStarted", "InBlock", "BlockFinished"}
    assert {line["block"]["name"] for line in lines[:-1]} == {"found"}
    assert lines[-1]["type"] == "ProgramFinished"
    assert (lines[-1]["variables"]["city"], lines[-1]["value"]) == ("Oslo", "It is so: Sunny.")


def test_a_program_without_blocks_that_ask_needs_no_model(tmp_path: Path) -> None:
    program = write(tmp_path, '"Hello" -> greeting\n$greeting + ", world" -> msg')
    assert invoke("dph", "run", program).stdout == "Hello, world\n"


def test_a_program_that_asks_needs_a_model_before_it_starts(tmp_path: Path) -> None:
    program = write(tmp_path, '@weather(city="Oslo") -> w\n/prompt/ Hello -> x')
    done = invoke("dph", "run", program, "-t", write_tools(tmp_path))
    assert done.exit_code == 2
    assert "p.dph:2:1: this block needs a model, and none was given" in done.stderr
    assert "call weather" not in done.stderr


def test_json_values_are_parsed(tmp_path: Path) -> None:
    program = write(tmp_path, "[$n + 1, $on, $list[1], $word, $big] -> all")
    given = ["n=3", "on=true", "list=[1, 2]", "word=Oslo, 3", "big=1e999"]
    done = invoke("dph", "run", program, *(part for one in given for part in ("-v", one)))
    assert json.loads(done.stdout) == [4, True, 2, "Oslo, 3", "1e999"]


def test_wrong_arguments_are_reported(tmp_path: Path) -> None:
    program = write(tmp_path, "1 -> x")
    for wrong, words in (
        (["-v", "city"], "-v city: a variable is given as NAME=VALUE"),
        (["--also", "fast"], "--also fast: give a name and a model"),
    ):
        done = invoke("dph", "run", program, *wrong)
        assert done.exit_code == 2
        assert words in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("@weather(city='Oslo') -> w\n@fail(reason='no') -> x", 4, "p.dph:2:1: tool `fail` failed: no"),
        ("5 -> n\n/for/ $x in $n:\n1 -> y\n/end/", 4, "p.dph:2:13: a loop needs a list, not a number"),
        ('/prompt/(model="nobody:x") Hi -> x', 2, "there is no provider `nobody`"),
        ('/prompt/(output="json") Hi -> x', 4, "the answer does not match"),
        ("/prompt/ Hi", 2, "p.dph:1:1: `/prompt/` never ends"),
        ("@weathr(city='x') -> x", 2, "did you mean `weather`?"),
    ],
)
def test_a_stopped_program_reports_where_and_its_exit_code_why(
    text: str, code: int, words: str, server: ScriptedServer, tmp_path: Path
) -> None:
    done = invoke("dph", "run", write(tmp_path, text), *to(server), "-t", write_tools(tmp_path), env=KEY)
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stopped_program_reports_its_variables_and_usage(server: ScriptedServer, tmp_path: Path) -> None:
    program = write(tmp_path, "/prompt/ Hi -> hello\n1 / 0 -> x")
    done = invoke("dph", "run", program, *to(server), env=KEY)
    assert "variables set so far: hello\n" in done.stderr
    assert "used so far: 1 request · 3 tokens in, 3 out\n" in done.stderr
    told = invoke("dph", "run", program, *to(server), "--json", env=KEY)
    last = json.loads(told.stdout.splitlines()[-1])
    assert (last["type"], last["line"], last["column"]) == ("ProgramFailed", 2, 3)
    assert last["variables"]["hello"]["answer"] == "No tools."


def test_mistakes_are_a_last_line_of_json_too(tmp_path: Path) -> None:
    done = invoke("dph", "run", write(tmp_path, "$x + 1 -> y"), "--json")
    [line] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (line["type"], line["problems"][0]["column"]) == ("InvalidProgram", 1)


def test_warnings_are_printed_before_the_model_is_asked(server: ScriptedServer, tmp_path: Path) -> None:
    done = invoke("dph", "run", write(tmp_path, "/prompt/ In $city? -> x"), *to(server), env=KEY)
    assert done.exit_code == 0
    warning, begins = done.stderr.index("warning: `$city` is not set"), done.stderr.index("started")
    assert warning < begins


def test_messages_of_tools_and_the_quoted_line_are_not_changed(tmp_path: Path) -> None:
    program = write(tmp_path, '@fail(reason="base_url is wrong") -> x')
    done = invoke("dph", "run", program, "-t", write_tools(tmp_path))
    assert "tool `fail` failed: base_url is wrong" in done.stderr
    assert '1 | @fail(reason="base_url is wrong") -> x' in done.stderr


def test_calls_that_need_an_approval_are_denied_and_yes_allows_them(tmp_path: Path) -> None:
    program, tools = write(tmp_path, '@delete(path="a") -> x'), write_tools(tmp_path)
    denied = invoke("dph", "run", program, "-t", tools)
    assert denied.exit_code == 4
    assert "needs an approval, and nobody can be asked (on_approval=, --yes)" in denied.stderr
    assert invoke("dph", "run", program, "-t", tools, "--yes").stdout == "deleted a\n"


def test_a_program_can_be_read_from_standard_input(tmp_path: Path) -> None:
    assert invoke("dph", "run", "-", stdin="1 + 1 -> two").stdout == "2\n"
    done = subprocess.run([*COMMAND, "dph", "run", "-"], input=b"\xff -> x", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"standard input is not UTF-8 (byte 0)" in done.stderr


def test_each_block_that_asked_is_recorded_as_a_run(server: ScriptedServer, tmp_path: Path) -> None:
    program = write(tmp_path, "/judge/(tools=[weather]) In Oslo? -> w\n/prompt/ Hi -> x")
    folder = tmp_path / "runs"
    tools = write_tools(tmp_path)
    invoke("dph", "run", program, *to(server), "-t", tools, "--record", str(folder), env=KEY)
    told = json.loads(invoke("stats", str(folder), "--json").stdout)
    assert (told["recordings"], told["all"]["queries"], told["all"]["waiting"]) == (2, 2, 0)
    assert told["all"]["tools"]["weather"]["executions"] == 1


def test_an_interrupt_reports_what_was_in_progress_and_what_was_set(tmp_path: Path) -> None:
    program = write(tmp_path, '"first" -> a\n@hang(seconds=60) -> b')
    command = [*COMMAND, "dph", "run", program, "-t", write_tools(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        begun = [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    lines = [json.loads(line) for line in [*begun, *out.splitlines()]]
    finished = next(line for line in lines if line["type"] == "BlockFinished")
    assert finished["error"] == "cancelled"
    assert lines[-1] == {"type": "ProgramInterrupted", "variables": {"a": "first"}}
    assert b"variables set so far: a" in err


def test_a_terminal_shows_blocks_calls_and_the_value(server: ScriptedServer, tmp_path: Path) -> None:
    program = write(tmp_path, PROGRAM)
    arguments = [*to(server), "-t", write_tools(tmp_path), "-v", "city=Oslo"]
    with Terminal("dph", "run", program, *arguments, env=KEY) as terminal:
        terminal.wait_for("It is so: Sunny.")
        terminal.wait_for("done · 2 requests")
        assert terminal.end() == 0


def test_check_finds_all_mistakes_of_all_files_and_names_the_unreadable_one(tmp_path: Path) -> None:
    one = write(tmp_path, "@nobody() -> x\n$unset -> y", "one.dph")
    two = write(tmp_path, "/prompt/ $who -> x", "two.dph")
    none = str(tmp_path / "none.dph")
    done = invoke("dph", "check", one, none, two, "-t", write_tools(tmp_path))
    assert done.exit_code == 2
    for words in ("one.dph:1:1: there is no tool `nobody`", "one.dph:2:1: `$unset`", "two.dph:1:10: warning: `$who`"):
        assert words in done.stderr
    assert "none.dph: there is no such program" in done.stderr


def test_the_exit_code_of_check_shows_what_it_found(tmp_path: Path) -> None:
    tools = write_tools(tmp_path)
    fine = write(tmp_path, "@weather(city='Oslo') -> x")
    done = invoke("dph", "check", fine, "-t", tools)
    assert (done.exit_code, done.stdout) == (0, "1 program: no mistakes found\n")
    assert "tools were not checked" in invoke("dph", "check", fine).stdout
    warned = write(tmp_path, "/prompt/ $who -> x", "w.dph")
    assert invoke("dph", "check", warned, "-t", tools).stdout == "1 program: no mistakes found, 1 warning\n"
    assert invoke("dph", "check", warned, "-t", tools, "--strict").exit_code == 1
    assert invoke("dph", "check", warned, "-t", tools, "--strict", "-v", "who").exit_code == 0
    wrong = invoke("dph", "check", write(tmp_path, "@weather(town='x') -> x", "bad.dph"), "-t", tools, "--json")
    problems = [json.loads(line) for line in wrong.stdout.splitlines()]
    assert (wrong.exit_code, [problem["column"] for problem in problems]) == (1, [1, 10])


def test_a_block_whose_calls_all_failed_gives_exit_code_4(tmp_path: Path) -> None:
    tools = tmp_path / "failing.py"
    tools.write_text(
        "from unbroken import tool\n\n@tool\ndef weather(city: str) -> str:\n    raise OSError('no network')\n"
    )
    program = write(tmp_path, '/explore/ How is it? -> found\n$found.answer + " Sorry." -> said')
    with serve([Call("weather", city="Oslo")], [Call("weather", city="Oslo")]) as failing:
        done = invoke("dph", "run", program, *to(failing), "-t", str(tools), env=KEY)
        assert done.exit_code == 4
        assert done.stdout == "All tool calls failed. Please check the error messages and try again. Sorry.\n"
        assert f"unbroken: {program}:1: /explore/ found stopped: all its tool calls failed\n" in done.stderr
        last = json.loads(
            invoke("dph", "run", program, *to(failing), "-t", str(tools), "--json", env=KEY).stdout.splitlines()[-1]
        )
        assert (last["type"], [block["name"] for block in last["failed_blocks"]]) == ("ProgramFinished", ["found"])
