"""What is true for any run: random scripts, durations, failures, cancellations, limits and schedules, on virtual
time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import costly

from unbroken import (
    Agent,
    Assistant,
    Conversation,
    Limits,
    Schedule,
    ScriptedModel,
    Tool,
    ToolMessage,
    Transcript,
    UnbrokenError,
    tool,
)
from unbroken.events import event_to_json
from unbroken.models.scripted import Answer, Break, Call, Cut, Say, Step, Think
from unbroken_testing import check_request, run_virtual
from unbroken_wires.messages import Json, Message
from unbroken_wires.wires import WIRES

DURATIONS = st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0])
PATHS = st.sampled_from(["a", "b", "c"])


@dataclass
class World:
    """What the tools do, and a log of when: `(time, name, what, path)`."""

    log: list[tuple[float, str, str, str]] = field(default_factory=list[tuple[float, str, str, str]])

    def tools(self) -> list[Tool]:
        async def act(name: str, path: str, seconds: float, fails: bool) -> str:
            now = asyncio.get_running_loop().time
            self.log.append((now(), name, "starts", path))
            try:
                await asyncio.sleep(seconds)
            finally:
                self.log.append((now(), name, "ends", path))
            if fails:
                raise ValueError(f"{name} failed on {path}")
            return f"{name} {path}"

        @tool(effect="read", timeout=0.5)
        async def look(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("look", path, seconds, fails)

        @tool(effect="read", key=lambda arguments: arguments["path"])
        async def read_file(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("read_file", path, seconds, fails)

        @tool(key=lambda arguments: arguments["path"])
        async def write_file(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("write_file", path, seconds, fails)

        @tool
        async def act_once(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("act_once", path, seconds, fails)

        @tool(effect="exclusive")
        async def restart(path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act("restart", path, seconds, fails)

        return [look, read_file, write_file, act_once, restart]


NAMES = st.sampled_from(["look", "read_file", "write_file", "act_once", "restart", "no_such_tool"])


@st.composite
def one_call(draw: st.DrawFn) -> Step:
    arguments: dict[str, Json] = {"path": draw(PATHS), "seconds": draw(DURATIONS)}
    if draw(st.booleans()):
        arguments["fails"] = True
    if draw(st.integers(0, 9)) == 0:
        arguments["odd"] = 1  # does not fit
    return Call(draw(NAMES), arguments, after=draw(DURATIONS), id=draw(st.sampled_from([None, "", "call_same"])))


calls = one_call()


@st.composite
def one_turn(draw: st.DrawFn) -> Answer:
    talk: list[Step] = [Say("Let me see. "), Think("Hm. ")]
    before = draw(st.lists(st.sampled_from(talk), max_size=2))
    made = draw(st.lists(calls, min_size=1, max_size=6))
    cut: list[Step] = [Cut("look", '{"path": "a')] if draw(st.integers(0, 3)) == 0 else []
    return [*before, *made, *cut]


@st.composite
def some_turns(draw: st.DrawFn) -> list[Answer]:
    return [*draw(st.lists(one_turn(), max_size=4)), draw(st.sampled_from(["Done.", "All is well."]))]


scripts = some_turns()
limits = st.builds(
    Limits,
    rounds=st.sampled_from([0, 1, 2, 8]),
    calls=st.sampled_from([None, 0, 1, 4]),
    seconds=st.sampled_from([None, None, 0.2, 1.5]),
)
schedules = st.sampled_from(list(Schedule))
wires = st.sampled_from(["openai-chat", "openai-responses", "anthropic-messages"])
"""Gemini's wire has no half calls: there an incomplete call is the provider's own error, which has another test."""


def assert_chain(messages: tuple[Message, ...]) -> None:
    """Every call has exactly one result, in call order, right after its message."""
    Transcript(messages)
    for at, message in enumerate(messages):
        if isinstance(message, Assistant) and message.calls:
            following = messages[at + 1]
            assert isinstance(following, ToolMessage)
            assert [result.call_id for result in following.results] == [call.id for call in message.calls]


def assert_requests(model: ScriptedModel, wire: str) -> None:
    for request, body in zip(model.requests, model.bodies, strict=True):
        assert_chain(request.messages)
        assert check_request(wire, body) == []


async def play(
    script: list[Answer], schedule: Schedule, wire: str, allowed: Limits, on_error: str = "continue"
) -> tuple[list[Json], World, ScriptedModel, tuple[Message, ...]]:
    world = World()
    model = ScriptedModel(*script, wire=wire, loop_last=True)
    agent = Agent(model, tools=world.tools(), schedule=schedule, limits=allowed, on_error=on_error)  # pyright: ignore[reportArgumentType] - a drawn value
    stream = agent.stream("Go.", run_id="r")
    events = [event_to_json(event) async for event in stream]
    return events, world, model, stream.result.messages


@costly
@given(scripts, schedules, wires, limits, st.sampled_from(["continue", "finish"]))
def test_every_call_is_answered_once_in_order_before_the_next_request(
    script: list[Answer], schedule: Schedule, wire: str, allowed: Limits, on_error: str
) -> None:
    events, _, model, messages = run_virtual(play(script, schedule, wire, allowed, on_error))
    assert_chain(messages)
    assert_requests(model, wire)
    assert events[-1]["event"] == "run_finished"
    assert events[-1]["text"]
    assert events[-1]["rounds"] <= (allowed.rounds or 0)
    assert [event["seq"] for event in events] == list(range(len(events)))


@costly
@given(scripts, schedules, wires)
def test_two_runs_of_one_script_yield_the_same_events(script: list[Answer], schedule: Schedule, wire: str) -> None:
    first, world, _, messages = run_virtual(play(script, schedule, wire, Limits(rounds=8)))
    second, again, _, once_more = run_virtual(play(script, schedule, wire, Limits(rounds=8)))
    assert first == second
    assert world.log == again.log
    assert messages == once_more


@costly
@given(scripts, schedules, wires, st.floats(0, 4))
def test_a_run_that_is_cancelled_anywhere_leaves_a_history_to_continue_from(
    script: list[Answer], schedule: Schedule, wire: str, when: float
) -> None:
    async def main() -> None:
        world = World()
        model = ScriptedModel(*script, wire=wire, loop_last=True)
        chat = Conversation(Agent(model, tools=world.tools(), schedule=schedule))
        turn = asyncio.ensure_future(chat.say("Go."))
        await asyncio.wait([turn], timeout=when)
        turn.cancel()
        await asyncio.wait([turn])
        assert_chain(chat.messages)
        starts = sum(what == "starts" for _, _, what, _ in world.log)
        assert starts == sum(what == "ends" for _, _, what, _ in world.log), "a tool was left running"
        result = await chat.say("And now?")
        assert result.text
        assert_chain(chat.messages)
        assert_requests(model, wire)

    run_virtual(main())


@costly
@given(st.lists(calls, min_size=2, max_size=8), schedules)
def test_calls_with_one_key_run_one_after_another_and_exclusive_calls_run_alone(
    made: list[Step], schedule: Schedule
) -> None:
    _, world, _, _ = run_virtual(play([made, "Done."], schedule, "openai-chat", Limits(rounds=8)))
    running: list[tuple[str, str]] = []
    for _, name, what, path in world.log:
        if what == "ends":
            running.remove((name, path))
            continue
        if name in ("read_file", "write_file"):
            assert not any(other in ("read_file", "write_file") and p == path for other, p in running)
        assert not any(other == "restart" for other, _ in running)
        if name == "restart":
            assert running == []
        if schedule is Schedule.SEQUENTIAL:
            assert running == []
        running.append((name, path))


@costly
@given(st.lists(calls, min_size=2, max_size=8))
def test_no_read_starts_before_a_write_that_precedes_it(made: list[Step]) -> None:
    """Without keys too: whatever the schedule, an earlier `act_once` has started when a later `look` starts."""
    _, world, _, _ = run_virtual(play([made, "Done."], Schedule.EAGER, "openai-chat", Limits(rounds=8)))
    order = [(name, path) for _, name, what, path in world.log if what == "starts"]
    named = [step for step in made if isinstance(step, Call) and '"odd"' not in step.raw]
    writes_before: dict[int, int] = {}
    writes = 0
    for place, step in enumerate(named):
        writes_before[place] = writes
        writes += step.name == "act_once"
    last_look = max((place for place, step in enumerate(named) if step.name == "look"), default=None)
    if last_look is None or named[last_look] in named[:last_look]:
        return
    looks = [at for at, (name, _) in enumerate(order) if name == "look"]
    assert looks
    last_start = max(at for at in looks if order[at][1] == _path(named[last_look]))
    assert sum(name == "act_once" for name, _ in order[:last_start]) >= writes_before[last_look]


def _path(call: Call) -> str:
    return call.raw.split('"path": "')[1][0]


@costly
@given(st.lists(st.lists(calls, min_size=1, max_size=4), max_size=3), schedules)
def test_the_same_is_true_for_geminis_wire(made: list[list[Step]], schedule: Schedule) -> None:
    _, _, model, messages = run_virtual(play([*made, "Done."], schedule, "gemini", Limits(rounds=8)))
    assert_chain(messages)
    assert_requests(model, "gemini")


@pytest.mark.parametrize("wire", WIRES)
def test_a_provider_failure_in_the_middle_is_one_typed_error_with_a_valid_history(wire: str) -> None:
    script: list[Answer] = [[Call("look", path="a")], [Say("Let me"), Break()]]

    async def main() -> None:
        world = World()
        agent = Agent(ScriptedModel(*script, wire=wire), tools=world.tools())
        with pytest.raises(UnbrokenError) as caught:
            await agent.run("Go.")
        assert_chain(caught.value.messages)
        assert isinstance(caught.value.messages[-1], ToolMessage)

    run_virtual(main())


def test_nothing_starts_once_a_run_is_cancelled() -> None:
    """The first of three ends at the moment in which the run is cancelled: the second must not start then."""

    async def main() -> None:
        world = World()
        script = [Call("act_once", path="a", seconds=1.0), Call("act_once", path="b"), Call("act_once", path="c")]
        stream = Agent(ScriptedModel(script), tools=world.tools(), schedule=Schedule.SEQUENTIAL).stream("Go.")

        async def read() -> None:
            async for _ in stream:
                pass

        reading = asyncio.ensure_future(read())
        asyncio.get_running_loop().call_at(1.0, reading.cancel)
        await asyncio.wait([reading])
        assert [path for _, _, what, path in world.log if what == "starts"] == ["a"]
        assert_chain(stream.messages)

    run_virtual(main())
