"""`unbroken top`: which runs are running, waiting or stopped now."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from a_long_run import play
from terminals import Terminal, in_pipe

from unbroken import Agent, ScriptedModel, Wait, tool
from unbroken_testing import Call, run_virtual


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("recorded") / "long.jsonl"
    play(path)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path: Path, recorded: bytes) -> Path:
    (tmp_path / "ended.jsonl").write_bytes(recorded)
    half = recorded[: recorded.rindex(b"\n", 0, len(recorded) * 2 // 3) + 1]
    (tmp_path / "running.jsonl").write_bytes(half.replace(b"the-long-run", b"active-run"))
    (tmp_path / "stopped.jsonl").write_bytes(half.replace(b"the-long-run", b"dead-run"))
    for name, since in (("running", -600), ("stopped", 60)):  # on a slow machine too it is still running
        changed = time.time() - since
        os.utime(tmp_path / f"{name}.jsonl", (changed, changed))
    (tmp_path / "notes.jsonl").write_text('{"hello": 1}\n')
    return tmp_path


def test_running_and_stopped_runs_are_listed_and_ended_ones_on_request(folder: Path) -> None:
    def states(*options: str) -> dict[str, str]:
        done = in_pipe("top", str(folder), *options)
        assert done.returncode == 0
        return {line.split("\t")[1]: line.split("\t")[0] for line in done.stdout.splitlines()[1:]}

    assert states() == {"active-run": "running", "dead-run": "stopped"}
    assert states("--all") == {"active-run": "running", "dead-run": "stopped", "the-long-run": "answered"}


def test_a_waiting_run_is_listed(tmp_path: Path) -> None:
    @tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent = Agent(ScriptedModel([Call("pay", amount=7)]), [pay], record=tmp_path, on_approval=lambda call: Wait())
    assert run_virtual(agent.run("Pay 7.")).stop_reason == "waiting"
    head, line = in_pipe("top", str(tmp_path)).stdout.splitlines()
    assert head.split("\t") == ["state", "run", "agent", "asked", "time", "rounds", "calls", "tokens", "cost"]
    assert line.split("\t")[0] == "waiting"
    assert line.split("\t")[3] == "Pay 7."


def test_json_has_the_numbers_of_each_run(folder: Path) -> None:
    runs = json.loads(in_pipe("top", str(folder), "--json").stdout)
    assert {run["name"]: (run["rounds"], run["calls"]) for run in runs} == {
        "running.jsonl": (2, 6),
        "stopped.jsonl": (2, 6),
    }


def test_without_a_run_a_line_says_so(tmp_path: Path, recorded: bytes) -> None:
    (tmp_path / "ended.jsonl").write_bytes(recorded)
    done = in_pipe("top", str(tmp_path))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)  # the names of the columns
    assert "no run is running or waiting; --all lists the others" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "there is no recording"), ("ended.jsonl", "ended.jsonl is one run: name its folder")],
)
def test_what_is_not_a_folder_is_an_error(folder: Path, name: str, message: str) -> None:
    done = in_pipe("top", str(folder / name))
    assert done.returncode == 2
    assert message in done.stderr


def test_on_a_terminal_the_table_refreshes_itself_until_it_is_interrupted(folder: Path, recorded: bytes) -> None:
    with Terminal("top", str(folder), "--every", "0.2") as terminal:
        terminal.wait_for("1 running, 1 stopped")
        (folder / "running.jsonl").write_bytes(recorded.replace(b"the-long-run", b"active-run"))
        terminal.wait_for("  1 stopped")
        terminal.resize(40, 12)
        terminal.wait_for("state    asked")  # what is asked has the room of columns that are left out
        terminal.interrupt()
        assert terminal.end() == 0
