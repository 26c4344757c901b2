"""The command line, in this process: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from course_assistant import cli
from course_assistant.assistant import Answered, CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.screen import PlainScreen, TerminalScreen, clean
from course_assistant.sources import Source
from course_assistant.tours import script, scripted_model
from unbroken.errors import Unauthorized
from unbroken.trajectory.recording import list_recordings
from unbroken_testing import Fail, Pause, Say, run_virtual, serve

EXAMPLES = Path(__file__).parents[2]


def run(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli.app, list(words), input=stdin)


def test_in_a_pipe_only_the_answer_is_on_standard_output() -> None:
    done = run("ask", "What is MCP?")
    assert done.exit_code == 0
    assert done.stdout.startswith("MCP is short for Model Context Protocol.")
    assert "[1] MCP: Build Tool Servers for Language Models - Lesson 1: courses/mcp.txt:6\n" in done.stdout
    assert 'round 1: search_course_content(query="What is MCP")' in done.stderr
    assert "1 round, 2 requests, 1 call, about" in done.stderr


def test_json_prints_one_line_with_everything() -> None:
    done = run("ask", "What is MCP and what are the prerequisites?", "--json")
    told = json.loads(done.stdout)
    assert (told["rounds"], told["requests"], len(told["calls"]), told["stop_reason"]) == (2, 3, 2, "round_limit")
    assert told["calls"][1] == {
        "name": "search_course_content",
        "arguments": {"query": "prerequisites", "course_name": "MCP"},
        "round": 2,
        "error": False,
    }
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_question_may_be_read_from_standard_input() -> None:
    assert json.loads(run("ask", "-", "--json", stdin="什么是沙箱？\n").stdout)["question"] == "什么是沙箱？"


def test_the_tour_asks_the_seven_questions() -> None:
    told = [json.loads(line) for line in run("tour", "--json").stdout.splitlines()]
    assert [one["rounds"] for one in told] == [1, 1, 2, 1, 2, 2, 2]
    assert [len(one["calls"]) for one in told] == [1, 1, 2, 2, 2, 2, 2]


def test_a_silent_model_ends_with_an_empty_answer_and_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with serve("", "", "") as server:
        done = run("ask", "What is MCP?", "--model", "openai:m", "--base-url", server.base_url("openai-chat"))
        assert len(server.requests) == 3
    assert (done.exit_code, done.stdout) == (0, "\n")
    assert "the model gave no answer" in done.stderr


def test_runs_are_recorded_on_request(tmp_path: Path) -> None:
    assert run("ask", "What is MCP?", "--record", str(tmp_path), "--rounds", "1").exit_code == 0
    (recorded,) = list_recordings(tmp_path)
    assert (recorded.prompt, recorded.stop_reason) == ("What is MCP?", "round_limit")


def test_bad_input_gives_one_line_and_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for words, said in (
        (["ask", " "], "the question is empty"),
        (["ask", "Hi.", "--rounds", "0"], "0 rounds of tool calls are not possible"),
        (["ask", "Hi.", "--model", "gpt-5"], "write provider:model"),
        (["ask", "Hi.", "--model", "openai:gpt-5"], "set OPENAI_API_KEY"),
        (["ask", "Hi.", "--base-url", "http://127.0.0.1:9"], "name one with --model"),
        (["ask", "Hi.", "--raw-log", "raw.jsonl"], "--raw-log needs a real model"),
        (["ask", "Hi.", "--courses", "/nowhere"], "the courses in '/nowhere' cannot be read: No such file"),
        (["ask", "Hi.", "--chroma", "/nowhere"], "'/nowhere' is not a Chroma store"),
        (["ask", "Hi.", "--chroma", "/nowhere", "--courses", "/nowhere"], "--courses and --chroma: give one of them"),
        (["ask", "Hi.", "--collection", "tea"], "--collection needs a store: name it with --chroma DIR"),
    ):
        done = run(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_real_server_is_used_with_model_and_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serve(script()) as server:
        done = run("ask", "What is MCP?", "--model", "openai:tours", "--base-url", server.base_url(), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["answer"].startswith("MCP is short for")
    assert [body["model"] for body in server.bodies] == ["tours", "tours"]


def test_a_failing_provider_gives_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serve(Fail(Unauthorized("wrong key", status=401))) as server:
        done = run("ask", "What is MCP?", "--model", "openai:gpt-5", "--base-url", server.base_url())
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("course_assistant: ")
    assert "secret" not in done.stderr


def test_an_interrupt_ends_quietly() -> None:
    with serve([Say("MCP is "), Pause(60), Say("long.")]) as server:
        command = [sys.executable, "-m", "course_assistant", "ask", "What is MCP?", "--model", "openai:gpt-5"]
        process = subprocess.Popen(
            [*command, "--base-url", server.base_url()],
            cwd=EXAMPLES,
            env={**os.environ, "OPENAI_API_KEY": "of-the-tests"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.stderr is not None
            asked = process.stderr.readline()  # by now it is on its way
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert b"question: What is MCP?" in asked
    assert b"Traceback" not in err


def test_a_terminal_shows_rounds_calls_the_answer_and_its_sources(library: CourseLibrary) -> None:
    shown = io.StringIO()
    screen = TerminalScreen(Console(file=shown, width=120, force_terminal=True, color_system=None))
    assistant = CourseAssistant(scripted_model(), library)
    run_virtual(cli.ask_all(["What is MCP and what are the prerequisites?"], assistant, screen))
    for words in (
        'round 1  search_course_content(query="MCP introduction")',
        "round 2  search_course_content(",
        "no more tool calls",
        "Prerequisites: Python",
        "courses/mcp.txt:6",
        "2 rounds",
    ):
        assert words in shown.getvalue()


def test_what_a_model_says_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2Jb\r\x07\nc\td\u202ee") == "a[2Jb\nc\tde"


def test_the_title_of_a_course_cannot_move_the_cursor_either(
    library: CourseLibrary, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_virtual(CourseAssistant(scripted_model(), library).ask("What is MCP?")).result
    answered = Answered("Text.", (Source(1, "A\x1b[2J", "a\x07.md:1"),), (), result)
    shown = io.StringIO()
    for screen in (PlainScreen(), TerminalScreen(Console(file=shown, width=120))):
        screen.show(answered)
    assert "[1] A[2J: a.md:1\n" in capsys.readouterr().out
    assert "[1] A[2J  a.md:1\n" in shown.getvalue()


def test_an_interrupt_during_the_imports_ends_it_without_a_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], cwd=EXAMPLES, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "course_assistant.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.path.insert(0, ".")
runpy.run_module("course_assistant", run_name="__main__")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_gives_one_line_and_exit_code_1() -> None:
    words = [sys.executable, "-m", "course_assistant", "ask", "What is MCP?", "--json"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(words, cwd=EXAMPLES, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert ended.stderr == b"course_assistant: standard output cannot be written to: No space left on device\n"
    assert ended.returncode == 1


def test_the_server_prints_its_address_and_stops_on_a_signal_even_a_second_one(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "course_assistant", "serve", "--port", "0", "--data", str(tmp_path)],
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with started:
        assert started.stdout is not None
        assert re.search(rb"scripted:course-tours\) is at http://127.0.0.1:\d+/", started.stdout.readline())
        for _ in range(2):
            started.send_signal(signal.SIGINT)
        assert started.stderr is not None
        assert (started.stderr.read(), started.wait(60)) == (b"", 0)
