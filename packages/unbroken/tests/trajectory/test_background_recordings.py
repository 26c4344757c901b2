"""Runs with background calls are recorded, replayed and resumed: a process is killed (SIGKILL) at every event, and no
write runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from call_lives import assert_lives
from killed_runs import in_a_child
from scenes import can_go_on
from thorough import some

from unbroken import Agent, Allow, Event, Request, Result, ScriptedModel, User, Wait, tool
from unbroken.agent.recorded_agent import agent_of
from unbroken.events import CallBackgrounded, ResultArrived, event_to_json
from unbroken.models.scripted import Answer, Call, Pause
from unbroken.tools.context import CallContext
from unbroken.trajectory.recording import read_recording
from unbroken_testing import run_virtual
from unbroken_wires.messages import Assistant, ToolMessage

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


def script(request: Request) -> Answer:
    """The next answer depends on nothing but the history, as with a real model."""
    said = sum(isinstance(message, Assistant) for message in request.messages)
    arrived = sum(message.text.count("[Background call") for message in request.messages if isinstance(message, User))
    results = [result for message in request.messages if isinstance(message, ToolMessage) for result in message.results]
    gone = sum("is still running" in result.text for result in results)
    plans: list[Answer] = [
        [Pause(1.0), Call("look", at="a", id="l1"), Call("pay", amount=5, id="p1")],
        [Pause(1.0), Call("look", at="$call_1", id="l2"), Call("note", text="b", id="n1")],
        [Pause(1.0), Call("pay", amount=6, id="p1")],
    ]
    if said < len(plans):
        return plans[said]
    return [Pause(1.0), "Done."] if arrived == gone else [Pause(1.0), "Waiting."]


def agent(done: Path, **options: Any) -> Agent:
    """Its tools record what they began, and with which key."""

    def begun(name: str, context: CallContext[Any]) -> None:
        with done.open("a") as file:
            file.write(f"{name} {context.key}\n")

    @tool(effect="read", background=0)
    async def look(at: str, context: CallContext[Any]) -> str:
        begun("look", context)
        context.report("looking")
        await asyncio.sleep(5.5)
        return f"<{at}>"

    @tool(background=0.25, key=lambda arguments: "account", **options.pop("pay", {}))
    async def pay(amount: int, context: CallContext[Any]) -> str:
        begun("pay", context)
        await asyncio.sleep(4.25)
        return f"paid {amount}"

    @tool(approve=options.pop("approve", False))
    async def note(text: str, context: CallContext[Any]) -> str:
        begun("note", context)
        return text

    return Agent(ScriptedModel(script), [look, pay, note], **options)


def told(result: Result) -> list[tuple[str, str, str]]:
    return [(call.name, call.outcome, call.result.text) for call in result.calls]


WHOLE = [
    ("look", "done", "<a>"),
    ("pay", "done", "paid 5"),
    ("look", "done", "<<a>>"),
    ("note", "done", "b"),
    ("pay", "done", "paid 6"),
]


def recorded(tmp_path: Path, **options: Any) -> tuple[Result, list[Event], Path]:
    record, events = tmp_path / "run.jsonl", list[Event]()
    whole = agent(tmp_path / "done", record=record, **options)
    result = run_virtual(lambda: whole.run("Go.", run_id="r", sinks=[events.append]))
    return result, events, record


def test_a_replay_has_the_same_events_and_the_same_result(tmp_path: Path) -> None:
    result, events, record = recorded(tmp_path)
    assert told(result) == WHOLE
    assert [each.handle for each in result.background] == ["$call_1", "$call_2", "$call_3", "$call_5"]
    (tmp_path / "done").unlink()
    again: list[Event] = []
    replayed = agent(tmp_path / "done").replay(record, sinks=[again.append])
    assert [event_to_json(event) for event in again] == [event_to_json(event) for event in events]
    assert (replayed.messages, replayed.calls, replayed.background) == (
        result.messages,
        result.calls,
        result.background,
    )
    assert not (tmp_path / "done").exists(), "no tool runs in a replay"
    assert agent_of(read_recording(record)).replay(record).messages == result.messages  # as `unbroken replay` does


def test_a_recording_of_real_time_replays(tmp_path: Path) -> None:
    """What arrived a moment before a request arrives before it in the replay too."""

    @tool(effect="read", background=0)
    async def look(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return f"after {seconds}"

    def answer(request: Request) -> Answer:
        said = sum(isinstance(message, Assistant) for message in request.messages)
        return [Call("look", seconds=0.003 * n) for n in range(8)] if said < 4 else f"Answer {said}."

    live = Agent(ScriptedModel(answer), [look], record=tmp_path / "run.jsonl")
    result = asyncio.run(live.run("Go."))
    replayed = Agent(ScriptedModel(answer), [look]).replay(tmp_path / "run.jsonl")
    assert replayed.messages == result.messages


def test_a_recording_shows_when_calls_went_to_the_background_and_when_their_results_arrived(tmp_path: Path) -> None:
    _, _, record = recorded(tmp_path)
    events = read_recording(record).events
    gone = [(event.handle, event.turn) for event in events if isinstance(event, CallBackgrounded)]
    come = [(event.handle, event.turn) for event in events if isinstance(event, ResultArrived)]
    assert gone == [("$call_1", 0), ("$call_2", 0), ("$call_3", 1), ("$call_5", 2)]
    assert sorted(handle for handle, _ in come) == sorted(handle for handle, _ in gone)


@forks
@pytest.mark.parametrize(
    "rerun", [pytest.param(False, id="reported", marks=pytest.mark.slow), pytest.param(True, id="run again")]
)
def test_a_run_killed_at_any_event_ends_and_no_write_runs_twice(rerun: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"pay": {"after_crash": "rerun"}} if rerun else {}
    _, events, _ = recorded(tmp_path, **options)
    unknown = 0
    for number in some(range(1, len(events)), 5 if rerun else 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        done, record, heard = folder / "done", folder / "run.jsonl", list[Event]()

        def die(event: Event, at: int = number) -> None:
            if event.seq == at:
                os.kill(os.getpid(), signal.SIGKILL)

        def run(folder: Path = folder) -> Result:
            dying = agent(folder / "done", record=folder / "run.jsonl", **options)
            return run_virtual(lambda: dying.run("Go.", run_id="r", sinks=[die]))

        assert in_a_child(run) == signal.SIGKILL
        if not record.exists() or not record.read_text().count('"line":"request"'):
            continue
        result = run_virtual(agent(done, **options).resume(record, sinks=[heard.append]), start=1000.0)
        keys = Counter(done.read_text().split("\n")) if done.exists() else Counter[str]()
        assert result.text == "Done.", number
        assert all(count == 1 for line, count in keys.items() if line.startswith("pay") and not rerun), number
        outcomes = [(name, outcome) for name, outcome, _ in told(result)]
        assert [name for name, _ in outcomes] == [name for name, _, _ in WHOLE], number
        assert {outcome for name, outcome in outcomes if name != "pay"} == {"done"}, number
        assert {outcome for _, outcome in outcomes} <= ({"done"} if rerun else {"done", "unknown"}), number
        unknown += ("pay", "unknown") in outcomes
        can_go_on(result.messages)
        texts = "".join(message.text for message in result.messages if isinstance(message, User))
        assert Counter(texts.split()).total() > 0
        assert all(texts.count(f"call {each.handle} ") <= 1 for each in result.background), "it arrived twice"
        assert all(each.delivered for each in result.background), number
        assert_lives([*read_recording(record).events], died=True)
        replayed = agent(folder / "replayed", **options).replay(record)
        assert replayed.messages == result.messages, number
    assert (unknown > 0) is not rerun


@pytest.mark.parametrize("way", ["result", "json", "recording"])
def test_a_run_that_waits_for_an_approval_keeps_the_results_of_its_background_calls(way: str, tmp_path: Path) -> None:
    async def later(call: Any) -> Wait:
        return Wait()

    waiting, _, record = recorded(tmp_path, approve=True, on_approval=later)
    assert waiting.stop_reason == "waiting"
    assert waiting.seconds == 12.0, "it waits until its background calls have ended"
    assert [(each.handle, each.delivered) for each in waiting.background] == [
        ("$call_1", False),
        ("$call_2", False),
        ("$call_3", False),
    ]
    saved: Any = {"result": waiting, "json": waiting.to_json(), "recording": record}[way]
    result = run_virtual(lambda: agent(tmp_path / "done", approve=True).resume(saved, {"n1": Allow()}))
    assert result.text == "Done."
    assert all(each.delivered for each in result.background)
    assert [each.handle for each in result.background] == ["$call_1", "$call_2", "$call_3", "$call_5"]
    assert told(result)[-5:] == WHOLE if way != "json" else told(result)[-2:] == WHOLE[-2:]
    can_go_on(result.messages)


def test_a_cancelled_run_can_be_resumed_with_its_background_calls(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"

    async def main() -> None:
        task = asyncio.create_task(agent(tmp_path / "done", record=record).run("Go."))
        await asyncio.sleep(3.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    result = run_virtual(lambda: agent(tmp_path / "done").resume(record))
    assert result.text == "Done."
    assert [outcome for _, outcome, _ in told(result)] == ["done", "unknown", "done", "done", "done"]


@pytest.mark.parametrize("same_name", [False, True])
def test_a_background_call_of_an_agent_that_handed_the_run_over_is_not_run_by_a_tool_of_another(
    tmp_path: Path, same_name: bool
) -> None:
    ran: list[str] = []

    @tool(effect="read", background=0)
    async def crawl() -> str:
        ran.append("first")
        await asyncio.sleep(10)
        return "crawled"

    @tool(name="crawl", effect="read", background=0)
    async def other_crawl() -> str:
        ran.append("other")
        return "another function"

    def team(**options: Any) -> Agent[Any, Any]:
        second = Agent(ScriptedModel("Wait.", "Done."), [other_crawl] if same_name else [], name="second")
        first = ScriptedModel([Call("crawl"), Call("transfer_to_second")])
        return Agent(first, [crawl], handoffs=[second], **options)

    path = tmp_path / "run.jsonl"
    run_virtual(team(record=path).run("Go."))
    lines = path.read_bytes().splitlines(keepends=True)
    cut = next(at for at, line in enumerate(lines) if b'"line":"request"' in line and b'"turn":1' in line) + 1
    path.write_bytes(b"".join(lines[:cut]))
    ran.clear()
    result = run_virtual(team().resume(path))
    (call,) = result.background
    assert ran == []
    assert call.result is not None
    assert call.result.outcome == ("not_executed" if same_name else "unknown")
    assert "the agent that made this call has handed the run over" in call.result.text
