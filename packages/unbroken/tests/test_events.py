"""The events of a run: a JSON round trip for every kind, numbered, and in a reliable order."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import Desk, on_every_wire, only, play_aloud, under_every_schedule
from strategies import costly

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Event,
    Limits,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
    Schedule,
    ScriptedModel,
    TextAdded,
    ToolCallsDetected,
    UserError,
)
from unbroken.errors import Unauthorized
from unbroken.events import KINDS, NAMES, CallWritten, RoundFinished, TextFinished, event_from_json, event_to_json
from unbroken_testing import Call, Fail, Say, Think, run_virtual
from unbroken_wires.messages import OUTCOMES

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "int": st.integers(min_value=0),
    "float": NUMBERS,
    "bool": st.booleans(),
    "float | None": st.none() | NUMBERS,
    "list[str]": st.lists(st.text(), max_size=3),
    "dict[str, Json]": OBJECTS,
    "dict[str, Json] | None": st.none() | OBJECTS,
    "Outcome": st.sampled_from(OUTCOMES),
    "list[dict[str, Json]]": st.lists(OBJECTS, max_size=2),
}


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **{field.name: BY_TYPE[str(field.type)] for field in fields(kind)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@costly
@given(data=st.data())
def test_every_kind_of_event_survives_a_json_round_trip(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(kind))
    text = json.dumps(event_to_json(event))
    again = event_from_json(json.loads(text))
    assert type(again) is kind
    assert again == event
    assert json.loads(text)["event"] == NAMES[kind]


def test_fields_of_a_newer_version_are_ignored() -> None:
    saved = event_to_json(TextAdded("r", 0, 1, 2.0, "Hi."))
    assert event_from_json({**saved, "mood": "good"}) == TextAdded("r", 0, 1, 2.0, "Hi.")


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        ({}, "None is not a kind of event"),
        ({"event": "sneezed"}, "'sneezed' is not a kind of event; the kinds are: run_started"),
        ({"event": ["text_finished"]}, "is not a kind of event"),
        ({"event": "text_finished", "run": "r"}, "reading a text_finished event failed"),
    ],
    ids=["nothing", "unknown", "a list", "half"],
)
def test_an_invalid_event_is_refused(saved: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        event_from_json(saved)


def a_run(wire: str = "openai-chat", schedule: Schedule = Schedule.EAGER) -> list[Event]:
    desk = Desk()
    tools = [
        desk.tool("look", seconds=0.5, effect="read"),
        desk.tool("note", seconds=0.2),
        desk.tool("fall", fails="boom"),
    ]
    model = ScriptedModel(
        [Think("Hm."), Say("Let me see."), Call("look"), Call("note"), Call("look", n=2)],
        [Call("fall", after=1.0), Call("nothing"), Call("look")],
        "That is all.",
        wire=wire,
    )
    return play_aloud(Agent(model, tools, schedule=schedule))[1]


@under_every_schedule
@on_every_wire
def test_sequence_numbers_never_go_back(wire: str, schedule: Schedule) -> None:
    events = a_run(wire, schedule)
    assert [event.seq for event in events] == list(range(len(events)))
    for before, after in pairwise(events):
        assert before.time <= after.time
        assert before.turn <= after.turn
        assert before.run == after.run
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert [event.turn for event in only(RequestSent, events)] == [0, 1, 2]


@under_every_schedule
@on_every_wire
def test_every_event_of_a_run_survives_json(wire: str, schedule: Schedule) -> None:
    for event in a_run(wire, schedule):
        assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


@pytest.mark.parametrize(
    "depth",
    [
        400,
        511,
    ],
)
def test_deeply_nested_arguments_survive_json_too(depth: int) -> None:
    model = ScriptedModel(Call("look", '{"a":' * depth + "1" + "}" * depth), "Done.")
    _, events = play_aloud(Agent(model, Desk().tools("look")))
    assert [event_from_json(event_to_json(event)) for event in events] == events


@under_every_schedule
@on_every_wire
def test_a_round_is_reported_in_order(wire: str, schedule: Schedule) -> None:
    """The text, the calls once the response has ended, a start before each end, and the end of the round last."""
    events = a_run(wire, schedule)
    for turn in (0, 1):
        said = [event for event in events if event.turn == turn]
        (detected,) = only(ToolCallsDetected, said)
        (finished,) = only(RoundFinished, said)
        assert all(event.seq < detected.seq for event in only(TextAdded, said))
        assert said[-1] is finished
        assert (detected.count, finished.calls) == (3, 3)
        written = {event.call: event for event in only(CallWritten, said)}
        started = {event.call: event for event in only(CallStarted, said)}
        ended = {event.call: event for event in only(CallFinished, said)}
        assert list(ended) == sorted(ended, key=lambda number: ended[number].seq)
        assert set(ended) == set(written) == {call["call"] for call in detected.calls}
        assert [written[call["call"]].call_id for call in detected.calls] == [call["id"] for call in detected.calls]
        assert all(written[number].seq < min(start.seq, detected.seq) for number, start in started.items())
        assert all(start.seq < ended[number].seq for number, start in started.items())
        assert all(start.early == (start.seq < detected.seq) for start in started.values())
        ran = [number for number, end in ended.items() if end.outcome != "not_executed" and not end.duplicate_of]
        assert all(number in started for number in ran)


@pytest.mark.parametrize("schedule", [Schedule.PARALLEL, Schedule.EAGER])
def test_all_starts_are_reported_before_the_first_call_runs(schedule: Schedule) -> None:
    order: list[str] = []

    def note(n: int) -> str:
        order.append(f"{n} runs")
        return "ok"

    def hear(event: Event) -> None:
        if isinstance(event, CallStarted):
            order.append(f"{event.arguments['n']} starts")

    model = ScriptedModel([Call("note", n=n) for n in range(4)], "Done.")
    run_virtual(Agent(model, [Desk().tool("note", note, overlap=True)], schedule=schedule).run("Go.", sinks=[hear]))
    assert order == [*[f"{n} starts" for n in range(4)], *[f"{n} runs" for n in range(4)]]


def test_text_before_calls_is_a_thought_and_the_last_text_is_the_answer() -> None:
    assert [(event.text, event.final) for event in only(TextFinished, a_run())] == [
        ("Let me see.", False),
        ("That is all.", True),
    ]


def test_text_is_reported_in_pieces_and_complete() -> None:
    events = a_run()
    for said in only(TextFinished, events):
        assert "".join(event.text for event in only(TextAdded, events) if event.turn == said.turn) == said.text


def test_a_failed_run_reports_it_last() -> None:
    events: list[Event] = []
    agent = Agent(ScriptedModel(Call("look"), Fail(Unauthorized("no"))), Desk().tools("look"), sinks=[events.append])
    with pytest.raises(Unauthorized):
        run_virtual(agent.run("Go."))
    last = events[-1]
    assert isinstance(last, RunFailed)
    assert (last.error, last.message) == ("Unauthorized", "no")
    assert only(RunFinished, events) == []


def test_the_last_event_has_the_totals() -> None:
    model = ScriptedModel([Call("look"), Call("look", n=2)], "Enough.")
    result, events = play_aloud(Agent(model, Desk().tools("look", seconds=1.0, overlap=True), limits=Limits(rounds=1)))
    (end,) = only(RunFinished, events)
    assert (end.text, end.stop_reason, end.rounds, end.requests, end.calls) == ("Enough.", "round_limit", 1, 2, 2)
    assert (end.seconds, end.usage["output_tokens"]) == (1.0, result.usage.output_tokens)
