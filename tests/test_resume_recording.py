"""A run whose process was killed goes on from its recording: the same answer, and no finished call runs again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, CallContext, Limits, Result, ScriptedModel, tool
from unbroken.errors import UserError
from unbroken.events import CallFinished, CallStarted, Event, RequestSent, RoundFinished
from unbroken.messages import Assistant, Request
from unbroken.models.script import Answer, Call, Say
from unbroken.testing import run_virtual
from unbroken.trajectory.recording import read_recording

QUESTION = "Set the table."
ANSWER = "Two plates and a fork are on the table."


def script(request: Request) -> Answer:
    """What is said next depends on nothing but the history, as with a real model."""
    rounds = sum(isinstance(message, Assistant) for message in request.messages)
    return (
        [Say("Plates first. "), Call("look", what="table"), Call("put", what="plate"), Call("put", what="plate")],
        [Call("look", what="drawer"), Call("put", what="fork")],
        ANSWER,
    )[rounds]


def tools(done: Path) -> list[Any]:
    """Each writes down that it ran, and in the how-manyth attempt."""

    def note(what: str, context: CallContext[Any]) -> None:
        with done.open("a") as file:
            file.write(f"{what} {context.key} {context.attempt}\n")

    @tool(effect="read")
    async def look(what: str, context: CallContext[Any]) -> str:
        """Look at something."""
        await asyncio.sleep(0.2)
        note(f"look-{what}", context)
        return f"the {what} is there"

    @tool(effect="write")
    async def put(what: str, context: CallContext[Any]) -> str:
        """Put something on the table."""
        await asyncio.sleep(0.5)
        note(f"put-{what}", context)
        return f"{what} put"

    return [look, put]


def agent(done: Path, **options: Any) -> Agent:
    return Agent(ScriptedModel(script), tools(done), **options)


def in_a_child(work: Callable[[], object]) -> int:
    """In a process of its own; gives the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_at(number: int) -> Callable[[Event], None]:
    heard = 0

    def sink(event: Event) -> None:
        nonlocal heard
        if heard == number:
            os.kill(os.getpid(), signal.SIGKILL)
        heard += 1

    return sink


def play(done: Path, record: Path, **options: Any) -> Result:
    async def main() -> Result:
        return await agent(done, record=record).run(QUESTION, run_id="r", **options)

    return run_virtual(main)


def resume(done: Path, record: Path, **options: Any) -> Result:
    async def main() -> Result:
        return await agent(done).resume(record, **options)

    return run_virtual(main)


def events_of_a_run(tmp_path: Path) -> list[Event]:
    events: list[Event] = []
    tmp_path.mkdir(exist_ok=True)
    play(tmp_path / "whole", tmp_path / "whole.jsonl", sinks=[events.append])
    return events


def test_killed_at_every_event_it_gives_the_same_answer_and_no_finished_write_runs_twice(tmp_path: Path) -> None:
    whole = play(tmp_path / "done", tmp_path / "whole.jsonl")
    total = len(read_recording(tmp_path / "whole.jsonl").events)
    assert total > 25
    for number in range(total - 1):  # with the last event it has ended
        folder = tmp_path / str(number)
        folder.mkdir()
        done, record = folder / "done", folder / "run.jsonl"
        assert in_a_child(lambda: play(done, record, sinks=[kill_at(number)])) == signal.SIGKILL  # noqa: B023
        finished = [line["key"] for line in read_recording(record).of("result")]
        result = resume(done, record)
        assert (result.text, result.stop_reason, result.rounds, result.requests) == (ANSWER, "answered", 2, 3)
        assert result.messages == whole.messages
        assert result.usage.total_tokens == whole.usage.total_tokens
        ran = Counter(line.split()[1] for line in done.read_text().splitlines())
        assert all(ran[key] == 1 for key in finished), f"killed at event {number}"
        assert len(ran) == 5


def test_killed_again_while_it_goes_on_it_goes_on_again(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    assert in_a_child(lambda: play(done, record, sinks=[kill_at(9)])) == signal.SIGKILL
    times = 0
    for number in (3, 5, 7, 4):
        times += in_a_child(lambda: resume(done, record, sinks=[kill_at(number)])) == signal.SIGKILL  # noqa: B023
    assert times == 4
    finished = Counter(line["key"] for line in read_recording(record).of("result"))
    result = resume(done, record)
    assert result.text == ANSWER
    ran = Counter(line.split()[1] for line in done.read_text().splitlines())
    assert all(ran[key] == 1 for key in finished)


def test_a_call_that_was_in_flight_runs_again_and_is_told_so(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    started = next(
        number
        for number, event in enumerate(events_of_a_run(tmp_path))
        if isinstance(event, CallStarted) and event.name == "put"
    )
    # Half a second later the first of them ends: by then their starts are written.
    ended = next(
        number for number, event in enumerate(events_of_a_run(tmp_path / "again")) if isinstance(event, CallFinished)
    )
    in_a_child(lambda: play(done, record, sinks=[kill_at(ended)]))
    assert started < ended
    recorded = read_recording(record)
    begun = {event.call_id for event in recorded.events if isinstance(event, CallStarted) and event.name == "put"}
    gone = {line["call_id"] for line in recorded.of("result")}
    again: list[Event] = []
    resume(done, record, sinks=[again.append])
    attempts = Counter(line.split()[2] for line in done.read_text().splitlines() if line.startswith("put-plate"))
    assert len(begun - gone) == 2
    assert attempts == {"1": 2}
    assert all(line.split()[2] == "0" for line in done.read_text().splitlines() if line.startswith("put-fork"))


def test_the_model_is_not_asked_again_for_an_answer_that_was_whole(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    events = events_of_a_run(tmp_path)
    last = max(number for number, event in enumerate(events) if isinstance(event, RoundFinished))
    in_a_child(lambda: play(done, record, sinks=[kill_at(last)]))
    model = ScriptedModel(script)

    async def main() -> Result:
        return await Agent(model, tools(done)).resume(str(record))

    assert run_virtual(main).text == ANSWER
    assert [sum(isinstance(message, Assistant) for message in request.messages) for request in model.requests] == [2]


def test_events_go_on_counting_and_the_recording_holds_both_parts(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    in_a_child(lambda: play(done, record, sinks=[kill_at(12)]))
    before = read_recording(record)
    heard: list[Event] = []
    result = resume(done, record, sinks=[heard.append])
    after = read_recording(record)
    assert [line["line"] for line in after.lines].count("resumed") == 1
    assert heard[0].seq == before.events[-1].seq + 1
    assert [event.seq for event in after.events] == sorted({event.seq for event in after.events})
    assert after.ending is not None
    assert after.ending.seq == heard[-1].seq
    assert result.run == "r"


def test_a_run_that_failed_goes_on_where_it_failed(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"

    def broken(request: Request) -> Answer:
        if sum(isinstance(message, Assistant) for message in request.messages) == 1:
            raise UserError("the script is not here")
        return script(request)

    async def fail() -> None:
        with pytest.raises(UserError):
            await Agent(ScriptedModel(broken), tools(done), record=record).run(QUESTION)

    run_virtual(fail)
    assert resume(done, record).text == ANSWER
    assert len(done.read_text().splitlines()) == 5


def test_what_a_limit_forbade_stays_forbidden(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"

    def endless(request: Request) -> Answer:
        return "I stop here." if request.final else script(request)

    def go(sinks: list[Any], path: Path) -> Result:
        async def main() -> Result:
            asked = Agent(ScriptedModel(endless), tools(done), record=path, limits=Limits(rounds=1))
            return await asked.run(QUESTION, sinks=sinks)

        return run_virtual(main)

    events: list[Event] = []
    go([events.append], tmp_path / "whole.jsonl")
    final = max(number for number, event in enumerate(events) if isinstance(event, RequestSent))
    done.unlink()
    in_a_child(lambda: go([kill_at(final + 1)], record))

    async def main() -> Result:
        return await Agent(ScriptedModel(endless), tools(done)).resume(record)

    result = run_virtual(main)
    assert (result.text, result.stop_reason, result.rounds, result.requests) == ("I stop here.", "round_limit", 1, 2)


def test_after_a_failure_that_ends_the_run_the_final_request_stays_final(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"

    @tool
    async def fail() -> str:
        """It fails."""
        raise ValueError("no")

    def answer(request: Request) -> Answer:
        return "It failed." if request.final else [Call("fail")]

    def go(path: Path, sinks: list[Any]) -> Result:
        async def main() -> Result:
            return await Agent(ScriptedModel(answer), [fail], on_error="finish", record=path).run("go", sinks=sinks)

        return run_virtual(main)

    events: list[Event] = []
    go(tmp_path / "whole.jsonl", [events.append])
    for number in range(len(events) - 1):
        record = tmp_path / f"{number}.jsonl"
        in_a_child(lambda: go(record, [kill_at(number)]))  # noqa: B023

        async def main(path: Path = record) -> Result:
            return await Agent(ScriptedModel(answer), [fail], on_error="finish").resume(path)

        result = run_virtual(main)
        assert (result.text, result.stop_reason, result.rounds) == ("It failed.", "tool_failure", 1)


def test_a_run_that_has_ended_cannot_go_on(tmp_path: Path) -> None:
    play(tmp_path / "done", tmp_path / "run.jsonl")
    with pytest.raises(UserError, match=r"run\.jsonl: the run does not wait for anybody \(answered\)"):
        resume(tmp_path / "done", tmp_path / "run.jsonl")


def test_a_changed_agent_is_asked_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    events = events_of_a_run(tmp_path)
    finished = [number for number, event in enumerate(events) if isinstance(event, CallFinished)]
    in_a_child(lambda: play(done, record, sinks=[kill_at(finished[0])]))

    async def main() -> Result:
        return await agent(done, instructions="Be kind.").resume(record)

    assert run_virtual(main).text == ANSWER
    assert "is asked anew, because it is another one now" in caplog.text
