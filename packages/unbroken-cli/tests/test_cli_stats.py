"""`unbroken stats`, as a user runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from rich.cells import cell_len
from terminals import Terminal, in_pipe, invoke

from unbroken import Agent, ScriptedModel
from unbroken.errors import UserError
from unbroken.trajectory.histogram import Histogram
from unbroken.trajectory.recorder import Recorder
from unbroken_cli.stats_tables import bar, latency_bars, rounds_bars
from unbroken_testing import Uses, run_virtual


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three long runs, a short one of another agent, one that was cut after its first round, and two files that are not
    recordings."""
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(3):
        a_long_run.play(folder / f"long-{number}.jsonl", run_id=f"long-{number}")
    sinks = [Recorder(folder / "short.jsonl")]
    run_virtual(lambda: Agent(ScriptedModel("Hello."), name="greeter").run("Hi.", run_id="short", sinks=sinks))
    whole = (folder / "long-0.jsonl").read_bytes().splitlines(keepends=True)
    rounds = [place for place, line in enumerate(whole) if b'"event":"round_finished"' in line]
    (folder / "cut.jsonl").write_bytes(b"".join(whole[: rounds[0] + 1]) + b'{"line":"ev')
    (folder / "other.jsonl").write_text('{"not": "a recording"}\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "notes.txt").write_text("not looked at")
    return folder


def as_json(*arguments: str | Path) -> dict[str, Any]:
    done = invoke("stats", *map(str, arguments), "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_folder_is_summed_up_and_other_files_are_named(recordings: Path) -> None:
    told = as_json(recordings)
    assert told["recordings"] == 5
    reasons = {Path(each["path"]).name: each["reason"] for each in told["left_out"]}
    assert sorted(reasons) == ["empty.jsonl", "other.jsonl"]
    assert "is empty: it is not a recording" in reasons["empty.jsonl"]
    metrics = told["all"]
    assert (metrics["queries"], metrics["unended"]) == (4, 1)
    assert metrics["avg_tool_rounds_per_query"] == (3 + 3 + 3 + 0) / 4
    assert (metrics["queries_with_0_rounds"], metrics["queries_with_3_rounds"]) == (1, 3)
    assert metrics["query_latency"]["max"] == pytest.approx(4.55)
    assert metrics["tools"]["book"]["executions"] == 6
    assert [each["name"] for each in told["alerts"]] == ["too_many_rounds", "tools_fail", "broken_chains"]


def test_one_column_for_each_agent_or_model(recordings: Path) -> None:
    by_agent = as_json(recordings, "--by", "agent")["by"]["agent"]
    assert {name: each["queries"] for name, each in by_agent.items()} == {"main": 3, "greeter": 1}
    assert list(as_json(recordings, "--by", "model")["by"]["model"]) == ["scripted:demo"]
    done = invoke("stats", str(recordings), "--by", "agent")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["5 recordings, 2 skipped", "agent\tgreeter\tmain\tall", "queries that ended\t1\t3\t4"]


def test_prices_give_the_cost(recordings: Path) -> None:
    told = as_json(recordings / "long-0.jsonl", "--prices", "2,10")
    assert told["all"]["cost"] == pytest.approx((1213 * 2 + 150 * 10) / 1_000_000)
    assert "cost\tabout 0.0039\n" in invoke("stats", str(recordings / "long-0.jsonl"), "--prices", "2,10").stdout
    assert "cost\tunknown\n" in invoke("stats", str(recordings / "long-0.jsonl")).stdout
    assert as_json(recordings / "long-0.jsonl")["all"]["cost"] is None


def test_the_cost_that_runs_have_recorded_is_added_up(tmp_path: Path) -> None:
    for number, name in enumerate(("openai:gpt-5-mini", "openai:gpt-5-mini", "ollama:qwen3")):
        agent = Agent(ScriptedModel(["Hi.", Uses(100_000, 1000)], name=name), record=tmp_path / f"{number}.jsonl")
        run_virtual(agent.run("Hi."))
    told = as_json(tmp_path, "--by", "model")
    one = told["by"]["model"]["openai:gpt-5-mini"]["cost"] / 2
    assert one > 0.02
    assert told["by"]["model"]["ollama:qwen3"]["cost"] is None
    assert told["all"]["cost"] == pytest.approx(2 * one)
    assert told["all"]["unpriced"] == 1
    lines = invoke("stats", str(tmp_path), "--by", "model").stdout.splitlines()
    assert f"cost\tunknown\t${2 * one:.4f}\t${2 * one:.4f} (1 unknown)" in lines
    quiet = invoke("stats", str(tmp_path), "--alert", "cost=0.01", "--check")
    assert quiet.exit_code == 1
    unknown = invoke("stats", str(tmp_path / "2.jsonl"), "--alert", "cost=0", "--check")
    assert unknown.exit_code == 0


def test_a_pipe_gets_plain_lines(recordings: Path) -> None:
    done = in_pipe("stats", str(recordings))
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "  failures\t3 (13.0 %)\n" in done.stdout  # 1 of 7 in each long run, and 0 of 2 in the one that was cut
    assert "map_of\t3\t3\t3 (100.0 %)\t0\t0\t1.00 s\t1.00 s\t1.00 s\t3.00 s\n" in done.stdout
    assert "up to 8 s           3 ########################################\n" in done.stdout
    assert "1 round             0\n" in done.stdout
    assert "alert too_many_rounds avg_tool_rounds_per_query=2.25 above=1.5 queries=4: " in done.stdout
    told = done.stderr.splitlines()
    assert len(told) == 2
    assert all(line.startswith("unbroken: skipped: ") for line in told)


def test_a_terminal_gets_tables_and_bars(recordings: Path) -> None:
    with Terminal("stats", str(recordings), "--by", "agent") as terminal:
        assert terminal.end() == 0
    assert "██████████" in terminal.seen
    assert "▲ too_many_rounds" in terminal.seen
    assert "unbroken: skipped: " in terminal.seen


def test_check_fails_if_there_is_a_warning(recordings: Path) -> None:
    assert invoke("stats", str(recordings), "--check").exit_code == 1
    assert invoke("stats", str(recordings / "short.jsonl"), "--check").exit_code == 0
    assert invoke("stats", str(recordings), "--check", "--least", "5").exit_code == 0


def test_thresholds_can_be_overridden(recordings: Path) -> None:
    lenient = ("avg_tool_rounds_per_query=9", "tool_failure_rate=1", "tool_chain_broken_rate=1", "avg_query_latency=9")
    options = [word for each in lenient for word in ("--alert", each)]
    assert as_json(recordings, *options)["alerts"] == []
    more = as_json(recordings, *options, "--alert", "duplicates_shared=2")["alerts"]
    assert [(each["metric"], each["value"]) for each in more] == [("duplicates_shared", 4.0)]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--prices", "2", "--prices 2: give the prices of a million tokens, in and out, as in 2.50,10"),
        ("--prices", "2,-1", "--prices 2,-1: give the prices"),
        ("--prices", "nan,1", "--prices nan,1: give the prices"),
        ("--prices", "1e308,1", "--prices 1e308,1: give the prices"),
        ("--prices", "", "--prices : give the prices"),
        ("--by", "day", "--by day: give one of model, agent"),
        ("--alert", "avg_query_latency", "--alert avg_query_latency: give METRIC=NUMBER"),
        ("--alert", "speed=3", "alert `speed`: there is no metric 'speed'"),
    ],
)
def test_wrong_use_is_explained(recordings: Path, option: str, value: str, words: str) -> None:
    done = invoke("stats", str(recordings), option, value)
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(words)


def test_nothing_to_count_is_wrong_use(tmp_path: Path) -> None:
    done = in_pipe("stats", str(tmp_path), str(tmp_path / "gone.jsonl"))
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first == f"unbroken: skipped: there is no recording {tmp_path / 'gone.jsonl'}"
    assert second.startswith("unbroken: nothing to count in ")


def test_bars_go_from_the_first_non_empty_step_to_the_last() -> None:
    latency = Histogram()
    for seconds in (0.3, 0.5, 3.0, 1000.0):
        latency.add(round(seconds * 1e9))
    bars = latency_bars(latency)
    assert bars[:4] == [("up to 0.5 s", 2), ("up to 1 s", 0), ("up to 2 s", 0), ("up to 4 s", 1)]
    assert bars[-1] == ("over 600 s", 1)
    assert rounds_bars({1: 2, 3: 1}) == [("1 round", 2), ("2 rounds", 0), ("3 rounds", 1)]
    assert rounds_bars({}) == latency_bars(Histogram()) == []


def test_a_bar_is_visible_if_there_is_anything() -> None:
    assert bar(0, 10, blocks=True) == ""
    assert bar(1, 100_000, blocks=True) == "▏"
    assert bar(1, 100_000, blocks=False) == "#"
    assert bar(10, 10, blocks=True) == "█" * 40
    assert bar(5, 10, blocks=False) == "#" * 20


@pytest.mark.parametrize("columns", [50, 70, 80])
def test_a_narrow_terminal_gets_complete_numbers(recordings: Path, tmp_path: Path, columns: int) -> None:
    name = b"a_tool_with_a_name_of_some_thirty_letters"
    for number in range(3):
        whole = (recordings / f"long-{number}.jsonl").read_bytes()
        (tmp_path / f"{number}.jsonl").write_bytes(whole.replace(b'"map_of"', b'"%b"' % name))
    with Terminal("stats", str(tmp_path), "--by", "agent", env={"COLUMNS": str(columns)}) as terminal:
        assert terminal.end() == 0
    lines = [line for line in terminal.plain.splitlines() if not line.startswith("▲")]
    assert max(cell_len(line.rstrip()) for line in lines) <= columns
    [tool] = [line for line in lines if line.startswith("a_tool")]
    assert tool.count("…") == 1
    assert "3 (100.0 %)" in tool
    assert "1.00 s" in tool


def test_without_data_there_is_no_mean(recordings: Path) -> None:
    shown = invoke("stats", str(recordings / "cut.jsonl")).stdout
    assert "latency, mean\t-\n" in shown
    assert "rounds per query\t-\n" in shown
    assert "  queries with 2 rounds\t-\n" in shown


def test_a_pipe_and_a_circular_link_are_skipped_and_the_rest_is_counted(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_bytes((recordings / "short.jsonl").read_bytes())
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    told = as_json(tmp_path, tmp_path / "pipe.jsonl")
    assert told["recordings"] == 1
    reasons = {Path(each["path"]).name: each["reason"] for each in told["left_out"]}
    assert "Too many levels of symbolic links" in reasons["loop.jsonl"]
    assert "is not a file but a pipe" in reasons["pipe.jsonl"]


def test_invalid_numbers_are_not_counted(recordings: Path, tmp_path: Path) -> None:
    """Whatever replaces the token counts, the others are counted."""
    whole = (recordings / "long-0.jsonl").read_text()
    for number, value in enumerate(['"abc"', "Infinity", "NaN", "-5", "true", "1e300"]):
        broken = whole.replace('"input_tokens":1213', f'"input_tokens":{value}')
        (tmp_path / f"{number}.jsonl").write_text(broken.replace("the-long-run", f"run-{number}"))
    (tmp_path / "good.jsonl").write_text(whole)
    metrics = as_json(tmp_path)["all"]
    assert (metrics["input_tokens"], metrics["queries_with_3_rounds"]) == (1213, metrics["queries"])
