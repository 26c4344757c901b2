"""What holds for any run whose responses break: in random places, in random ways, with second answers that differ, on
virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scenes import WIRES, calls_in, can_go_on, only, taken

from unbroken import (
    Agent,
    Allow,
    Approval,
    CallContext,
    CallFinished,
    CallStarted,
    Conversation,
    Deny,
    Event,
    Guarded,
    Limits,
    Message,
    RequestRetried,
    Result,
    RunFailed,
    RunFinished,
    Said,
    Schedule,
    ScriptedModel,
    TextAdded,
    TextReplaced,
    Tool,
    ToolCall,
    UnbrokenError,
    event_to_json,
    tool,
)
from unbroken.errors import RateLimited, Unavailable
from unbroken.messages import Assistant, ToolMessage
from unbroken.testing import Answer, Break, Call, Cut, End, ErrorInside, Fail, Say, Step, Think, run_virtual

READS = ("look", "read_file", "ask_first")
KEYED = ("read_file", "write_file")


@dataclass(slots=True)
class Execution:
    name: str
    path: str
    turn: int
    started: int
    ended: int | None = None
    """None while it runs. Both are places in the order of all that happened: many things happen at one time."""


@dataclass(slots=True)
class World:
    """Tools that write down when they ran."""

    executions: list[Execution] = field(default_factory=list[Execution])
    order: Iterator[int] = field(default_factory=count)

    def tools(self) -> list[Tool]:
        async def act(context: CallContext[Any], path: str, seconds: float, fails: bool) -> str:
            execution = Execution(context.name, path, context.turn, next(self.order))
            self.executions.append(execution)
            try:
                await asyncio.sleep(seconds)
            finally:
                execution.ended = next(self.order)
            if fails:
                raise ValueError(f"{context.name} failed on {path}")
            return f"{context.name} {path}"

        @tool(effect="read", timeout=0.5)
        async def look(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(effect="read", key=lambda arguments: arguments["path"])
        async def read_file(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(key=lambda arguments: arguments["path"])
        async def write_file(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool
        async def act_once(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(effect="exclusive")
        async def restart(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(effect="read", approve=True)
        async def ask_first(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        return [look, read_file, write_file, act_once, restart, ask_first]


def decide(call: ToolCall) -> Approval:
    return Deny("not that one") if (call.arguments or {})["path"] == "c" else Allow()


@dataclass(slots=True)
class Played:
    events: list[Event]
    world: World
    model: ScriptedModel
    messages: tuple[Message, ...]
    result: Result | None


DURATIONS = st.sampled_from([0.0, 0.05, 0.3, 1.0])
WORDS = st.sampled_from(["Let me see. ", "Let me ", "Let me see. I look at it. ", "Something else. ", "好的。"])


@st.composite
def one_call(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(["look", "look", "read_file", "write_file", "act_once", "restart", "ask_first", "odd"]))
    arguments: dict[str, Any] = {"path": draw(st.sampled_from("abc")), "seconds": draw(DURATIONS)}
    if draw(st.integers(0, 4)) == 0:
        arguments["fails"] = True
    return Call(name, arguments, after=draw(DURATIONS), id=draw(st.sampled_from([None, None, "", "call_same"])))


@st.composite
def one_answer(draw: st.DrawFn) -> list[Step]:
    said: list[Step] = [Think("Hm. ")] if draw(st.booleans()) else []
    if draw(st.booleans()):
        said.append(Say(draw(WORDS)))
    return [*said, *draw(st.lists(one_call(), min_size=1, max_size=5))]


@st.composite
def one_break(draw: st.DrawFn, answer: list[Step]) -> Answer:
    """This answer as it breaks somewhere; or there is none."""
    ends: list[Step] = [
        Break(),
        ErrorInside("overloaded"),
        Fail(Unavailable("busy", status=503)),
        Fail(RateLimited("slow down", status=429, retry_after=0.2)),
    ]
    end = draw(st.sampled_from(ends))
    if isinstance(end, Fail):
        return [end]
    if draw(st.integers(0, 5)) == 0:
        return ""
    kept = answer[: draw(st.integers(0, len(answer)))]
    if draw(st.integers(0, 4)) == 0:
        return [*kept, Cut("look", '{"path": "a'), End("done")]
    return [*kept, end]


@st.composite
def one_turn(draw: st.DrawFn) -> list[Answer]:
    """Broken answers, then a whole one: the same once more, in another order, or another."""
    answer = draw(one_answer())
    told: list[Answer] = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        told.append(draw(one_break(answer)))
        match draw(st.sampled_from(["same", "order", "other", "more"])):
            case "order":
                answer = draw(st.permutations(answer))
            case "other":
                answer = draw(one_answer())
            case "more":
                answer = [*answer, draw(one_call())]
            case _:
                pass
    return [*told, answer]


@st.composite
def some_turns(draw: st.DrawFn) -> list[Answer]:
    turns = draw(st.lists(one_turn(), min_size=1, max_size=3))
    end: list[Answer] = draw(st.sampled_from([["Done."], [[Say("Don"), Break()], "Done."], ["", "", "Done."]]))
    return [*(answer for turn in turns for answer in turn), *end]


scripts = some_turns()
schedules = st.sampled_from([Schedule.EAGER, Schedule.EAGER, *Schedule])
wires = st.sampled_from([wire for wire in WIRES if wire != "gemini"])
"""Gemini's wire has no half calls: there a cut call is the provider's own error."""


async def play(script: list[Answer], schedule: Schedule, wire: str, **settings: Any) -> Played:
    world, events = World(), list[Event]()
    model = ScriptedModel(*script, wire=wire, loop_last=True)
    agent = Agent(
        Guarded(model, jitter=lambda: 0.5),
        world.tools(),
        schedule=schedule,
        on_approval=decide,
        limits=settings.pop("limits", None) or Limits(rounds=8),
        sinks=[events.append],
        **settings,
    )
    result: Result | None = None
    try:
        result = await agent.run("Go.", run_id="r")
        messages = result.messages
    except UnbrokenError as error:
        messages = error.messages
    return Played(events, world, model, messages, result)


def assert_chain(messages: Sequence[Message]) -> None:
    """Every call has exactly one result, in call order, right after its message; and every wire takes it."""
    for at, message in enumerate(messages):
        if isinstance(message, Assistant) and message.calls:
            following = messages[at + 1]
            assert isinstance(following, ToolMessage)
            assert [result.call_id for result in following.results] == [call.id for call in message.calls]
    can_go_on(messages)


def assert_requests(model: ScriptedModel) -> None:
    for body in model.bodies:
        taken(model.wire, body)


@given(
    scripts,
    schedules,
    wires,
    st.sampled_from(["continue", "finish"]),
    st.booleans(),
    st.sampled_from([None, None, 0.2, 1.5]),
)
def test_every_call_is_answered_once_in_order_whatever_breaks(
    script: list[Answer], schedule: Schedule, wire: str, on_error: Any, several: bool, seconds: float | None
) -> None:
    limits = Limits(rounds=8, seconds=seconds)
    played = run_virtual(play(script, schedule, wire, on_error=on_error, several_calls=several, limits=limits))
    assert_chain(played.messages)
    assert_requests(played.model)
    assert [event.seq for event in played.events] == list(range(len(played.events)))
    assert isinstance(played.events[-1], RunFinished if played.result else RunFailed)
    if played.result is not None:
        assert played.result.text
        assert played.result.attempts == len(played.model.requests) or seconds  # it may end before the next is sent
        assert all(verdict.kind != "whole" for verdict in played.result.verdicts)


@given(scripts, schedules, wires, st.sampled_from([None, 0, 2, 4]))
def test_a_write_runs_once_for_each_call_of_the_history_and_for_nothing_else(
    script: list[Answer], schedule: Schedule, wire: str, allowed: int | None
) -> None:
    played = run_virtual(play(script, schedule, wire, limits=Limits(rounds=8, calls=allowed)))
    results = {
        result.call_id: result
        for message in played.messages
        if isinstance(message, ToolMessage)
        for result in message.results
    }
    due = Counter(
        (call.name, (call.arguments or {})["path"])
        for call in calls_in(played.messages)
        if call.name in ("write_file", "act_once", "restart")
        and not results[call.id].text.startswith("Error: not executed")
    )
    ran = Counter((each.name, each.path) for each in played.world.executions if each.name not in READS)
    assert ran == due


@given(st.lists(one_call(), min_size=1, max_size=5), st.data())
def test_a_read_runs_once_for_each_distinct_call_of_a_turn_unless_a_write_stands_between(
    made: list[Step], data: st.DataObject
) -> None:
    """The second answer is the first in another order."""
    breaks = data.draw(st.lists(one_break(made), min_size=1, max_size=2))
    again = data.draw(st.permutations(made))
    played = run_virtual(play([*breaks, again, "Done."], Schedule.EAGER, "openai-chat"))
    calls = [call for call in calls_in(played.messages) if call.name in READS]
    writes = sum(call.name in ("write_file", "act_once", "restart") for call in calls_in(played.messages))
    for name, path in {(call.name, (call.arguments or {})["path"]) for call in calls}:
        distinct = {call.raw for call in calls if call.name == name and (call.arguments or {})["path"] == path}
        ran = [each for each in played.world.executions if (each.name, each.path, each.turn) == (name, path, 0)]
        assert len(ran) <= len(distinct) * (1 + writes)


@given(scripts, schedules, wires)
def test_what_was_shown_is_what_stands_in_the_history(script: list[Answer], schedule: Schedule, wire: str) -> None:
    played = run_virtual(play(script, schedule, wire))
    shown: dict[int, str] = {}
    for event in played.events:
        if isinstance(event, TextAdded):
            shown[event.turn] = shown.get(event.turn, "") + event.text
        elif isinstance(event, TextReplaced):
            shown[event.turn] = event.text
    retried = {event.turn for event in only(RequestRetried, played.events)}
    for said in only(Said, played.events):
        if shown.get(said.turn) != said.text:  # a second answer that is shorter takes nothing back
            assert said.turn in retried
            assert shown[said.turn].startswith(said.text)
    texts = [message.text for message in played.messages if isinstance(message, Assistant) and message.text]
    assert [said.text for said in only(Said, played.events)] == texts


@given(scripts, schedules, wires)
def test_every_call_that_started_is_told_to_have_ended_and_nothing_runs_on(
    script: list[Answer], schedule: Schedule, wire: str
) -> None:
    played = run_virtual(play(script, schedule, wire))
    assert [each for each in played.world.executions if each.ended is None] == []
    running: Counter[tuple[int, str]] = Counter()
    finished: Counter[tuple[int, str]] = Counter()
    for event in played.events:
        if isinstance(event, CallStarted):
            running[event.turn, event.call_id] += 1
        elif isinstance(event, CallFinished):
            finished[event.turn, event.call_id] += 1
            running[event.turn, event.adopted_from or event.call_id] -= 1
    assert all(count <= 0 for count in running.values())
    told = {id for _, id in finished}
    assert {call.id for call in calls_in(played.messages)} <= told
    assert len(only(CallStarted, played.events)) == len(played.world.executions)


@given(scripts, schedules)
def test_what_shares_a_key_runs_one_after_another_and_what_is_exclusive_runs_alone(
    script: list[Answer], schedule: Schedule
) -> None:
    played = run_virtual(play(script, schedule, "openai-chat"))
    for one in played.world.executions:
        for other in played.world.executions:
            if one is not other and one.started < other.started < (one.ended or 0):
                keyed = one.name in KEYED and other.name in KEYED
                assert not (keyed and one.path == other.path), (one, other)
                assert "restart" not in (one.name, other.name), (one, other)


@given(scripts, schedules, wires)
def test_two_runs_of_one_broken_script_say_the_same(script: list[Answer], schedule: Schedule, wire: str) -> None:
    first = run_virtual(play(script, schedule, wire))
    second = run_virtual(play(script, schedule, wire))
    assert [event_to_json(event) for event in first.events] == [event_to_json(event) for event in second.events]
    assert first.world.executions == second.world.executions
    assert first.messages == second.messages


@given(scripts, schedules, wires, st.floats(0, 4))
def test_a_broken_run_that_is_cancelled_anywhere_leaves_a_history_that_goes_on(
    script: list[Answer], schedule: Schedule, wire: str, when: float
) -> None:
    async def main() -> None:
        world = World()
        model = ScriptedModel(*script, "Done.", wire=wire, loop_last=True)
        chat = Conversation(Agent(Guarded(model, jitter=lambda: 0.5), world.tools(), schedule=schedule))
        turn = asyncio.ensure_future(chat.say("Go."))
        await asyncio.wait([turn], timeout=when)
        turn.cancel()
        await asyncio.wait([turn])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert_chain(chat.messages)
        assert [each for each in world.executions if each.ended is None] == []
        with suppress(UnbrokenError):
            await chat.say("And now?")
        assert_chain(chat.messages)
        assert_requests(model)

    run_virtual(main())


@given(scripts, schedules)
def test_the_same_holds_on_geminis_wire(script: list[Answer], schedule: Schedule) -> None:
    whole = [answer for answer in script if not (isinstance(answer, list) and any(isinstance(s, Cut) for s in answer))]
    played = run_virtual(play(whole, schedule, "gemini"))
    assert_chain(played.messages)
    assert_requests(played.model)
