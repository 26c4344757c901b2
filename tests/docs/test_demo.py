"""The demonstrations run as a newcomer runs them, and what they claim is what happened."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from terminals import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment({"COLUMNS": "100"}),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_demo_shows_three_schedules_and_what_they_save() -> None:
    shown = run("demo.py", "0.4")
    assert "The model is scripted" in shown
    assert "--model openai:gpt-5 --tools examples/demo_tools.py" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.replace("\n.venv", "\n").splitlines()[:-1])) <= 100
    table = re.findall(r"^(SEQUENTIAL|PARALLEL|EAGER) +3 +11 +(\d+\.\d\d)", shown, re.MULTILINE)
    took = {schedule: float(seconds) for schedule, seconds in table}
    assert took["SEQUENTIAL"] > max(took["PARALLEL"], took["EAGER"])  # those two are close on a busy machine
    for schedule in took:
        picture = shown.split(f"\n{schedule} ", 1)[1].split("\nanswer ", 1)[0]
        assert len(re.findall(r"^  .*█", picture, re.MULTILINE)) == 11
    assert re.search(r"The source has \d+ files, [\d,]+ lines", shown)


def test_the_tour_of_decoding_goes_to_its_end() -> None:
    shown = run("decode_tour.py")
    assert re.findall(r"^exit code (\d)", shown, re.MULTILINE) == ["0", "1", "0", "0", "0"]
