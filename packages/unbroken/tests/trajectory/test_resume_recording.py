"""A run whose process was killed is resumed from its recording: the same answer, and no finished call runs again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from call_lives import assert_lives
from killed_runs import in_a_child
from thorough import some

from unbroken import (
    Agent,
    Allow,
    CallContext,
    Deny,
    Limits,
    Recorder,
    Result,
    ScriptedModel,
    Wait,
    client_tool,
    tool,
)
from unbroken.errors import RunTaken, UserError
from unbroken.events import (
    CallAdopted,
    CallFinished,
    CallStarted,
    CallWritten,
    Event,
    RequestSent,
    RoundFinished,
    RunFinished,
)
from unbroken.models.scripted import Answer, Call, Pause, Say, Uses
from unbroken.trajectory.recording import read_recording
from unbroken_testing import run_virtual
from unbroken_wires.messages import Assistant, Request

QUESTION = "Set the table."
ANSWER = "Two plates and a fork are on the table."


def script(request: Request) -> Answer:
    """The next answer depends on nothing but the history, as with a real model."""
    rounds = sum(isinstance(message, Assistant) for message in request.messages)
    return (
        [Say("Plates first. "), Call("look", what="table"), Call("put", what="plate"), Call("put", what="plate")],
        [Call("look", what="drawer"), Call("put", what="fork")],
        ANSWER,
    )[rounds]


def tools(done: Path) -> list[Any]:
    """Each records that it ran, and in which attempt."""

    def note(what: str, context: CallContext[Any]) -> None:
        with done.open("a") as file:
            file.write(f"{what} {context.key} {context.attempt}\n")

    @tool(effect="read", overlap=True)
    async def look(what: str, context: CallContext[Any]) -> str:
        """Look at something."""
        await asyncio.sleep(0.2)
        note(f"look-{what}", context)
        return f"the {what} is there"

    @tool(effect="write", overlap=True, after_crash="rerun")
    async def put(what: str, context: CallContext[Any]) -> str:
        """Put something on the table."""
        await asyncio.sleep(0.5)
        note(f"put-{what}", context)
        return f"{what} put"

    return [look, put]


def agent(done: Path, **options: Any) -> Agent:
    return Agent(ScriptedModel(script), tools(done), **options)


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
    for number in some(range(total - 1), 2):  # with the last event it has ended
        folder = tmp_path / str(number)
        folder.mkdir()
        done, record = folder / "done", folder / "run.jsonl"
        assert in_a_child(lambda: play(done, record, sinks=[kill_at(number)])) == signal.SIGKILL  # noqa: B023
        finished = [line["key"] for line in read_recording(record).of("result")]
        result = resume(done, record)
        assert_lives(read_recording(record).events)
        assert (result.text, result.stop_reason, result.rounds, result.requests) == (ANSWER, "answered", 2, 3)
        assert result.messages == whole.messages
        assert result.usage.total_tokens == whole.usage.total_tokens
        ran = Counter(line.split()[1] for line in done.read_text().splitlines())
        assert all(ran[key] == 1 for key in finished), f"killed at event {number}"
        assert len(ran) == 5


def test_a_resumed_run_that_is_killed_can_be_resumed_again(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    assert in_a_child(lambda: play(done, record, sinks=[kill_at(9)])) == signal.SIGKILL
    times = 0
    for number in (0, 3, 0, 5, 7, 4):
        times += in_a_child(lambda: resume(done, record, sinks=[kill_at(number)])) == signal.SIGKILL  # noqa: B023
    assert times == 6
    finished = Counter(line["key"] for line in read_recording(record).of("result"))
    result = resume(done, record)
    assert result.text == ANSWER
    ran = Counter(line.split()[1] for line in done.read_text().splitlines())
    assert all(ran[key] == 1 for key in finished)


def test_a_call_that_was_in_flight_runs_again_and_is_reported(tmp_path: Path) -> None:
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


def test_a_complete_answer_is_not_requested_again(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    events = events_of_a_run(tmp_path)
    last = max(number for number, event in enumerate(events) if isinstance(event, RoundFinished))
    in_a_child(lambda: play(done, record, sinks=[kill_at(last)]))
    model = ScriptedModel(script)

    async def main() -> Result:
        return await Agent(model, tools(done)).resume(str(record))

    assert run_virtual(main).text == ANSWER
    assert [sum(isinstance(message, Assistant) for message in request.messages) for request in model.requests] == [2]


def test_event_numbers_continue_and_the_recording_has_both_parts(tmp_path: Path) -> None:
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


def test_a_failed_run_continues_where_it_failed(tmp_path: Path) -> None:
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


def test_a_run_that_has_ended_cannot_be_resumed(tmp_path: Path) -> None:
    play(tmp_path / "done", tmp_path / "run.jsonl")
    with pytest.raises(RunTaken, match=r"run\.jsonl: run `r` has ended \(answered\): nothing is left to resume"):
        resume(tmp_path / "done", tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    ("effect", "words"),
    [("read", "so it is sent again"), ("write", "its recorded answer stays")],
)
def test_a_changed_agent_gets_a_new_answer_unless_a_write_has_started(
    effect: Any, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = tmp_path / "run.jsonl"

    @tool(effect=effect, after_crash="rerun")
    async def work(what: str, context: CallContext[Any]) -> str:
        await asyncio.sleep(1)
        if not context.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    def asked(instructions: str = "", **options: Any) -> Agent:
        def answer(request: Request) -> Answer:
            again = any(isinstance(message, Assistant) for message in request.messages)
            return "Done." if again else [Call("work", what="x")]

        return Agent(ScriptedModel(answer), [work], instructions, **options)

    assert in_a_child(lambda: run_virtual(lambda: asked(record=record).run("Go."))) == signal.SIGKILL
    assert run_virtual(lambda: asked("Be kind.").resume(record)).text == "Done."
    assert words in caplog.text


# What must not happen on the way


def test_a_masked_call_that_had_finished_is_adopted_and_an_unfinished_one_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2-hunter2")
    ran: list[tuple[str, int]] = []
    record = tmp_path / "run.jsonl"

    @tool
    async def login(password: str, context: CallContext[Any]) -> str:
        ran.append((password, context.attempt))
        return "in"

    @tool(after_crash="rerun")
    async def work(context: CallContext[Any]) -> str:
        ran.append(("work", context.attempt))
        if not context.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    def answers(request: Request) -> Answer:
        asked = any(isinstance(message, Assistant) for message in request.messages)
        secret = "hunter2-hunter2"
        return (
            "Done." if asked else [Call("login", password=secret), Call("work"), Call("login", password=f"2{secret}")]
        )

    def go() -> Result:
        asked = Agent(ScriptedModel(answers), [login, work], record=record, schedule="sequential")
        return run_virtual(lambda: asked.run("Go.", run_id="r"))

    assert in_a_child(go) == signal.SIGKILL
    assert b"hunter2" not in record.read_bytes()
    asked = Agent(ScriptedModel(answers), [login, work], schedule="sequential")
    result = run_virtual(lambda: asked.resume(record))
    assert ran == [("work", 1)]  # the first login had finished, and nothing was done with ***
    assert [call.result.text for call in result.calls] == [
        "in",
        "done",
        "Error: not executed: its arguments were masked when the run was recorded; make the call again",
    ]


def waiting_agent(done: Path, **options: Any) -> Agent:
    def note(what: str) -> None:
        with done.open("a") as file:
            file.write(f"{what}\n")

    @tool
    async def put(what: str) -> str:
        note(f"put {what}")
        return "put"

    @tool(approve=True, after_crash="rerun")
    async def pay(amount: int, context: CallContext[Any]) -> str:
        note(f"pay {amount} {context.attempt}")
        if not context.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        return "paid"

    def answers(request: Request) -> Answer:
        note("asked")
        if any(isinstance(message, Assistant) for message in request.messages):
            return "All done."
        return [Call("put", what="x"), Call("pay", amount=5), Call("browse", url="u")]

    browse = client_tool("browse", "Looks at a page.", {"type": "object", "properties": {"url": {"type": "string"}}})
    return Agent(ScriptedModel(answers), [put, pay, browse], on_approval=lambda call: Wait(), **options)


def test_a_run_that_was_killed_after_waiting_continues_with_the_answers(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    waits = run_virtual(lambda: waiting_agent(done, record=record).run("Go."))
    pay, browse = waits.pending
    answers: dict[str, Any] = {pay.id: Allow(), browse.id: "the page"}

    def go_on() -> Result:
        return run_virtual(lambda: waiting_agent(done, record=record).resume(record, answers))

    assert in_a_child(go_on) == signal.SIGKILL
    result = run_virtual(lambda: waiting_agent(done).resume(record))
    assert (result.text, result.stop_reason) == ("All done.", "answered")
    assert done.read_text().splitlines() == ["asked", "put x", "pay 5 0", "pay 5 1", "asked"]
    assert sorted(record.result.text for record in result.calls) == ["paid", "put", "the page"]
    resumed = [line for line in read_recording(record).lines if line["line"] == "resumed"]
    assert len(resumed) == 2  # one for each time that it was resumed


def test_a_waiting_run_is_resumed_from_its_path_and_recorded_once(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    waits = run_virtual(lambda: waiting_agent(done, record=record).run("Go."))
    pay, browse = waits.pending
    answers: dict[str, Any] = {pay.id: Deny("no"), browse.id: "the page"}
    result = run_virtual(lambda: waiting_agent(done, record=record).resume(record, answers))
    assert [record.result.text for record in result.calls][2] == "the page"
    events = read_recording(record).events
    assert [type(event).__name__ for event in events].count("RunFinished") == 2
    assert [event.seq for event in events] == list(range(len(events)))


def test_secrets_of_the_recorder_stay_hidden_after_a_resume(tmp_path: Path) -> None:
    record, secret = tmp_path / "run.jsonl", "a-very-own-secret"

    def fail(request: Request) -> Answer:
        raise UserError("not now")

    recorder = Recorder(record, secrets=[secret])
    with pytest.raises(UserError):
        run_virtual(lambda: Agent(ScriptedModel(fail), record=recorder).run(f"Use {secret}."))
    run_virtual(
        lambda: Agent(ScriptedModel(f"It is {secret}."), record=Recorder(tmp_path / "o", secrets=[secret])).resume(
            record
        )
    )
    assert secret.encode() not in record.read_bytes()


def test_an_approval_applies_only_to_the_call_it_was_given_for(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    ran: list[str] = []

    @tool(approve=True)
    async def delete(path: str, context: CallContext[Any]) -> str:
        if path == "/tmp/x":
            os.kill(os.getpid(), signal.SIGKILL)
        ran.append(path)
        return "gone"

    def agent_that(deletes: str, allows: bool, **options: Any) -> Agent:
        def answers(request: Request) -> Answer:
            asked = any(isinstance(message, Assistant) for message in request.messages)
            return "Done." if asked else [Call("delete", path=deletes, id="same")]

        return Agent(
            ScriptedModel(answers), [delete], on_approval=lambda call: Allow() if allows else Deny("never"), **options
        )

    assert in_a_child(lambda: run_virtual(lambda: agent_that("/tmp/x", True, record=record).run("Go.")))
    other = agent_that("/home/everything", False, instructions="Delete more.")
    assert run_virtual(lambda: other.resume(record)).text == "Done."
    assert ran == []


def test_time_between_processes_does_not_count(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"

    def at(hour: float, work: Callable[[], Any]) -> Any:
        return run_virtual(work, start=hour * 3600)

    limits = Limits(seconds=5)
    in_a_child(lambda: at(1, lambda: agent(done, record=record).run(QUESTION, limits=limits, sinks=[kill_at(9)])))
    for hour in (2, 3):
        in_a_child(lambda: at(hour, lambda: agent(done).resume(record, sinks=[kill_at(6)])))  # noqa: B023
    result = at(4, lambda: agent(done).resume(record))
    assert (result.text, result.stop_reason) == (ANSWER, "answered")
    assert result.seconds < 5


def test_the_result_of_a_resumed_run_has_all_its_calls(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    whole = play(tmp_path / "other", tmp_path / "whole.jsonl")
    last = max(n for n, event in enumerate(events_of_a_run(tmp_path / "e")) if isinstance(event, RequestSent))
    in_a_child(lambda: play(done, record, sinks=[kill_at(last)]))
    result = resume(done, record)
    assert [(each.id, each.result, each.turn) for each in result.calls] == [
        (each.id, each.result, each.turn) for each in whole.calls
    ]
    assert [each.seconds for each in result.calls] == pytest.approx([each.seconds for each in whole.calls])
    ending = read_recording(record).ending
    assert isinstance(ending, RunFinished)
    assert ending.calls == len(whole.calls)
    before, after = whole.metrics.to_json(), result.metrics.to_json()
    same = ("queries", "requests", "tool_calls", "tool_executions", "multi_tool_call_count", "tokens")
    assert {name: after.get(name) for name in same} == {name: before.get(name) for name in same}


def test_a_finished_call_is_reported_as_not_run_again(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    last = max(n for n, event in enumerate(events_of_a_run(tmp_path / "e")) if isinstance(event, RoundFinished))
    in_a_child(lambda: play(done, record, sinks=[kill_at(last)]))
    heard: list[Event] = []
    resume(done, record, sinks=[heard.append])
    again = [event for event in heard if isinstance(event, CallFinished)]
    assert [event.name for event in again] == ["look", "put"]
    adopted = {event.call: event.adopted for event in heard if isinstance(event, CallAdopted)}
    before = {event.call: event.call_id for event in read_recording(record).events if isinstance(event, CallWritten)}
    assert [before[adopted[event.call]] for event in again] == [event.call_id for event in again]
    assert not any(isinstance(event, CallStarted) for event in heard)
    assert [event.seconds for event in again] == pytest.approx([0.2, 0.5])


def test_usage_of_an_agent_as_a_tool_counts_again(tmp_path: Path) -> None:
    def helper() -> Any:
        return Agent(ScriptedModel(["Found.", Uses(1000, 100)], loop_last=True)).as_tool("find", "Finds things.")

    def script(request: Request) -> Answer:
        rounds = sum(isinstance(message, Assistant) for message in request.messages)
        return ([Call("find", task="it"), Uses(10, 1)], ["Here.", Uses(20, 2)])[rounds]

    def asked(**options: Any) -> Agent:
        return Agent(ScriptedModel(script), [helper()], **options)

    record = tmp_path / "run.jsonl"
    whole = run_virtual(lambda: asked(record=record).run("Go."))
    assert whole.usage.input_tokens == 1030
    assert asked().replay(record).usage == whole.usage
    lines = record.read_bytes().splitlines(keepends=True)
    result = next(n for n, line in enumerate(lines) if line.startswith(b'{"line":"result"'))
    record.write_bytes(b"".join(lines[: result + 1]))
    assert run_virtual(lambda: asked().resume(record)).usage == whole.usage


def test_a_read_that_was_in_flight_is_reported_even_if_the_model_was_asked_again(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    seen: list[int] = []

    @tool(effect="read", overlap=True)
    async def look(what: str, context: CallContext[Any]) -> str:
        seen.append(context.attempt)
        await asyncio.sleep(1)
        if not context.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        return "seen"

    def script(name: str) -> Callable[[Request], Answer]:
        def answer(request: Request) -> Answer:
            asked = any(isinstance(message, Assistant) for message in request.messages)
            return "Seen." if asked else [Call("look", what="x", id=name), Pause(5)]

        return answer

    in_a_child(lambda: run_virtual(lambda: Agent(ScriptedModel(script("a")), [look], record=record).run("Go.")))
    assert run_virtual(lambda: Agent(ScriptedModel(script("b")), [look]).resume(record)).text == "Seen."
    assert seen == [1]


def test_a_recording_with_an_unreadable_line_in_the_middle_is_not_resumed(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    number = len(events_of_a_run(tmp_path / "whole")) * 2 // 3
    assert in_a_child(lambda: play(done, record, sinks=[kill_at(number)])) == signal.SIGKILL
    before, lines = done.read_bytes(), record.read_bytes().splitlines(keepends=True)
    for place in range(1, len(lines) - 1):
        damaged = [*lines[:place], lines[place][:-9] + b"\n", *lines[place + 1 :]]
        record.write_bytes(b"".join(damaged))
        with pytest.raises(UserError, match=f"is damaged and cannot be resumed: line {place + 1} cannot be read"):
            resume(done, record)
    assert done.read_bytes() == before


def test_a_line_that_was_cut_when_the_process_died_does_not_prevent_a_second_resume(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    for _ in range(2):
        work = resume if record.exists() else play
        assert in_a_child(lambda: work(done, record, sinks=[kill_at(12)])) == signal.SIGKILL  # noqa: B023
        record.write_bytes(record.read_bytes()[:-5])
    assert resume(done, record).text == ANSWER


@pytest.mark.parametrize("effect", ["read", "write"])
def test_a_run_that_is_out_of_time_keeps_its_last_recorded_answer(effect: Any, tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    asked: list[Request] = []

    def answers(request: Request) -> Answer:
        asked.append(request)
        called = any(isinstance(message, Assistant) for message in request.messages)
        return "Done." if called else [Say("First. "), Call("work", n=1), Call("work", n=2)]

    def agent() -> Agent:
        @tool(effect=effect, timeout=None)
        async def work(n: int) -> str:
            with done.open("a") as file:
                file.write(f"{n} ")
            await asyncio.sleep(n * 10)
            return f"worked {n}"

        return Agent(ScriptedModel(answers), [work], record=record, schedule="parallel")

    def die(event: Event) -> None:
        if isinstance(event, CallFinished):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(lambda: run_virtual(lambda: agent().run("Go.", sinks=[die]))) == signal.SIGKILL
    result = run_virtual(lambda: agent().resume(record, limits=Limits(seconds=0)))
    assert (result.text, result.stop_reason) == ("Done.", "time_limit")
    (final,) = asked
    assert final.final
    first, second = (call.result.text for call in result.calls)
    assert first == "worked 1"
    assert second.startswith("worked 2" if effect == "read" else "Error: outcome unknown")
    assert effect == "read" or done.read_text() == "1 2 "


def waits_to_pay(record: Path) -> tuple[Agent, Result]:
    @tool(approve=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    model = ScriptedModel([Call("pay", amount=5, id="p")], "Done.")
    asking = Agent(model, [pay], on_approval=lambda call: Wait(), record=record)
    return asking, run_virtual(lambda: asking.run("Pay."))


@pytest.mark.parametrize("answers", [[1], "p", 5, None])
def test_answers_must_be_a_dict(answers: Any, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    asking, result = waits_to_pay(record)
    for saved in (record, result):
        with pytest.raises(UserError, match=r"^resume: the answers are a dict by call id"):
            run_virtual(lambda: asking.resume(saved, answers))  # noqa: B023


def test_a_run_is_not_resumed_by_an_agent_without_the_tools_of_waiting_calls(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    asking, result = waits_to_pay(record)
    before = record.read_bytes()
    without = Agent(ScriptedModel("Done."), [])
    for saved in (record, result, result.to_json()):
        for answers in ({}, {"p": Allow()}, {"p": Deny()}):
            with pytest.raises(UserError, match="calls of `pay` wait, and this agent has no such tool"):
                run_virtual(lambda: without.resume(saved, answers))  # noqa: B023
    assert record.read_bytes() == before
    assert run_virtual(lambda: asking.resume(record, {"p": Allow()})).calls[0].result.text == "paid 5"


def test_a_call_that_gets_a_result_needs_no_tool(tmp_path: Path) -> None:
    _, result = waits_to_pay(tmp_path / "run.jsonl")
    without = Agent(ScriptedModel("Done."), [])
    assert run_virtual(lambda: without.resume(result, {"p": "paid by hand"})).text == "Done."


@pytest.mark.parametrize("answer", ["allow", "Deny", "deny:too much", 'edit:{"amount": 1}', True])
def test_a_decision_word_is_not_accepted_as_a_result(answer: Any, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    asking, result = waits_to_pay(record)
    for saved in (record, result):
        with pytest.raises(UserError, match=r"for call `p` \(pay\) is ambiguous; use Allow\(\), Deny\(\) or Edit"):
            run_virtual(lambda: asking.resume(saved, {"p": answer}))  # noqa: B023


def test_a_client_may_answer_with_any_text() -> None:
    choose = client_tool("choose", "The user chooses.", {"type": "object", "properties": {}})
    asking = Agent(ScriptedModel([Call("choose", id="c")], "Done."), [choose])
    result = run_virtual(lambda: asking.run("Ask."))
    assert run_virtual(lambda: asking.resume(result, {"c": "allow"})).calls[0].result.text == "allow"
