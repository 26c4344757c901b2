"""The list of runs, the page of a run, the metrics of its events and its result count the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import a_long_run
import pytest
from broken_runs import play, schedules, scripts, wires
from hypothesis import given
from strategies import costly

from unbroken import (
    Agent,
    Allow,
    Limits,
    Prices,
    Result,
    RetryingModel,
    Schedule,
    ScriptedModel,
    ToolCall,
    Wait,
    tool,
)
from unbroken.errors import Unauthorized
from unbroken.guardrails import Veto, check_input
from unbroken.trajectory.metrics import Metrics
from unbroken.trajectory.recording import read_recording, summarize
from unbroken_testing import Answer, Break, Call, Fail, Uses, run_virtual
from unbroken_viewer.listing import Shelf
from unbroken_viewer.picture import draw


@dataclass(frozen=True, slots=True)
class Numbers:
    requests: int
    rounds: int | None
    calls: int | None
    failed: int | None
    tokens: int
    cost: float | None


def of_the_list(file: Path) -> Numbers:
    (row,) = Shelf(file).rows()
    return Numbers(summarize(file).requests, row.rounds, row.calls, row.failed, row.tokens, rounded(row.cost))


def of_the_page(file: Path) -> Numbers:
    page = draw(read_recording(file)).totals
    tokens = page.input_tokens + page.output_tokens
    return Numbers(page.requests, page.rounds, page.calls, page.failed, tokens, rounded(page.cost))


def of_the_result(result: Result[Any]) -> Numbers:
    failed = sum(record.result.error for record in result.calls)
    calls, tokens = len(result.calls) + len(result.pending), result.usage.total_tokens
    return Numbers(result.requests, result.rounds, calls, failed, tokens, rounded(result.cost))


def rounded(cost: float | None) -> float | None:
    return None if cost is None else round(cost, 12)  # metrics have whole millionths of millionths


def assert_alike(file: Path, result: Result[Any]) -> None:
    metrics = Metrics.of(read_recording(file).events)
    expected = of_the_result(result)
    assert of_the_list(file) == of_the_page(file) == expected
    counted = metrics.requests, metrics.tool_calls, metrics.tokens, rounded(metrics.cost)
    assert counted == (expected.requests, expected.calls, expected.tokens, expected.cost)
    assert metrics.rounds == ({} if result.stop_reason == "waiting" else {expected.rounds: 1})
    assert result.metrics == metrics


@tool(effect="read")
async def look(path: str) -> str:
    """Looks."""
    if path == "nowhere":
        raise ValueError(path)
    return f"looked at {path}"


@tool(approve=True)
async def delete(path: str) -> str:
    """Deletes."""
    return f"deleted {path}"


def wait(call: ToolCall) -> Wait:
    return Wait()


SCRIPT: list[Answer] = [
    [Call("look", path="a"), Call("look", path="a"), Call("odd"), Uses(100, 10)],
    [Call("look", path="b"), Break()],
    [Call("look", path="b"), Call("look", path="nowhere"), Uses(200, 20)],
    ["Done.", Uses(300, 30)],
]


def agent(script: list[Answer], **options: Any) -> Agent:
    limits = Limits(prices=Prices(2.0, 10.0))
    return Agent(RetryingModel(ScriptedModel(*script), first_wait=0.0), [look, delete], limits=limits, **options)


def test_a_run_with_broken_refused_shared_and_failed_calls_counts_alike(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    result = run_virtual(lambda: agent(SCRIPT, record=file).run("Go."))
    assert_alike(file, result)
    counted = of_the_result(result)
    assert (counted.requests, counted.rounds, counted.calls, counted.failed) == (3, 2, 5, 2)
    assert counted.tokens > 660  # what broke off is estimated
    assert result.metrics.tool_failures + result.metrics.refused == 2


def test_the_long_run_counts_alike(tmp_path: Path) -> None:
    assert_alike(tmp_path / "run.jsonl", a_long_run.play(tmp_path / "run.jsonl"))


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_waits_counts_alike_before_and_after(resumed: bool, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    script: list[Answer] = [
        [Call("look", path="a"), Call("delete", path="b"), Uses(100, 10)],
        ["Done.", Uses(200, 20)],
    ]

    async def main() -> Result:
        mine = agent(script, record=file, on_approval=wait)
        waiting = await mine.run("Go.")
        return await mine.resume(file, {waiting.pending[0].id: Allow()}) if resumed else waiting

    result = run_virtual(main)
    assert result.stop_reason == ("answered" if resumed else "waiting")
    assert_alike(file, result)


def test_a_run_whose_process_died_at_any_line_counts_alike_when_it_is_resumed(tmp_path: Path) -> None:
    run_virtual(lambda: agent(SCRIPT, record=tmp_path / "run.jsonl").run("Go.", run_id="r"))
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    sent = [place for place, line in enumerate(lines) if line.startswith(b'{"line":"request"')]
    for place in range(sent[0] + 1, len(lines)):
        file = tmp_path / f"cut-{place}.jsonl"
        file.write_bytes(b"".join(lines[:place]))
        begun = sum(at < place for at in sent) - 1
        rest = SCRIPT[begun + (begun > 1) :]  # the third request is the second again

        async def main(file: Path = file, rest: list[Answer] = rest) -> Result:
            return await agent([*rest, "Done."]).resume(file)

        result = run_virtual(main)
        listed, drawn, metrics = of_the_list(file), of_the_page(file), Metrics.of(read_recording(file).events)
        counted = of_the_result(result)
        assert listed == drawn == counted, f"cut at line {place}"
        assert metrics.requests == counted.requests, f"cut at line {place}"
        assert metrics.tool_calls == counted.calls, f"cut at line {place}"


def test_a_run_that_ended_before_its_first_request_has_none(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"

    async def no_passwords(text: str) -> None:
        raise Veto("No passwords.")

    result = run_virtual(lambda: agent(SCRIPT, record=file, middleware=[check_input(no_passwords)]).run("Go."))
    assert (result.requests, result.stop_reason) == (0, "vetoed")
    assert_alike(file, result)


def test_the_list_and_the_page_of_a_failed_run_count_alike(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    script: list[Answer] = [[Call("look", path="nowhere"), Uses(100, 10)], [Fail(Unauthorized("no key"))]]
    with pytest.raises(Unauthorized):
        run_virtual(lambda: agent(script, record=file).run("Go."))
    assert of_the_list(file) == of_the_page(file)
    metrics, page = Metrics.of(read_recording(file).events), of_the_page(file)
    assert (metrics.requests, metrics.rounds, metrics.tool_calls) == (page.requests, {page.rounds: 1}, page.calls)
    assert (metrics.tool_failures, page.failed, metrics.tokens, page.tokens) == (1, 1, 0, 110)


@costly
@given(scripts, schedules, wires)
def test_any_run_counts_alike(script: list[Answer], schedule: Schedule, wire: str) -> None:
    with TemporaryDirectory() as folder:
        played = run_virtual(play(script, schedule, wire, record=Path(folder) / "run.jsonl"))
        if played.result is not None:
            assert_alike(Path(folder) / "run.jsonl", played.result)
