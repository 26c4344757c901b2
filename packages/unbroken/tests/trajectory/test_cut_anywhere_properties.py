"""A recording that is cut after any line, as the death of a process leaves it, is continued by a new agent: no write
runs twice, every call has one result, and answer and history are those of the run that was not cut, but for writes that
were in flight and that nobody can verify."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from call_lives import assert_lives
from child_processes import Child, Tell, load_first
from cut_runs import (
    PROMPT,
    Ended,
    Plan,
    Planned,
    World,
    agent_of,
    answers_to,
    check_continued,
    check_uncut,
    in_flight,
    lines_of,
    plans,
    some_places,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import fewer

from unbroken import Result, Schedule
from unbroken.errors import RunTaken
from unbroken.events import RunFinished
from unbroken.trajectory.recording import read_recording
from unbroken_testing import run_virtual

load_first("cut_runs", __name__)

SEEDS = st.integers(0, 1_000_000)
"""For the places where a run is cut: drawn one by one they would be most of an example."""


def play(plan: Plan, path: Path) -> Ended:
    """The run that is not cut. It may wait, and is resumed then."""
    world = World(path)
    started = run_virtual(lambda: agent_of(plan, world, record=path).run(PROMPT, run_id="r"))
    ended = carry_on(plan, world, started)
    check_uncut(plan, ended)
    return ended


def carry_on(plan: Plan, world: World, result: Result[Any] | None = None) -> Ended:
    """Resumes the run, each time with a new agent, until it has an answer."""
    while result is None or result.stop_reason == "waiting":
        answers = {} if result is None else answers_to(result.pending, result.uncertain, world)
        result = run_virtual(lambda: agent_of(plan, world).resume(world.path, answers))  # noqa: B023
    return Ended.of(result, world)


def cut(world: World, lines: int, to: Path, *, with_last: bool = True) -> World:
    """As if the process had died when its recording had so many lines."""
    to.write_bytes(b"".join(world.path.read_bytes().splitlines(keepends=True)[:lines]))
    return world.cut(lines, to, with_last=with_last)


def has_ended(path: Path) -> bool:
    ending = read_recording(path).ending
    return isinstance(ending, RunFinished) and ending.stop_reason != "waiting"


def check_cut(plan: Plan, uncut: Ended, lines: int, to: Path, *, with_last: bool) -> None:
    world = cut(uncut.world, lines, to, with_last=with_last)
    if has_ended(to):
        with pytest.raises(RunTaken):
            carry_on(plan, world)
        return
    open_calls = in_flight(read_recording(to))
    check_continued(plan, carry_on(plan, world), uncut, open_calls)
    after = read_recording(to)
    assert after.problems == []
    assert_lives(after.events, died=True)


def check_cuts(plan: Plan, many: int | None, seed: int, *, with_last: bool) -> None:
    """Cuts after so many of the lines; None: after every one."""
    with TemporaryDirectory() as name:
        uncut = play(plan, Path(name) / "run.jsonl")
        for lines in some_places(lines_of(uncut.world.path), many, seed, uncut):
            check_cut(plan, uncut, lines, Path(name) / f"{lines}.jsonl", with_last=with_last)


@settings(max_examples=fewer(8))
@given(plans(rounds=2, calls=2), st.booleans())
def test_a_small_run_is_continued_from_every_line(plan: Plan, with_last: bool) -> None:
    check_cuts(plan, None, 0, with_last=with_last)


def test_the_model_reads_that_an_approver_edited_a_call_also_after_a_crash_behind_it() -> None:
    """It had waited, another call of its message runs, and its own result is recorded."""
    edited = Planned("ask", 0, "c0", decision="edit", waits=True)
    plan = Plan(((edited, Planned("write", 1, "c1", 0.4)),), ((), ()), Schedule.SEQUENTIAL)
    check_cuts(plan, None, 0, with_last=True)


@settings(max_examples=fewer(20))
@given(plans(), SEEDS, st.booleans())
def test_a_run_is_continued_from_any_line(plan: Plan, seed: int, with_last: bool) -> None:
    check_cuts(plan, 6, seed, with_last=with_last)


@settings(max_examples=fewer(15))
@given(plans(background=True), SEEDS, st.booleans())
def test_a_run_with_calls_in_the_background_is_continued_from_any_line(plan: Plan, seed: int, with_last: bool) -> None:
    check_cuts(plan, 6, seed, with_last=with_last)


@settings(max_examples=fewer(10))
@given(plans(), SEEDS)
def test_a_run_is_cut_again_and_again(plan: Plan, seed: int) -> None:
    """Each time a few lines further: the continued recording is cut behind the place of the cut before."""
    dice = random.Random(seed)
    with TemporaryDirectory() as name:
        uncut = play(plan, Path(name) / "0.jsonl")
        world, lines, open_calls = uncut.world, 0, set[str]()
        for number in range(1, 5):
            lines = dice.randint(lines + 1, min(lines + 25, lines_of(world.path)))
            world = cut(world, lines, Path(name) / f"{number}.jsonl")
            if has_ended(world.path):
                return
            open_calls |= in_flight(read_recording(world.path))
            check_continued(plan, carry_on(plan, world), uncut, open_calls)


def carry_on_in_a_child(tell: Tell, plan: Plan, world: World) -> None:
    tell(carry_on(plan, world))


@settings(max_examples=2)  # a process takes as long as a hundred of the others
@given(plans(), SEEDS)
def test_a_run_is_continued_in_a_new_process(plan: Plan, seed: int) -> None:
    with TemporaryDirectory() as name:
        uncut = play(plan, Path(name) / "run.jsonl")
        for lines in some_places(lines_of(uncut.world.path) - 1, 2, seed, uncut, always=True):
            world = cut(uncut.world, lines, Path(name) / f"{lines}.jsonl")
            open_calls = in_flight(read_recording(world.path))
            child = Child(carry_on_in_a_child, plan, world)
            assert child.wait(60) == 0
            check_continued(plan, child.told, uncut, open_calls)
