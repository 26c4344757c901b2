"""One view computed from the events of a run: whatever breaks in it, the view equals its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broken_runs import play, schedules, scripts, wires
from call_lives import assert_lives
from hypothesis import given
from hypothesis import strategies as st
from strategies import costly

from unbroken import (
    Agent,
    CallContext,
    Event,
    Limits,
    Result,
    RetryingModel,
    RunFailed,
    RunView,
    Schedule,
    ScriptedModel,
    TextAdded,
    TextReplaced,
    Usage,
    Wait,
    tool,
)
from unbroken.events import CallWritten, InnerEvent, RequestSent, event_from_json
from unbroken.guardrails import Veto, check_calls
from unbroken.trajectory.inner_runs import describe_step
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Answer, Break, Call, Pause, Say, Think, Uses, run_virtual
from unbroken_wires.messages import ToolCall


@tool(effect="read")
async def look(context: CallContext[Any], city: str) -> str:
    """Look at a city."""
    context.report("half way", 0.5)
    await asyncio.sleep(1.0)
    return f"{city}: sunny"


def watched(*answers: Answer, **settings: Any) -> tuple[Result, list[Event]]:
    events: list[Event] = []
    agent = Agent(RetryingModel(ScriptedModel(*answers), jitter=lambda: 0.5), [look], sinks=[events.append], **settings)
    return run_virtual(agent.run("Go.")), events


def assert_same(view: RunView, result: Result) -> None:
    assert [(call.id, call.name, call.arguments, call.outcome) for call in view.calls] == [
        (record.call.id, record.call.name, record.call.arguments, record.result.outcome) for record in result.calls
    ]
    for call, record in zip(view.calls, result.calls, strict=True):
        assert call.text is not None
        assert record.result.text.startswith(call.text)  # a model that repeats itself gets a reminder after it
    assert (view.text, view.stop_reason) == (result.text, result.stop_reason)
    assert view.usage.to_json() == result.usage.to_json()
    assert (view.rounds, view.requests, view.attempts) == (result.rounds, result.requests, result.attempts)
    assert (view.seconds, view.complete, view.failed) == (result.seconds, not result.pending, None)


@costly
@given(
    scripts,
    schedules,
    wires,
    st.sampled_from(["continue", "finish"]),
    st.booleans(),
    st.sampled_from([None, None, 0.2, 1.5]),
)
def test_a_view_of_any_broken_run_equals_its_result(
    script: list[Answer], schedule: Schedule, wire: str, on_error: Any, several: bool, seconds: float | None
) -> None:
    limits = Limits(rounds=8, seconds=seconds)
    played = run_virtual(play(script, schedule, wire, on_error=on_error, several_calls=several, limits=limits))
    view = RunView.of(played.events)
    assert_lives(played.events)
    if played.result is not None:
        assert_same(view, played.result)
    else:
        assert isinstance(view.failed, RunFailed)
        assert view.ended is not None
    assert_in_order(view)


def assert_in_order(view: RunView) -> None:
    for call in view.by_number.values():
        times = [each for each in (call.written, call.started, call.finished) if each is not None]
        assert times == sorted(times)
        assert call.is_over or call.adopted_by is not None
        if call.adopted_by is not None:
            assert view.by_number[call.adopted_by].adopted == call.number
    for turn in view.turns:
        assert turn.asked is not None
        assert [attempt.retried is None for attempt in turn.attempts] == [False] * (len(turn.attempts) - 1) + [True]
        asked = [attempt.asked for attempt in turn.attempts]
        assert asked == sorted(asked)


@costly
@given(scripts, schedules, st.data())
def test_a_view_can_be_read_at_any_moment_and_only_grows(
    script: list[Answer], schedule: Schedule, data: st.DataObject
) -> None:
    events = run_virtual(play(script, schedule, "openai-chat")).events
    view, text, turn = RunView(), "", -1
    for event in events[: data.draw(st.integers(1, len(events)))]:
        view.feed(event)
        if event.turn != turn:
            text, turn = "", event.turn
        if isinstance(event, TextAdded):
            text += event.text
        elif isinstance(event, TextReplaced):
            text = event.text
        if isinstance(event, TextAdded | TextReplaced):
            assert view.text == view.turns[-1].text == text


def test_usage_is_the_sum_of_all_responses() -> None:
    _, events = watched([Uses(100, 20), Say("I look."), Call("look", city="Rome")], [Uses(1000, 300), Say("Sunny.")])
    assert RunView.of(events).usage == Usage(1100, 320)


def test_a_turn_has_its_attempts_and_a_call_of_the_second_continues_one_of_the_first() -> None:
    _, events = watched(
        [Say("Let me "), Call("look", city="Rome"), Call("look", city="Oslo"), Pause(0.5), Break()],
        [Think("Hm."), Say("I look."), Call("look", city="Rome")],
        "Sunny.",
        schedule=Schedule.EAGER,
    )
    view = RunView.of(events)
    first, last = view.turns
    assert [attempt.retried and attempt.retried.kind for attempt in first.attempts] == ["lost", None]
    assert (first.text, first.reasoning, first.is_thought) == ("I look.", "Hm.", True)
    assert (last.text, last.is_thought) == ("Sunny.", False)
    rome, oslo, again = (view.by_number[number] for number in range(3))
    assert (rome.adopted_by, again.adopted, again.outcome) == (2, 0, "done")
    assert (again.started, again.early, again.attempt) == (rome.started, True, 2)
    assert (oslo.dropped is not None, oslo.outcome, oslo.response_broke) == (True, "cancelled", True)
    assert (view.calls, view.dropped) == ([again], [oslo])
    assert again.progress is not None
    assert again.progress.message == "half way"


def test_saved_seconds_are_those_from_an_early_start_to_the_end_of_the_response() -> None:
    _, events = watched(
        [Call("look", city="Rome"), Pause(0.25), Call("look", city="Oslo")], "Sunny.", schedule=Schedule.EAGER
    )
    early, second = RunView.of(events).calls
    assert early.saved is not None
    assert 0.25 <= early.saved < 1.0
    assert second.saved is None or second.saved < early.saved


def test_a_waiting_call_keeps_its_number_and_its_view() -> None:
    @tool(approve=True)
    async def write() -> str:
        """Asks first."""
        return "written"

    events: list[Event] = []

    async def main() -> None:
        agent = Agent(
            ScriptedModel([Call("write")], "Done."), [write], on_approval=lambda _: Wait(), sinks=[events.append]
        )
        waiting = await agent.run("Go.")
        view = RunView.of(events)
        (call,) = view.calls
        assert (view.stop_reason, call.outcome, call.approval is not None) == ("waiting", None, True)
        assert [each["call"] for each in view.pending] == [call.number]
        await agent.resume(waiting, {waiting.pending[0].id: "by hand"})

    run_virtual(main())
    view = RunView.of(events)
    assert [(call.number, call.text) for call in view.calls] == [(0, "by hand")]
    assert (view.text, view.pending, view.complete) == ("Done.", [], True)


def test_a_run_that_is_resumed_after_its_process_died_is_one_view(tmp_path: Path) -> None:
    """One of two calls had ended when it died. The other one runs again."""
    calls = [Call("look", city="Rome"), Pause(0.5), Call("look", city="Oslo")]
    run_virtual(Agent(ScriptedModel(calls, "Sunny."), [look], record=tmp_path).run("Go."))
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    ended = next(number for number, line in enumerate(lines) if b'"event":"call_finished"' in line)
    file.write_bytes(b"".join(lines[: ended + 1]))
    before = RunView.of(read_recording(file).events)
    assert [(call.outcome, call.started is not None) for call in before.calls] == [("done", True), (None, True)]
    assert [call.name for call in before.resumed()] == ["look"]
    assert [call.died for call in before.calls] == [False, True]
    assert before.resumed() == []

    result = run_virtual(Agent(ScriptedModel("Sunny."), [look]).resume(file))
    view = RunView.of(read_recording(file).events)
    assert_same(view, result)
    rome, oslo = view.calls
    assert (rome.took_over, rome.resumed, rome.started) == (True, True, before.calls[0].started)
    assert (oslo.took_over, oslo.resumed, oslo.adopted) == (False, False, before.calls[1].number)
    assert (oslo.died, view.by_number[before.calls[1].number].died) == (False, True)
    assert [(turn.text, len(turn.attempts)) for turn in view.turns] == [("", 2), ("Sunny.", 1)]


def about_calls(*kinds: str, numbers: Sequence[int] = ()) -> RunView:
    """A view of such events of calls of `look`, one second after the other."""
    view = RunView()
    fields: dict[str, dict[str, Any]] = {
        "written": {"arguments": {}},
        "started": {"arguments": {}},
        "done": {"seconds": 1.0, "error": False, "text": "Sunny.", "outcome": "done"},
        "cancelled": {"seconds": 1.0, "error": True, "text": "Error: cancelled", "outcome": "cancelled"},
        "adopted": {"adopted": 0},
    }
    names = {"done": "call_finished", "cancelled": "call_finished"}
    for seq, kind in enumerate(kinds):
        event: dict[str, Any] = {"run": "r", "turn": 0, "seq": seq, "time": float(seq)}
        if kind == "resumed":
            event |= {"event": "run_started", "model": "m", "schedule": "eager"}
        else:
            number = numbers[seq] if numbers else 0
            about = {"event": names.get(kind, f"call_{kind}"), "call": number, "call_id": f"c{number}", "name": "look"}
            event |= {**about, **fields[kind]}
        view.feed(event_from_json(event))
    return view


def test_a_call_that_ended_before_its_process_died_keeps_its_result_and_its_times() -> None:
    again = "written", "started", "done", "resumed", "written", "adopted", "started", "done"
    call = about_calls(*again, numbers=(0, 0, 0, 0, 1, 1, 1, 1)).by_number[1]
    assert (call.started, call.finished, call.resumed, call.reported) == (1.0, 2.0, True, True)


def test_a_call_that_was_cancelled_may_run_again() -> None:
    (call,) = about_calls("written", "started", "cancelled", "resumed", "started", "done").calls
    assert (call.started, call.finished, call.outcome) == (4.0, 5.0, "done")


def test_a_number_that_was_never_recorded_is_given_again() -> None:
    """The process died after it had reported a call of an inner run, and before it had recorded it."""
    view = about_calls("written", "started", "resumed", "written", "started")
    (call,) = view.calls
    assert (call.written, call.started, call.died) == (3.0, 4.0, False)


def test_a_view_that_forgets_its_turns_still_counts_them() -> None:
    _, events = watched(*[[Call("look", city=str(number))] for number in range(5)], "Done.")
    view = RunView()
    for event in events:
        view.feed(event)
        view.forget_turns()
        assert len(view.turns) <= 1
        assert len(view.by_number) <= 1
    assert (view.requests, view.rounds) == (6, 5)


def test_a_view_may_start_in_the_middle_of_a_run() -> None:
    result, events = watched([Say("I look."), Call("look", city="Rome")], [Say("Sunny."), Say(" Warm.")])
    for first in range(len(events)):
        view = RunView.of(events[first:])
        assert (view.run, view.text) == (result.run, "Sunny. Warm.")


def test_an_event_of_a_later_version_inside_of_an_agent_is_ignored() -> None:
    common: dict[str, Any] = {"run": "i", "turn": 0, "seq": 0, "time": 1.0}
    about: dict[str, Any] = {"call": 0, "call_id": "c", "name": "clerk"}
    inside: list[dict[str, Any]] = [
        {"event": "request_sent", **common, "messages": 1, "tools": 1, "final": False},
        {"event": "sneezed", **common, "loud": True},
        {"event": "call_written", **common, "call": 0, "call_id": "i", "name": "look", "arguments": {}},
    ]
    twice = [{"event": "inner_event", **common, **about, "agent": "main/clerk/clerk", "inner": each} for each in inside]
    events = [InnerEvent("r", 0, 0, 1.0, **about, agent="main/clerk", inner=each) for each in (*inside, *twice)]
    assert [type(event.event) for event in events[:3]] == [RequestSent, Event, CallWritten]
    assert [describe_step(event) for event in (events[1], events[4])] == [None, None]
    (call,) = RunView.of(events).by_number.values()
    assert call.inner is not None
    between = call.inner.by_number[0]
    assert (between.name, between.inner is not None and between.inner.by_number[0].name) == ("look", "look")


def test_each_piece_of_a_long_text_costs_the_same() -> None:
    def cost(events: Sequence[Event]) -> float:
        start = time.process_time()
        view = RunView()
        for event in events:
            view.feed(event)
            _ = view.turns[-1].calls  # as a screen would
        assert len(view.text) == 10 * len(events)
        return time.process_time() - start

    pieces = [TextAdded("r", 0, number, 0.0, "word word ") for number in range(20_000)]
    once, eight_times = (min(cost(pieces[:count]) for _ in range(2)) for count in (2_500, 20_000))
    assert eight_times < 24 * once + 0.05


def test_a_call_that_a_check_vetoes_does_not_look_executed() -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    def never(call: ToolCall) -> None:
        raise Veto("Closed.")

    events: list[Event] = []
    model = ScriptedModel([Call("pay", amount=1), Say("Let me see.", over=5)], "Well.")
    agent = Agent(model, [pay], middleware=[check_calls(never)], sinks=[events.append])
    result = run_virtual(agent.run("Pay."))
    (call,) = RunView.of(events).turns[0].calls
    assert (call.outcome, call.started, call.early, call.saved) == ("not_executed", None, False, None)
    counted = result.metrics.tools["pay"]
    assert (counted.executions, counted.refused) == (0, 1)
