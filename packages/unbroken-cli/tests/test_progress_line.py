"""The line that shows that a command is still working: on a terminal, after a second, and gone at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal, in_pipe, write_tools

from unbroken.models.scripted import Call, Say
from unbroken_cli.progress_line import progress
from unbroken_testing import serve


def test_a_command_that_takes_long_shows_what_it_does_and_leaves_no_trace(tmp_path: Path) -> None:
    pyte: Any = pytest.importorskip("pyte", reason="pyte, a terminal emulator, is not installed (extra dev)")
    screen, answer = pyte.Screen(60, 24), tmp_path / "answer.txt"
    with serve([Say("Let me look."), Call("weather", city="Rome")], [Say("Hello.", after=2.2)]) as server:
        given = ("run", "Hi", "--model", "openai:m", "--base-url", server.base_url())
        with Terminal(*given, "--tools", write_tools(tmp_path), columns=60, output=answer) as terminal:
            terminal.wait_for("done: weather")
            terminal.wait_for("running · 1 s")
            terminal.wait_for("running · 2 s")
            assert terminal.end() == 0
        pyte.Stream(screen).feed(terminal.seen)
    shown = "\n".join(screen.display)
    assert answer.read_text() == "Hello.\n"
    assert "call: weather" in shown
    assert "end: answered" in shown
    assert "running" not in shown
    assert not screen.cursor.hidden


def test_in_a_pipe_there_is_none() -> None:
    with serve([Say("Hello.", after=1.2)]) as server:
        done = in_pipe("run", "Hi", "--model", "openai:m", "--base-url", server.base_url())
    assert (done.stdout, "running" in done.stderr) == ("Hello.\n", False)


def test_it_can_be_used_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working") as line:
        line.words = "still working"
        sys.stderr.write("a note\n")
    assert capsys.readouterr().err == "a note\n"
