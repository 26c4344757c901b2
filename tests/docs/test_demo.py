"""The demos run as a newcomer runs them, and their claims are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from checkout import ROOT
from terminals import environment

from unbroken import Agent, Schedule
from unbroken_cli import demo, demo_tools
from unbroken_testing import ScriptedModel, run_virtual

EXAMPLES = ROOT / "examples"


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment({"COLUMNS": "100"}),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_demo_shows_three_schedules_and_what_they_save() -> None:
    shown = run("-m", "unbroken", "demo", "--pace", "0.1")
    assert "The model is scripted" in shown
    assert "--model openai:gpt-5 --tools unbroken_cli.demo_tools" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 100
    table = re.findall(r"^(SEQUENTIAL|PARALLEL|EAGER) +3 +11 +(\d+\.\d\d)", shown, re.MULTILINE)
    assert [schedule for schedule, _ in table] == ["SEQUENTIAL", "PARALLEL", "EAGER"]
    assert all(float(seconds) > 0 for _, seconds in table)
    for schedule, _ in table:
        picture = shown.split(f"\n{schedule} ", 1)[1].split("\nanswer ", 1)[0]
        assert len(re.findall(r"^  .*[█▓]", picture, re.MULTILINE)) == 11
    assert re.search(r"It is complete: \d+ files, [\d,]+ lines", shown)


def test_each_schedule_of_the_demo_is_faster_than_the_one_before() -> None:
    """On virtual time, where a machine that stalls makes no difference, with the demo's own script and tools."""
    pace = 0.1  # `describe_package` really sleeps
    script = [demo.paced(line, pace) for line in demo.SCRIPT]

    async def seconds(schedule: Schedule) -> float:
        demo_tools.PACE.set(pace)
        result = await Agent(ScriptedModel(*script), [demo_tools], schedule=schedule).run(demo.PROMPT)
        assert (result.rounds, len(result.calls)) == (3, 11)
        return result.seconds

    sequential, parallel, eager = (
        run_virtual(seconds(schedule)) for schedule in (Schedule.SEQUENTIAL, Schedule.PARALLEL, Schedule.EAGER)
    )
    assert sequential > parallel > eager


def test_the_decoding_tour_runs_to_its_end() -> None:
    shown = run(str(EXAMPLES / "decode_tour.py"))
    assert re.findall(r"^exit code (\d)", shown, re.MULTILINE) == ["0", "1", "0", "0", "0"]


def install(*arguments: str, index: Path) -> subprocess.CompletedProcess[str]:
    """As the Makefile installs, but into the environment of the tests, and without changing it."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "installing.py"), sys.prefix, "--dry-run", "--no-deps"]
    places = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.as_uri(), "PIP_FIND_LINKS": ""}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=120, env=environment(places)
    )


def test_installing_shows_no_warning_of_pip_unless_it_fails_and_then_everything(tmp_path: Path) -> None:
    """The index has nothing, of which pip warns for each package that it looks for."""
    done = install("--upgrade", "pydantic", index=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r".+: 0 packages installed in \d+ s\n", done.stdout)
    failed = install("unbroken-no-such-package", index=tmp_path)
    assert failed.returncode == 1
    assert "WARNING: Location" in failed.stderr
    assert "ERROR: No matching distribution found for unbroken-no-such-package" in failed.stderr
    assert failed.stderr.endswith("pip could not install --dry-run --no-deps unbroken-no-such-package\n")
