"""Background calls of any shape, on virtual time: a plan takes hardly longer than its critical path, every call is
answered exactly once, and a replay is the same run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from call_lives import assert_lives
from hypothesis import given
from hypothesis import strategies as st
from scenes import can_go_on
from strategies import costly

from unbroken import (
    Agent,
    Event,
    Limits,
    Policy,
    Request,
    Result,
    Schedule,
    ScriptedModel,
    Tool,
    ToolMessage,
    User,
    tool,
)
from unbroken.events import CallFinished, event_to_json
from unbroken_testing import Call, Pause, check_request, run_virtual
from unbroken_wires.messages import Assistant

WAITS = 0.2
"""Seconds that the model takes to answer that it waits: a few words. While it does, a result may arrive."""


@dataclass(frozen=True)
class Step:
    seconds: float
    needs: tuple[int, ...] = ()
    """The numbers of the calls whose results it needs, from 0."""


Plan = list[list[Step]]
"""The messages of the model, in order, each with its calls."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A random DAG: a call may need the results of any calls of earlier messages."""
    plan: Plan = []
    made = 0
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)):
        earlier = st.integers(0, made - 1) if made else st.nothing()
        needs = st.lists(earlier, max_size=3 if made else 0, unique=True)
        step = st.builds(Step, st.integers(4, 60), needs.map(tuple))
        plan.append(draw(st.lists(step, min_size=size, max_size=size)))
        made += size
    return plan


def script(plan: Plan, thinks: float) -> ScriptedModel:
    messages: list[list[Any]] = []
    number = 0
    for steps in plan:
        messages.append([Pause(thinks)])
        for step in steps:
            needs = [f"$call_{each + 1}" for each in step.needs]
            messages[-1].append(Call("work", number=number, seconds=step.seconds, needs=needs))
            number += 1

    def answer(request: Request) -> Any:
        said = sum(isinstance(message, Assistant) for message in request.messages)
        return messages[said] if said < len(messages) else [Pause(WAITS), "That is all so far."]

    return ScriptedModel(answer)


def critical_path(plan: Plan, thinks: float) -> float:
    """The least that any scheduler needs: each message as early as the model can write it, each call as soon as it is
    written and its needs are met, and one answer after the last result."""
    ends: list[float] = []
    for place, steps in enumerate(plan):
        written = (place + 1) * thinks
        ends += [max([written, *(ends[need] for need in step.needs)]) + step.seconds for step in steps]
    return max(*ends, len(plan) * thinks) + WAITS


@costly
@given(plans(), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([Schedule.EAGER, Schedule.PARALLEL]))
def test_a_plan_takes_at_most_5_percent_longer_than_its_critical_path(
    plan: Plan, thinks: float, schedule: Schedule
) -> None:
    received: dict[int, list[str]] = {}

    @tool(effect="read", timeout=None, background=0)
    async def work(number: int, seconds: float, needs: list[str]) -> str:
        received[number] = needs
        await asyncio.sleep(seconds)
        return f"result {number}"

    agent = Agent(script(plan, thinks), [work], schedule=schedule, limits=Limits(rounds=None))
    result = run_virtual(agent.run("Go."))
    best = critical_path(plan, thinks)
    assert best <= result.seconds + 1e-6
    assert result.seconds <= best + WAITS + 1e-6, "at most the answer that the model was writing comes on top"
    assert result.seconds <= 1.05 * best
    steps = [step for message in plan for step in message]
    assert received == {number: [f"result {need}" for need in step.needs] for number, step in enumerate(steps)}
    assert [call.result.text for call in result.calls] == [f"result {number}" for number in range(len(steps))]
    answered_once(result)


def answered_once(result: Result) -> None:
    """Every call has one result, in order, and every background call has arrived once."""
    can_go_on(result.messages)
    texts = "\n".join(message.text for message in result.messages if isinstance(message, User))
    results = [each for message in result.messages if isinstance(message, ToolMessage) for each in message.results]
    handles = {each.handle for each in result.background if each.delivered}
    assert [texts.count(f"[Background call {handle} ") for handle in handles] == [1] * len(handles)
    assert len(results) == len(result.calls)
    assert {each.handle for each in result.background} >= {
        word.strip('".,') for each in results if each.outcome == "running" for word in each.text.split() if "$" in word
    }


@dataclass
class World:
    """Tools of every kind; each takes as long as its call says."""

    log: list[tuple[str, float, str]] = field(default_factory=list[tuple[str, float, str]])

    def tools(self) -> list[Tool]:
        async def act(name: str, path: str, seconds: float, fails: bool) -> str:
            now = asyncio.get_running_loop().time
            self.log.append((name, now(), path))
            await asyncio.sleep(seconds)
            if fails:
                raise ValueError(f"{name} failed on {path}")
            return f"{name} {path}"

        def key(arguments: dict[str, Any]) -> str:
            return arguments["path"]

        @tool(effect="read", background=0, timeout=3.0)
        async def look(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("look", path, seconds, fails)

        @tool(background=0.5, key=key)
        async def save(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("save", path, seconds, fails)

        @tool(effect="read", key=key)
        async def read(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("read", path, seconds, fails)

        @tool
        async def change(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("change", path, seconds, fails)

        @tool(effect="exclusive")
        async def restart(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("restart", path, seconds, fails)

        return [look, save, read, change, restart]


CALLS = st.builds(
    Call,
    st.sampled_from(["look", "save", "read", "change", "restart", "nothing"]),
    path=st.sampled_from(["a", "b", "$call_1", "$call_2", "$call_9"]),
    seconds=st.sampled_from([0.0, 0.2, 1.0, 4.0]),
    fails=st.booleans(),
)
MESSAGES = st.lists(st.lists(CALLS, min_size=1, max_size=4), min_size=1, max_size=5)
LIMITS = st.sampled_from([Limits(rounds=None), Limits(rounds=2), Limits(calls=3), Limits(seconds=3.0)])
POLICIES = st.builds(Policy, background=st.sampled_from([None, 0.0, 0.3]), wait_for_background=st.booleans())


@costly
@given(MESSAGES, LIMITS, POLICIES, st.sampled_from(Schedule), st.sampled_from(["continue", "finish"]))
def test_every_call_is_answered_once_and_a_replay_is_the_same_run(
    messages: list[list[Call]], limits: Limits, policy: Policy, schedule: Schedule, on_error: Any
) -> None:
    def agent(world: World, **options: Any) -> tuple[Agent, ScriptedModel]:
        def answer(request: Request) -> Any:
            said = sum(isinstance(message, Assistant) for message in request.messages)
            done = request.final or said >= len(messages)
            return [Pause(0.1), "That is all so far."] if done else [Pause(0.4), *messages[said]]

        model = ScriptedModel(answer)
        return Agent(model, world.tools(), schedule=schedule, policy=policy, on_error=on_error, **options), model

    with TemporaryDirectory() as folder:
        record, events, again = Path(folder) / "run.jsonl", list[Event](), list[Event]()
        live, model = agent(World(), record=record)
        result = run_virtual(live.run("Go.", limits=limits, sinks=[events.append]))
        assert_lives(events)
        answered_once(result)
        for body in model.bodies:
            assert not check_request(model.wire, body)
        ends = [event.call for event in events if isinstance(event, CallFinished)]
        assert len(ends) == len({*ends}) == len(result.calls)
        assert all(each.result is not None for each in result.background)
        world = World()
        replayed = agent(world)[0].replay(record, sinks=[again.append])
        assert replayed.messages == result.messages
        assert [event_to_json(event) for event in again] == [event_to_json(event) for event in events]
        assert world.log == []
