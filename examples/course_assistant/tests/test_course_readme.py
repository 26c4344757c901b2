"""What the README shows is what the commands print. Only seconds that are measured may differ."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from course_assistant.assistant import CourseAssistant
from course_assistant.cli import ask_all
from course_assistant.library import CourseLibrary
from course_assistant.measure import main as measure
from course_assistant.screen import TerminalScreen
from course_assistant.tours import scripted_model
from unbroken_testing import run_virtual

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r'```\n\$ python -m course_assistant ask "(.+?)"\n(.+?)\n```', README, re.S)


def comparable(output: str) -> list[str]:
    """The lines that are not empty, with any seconds."""
    lines = re.sub(r"\d+\.\d\d s", "… s", output).splitlines()
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize(("question", "output"), EXAMPLES, ids=[question for question, _ in EXAMPLES])
def test_an_example_shows_what_is_printed(library: CourseLibrary, question: str, output: str) -> None:
    printed = io.StringIO()
    screen = TerminalScreen(Console(file=printed, width=110))
    run_virtual(ask_all([question], CourseAssistant(scripted_model(), library), screen))
    assert comparable(output) == comparable(printed.getvalue())


def test_there_are_three_examples_and_the_table_is_the_measured_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(EXAMPLES) == 3
    measure(tmp_path)
    assert capsys.readouterr().out in README
