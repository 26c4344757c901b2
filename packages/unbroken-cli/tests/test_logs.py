"""Log lines of the commands: chosen with --log-level or UNBROKEN_LOG, on standard error, without secrets."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from checkout import ROOT
from terminals import PATIENCE, in_pipe, write_tools

from unbroken import UserError
from unbroken.logs import LEVELS, VARIABLE, JsonLines, PlainLines, chosen_level, fields_of, stderr_handler
from unbroken_testing import Call, serve


def record(message: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("unbroken.tools", logging.WARNING, "tools.py", 1, message, values, None)


@pytest.mark.parametrize("level", LEVELS)
def test_the_option_overrides_the_variable_and_the_variable_the_default(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert chosen_level("", None) is None
    assert chosen_level("", "warning") == "warning"
    monkeypatch.setenv(VARIABLE, level.upper())
    assert chosen_level("", "warning") == level
    assert chosen_level("error", "warning") == "error"


def test_an_unknown_level_is_refused_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--log-level 'loud': expected debug, info, warning or error"):
        chosen_level("loud", None)
    monkeypatch.setenv(VARIABLE, "all")
    with pytest.raises(UserError, match="UNBROKEN_LOG 'all': expected debug"):
        chosen_level("", None)


def test_lines_contain_no_secrets_and_no_terminal_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-hidden-0123456789")
    plain = PlainLines("%(levelname)s %(message)s").format(record("the key is %s\x1b[2J", "sk-hidden-0123456789"))
    assert plain == "WARNING the key is ***\\x1b[2J"
    line = json.loads(JsonLines().format(record("the key is %s", "sk-hidden-0123456789")))
    assert (line["level"], line["logger"], line["message"]) == ("warning", "unbroken.tools", "the key is ***")


def test_lines_are_written_where_standard_error_is_now_so_that_a_progress_line_can_move_out_of_their_way() -> None:
    handler, moved = stderr_handler(), io.StringIO()
    with redirect_stderr(moved):
        handler.emit(record("started at=%s", "http://127.0.0.1:8400"))
    assert moved.getvalue().endswith("started at=http://127.0.0.1:8400\n")


@pytest.mark.parametrize("by", ["option", "variable", "nothing"])
def test_run_logs_what_its_tools_do_if_asked_to(by: str, tmp_path: Path) -> None:
    with serve([Call("weather", city="Rome")], "Sunny.") as server:
        arguments = ["--model", "compatible:demo", "--base-url", server.base_url("openai-chat")]
        options = ["--log-level", "info"] if by == "option" else []
        env = {VARIABLE: "info"} if by == "variable" else {}
        done = in_pipe("run", "Hi", *arguments, "--tools", write_tools(tmp_path), *options, env=env)
    assert done.stdout == "Sunny.\n"
    assert ("INFO unbroken.tools: Detected 1 tool call in" in done.stderr) is (by != "nothing")


@pytest.mark.parametrize(
    "command", [["view", "."], ["serve", "--check"], ["replay", "none.jsonl"], ["faults", "serve"]]
)
def test_commands_refuse_an_unknown_level(command: list[str]) -> None:
    done = in_pipe(*command, "--log-level", "loud")
    assert done.returncode == 2
    assert "expected debug, info, warning or error" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["command_agent", "say", "give me three diamonds", "--pace", "0"],
        ["course_assistant", "ask", "What is in lesson 4 of the MCP course?"],
        ["course_assistant", "tour"],
    ],
    ids=" ".join,
)
def test_an_application_logs_to_standard_error(command: list[str]) -> None:
    examples = ROOT / "examples"
    done = subprocess.run(
        [sys.executable, "-m", *command, "--log-level", "info"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=examples,
        env={**os.environ, "PYTHONPATH": str(examples)},
    )
    assert "INFO unbroken.tools: Detected 1 tool call in" in done.stderr
    assert "unbroken.tools" not in done.stdout


@pytest.mark.parametrize(
    ("template", "args", "fields"),
    [
        ("serial_hold session=%s handed=%d", ("ab", 1), {"event": "serial_hold", "session": "ab", "handed": 1}),
        ("request key=%s", ("-",), {"event": "request", "key": None}),
        ("budget_refused %s", ("ann 5usd/day: spent",), {"event": "budget_refused"}),
        ("limits_local: the store cannot be used", (), {"event": "limits_local"}),
        ("the store cannot be read: %s", ("gone",), {}),
    ],
)
def test_a_json_line_has_its_event_and_its_values(
    template: str, args: tuple[object, ...], fields: dict[str, object]
) -> None:
    assert fields_of(record(template, *args)) == fields
