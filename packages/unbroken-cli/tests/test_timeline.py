"""When each call was written, started and ended: measured on virtual time, drawn to the column."""

from __future__ import annotations

import asyncio

import pytest
from rich.cells import cell_len
from rich.console import Console

from unbroken import Agent, Schedule, ScriptedModel, tool
from unbroken_cli.run_picture import COARSE
from unbroken_cli.timeline import Timeline, Watch, legend
from unbroken_testing import Call, Cut, run_virtual
from unbroken_viewer.picture_data import CallLane


@tool(effect="read")
async def look(at: str) -> str:
    await asyncio.sleep(1.0 if at == "far" else 0.5)
    if at == "nowhere":
        raise ValueError("there is nothing")
    return at


def watched(schedule: Schedule, *calls: Call | Cut) -> Watch:
    watch = Watch()
    model = ScriptedModel(list(calls), "Seen.")
    agent = Agent(model, [look], schedule=schedule, middleware=[watch])
    run_virtual(agent.run("Look."))
    return watch


def two_looks(schedule: Schedule) -> Watch:
    return watched(schedule, Call("look", at="far", over=0.3), Call("look", at="near", after=0.1, over=0.6))


def times(watch: Watch) -> list[tuple[float | None, ...]]:
    """Opened, written, started, ended."""
    rows = [(call.opened, call.written, call.started, call.ended) for call in calls_of(watch)]
    return [tuple(None if time is None else round(time, 3) for time in row) for row in rows]


def calls_of(watch: Watch) -> list[CallLane]:
    return [call for turn in watch.turns(watch.view.ended or 0.0) for call in turn.calls]


@pytest.mark.parametrize(
    ("schedule", "first", "second", "took"),
    [
        (Schedule.SEQUENTIAL, (0.1, 0.3, 1.0, 2.0), (0.6, 1.0, 2.0, 2.5), 2.5),
        (Schedule.PARALLEL, (0.1, 0.3, 1.0, 2.0), (0.6, 1.0, 1.0, 1.5), 2.0),
        (Schedule.EAGER, (0.1, 0.3, 0.3, 1.3), (0.6, 1.0, 1.0, 1.5), 1.5),
    ],
    ids=lambda value: value.value if isinstance(value, Schedule) else "",
)
def test_a_watch_knows_when_each_call_was_written_started_and_ended(
    schedule: Schedule, first: tuple[float, ...], second: tuple[float, ...], took: float
) -> None:
    watch = two_looks(schedule)
    assert times(watch) == [first, second]
    view = watch.view
    assert view.began is not None
    assert view.ended is not None
    assert (view.schedule, round(view.ended - view.began, 3)) == (schedule.value, took)
    assert [round(turn.ended or 0.0, 3) for turn in watch.turns(view.ended)] == [1.0, took]


def test_the_picture_has_a_column_for_each_moment() -> None:
    lines = [line.plain for line in Timeline(two_looks(Schedule.PARALLEL), scale=2.0).lines(46)]
    assert lines == [
        "PARALLEL        0s        1            2.00 s",
        "round 1         ──────────             1.00 s",
        "  look far       ▒▒·······██████████   1.00 s",
        "  look near           ▒▒▒▒█████        0.50 s",
        "answer                             ─   0.00 s",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_a_picture_is_never_wider_than_its_terminal(width: int) -> None:
    for line in Timeline(two_looks(Schedule.EAGER)).lines(width):
        assert cell_len(line.plain) <= width


def test_a_failed_call_is_red_and_an_incomplete_one_never_runs() -> None:
    watch = watched(Schedule.EAGER, Call("look", at="nowhere"), Cut("look", '{"at": "fa'))
    failed, cut = calls_of(watch)
    assert (failed.error, cut.started, cut.error) == (True, None, True)
    lines = Timeline(watch).lines(60)
    assert any(span.style == "red" for span in lines[2].spans)
    assert "█" not in lines[3].plain


def test_an_active_run_is_drawn_up_to_now() -> None:
    watch = Watch()
    assert Timeline(watch, 2.0, 1.0).lines(60) == []
    seen: list[str] = []

    async def main() -> None:
        model = ScriptedModel([Call("look", at="far")], "Seen.")
        agent = Agent(model, [look], middleware=[watch])
        async with asyncio.TaskGroup() as group:
            group.create_task(agent.run("Look."))
            await asyncio.sleep(0.5)
            seen.extend(line.plain for line in Timeline(watch, 2.0, (watch.view.began or 0.0) + 0.5).lines(60))

    run_virtual(main())
    assert seen[0].endswith("0.50 s")
    assert "▒▓▓▓▓▓▓ " in seen[2]  # a quarter of 29 columns


def test_a_terminal_without_unicode_gets_ascii() -> None:
    watch = two_looks(Schedule.EAGER)
    for line in Timeline(watch).lines(60, COARSE):
        assert line.plain.isascii()
    console = Console(width=80)
    assert legend(console).plain
