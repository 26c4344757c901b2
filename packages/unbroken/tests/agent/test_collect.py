"""The outcome of a run, from its events alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from unbroken import (
    Agent,
    Deny,
    Event,
    Limits,
    RunFailed,
    Schedule,
    ScriptedModel,
    TextAdded,
    Usage,
    Wait,
    client_tool,
    tool,
)
from unbroken.agent.streaming import Collected, collect
from unbroken.errors import Unavailable
from unbroken.events import ReasoningAdded, event_from_json, event_to_json
from unbroken.models.scripted import Call, Cut, Fail, Pause, Say, Think, Uses
from unbroken.tools.todo import todo_write
from unbroken_testing import run_virtual


@tool(effect="read")
async def look(city: str) -> str:
    """Look at a city."""
    await asyncio.sleep(2.0 if city == "Rome" else 0.5)
    return f"{city}: sunny"


@tool
async def fall() -> str:
    """Always fails."""
    raise OSError("the floor is wet")


def read_again(events: list[Event]) -> list[Event]:
    """As a file of JSON lines would give them."""
    lines = [json.dumps(event_to_json(event)) for event in events]
    return [event_from_json(json.loads(line)) for line in lines]


def test_collect_has_everything_that_happened_in_a_run() -> None:
    model = ScriptedModel(
        [
            Think("Rome "),
            Think("first."),
            Say("Let me look."),
            Call("look", city="Rome", id="a"),
            Call("look", city="Oslo", id="b"),
            Call("fall", id="c", after=1.0),
            Call("look", city="Oslo", id="d"),
            Call("nowhere", x=1, id="e"),
            Uses(100, 20),
        ],
        [Think("Sunny."), Say("It is sunny."), Uses(150, 10)],
    )

    async def main() -> Collected:
        agent = Agent(model, [look, fall], schedule=Schedule.EAGER)
        return await collect(agent.stream("Rome and Oslo?", run_id="r"))

    collected = run_virtual(main())
    assert (collected.run, collected.text, collected.stop_reason) == ("r", "It is sunny.", "answered")
    assert collected.texts == ["Let me look.", "It is sunny."]
    assert collected.thoughts == ["Let me look."]
    assert collected.reasoning == "Rome first.\n\nSunny."
    assert (collected.rounds, collected.requests, collected.usage) == (1, 2, Usage(250, 30))
    unknown = "Error: unknown tool `nowhere`; there are: look, fall"
    assert [
        (call.number, call.id, call.name, call.arguments, call.text, call.error, call.outcome, call.seconds, call.early)
        for call in collected.calls
    ] == [
        (0, "a", "look", {"city": "Rome"}, "Rome: sunny", False, "done", 2.0, True),
        (1, "b", "look", {"city": "Oslo"}, "Oslo: sunny", False, "done", 0.5, True),
        (2, "c", "fall", {}, "Error: the floor is wet", True, "failed", 0.0, False),
        (3, "d", "look", {"city": "Oslo"}, "Oslo: sunny", False, "done", collected.calls[3].seconds, False),
        (4, "e", "nowhere", {"x": 1}, unknown, True, "not_executed", 0.0, False),
    ]
    assert (collected.calls[3].arguments, collected.calls[3].text) == ({"city": "Oslo"}, "Oslo: sunny")
    assert Collected.of(read_again(collected.events)) == collected


def test_a_duplicate_names_the_call_whose_execution_it_shared() -> None:
    async def main() -> Collected:
        model = ScriptedModel([Call("look", city="Oslo", id="a"), Call("look", city="Oslo", id="b")], "Sunny.")
        return await collect(Agent(model, [look]).stream("Oslo?"))

    first, second = run_virtual(main()).calls
    assert (first.duplicate_of, second.duplicate_of) == ("", "a")
    assert second.text == "Oslo: sunny"


def test_the_last_list_of_todos_is_kept() -> None:
    def todos(status: str) -> Call:
        return Call("todo_write", todos=[{"content": "look", "status": status}])

    async def main() -> Collected:
        model = ScriptedModel([todos("in_progress")], [todos("completed")], "Done.")
        return await collect(Agent(model, [todo_write]).stream("Go"))

    assert run_virtual(main()).todos == [{"content": "look", "status": "completed"}]


def test_a_call_that_was_cut_has_no_arguments_and_an_error() -> None:
    async def main() -> Collected:
        return await collect(Agent(ScriptedModel([Cut("look", '{"city": "Ro')], "Sorry."), [look]).stream("Go"))

    (call,) = run_virtual(main()).calls
    assert (call.arguments, call.error, call.outcome) == (None, True, "not_executed")
    assert call.text is not None
    assert '{"city": "Ro' in call.text


def test_calls_that_wait_have_no_text_until_the_run_is_resumed() -> None:
    here = client_tool("locate", "Where the user is.", {"type": "object", "properties": {}})

    @tool(approve=True)
    async def guarded() -> str:
        """Asks first."""
        return "never"

    async def main() -> None:
        model = ScriptedModel([Call("look", city="Oslo"), Call("guarded", id="b"), Call("locate", id="c")], "Well.")
        agent = Agent(model, [look, here, guarded], on_approval=lambda _: Wait())
        stream = agent.stream("Go")
        waiting = await collect(stream)
        assert waiting.stop_reason == "waiting"
        assert [(call.name, call.text) for call in waiting.calls] == [
            ("look", "Oslo: sunny"),
            ("guarded", None),
            ("locate", None),
        ]
        assert [call["id"] for call in waiting.pending] == ["b", "c"]
        denied = agent.stream_resume(stream.result, {"b": Deny("no")})
        more = await collect(denied)
        assert [call["id"] for call in more.pending] == ["c"]
        rest = await collect(agent.stream_resume(denied.result, {"c": "Oslo"}))
        whole = Collected.of([*waiting.events, *more.events, *rest.events])
        assert whole.text == "Well."
        assert [(call.name, call.text) for call in whole.calls] == [
            ("look", "Oslo: sunny"),
            ("guarded", "Error: not executed: denied: no"),
            ("locate", "Oslo"),
        ]

    run_virtual(main())


def test_a_repeated_id_in_a_later_turn_is_another_call() -> None:
    async def main() -> Collected:
        again = [Call("look", city="Oslo", id="a")], [Call("look", city="Rome", id="a")]
        return await collect(Agent(ScriptedModel(*again, "Sunny."), [look]).stream("Go"))

    calls = run_virtual(main()).calls
    assert [(call.turn, call.text) for call in calls] == [(0, "Oslo: sunny"), (1, "Rome: sunny")]


def test_an_answer_at_a_limit_is_collected_with_its_reason() -> None:
    async def main() -> Collected:
        model = ScriptedModel([Call("look", city="Oslo")], "That is all I know.")
        return await collect(Agent(model, [look], limits=Limits(rounds=1)).stream("Go"))

    collected = run_virtual(main())
    assert (collected.text, collected.stop_reason) == ("That is all I know.", "round_limit")


def test_a_failed_run_raises_its_error_and_saved_events_contain_it() -> None:
    events: list[Event] = []

    async def main() -> None:
        model = ScriptedModel([Say("It beg"), Fail(Unavailable("model `m` is overloaded (529)"))])
        with pytest.raises(Unavailable, match="overloaded"):
            await collect(Agent(model, sinks=[events.append]).stream("Go"))

    run_virtual(main())
    collected = Collected.of(read_again(events))
    assert (collected.text, collected.stop_reason) == ("It beg", "")
    assert isinstance(collected.failed, RunFailed)
    assert collected.failed.error == "Unavailable"


def test_a_cancelled_collection_ends_the_run() -> None:
    events: list[Event] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([Say("On and on"), Pause(600), Say(".")]), sinks=[events.append])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collect(agent.stream("Go")), 5)

    run_virtual(main())
    assert Collected.of(events).failed is not None
    assert Collected.of(events).text == "On and on"


@pytest.mark.parametrize("kind", [TextAdded, ReasoningAdded])
def test_the_cost_of_a_long_answer_is_linear(kind: type[TextAdded] | type[ReasoningAdded]) -> None:
    def cost(count: int) -> float:
        events = [kind("r", 0, number, 0.0, "word word ") for number in range(count)]
        start = time.process_time()
        collected = Collected.of(events)
        assert len(collected.text + collected.reasoning) == 10 * count
        return time.process_time() - start

    once, eight_times = (min(cost(count) for _ in range(2)) for count in (2_500, 20_000))
    assert eight_times < 24 * once + 0.05


def test_any_async_iterator_of_events_works() -> None:
    async def saved(events: list[Event]) -> AsyncIterator[Event]:
        for event in events:
            yield event

    async def main() -> None:
        collected = await collect(Agent(ScriptedModel("Hello.")).stream("Hi"))
        assert await collect(saved(collected.events)) == collected
        assert collected.text == "Hello."

    run_virtual(main())
