"""A run with broken answers is cancelled at each of its events in turn: the history is valid, nothing keeps running,
and the conversation can be continued."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from call_lives import assert_lives
from scenes import Desk, accepted, can_go_on, on_every_wire
from thorough import ALL, some

from unbroken import Agent, CallStarted, Conversation, Event, RetryingModel, Schedule, ScriptedModel, TextAdded
from unbroken.errors import RateLimited
from unbroken_testing import Answer, Break, Call, Cut, End, Fail, Pause, Say, Step, Think, run_virtual
from unbroken_wires.messages import Assistant
from unbroken_wires.wires import WIRES

CALLS: list[Step] = [Call("look", note="a"), Call("look", note="b", after=0.1), Call("act", note="c")]
STORY: list[Answer] = [
    Fail(RateLimited("slow down", status=429, retry_after=1.0)),
    [Think("Hm. "), Say("Let me look. "), *CALLS, Break()],
    [Say("Let me look. I look at both. "), *CALLS],
    [Say("Once more. "), Call("look", note="d"), Pause(0.2), Cut("act", '{"note": "e'), End("done")],
    [Say("Again, "), Call("act", note="e"), Call("look", note="f"), Call("look", note="d")],
    "",
    [Say("It is "), Pause(0.1), Break()],
    "It is done.",
]


def make(wire: str, schedule: Schedule, desk: Desk) -> tuple[Conversation, ScriptedModel]:
    model = ScriptedModel(*STORY, "Yes.", wire=wire, loop_last=True)
    tools = [desk.tool("look", seconds=0.3, effect="read"), desk.tool("act", seconds=0.3)]
    return Conversation(Agent(RetryingModel(model, jitter=lambda: 0.0), tools, schedule=schedule)), model


def count_events(wire: str, schedule: Schedule) -> int:
    events: list[Event] = []
    chat, model = make(wire, schedule, Desk())
    result = run_virtual(chat.say("Go.", sinks=[events.append]))
    assert (result.text, result.attempts) == ("It is done.", 8)
    assert result.fallback_used
    accepted(model, result)
    return len(events)


async def cancel_at(number: int, wire: str, schedule: Schedule) -> None:
    """Cancelled while the event with this number is delivered."""
    desk = Desk()
    chat, model = make(wire, schedule, desk)
    events: list[Event] = []

    def sink(event: Event) -> None:
        events.append(event)
        if event.seq == number:
            turn.cancel()

    turn = asyncio.ensure_future(chat.say("Go.", sinks=[sink]))
    await asyncio.wait([turn])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    can_go_on(chat.messages)
    assert_lives(events)
    said = [message.text for message in chat.messages if isinstance(message, Assistant)]
    started = len([event for event in events if isinstance(event, CallStarted)])
    assert started - 3 <= len(desk.executions) <= started  # started and cancelled before its first step
    writes = [arguments["note"] for name, arguments in desk.ran if name == "act"]
    assert writes == sorted(set(writes))
    shown = events[number]
    if isinstance(shown, TextAdded) and turn.cancelled():
        assert any(shown.text in text for text in said), "what was shown is lost"
    while model.requests and not (await go_on(chat)):
        pass
    can_go_on(chat.messages)
    accepted(model)
    writes = [arguments["note"] for name, arguments in desk.ran if name == "act"]
    due = made(chat).count("act") - not_executed(chat)
    assert due - 1 <= len(writes) <= due  # one may have been cancelled before its first step


async def go_on(chat: Conversation) -> bool:
    """One more turn. Returns whether the script has come to its end."""
    result = await chat.say("And now?")
    return result.text in ("Yes.", "It is done.")


def made(chat: Conversation) -> list[str]:
    return [call.name for message in chat.messages if isinstance(message, Assistant) for call in message.calls]


def not_executed(chat: Conversation) -> int:
    """Writes that got a result without their tool running."""
    results: list[Any] = [result for message in chat.messages for result in getattr(message, "results", ())]
    return len([result for result in results if result.name == "act" and "not executed" in result.text])


@on_every_wire
@pytest.mark.parametrize("schedule", [Schedule.EAGER, Schedule.SEQUENTIAL], ids=str)
def test_a_run_that_is_cancelled_at_any_of_its_events_can_be_continued(wire: str, schedule: Schedule) -> None:
    first = list(WIRES).index(wire)  # each wire at other events
    for number in some(range(0 if ALL else first, count_events(wire, schedule)), len(WIRES)):
        run_virtual(cancel_at(number, wire, schedule))
