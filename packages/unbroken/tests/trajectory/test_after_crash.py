"""A process is killed (SIGKILL) while a tool runs. It is unknown whether the call took effect: the resumed run does
what its tool declares (`@tool(after_crash=…)`), and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from killed_runs import UNKNOWN, executions, in_a_child, killed, payer, resumed, script

from unbroken import Agent, Allow, Deny, Edit, Metrics, Result, ScriptedModel, ToolResult, Wait, tool
from unbroken.errors import InvalidTool
from unbroken.events import ApprovalAsked, CallFinished, Event, RunFinished
from unbroken.models.scripted import Answer, Call
from unbroken.tools.context import CallContext
from unbroken.trajectory.recording import read_recording
from unbroken_testing import run_virtual
from unbroken_wires.messages import Assistant, Request, ToolCall, User

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


@pytest.mark.parametrize(
    "settings",
    [{}, {"effect": "write"}, {"effect": "exclusive"}, {"after_crash": "report"}, {"approve": True}],
    ids=str,
)
def test_a_write_that_was_in_flight_is_reported_and_not_run_again(settings: dict[str, Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {**settings, "on_approval": lambda call: Allow()}  # pyright: ignore[reportUnknownLambdaType]
    done, record = killed(tmp_path, **options)
    heard: list[Event] = []
    result = resumed(done, record, **options, sinks=[heard.append])
    assert executions(done) == 1
    assert result.text == "Done."
    (call,) = result.calls
    assert (call.outcome, call.error, call.result.text) == ("unknown", True, UNKNOWN)
    (ended,) = (event for event in heard if isinstance(event, CallFinished))
    assert (ended.outcome, ended.error, ended.seconds) == ("unknown", True, 0.0)
    recording = read_recording(record)
    assert [line["result"].get("outcome") for line in recording.of("result")] == ["unknown"]
    for metrics in (result.metrics, Metrics.of(recording.events)):
        assert (metrics.uncertain, metrics.tool_executions, metrics.tool_failures, metrics.refused) == (1, 0, 0, 0)
        assert metrics.tools["pay"].to_json()["uncertain"] == 1


def test_a_reported_call_stays_reported_when_the_process_dies_again(tmp_path: Path) -> None:
    done, record = killed(tmp_path)

    def die(event: Event) -> None:
        if isinstance(event, CallFinished):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(lambda: resumed(done, record, sinks=[die])) == signal.SIGKILL
    result = resumed(done, record, after_crash="rerun")  # too late: the model has its answer
    assert (executions(done), result.calls[0].outcome) == (1, "unknown")


@pytest.mark.parametrize("settings", [{"effect": "read"}, {"after_crash": "rerun"}], ids=str)
def test_a_call_that_may_run_again_does_so_with_the_same_key(settings: dict[str, Any], tmp_path: Path) -> None:
    done, record = killed(tmp_path, **settings)
    result = resumed(done, record, **settings)
    first, second = done.read_text().splitlines()
    assert first == second
    assert (result.calls[0].result.text, result.calls[0].outcome, result.metrics.uncertain) == ("paid 5", "done", 0)


class Panic(BaseException):
    """Foreign code may raise what is no Exception."""


def checked(answer: Any, asked: list[Any], is_async: bool) -> Any:
    def verify(arguments: dict[str, Any], key: str) -> Any:
        asked.append((arguments, key))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def verify_slowly(arguments: dict[str, Any], key: str) -> Any:
        await asyncio.sleep(1)
        return verify(arguments, key)

    return verify_slowly if is_async else verify


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("answer", "text", "ran"),
    [
        ("it was paid", "it was paid", 1),
        ({"paid": 5}, '{"paid":5}', 1),
        (ToolResult("", (), error=True), "", 1),
        (None, "paid 5", 2),
        (ConnectionError("the bank is away"), UNKNOWN, 1),
        (ToolResult("another", "as text", name="another"), "as text", 1),  # pyright: ignore[reportArgumentType]
        (SystemExit(3), UNKNOWN, 1),
        (GeneratorExit(), UNKNOWN, 1),
        (asyncio.CancelledError(), UNKNOWN, 1),
        (Panic("of foreign code"), UNKNOWN, 1),
    ],
    ids=str,
)
def test_a_function_verifies_whether_it_happened(
    answer: Any, text: str, ran: int, is_async: bool, tmp_path: Path
) -> None:
    asked: list[Any] = []
    done, record = killed(tmp_path, after_crash="rerun")
    result = resumed(done, record, after_crash=checked(answer, asked, is_async))
    assert (result.calls[0].result.text, executions(done)) == (text, ran)
    key = done.read_text().splitlines()[0].partition(" ")[2]
    assert asked == [({"amount": 5}, key)]
    assert (result.calls[0].outcome == "unknown") is (text == UNKNOWN)


def test_a_check_that_takes_too_long_means_unknown(tmp_path: Path) -> None:
    async def verify(arguments: dict[str, Any], key: str) -> str:
        await asyncio.sleep(31)
        return "paid"

    done, record = killed(tmp_path, after_crash=verify)
    assert resumed(done, record, after_crash=verify).calls[0].outcome == "unknown"
    assert executions(done) == 1


def test_the_value_of_a_check_is_read_in_a_thread(tmp_path: Path) -> None:
    def verify(arguments: dict[str, Any], key: str) -> Any:
        yield threading.current_thread().name

    done, record = killed(tmp_path, after_crash=verify)
    result = payer(done, after_crash=verify).resume_sync(record)
    assert result.calls[0].result.text.startswith('["unbroken-tool-')


def test_a_check_that_fails_means_unknown(tmp_path: Path) -> None:
    def verify(arguments: dict[str, Any], key: str) -> Any:
        yield "paid"
        raise ConnectionError("the bank is away")

    done, record = killed(tmp_path, after_crash=verify)
    assert resumed(done, record, after_crash=verify).calls[0].outcome == "unknown"


def test_a_call_that_may_not_run_again_stays_unknown_when_the_process_dies_again(tmp_path: Path) -> None:
    done, record = killed(tmp_path, after_crash="wait")
    assert resumed(done, record, after_crash="wait").stop_reason == "waiting"

    def die(event: Event) -> None:
        if isinstance(event, CallFinished):
            os.kill(os.getpid(), signal.SIGKILL)

    denied = {"a": Deny("ask the bank")}
    assert in_a_child(lambda: resumed(done, record, denied, after_crash="wait", sinks=[die])) == signal.SIGKILL
    (call,) = resumed(done, record, after_crash="wait").calls
    assert (call.outcome, executions(done)) == ("unknown", 1)
    assert "running it again was denied: ask the bank" in call.result.text


def test_a_run_waits_for_a_person_who_knows(tmp_path: Path) -> None:
    done, record = killed(tmp_path, after_crash="wait")
    heard: list[Event] = []
    result = resumed(done, record, after_crash="wait", sinks=[heard.append])
    assert (result.stop_reason, [call.id for call in result.pending], result.uncertain) == ("waiting", ["a"], ("a",))
    assert Result.from_json(result.to_json()).uncertain == ("a",)
    (asked,) = (event for event in heard if isinstance(event, ApprovalAsked))
    assert (asked.uncertain, asked.call_id, asked.arguments) == (True, "a", {"amount": 5})
    ending = read_recording(record).ending
    assert isinstance(ending, RunFinished)
    assert ending.pending == [{"call": 1, "id": "a", "name": "pay", "arguments": {"amount": 5}, "uncertain": True}]
    assert executions(done) == 1


ANSWERS: list[tuple[Any, str, int]] = [
    (Allow(), "paid 5", 2),
    (Edit({"amount": 6}), "paid 6\n\n[Its arguments were changed before it ran: amount=6]", 2),
    ("the bank says: paid", "the bank says: paid", 1),
    (
        Deny("ask the bank"),
        f"{UNKNOWN.rpartition('; ')[0]}; running it again was denied: ask the bank",
        1,
    ),
]


@pytest.mark.parametrize("by", ["path", "result", "json"])
@pytest.mark.parametrize(("answer", "text", "ran"), ANSWERS, ids=lambda value: type(value).__name__)
def test_the_persons_answer_settles_it(answer: Any, text: str, ran: int, by: str, tmp_path: Path) -> None:
    done, record = killed(tmp_path, after_crash="wait")
    waits = resumed(done, record, after_crash="wait")
    saved: Any = {"path": record, "result": waits, "json": waits.to_json()}[by]
    result = run_virtual(lambda: payer(done, after_crash="wait", record=record).resume(saved, {"a": answer}))
    assert (result.text, result.calls[-1].result.text, executions(done)) == ("Done.", text, ran)
    assert (result.calls[-1].outcome == "unknown") is isinstance(answer, Deny)


def test_an_approval_before_the_crash_does_not_settle_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"approve": True, "after_crash": "wait", "on_approval": lambda call: Wait()}  # pyright: ignore[reportUnknownLambdaType]
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    run_virtual(lambda: payer(done, record=record, **settings).run("Pay.", run_id="r"))
    answers = {"a": Allow()}
    dying = payer(done, True, **settings)
    assert in_a_child(lambda: run_virtual(lambda: dying.resume(record, answers))) == signal.SIGKILL
    for _ in range(2):  # repeating the same request does not allow it to run again
        waits = resumed(done, record, answers, **settings) if not _ else resumed(done, record, **settings)
        assert (waits.stop_reason, waits.uncertain, executions(done)) == ("waiting", ("a",), 1)
    dying = payer(done, True, **settings)
    assert in_a_child(lambda: run_virtual(lambda: dying.resume(record, answers))) == signal.SIGKILL
    assert executions(done) == 2
    waits = resumed(done, record, answers, **settings)  # it was allowed to run once more, and that is unknown too
    assert (waits.stop_reason, executions(done)) == ("waiting", 2)


def test_an_edited_call_runs_again_with_the_edit(tmp_path: Path) -> None:
    asked: list[Any] = []
    options: dict[str, Any] = {"approve": True, "on_approval": lambda call: Edit({"amount": 1})}  # pyright: ignore[reportUnknownLambdaType]
    done, record = killed(tmp_path, **options, after_crash="wait")
    assert resumed(done, record, **options, after_crash="wait").uncertain == ("a",)
    result = resumed(done, record, {"a": Allow()}, **options, after_crash=checked(None, asked, False))
    first, second = done.read_text().splitlines()
    assert first == second
    assert first.startswith("1 ")
    assert result.text == "Done."
    assert asked == []


def test_a_call_of_a_missing_tool_is_unknown_too(tmp_path: Path) -> None:
    _, record = killed(tmp_path)
    result = run_virtual(lambda: Agent(ScriptedModel(script), []).resume(record))
    (call,) = result.calls
    assert call.outcome == "unknown"
    assert call.result.text.startswith("Error: outcome unknown: the run stopped")
    assert "it cannot run now: unknown tool `pay`" in call.result.text


def test_masked_arguments_are_neither_verified_nor_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_TOKEN", "hunter2-hunter2")
    ran: list[str] = []
    record = tmp_path / "run.jsonl"

    @tool(after_crash=lambda arguments, key: ran.append("verified"))
    async def login(token: str) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    def answers(request: Request) -> Answer:
        asked = any(isinstance(message, Assistant) for message in request.messages)
        return "Done." if asked else [Call("login", token="hunter2-hunter2")]

    def asked(**options: Any) -> Agent:
        return Agent(ScriptedModel(answers), [login], **options)

    assert in_a_child(lambda: run_virtual(lambda: asked(record=record).run("Go."))) == signal.SIGKILL
    assert run_virtual(lambda: asked().resume(record)).calls[0].result.text == UNKNOWN
    assert ran == []


def test_a_run_that_was_resumed_from_json_into_a_new_recording_keeps_its_keys(tmp_path: Path) -> None:
    """Also in a later turn: the recording begins in the middle of the run."""
    done, record = tmp_path / "done", tmp_path / "run.jsonl"

    def twice(request: Request) -> Answer:
        said = sum(isinstance(message, Assistant) for message in request.messages)
        return ([Call("look")], [Call("pay", amount=5, id="a"), Call("pay", amount=6, id="b")], "Done.")[said]

    def agent(kills: int = 0, **options: Any) -> Agent:
        @tool(effect="read")
        async def look() -> str:
            return "seen"

        @tool(approve=True)
        async def pay(amount: int, context: CallContext[Any]) -> str:
            with done.open("a") as file:
                file.write(f"{amount}\n")
            if amount == kills:
                os.kill(os.getpid(), signal.SIGKILL)
            return f"paid {amount}"

        tools = [look, pay]
        return Agent(ScriptedModel(twice), tools, on_approval=lambda call: Wait(), schedule="sequential", **options)

    waits = run_virtual(lambda: agent().run("Pay."))
    answers = {call.id: Allow() for call in waits.pending}
    dying = agent(kills=6, record=record)
    assert in_a_child(lambda: run_virtual(lambda: dying.resume(waits.to_json(), answers))) == signal.SIGKILL
    result = run_virtual(lambda: agent().resume(record))
    assert done.read_text() == "5\n6\n"
    assert [call.result.text for call in result.calls] == ["paid 5", UNKNOWN]


@pytest.mark.parametrize("wrong", ["retry", "Report", 3, True, len], ids=str)
def test_other_values_are_refused_when_the_tool_is_created(wrong: Any) -> None:
    words = r"after_crash.* 'report', 'rerun', 'wait'(,| or) a function"
    with pytest.raises(InvalidTool, match=words):

        @tool(after_crash=wrong)
        def pay() -> str:  # pyright: ignore[reportUnusedFunction]
            return "never"


def test_a_run_that_waits_after_a_crash_replays_until_it_waits(tmp_path: Path) -> None:
    done, record = killed(tmp_path, after_crash="wait")
    resumed(done, record, after_crash="wait")
    heard: list[Event] = []
    for answers in ({}, {"a": Allow()}):
        result = payer(done, after_crash="wait").replay(record, sinks=[heard.append])
        assert (result.stop_reason, result.uncertain, result.calls) == ("waiting", ("a",), ())
        resumed(done, record, answers, after_crash="wait")
    assert [event.seconds for event in heard if isinstance(event, RunFinished)] == [0.0, 0.0]


def test_progress_of_a_call_before_the_crash_is_not_missed_in_a_replay_that_waits(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"

    def agent(kills: bool) -> Agent:
        @tool(after_crash="wait")
        async def pay(amount: int, context: CallContext[Any]) -> str:
            context.report("half of it")
            if kills:
                os.kill(os.getpid(), signal.SIGKILL)
            return "paid"

        return Agent(ScriptedModel(script), [pay], record=record)

    history = (User.of("Pay."), Assistant(calls=(ToolCall("a", "pay", {"amount": 5}, '{"amount": 5}'),)))
    assert in_a_child(lambda: run_virtual(lambda: agent(True).run(history=history))) == signal.SIGKILL
    assert run_virtual(lambda: agent(False).resume(record)).uncertain == ("a",)
    assert agent(False).replay(record).uncertain == ("a",)
