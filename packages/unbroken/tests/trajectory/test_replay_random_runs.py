"""Random runs with tools of every kind replay: to the byte if they were recorded on virtual time, and with the same
events in the same order if they were recorded on a real clock by a loop that was busy with something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

from cut_runs import PROMPT, Plan, World, agent_of, plans
from hypothesis import given
from hypothesis import strategies as st
from test_replay import timeless

from unbroken import Agent, CallContext, Result, ScriptedModel, tool
from unbroken.events import CallFinished, CallProgress, Event
from unbroken.models.scripted import Call
from unbroken.trajectory.recorder import Recorder
from unbroken_testing import VirtualLoop, run_virtual


class BusyClock:
    """A clock that is no virtual one for a recorder, and deterministic all the same. Time passes whenever somebody
    looks at it: usually ten microseconds, but sometimes long enough for several timers to be due at once."""

    def __init__(self, seed: int, stalls: float) -> None:
        self.start = 1_700_000_000.0
        self._elapsed = 0.0
        self._dice, self._stalls = Random(seed), stalls

    def now(self) -> float:
        return self.start + self.elapsed()

    def elapsed(self) -> float:
        self.advance(self._dice.choice([0.02, 0.15, 0.5]) if self._dice.random() < self._stalls else 1e-5)
        return self._elapsed

    def advance(self, seconds: float) -> None:
        self._elapsed = round(self._elapsed + seconds, 9)


def busy_loop(seed: int, stalls: float) -> Callable[[], VirtualLoop]:
    def make() -> VirtualLoop:
        loop = VirtualLoop()
        loop.clock = cast("Any", BusyClock(seed, stalls))
        return loop

    return make


def record_and_replay_busy(
    plan: Plan, folder: Path, loop: Callable[[], VirtualLoop]
) -> tuple[list[Event], list[Event]]:
    heard, again = list[Event](), list[Event]()

    async def main() -> Result[Any]:
        recorded = agent_of(plan, World(folder / "a.jsonl"), record=folder / "a.jsonl")
        return await recorded.run(PROMPT, sinks=[heard.append])

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    agent_of(plan, World(folder / "b.jsonl")).replay(folder / "a.jsonl", sinks=[again.append])
    return heard, again


@given(plan=plans(), seed=st.integers(0, 1_000_000), stalls=st.sampled_from([0.0, 0.02, 0.3]))
def test_a_run_of_a_busy_loop_replays_with_the_same_events_in_the_same_order(
    tmp_path_factory: Any, plan: Plan, seed: int, stalls: float
) -> None:
    heard, again = record_and_replay_busy(plan, tmp_path_factory.mktemp("busy"), busy_loop(seed, stalls))
    assert [timeless(event) for event in again] == [timeless(event) for event in heard]


@given(plan=plans(background=True))
def test_a_run_on_virtual_time_replays_to_the_byte(tmp_path_factory: Any, plan: Plan) -> None:
    folder: Path = tmp_path_factory.mktemp("virtual")
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    run_virtual(lambda: agent_of(plan, World(first), record=first).run(PROMPT, run_id="r"), start=1_700_000_000.25)
    agent_of(plan, World(second)).replay(first, sinks=[Recorder(second)])
    assert second.read_bytes() == without_inner_runs(first)


def without_inner_runs(path: Path) -> bytes:
    """The recording without the lines of agents that ran as tools: their calls are replayed, and they do not run."""
    lines = path.read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b'{"line":"inner"'))


def test_calls_that_end_in_one_step_of_a_real_loop_replay_in_their_order(tmp_path: Path) -> None:
    """A loop that was busy wakes them together: they report and return before the end of the first is handled."""
    heard, again = list[Event](), list[Event]()
    all_run = asyncio.Event()

    def hear(event: Event) -> None:
        heard.append(event)
        if isinstance(event, CallProgress) and event.message == "2 runs":
            all_run.set()

    @tool(effect="read")
    async def look(number: int, context: CallContext[Any]) -> str:
        context.report(f"{number} runs")
        await all_run.wait()
        context.report(f"{number} is half done", 0.5)
        return f"saw {number}"

    calls = [Call("look", number=number) for number in range(3)]
    live = Agent(ScriptedModel(calls, "So."), [look], record=tmp_path / "a.jsonl")
    asyncio.run(live.run("Go.", sinks=[hear]))
    for clock in ("virtual", "real"):
        again.clear()
        Agent(ScriptedModel(), [look]).replay(tmp_path / "a.jsonl", clock=clock, sinks=[again.append])
        assert [timeless(event) for event in again] == [timeless(event) for event in heard]
    ends = [event for event in heard if isinstance(event, CallProgress | CallFinished)][-6:]
    assert [(type(event), event.call) for event in ends] == [
        (kind, call) for kind in (CallProgress, CallFinished) for call in (2, 0, 1)
    ]
