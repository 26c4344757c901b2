"""What is true for any run with broken responses: in random places, in random ways, with retries that differ, on
virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from broken_runs import KEYED, READS, World, one_break, one_call, play, schedules, scripts, wires
from call_lives import assert_lives
from hypothesis import given
from hypothesis import strategies as st
from scenes import calls_in, can_go_on, only, taken
from strategies import costly

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Conversation,
    Limits,
    RetryingModel,
    RunFailed,
    RunFinished,
    Schedule,
    ScriptedModel,
    TextAdded,
    TextReplaced,
    UnbrokenError,
)
from unbroken.events import RequestRetried, TextFinished, event_to_json
from unbroken_testing import Answer, Cut, Step, run_virtual
from unbroken_wires.messages import Assistant, Message, ToolMessage


def assert_chain(messages: Sequence[Message]) -> None:
    """Every call has exactly one result, in call order, right after its message; and every wire accepts it."""
    for at, message in enumerate(messages):
        if isinstance(message, Assistant) and message.calls:
            following = messages[at + 1]
            assert isinstance(following, ToolMessage)
            assert [result.call_id for result in following.results] == [call.id for call in message.calls]
    can_go_on(messages)


def assert_requests(model: ScriptedModel) -> None:
    for body in model.bodies:
        taken(model.wire, body)


@costly
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
    assert_lives(played.events)
    assert isinstance(played.events[-1], RunFinished if played.result else RunFailed)
    if played.result is not None:
        assert played.result.text
        assert played.result.attempts == len(played.model.requests) or seconds  # it may end before the next is sent
        assert all(verdict.kind != "whole" for verdict in played.result.verdicts)


@costly
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


@costly
@given(st.lists(one_call(), min_size=1, max_size=5), st.data())
def test_a_read_runs_once_for_each_distinct_call_of_a_turn_unless_a_write_is_in_between(
    made: list[Step], data: st.DataObject
) -> None:
    """The retry is the first answer in another order."""
    breaks = data.draw(st.lists(one_break(made), min_size=1, max_size=2))
    again = data.draw(st.permutations(made))
    played = run_virtual(play([*breaks, again, "Done."], Schedule.EAGER, "openai-chat"))
    calls = [call for call in calls_in(played.messages) if call.name in READS]
    writes = sum(call.name in ("write_file", "act_once", "restart") for call in calls_in(played.messages))
    for name, path in {(call.name, (call.arguments or {})["path"]) for call in calls}:
        distinct = {call.raw for call in calls if call.name == name and (call.arguments or {})["path"] == path}
        ran = [each for each in played.world.executions if (each.name, each.path, each.turn) == (name, path, 0)]
        assert len(ran) <= len(distinct) * (1 + writes)


@costly
@given(scripts, schedules, wires)
def test_what_was_shown_is_what_the_history_contains(script: list[Answer], schedule: Schedule, wire: str) -> None:
    played = run_virtual(play(script, schedule, wire))
    shown: dict[int, str] = {}
    for event in played.events:
        if isinstance(event, TextAdded):
            shown[event.turn] = shown.get(event.turn, "") + event.text
        elif isinstance(event, TextReplaced):
            shown[event.turn] = event.text
    retried = {event.turn for event in only(RequestRetried, played.events)}
    for said in only(TextFinished, played.events):
        if shown.get(said.turn) != said.text:  # a shorter retry takes nothing back
            assert said.turn in retried
            assert shown[said.turn].startswith(said.text)
    texts = [message.text for message in played.messages if isinstance(message, Assistant) and message.text]
    assert [said.text for said in only(TextFinished, played.events)] == texts


@costly
@given(scripts, schedules, wires)
def test_every_started_call_is_reported_as_ended_and_nothing_keeps_running(
    script: list[Answer], schedule: Schedule, wire: str
) -> None:
    played = run_virtual(play(script, schedule, wire))
    assert [each for each in played.world.executions if each.ended is None] == []
    assert_lives(played.events)
    told = {event.call_id for event in only(CallFinished, played.events)}
    assert {call.id for call in calls_in(played.messages)} <= told
    assert len(only(CallStarted, played.events)) == len(played.world.executions)


@costly
@given(scripts, schedules)
def test_calls_with_one_key_run_one_after_another_and_exclusive_calls_run_alone(
    script: list[Answer], schedule: Schedule
) -> None:
    played = run_virtual(play(script, schedule, "openai-chat"))
    for one in played.world.executions:
        for other in played.world.executions:
            if one is not other and one.started < other.started < (one.ended or 0):
                keyed = one.name in KEYED and other.name in KEYED
                assert not (keyed and one.path == other.path), (one, other)
                assert "restart" not in (one.name, other.name), (one, other)


@costly
@given(scripts, schedules, wires)
def test_two_runs_of_one_broken_script_yield_the_same_events(
    script: list[Answer], schedule: Schedule, wire: str
) -> None:
    first = run_virtual(play(script, schedule, wire))
    second = run_virtual(play(script, schedule, wire))
    assert [event_to_json(event) for event in first.events] == [event_to_json(event) for event in second.events]
    assert first.world.executions == second.world.executions
    assert first.messages == second.messages


@costly
@given(scripts, schedules, wires, st.floats(0, 4))
def test_a_broken_run_that_is_cancelled_anywhere_leaves_a_history_to_continue_from(
    script: list[Answer], schedule: Schedule, wire: str, when: float
) -> None:
    async def main() -> None:
        world = World()
        model = ScriptedModel(*script, "Done.", wire=wire, loop_last=True)
        chat = Conversation(Agent(RetryingModel(model, jitter=lambda: 0.5), world.tools(), schedule=schedule))
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


@costly
@given(scripts, schedules)
def test_the_same_is_true_for_geminis_wire(script: list[Answer], schedule: Schedule) -> None:
    whole = [answer for answer in script if not (isinstance(answer, list) and any(isinstance(s, Cut) for s in answer))]
    played = run_virtual(play(whole, schedule, "gemini"))
    assert_chain(played.messages)
    assert_requests(played.model)
