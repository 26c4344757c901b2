"""The recorder: everything that goes into and out of a run is in its file, whatever happens to the run; and nothing
that happens to the file harms the run."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken import (
    Agent,
    Allow,
    Assistant,
    Deny,
    Edit,
    Limits,
    Policy,
    ProviderError,
    Result,
    RetryingModel,
    Schedule,
    ScriptedModel,
    Tool,
    UserError,
    Wait,
    tool,
)
from unbroken.clock import current_clock
from unbroken.events import CallProgress, CallStarted, Event, RunFailed, RunFinished
from unbroken.middleware import Middleware, RunStart
from unbroken.models.model import Model
from unbroken.models.scripted import Answer, Break, Call, Cut, Fail, Pause, Say, Step, Think, Uses
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.trajectory.jsonl_writer import RecordingFile
from unbroken.trajectory.lines import Line, read_delta, read_sampling
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.trajectory.redaction import Redactor
from unbroken.trajectory.run_recorder import RunRecorder
from unbroken_testing import run_virtual
from unbroken_wires.deltas import Delta, PartialResponse
from unbroken_wires.messages import Media, Message, Request, ToolCall, ToolResult, User
from unbroken_wires.transcript import from_json
from unbroken_wires.transcript.saved import read_result


class WitnessOfCalls(Middleware):
    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        self._witness.started.append(call.id)
        result = await call_next(call, context)
        self._witness.results.append((call.id, context.key, result))
        return result


@dataclass
class Witness:
    """Receives what the recorder receives, and writes nothing."""

    model: Model
    name: str = "scripted:demo"
    events: list[Event] = field(default_factory=list[Event])
    requests: list[Request] = field(default_factory=list[Request])
    deltas: list[tuple[float, Delta]] = field(default_factory=list[tuple[float, Delta]])
    started: list[str] = field(default_factory=list[str])
    results: list[tuple[str, str, ToolResult]] = field(default_factory=list[tuple[str, str, ToolResult]])

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        self.requests.append(request)
        async for deltas in self.model.stream(request):
            self.deltas += [(current_clock().elapsed(), delta) for delta in deltas]
            yield deltas

    def agent(self, tools: Sequence[Tool] = (), **options: Any) -> Agent:
        return Agent(self, tools, sinks=[self.events.append], middleware=[WitnessOfCalls(self)], **options)

    def assert_all_is_in(self, recording: Recording) -> None:
        assert recording.problems == []
        assert list(recording.of("note")) == []
        assert recording.events == self.events
        assert [from_json(list(each.messages)) for each in recording.requests] == [r.messages for r in self.requests]
        for recorded, request in zip(recording.requests, self.requests, strict=True):
            assert [spec["name"] for spec in recorded.tools] == [spec.name for spec in request.tools]
            assert [spec["parameters"] for spec in recorded.tools] == [spec.parameters for spec in request.tools]
            assert recorded.fields.get("final", False) == request.final
            assert read_sampling(recorded.fields.get("sampling", {})) == request.sampling
        assert deltas_of(recording) == self.deltas
        begun = [event.call_id for event in recording.events if isinstance(event, CallStarted)]
        assert sorted(begun) == sorted(self.started)
        recorded = [(line["call_id"], line["key"], read_result(line["result"])) for line in recording.of("result")]
        assert recorded == self.results


def deltas_of(recording: Recording) -> list[tuple[float, Delta]]:
    """Every delta again, with its time."""
    found: list[tuple[float, Delta]] = []
    so_far = PartialResponse()
    for line in recording.lines:
        if line["line"] == "request":
            so_far = PartialResponse()
        elif line["line"] == "delta":
            delta = read_delta(line, so_far)
            so_far.feed(delta)
            found.append((line["at"], delta))
    return found


@contextmanager
def a_file() -> Generator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "run.jsonl"


@tool(effect="read")
async def look(what: Any = "", seconds: float = 0.0) -> Any:
    """Returns its argument."""
    await asyncio.sleep(seconds)
    return what


@tool(effect="read", timeout=0.4)
async def slow(what: Any = "", seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "at last"


@tool
async def write(what: Any = "", seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    if what == "bad":
        raise ValueError("it cannot be written")
    return f"wrote {what}"


TOOLS = [look, slow, write]


# Every request, delta, start, result and event

SECONDS = st.sampled_from([0.0, 0.1, 0.3, 0.5])
VALUES = st.sampled_from(["a", "bad", 7, None, [1, {"b": "ä"}], 2**80, 0.1, "\n\t\"'\\", "😀"])


@st.composite
def calls(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(["look", "slow", "write", "no_such_tool"]))
    return Call(name, {"what": draw(VALUES), "seconds": draw(SECONDS)}, after=draw(SECONDS), pieces=draw(st.just(2)))


@st.composite
def answers(draw: st.DrawFn) -> list[Answer]:
    """One answer; it may break off first, and be retried."""
    talk: list[Step] = draw(st.lists(st.sampled_from([Say("Let me see. ", over=0.2), Think("Hm. ")]), max_size=2))
    made = draw(st.lists(calls(), min_size=1, max_size=4))
    whole: list[Step] = [*talk, *made]
    if draw(st.booleans()):
        whole.append(Uses(10, 2))
    if draw(st.integers(0, 4)) == 0:
        whole.append(Cut("look", '{"what": "a'))
    again: list[Answer] = [whole]
    if draw(st.integers(0, 3)) == 0:
        again.insert(0, [*talk, *made[:1], Pause(0.2), Break()])
    return again


SCRIPTS = st.lists(answers(), max_size=3).map(lambda rounds: [each for one in rounds for each in one])


@given(SCRIPTS, st.sampled_from(Schedule), st.sampled_from(["openai-chat", "anthropic-messages"]), st.integers(0, 3))
def test_everything_of_a_random_run_is_in_its_recording(
    script: list[Answer], schedule: Schedule, wire: str, rounds: int
) -> None:
    scripted = ScriptedModel(*script, "Done.", wire=wire, loop_last=True)
    witness = Witness(RetryingModel(scripted, first_wait=0.0, jitter=lambda: 0.0))
    with a_file() as path:
        agent = witness.agent(TOOLS, schedule=schedule, record=path, limits=Limits(rounds=rounds))
        run_virtual(lambda: agent.run("Go."))
        witness.assert_all_is_in(read_recording(path))


def test_everything_of_the_long_run_is_in_its_recording(tmp_path: Path) -> None:
    witness = Witness(a_long_run.model())
    path = tmp_path / "run.jsonl"
    agent = witness.agent(a_long_run.TOOLS, record=path)
    result = run_virtual(lambda: agent.run(a_long_run.QUESTION, run_id="the-long-run"), a_long_run.START)
    recording = read_recording(path)
    witness.assert_all_is_in(recording)
    assert (recording.run, recording.agent_name, recording.time) == ("the-long-run", "main", a_long_run.START)
    assert recording.virtual == {"start": a_long_run.START, "elapsed": 0.0}
    assert isinstance(recording.ending, RunFinished)
    assert recording.ending.text == result.text
    assert from_json(recording.ending.messages) == result.messages


def test_everything_of_a_run_in_real_time_is_in_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    witness = Witness(
        ScriptedModel([Say("Let me look.", over=0.01), Call("look", seconds=0.01)], [Say("So.", over=0.01)])
    )
    asyncio.run(witness.agent(TOOLS, record=path).run("Go."))
    events = read_recording(path).events
    assert [replace(event, time=0.0) for event in events] == [replace(event, time=0.0) for event in witness.events]
    assert all(abs(a.time - b.time) < 0.1 for a, b in zip(events, witness.events, strict=True))
    assert [event.time for event in events] == sorted(event.time for event in events)


def test_two_recordings_of_one_virtual_run_are_identical(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    a_long_run.play(first)
    a_long_run.play(second)
    assert first.read_bytes() == second.read_bytes()


def test_recording_does_not_change_a_run(tmp_path: Path) -> None:
    plain: list[Event] = []
    recorded: list[Event] = []
    without = a_long_run.play(sinks=[plain.append])
    with_one = a_long_run.play(tmp_path / "run.jsonl", [recorded.append])
    assert plain == recorded
    assert without == with_one


def test_the_stage_of_several_calls_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    a_long_run.play(path)
    stages = [{**line} for line in read_recording(path).of("stage")]
    told = [(s["turn"], s["at"], s["status"], s["tool_count"], s["tool_names"]) for s in stages]
    first, second, third = ["weather", "weather", "events_on"], ["events_on", "map_of", "weather"], ["book", "book"]
    assert told == [
        (0, 0.6, "processing", 3, first),
        (0, 2.1, "completed", 3, first),
        (1, 2.7, "processing", 3, second),
        (1, 3.8, "completed", 3, second),
        (2, 3.8, "processing", 2, third),
        (2, 4.05, "completed", 2, third),
    ]
    assert {(s["stage"], s["agent_name"]) for s in stages} == {("multi_tool_call", "main")}


def test_the_stage_names_its_agent_and_records_that_all_failed(tmp_path: Path) -> None:
    model = ScriptedModel([Call("write", what="bad"), Call("write", what="bad")], [Call("look")], "Done.")
    run_virtual(lambda: Agent(model, TOOLS, name="clerk", record=tmp_path / "run.jsonl").run("Go."))
    recording = read_recording(tmp_path / "run.jsonl")
    assert recording.agent_name == "clerk"
    assert [(s["agent_name"], s["status"]) for s in recording.of("stage")] == [
        ("clerk", "processing"),
        ("clerk", "failed"),
    ]


def last_three(messages: tuple[Message, ...]) -> Sequence[Message]:
    return messages[-3:]


@pytest.mark.parametrize("trim", [None, last_three], ids=["whole", "trimmed"])
def test_no_message_is_written_twice(trim: Any, tmp_path: Path) -> None:
    def size_of(rounds: int) -> int:
        path = tmp_path / f"{rounds}.jsonl"
        script = [[Say("x" * 500), Call("look", what=f"{n} " + "y" * 500)] for n in range(rounds)]
        limits = Limits(rounds=rounds)
        agent = Agent(ScriptedModel(*script, "Done."), TOOLS, limits=limits, record=path, trim=trim)
        run_virtual(lambda: agent.run("Go."))
        return path.stat().st_size

    ten, twenty, forty = map(size_of, (10, 20, 40))
    assert (forty - twenty) == pytest.approx(2 * (twenty - ten), rel=0.05)  # pyright: ignore[reportUnknownMemberType] - pytest's own


@pytest.mark.parametrize("trim", [None, last_three], ids=["whole", "trimmed"])
def test_a_trimmed_history_is_recorded_as_sent_and_as_it_is(trim: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    witness = Witness(ScriptedModel(*[[Call("look", what=n)] for n in range(5)], "Done."))
    result = run_virtual(lambda: witness.agent(TOOLS, record=path, trim=trim).run("Go."))
    recording = read_recording(path)
    witness.assert_all_is_in(recording)
    assert isinstance(recording.ending, RunFinished)
    assert from_json(recording.ending.messages) == result.messages


@pytest.mark.parametrize("said", ["", "Let me call `look` now."])
def test_a_model_that_is_asked_to_continue_is_recorded(said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    witness = Witness(ScriptedModel([Call("look", what=1)], said, [Call("look", what=2)], "Done."))
    run_virtual(lambda: witness.agent(TOOLS, record=path, policy=Policy(nudge=True)).run("Go."))
    witness.assert_all_is_in(read_recording(path))
    assert len(witness.requests) == 4


def test_what_tools_report_from_threads_is_recorded(tmp_path: Path) -> None:
    @tool
    def work(context: CallContext[Any], number: int) -> str:
        for step in range(20):
            context.report(f"step {step}", step / 20)
        return f"{number} is done"

    path = tmp_path / "run.jsonl"
    witness = Witness(ScriptedModel([Call("work", number=n) for n in range(8)], "Done."))
    witness.agent([work], record=path).run_sync("Go.")
    events = read_recording(path).events
    assert [replace(event, time=0.0) for event in events] == [replace(event, time=0.0) for event in witness.events]
    assert sum(isinstance(event, CallProgress) for event in events) == 160


def test_a_given_history_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    history = [User.of("x" * 100_000), Assistant("y" * 100_000)]
    run_virtual(lambda: Agent(ScriptedModel("Done."), record=path).run("Go.", history=history))
    recording = read_recording(path)
    assert from_json(list(recording.requests[0].messages)) == (*history, User.of("Go."))
    assert path.stat().st_size < 250_000


# Files


def test_parallel_runs_in_one_folder_have_separate_files(tmp_path: Path) -> None:
    witnesses = [Witness(ScriptedModel([Call("look", what=n, seconds=0.1 * (n % 3))], f"{n}.")) for n in range(20)]

    async def main() -> None:
        runs = [w.agent(TOOLS, record=tmp_path).run("Go.", run_id=f"run-{n}") for n, w in enumerate(witnesses)]
        await asyncio.gather(*runs)

    run_virtual(main)
    recordings = {recording.run: recording for recording in map(read_recording, tmp_path.iterdir())}
    assert len(recordings) == 20
    for number, witness in enumerate(witnesses):
        witness.assert_all_is_in(recordings[f"run-{number}"])


def test_runs_with_one_id_have_separate_files(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel("Done.", loop_last=True), record=tmp_path)

    async def main() -> None:
        await asyncio.gather(*(agent.run("Go.", run_id="a/b: c") for _ in range(3)))

    run_virtual(main)
    assert [read_recording(path).run for path in tmp_path.iterdir()] == ["a/b: c"] * 3


def test_one_file_is_for_one_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    model = ScriptedModel("Done.", loop_last=True)
    agent = Agent(model, record=path)
    run_virtual(lambda: agent.run("Go."))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"exists already.*: name another file, or a folder"):
        run_virtual(lambda: agent.run("Go."))
    assert path.read_bytes() == before
    assert len(model.requests) == 1


def test_only_the_owner_can_read_a_recording(tmp_path: Path) -> None:
    run_virtual(lambda: Agent(ScriptedModel("Done."), record=tmp_path / "new" / "folder").run("Go."))
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_name_contains_the_time_and_the_run(tmp_path: Path) -> None:
    run_virtual(lambda: Agent(ScriptedModel("Done."), record=tmp_path).run("Go.", run_id="mine"), a_long_run.START)
    assert [path.name for path in tmp_path.iterdir()] == ["20231114-221320-mine.jsonl"]


PLACES: list[tuple[Any, str]] = [
    ("", "is not a path"),
    (5, "expected a string or PathLike, got int"),
    (b"folder", "expected a string or PathLike, got bytes"),
    ("/dev/null/folder", "failed: .*; name another"),
    ("/dev/null/run.jsonl", "/dev/null is a file and no folder: name a folder"),
    ("/dev/full", "is a file and no folder: name a folder, or a new file"),
    ("/proc/nowhere/run.jsonl", "failed: .*; name another"),
    ("x" * 300 + ".jsonl", "failed: .*; name another"),
    ("a\0b.jsonl", "failed: .*; name another"),
]


@pytest.mark.parametrize(("place", "words"), PLACES)
def test_a_path_that_cannot_be_written_is_refused_at_once(
    place: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as refused:
        Recorder(place)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError):
        Agent(ScriptedModel("Done."), record=place)


@pytest.mark.parametrize("secrets", [5, [b"sk-0123456789"], ["sk-0123456789", None]])
def test_secrets_that_are_not_texts_are_refused(secrets: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Recorder\(secrets=(5|…)\): expected a string or an iterable of strings"):
        Recorder(tmp_path, secrets=secrets)


def test_a_missing_folder_is_created_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    agent = Agent(ScriptedModel("Done.", loop_last=True), record=folder)
    folder.rmdir()
    assert run_virtual(lambda: agent.run("Go.")).text == "Done."
    assert len([*folder.iterdir()]) == 1


class Full(Middleware):
    """Records on a disk that is full."""

    def start(self, run: RunStart) -> RunRecorder:
        return RunRecorder(RecordingFile("/dev/full", os.open("/dev/full", os.O_RDWR)), run, Redactor(()))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no disk is full here")
def test_a_full_disk_is_reported_once_and_the_run_continues(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "unbroken.trajectory"):
        result = a_long_run.play(sinks=[Full()])
    assert result.text.startswith("Swim in the morning")
    assert [record.getMessage() for record in caplog.records if record.name == "unbroken.trajectory"] == [
        "the recording /dev/full is not written any more: No space left on device"
    ]


def test_a_folder_that_vanishes_during_writing_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @tool
    async def clean_up() -> str:
        path.unlink()
        tmp_path.rmdir()
        return "clean"

    agent = Agent(ScriptedModel([Call("clean_up")], "Done."), [clean_up], record=path)
    assert run_virtual(lambda: agent.run("Go.")).text == "Done."


def test_no_file_stays_open(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

    agent = Agent(ScriptedModel(["Done."], Fail(ProviderError("no")), "Done."), record=tmp_path)

    async def main() -> None:
        for _ in range(2):
            with suppress(ProviderError):
                await agent.run("Go.")

    run_virtual(lambda: agent.run("Go."))
    before = open_files()
    run_virtual(main)
    assert open_files() == before


# How a run may end


def play_to_the_end(witness: Witness, path: Path, **options: Any) -> Recording:
    agent = witness.agent(TOOLS, record=path, **options)

    async def main() -> None:
        with suppress(Exception):
            await agent.run("Go.")

    run_virtual(main)
    recording = read_recording(path)
    assert recording.events == witness.events
    return recording


def test_a_failed_run_is_recorded_up_to_its_error(tmp_path: Path) -> None:
    witness = Witness(ScriptedModel([Call("look")], [Say("Well, "), Fail(ProviderError("it is down", status=503))]))
    recording = play_to_the_end(witness, tmp_path / "run.jsonl")
    (failed,) = recording.of("failed")
    assert (failed["error"], failed["message"], failed["status"]) == ("ProviderError", "it is down", 503)
    assert isinstance(recording.ending, RunFailed)
    assert (recording.ending.error, recording.ending.message) == ("ProviderError", "it is down")
    assert deltas_of(recording) == witness.deltas


def test_any_exception_of_a_model_is_recorded(tmp_path: Path) -> None:
    class Foreign:
        name = "foreign:one"

        async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
            raise KeyError("where is it")
            yield

    recording = play_to_the_end(Witness(Foreign()), tmp_path / "run.jsonl")
    assert [line["error"] for line in recording.of("failed")] == ["KeyError"]
    assert isinstance(recording.ending, RunFailed)


@given(st.floats(0, 5))
def test_a_cancelled_run_is_recorded_up_to_that_point(when: float) -> None:
    witness = Witness(a_long_run.model())
    with a_file() as path:
        agent = witness.agent(a_long_run.TOOLS, record=path)

        async def main() -> None:
            task = asyncio.ensure_future(agent.run(a_long_run.QUESTION))
            await asyncio.wait([task], timeout=when)
            task.cancel()
            await asyncio.wait([task])

        run_virtual(main)
        recording = read_recording(path)
        assert recording.problems == []
        assert recording.events == witness.events
        assert deltas_of(recording) == witness.deltas
        if when < 4.5:
            assert isinstance(recording.ending, RunFailed)
            assert recording.ending.error == "CancelledError"


def test_a_stream_that_is_left_is_recorded_up_to_that_point(tmp_path: Path) -> None:
    heard: list[Event] = []

    async def main() -> None:
        stream = a_long_run.agent(record=tmp_path / "run.jsonl").stream(a_long_run.QUESTION)
        async for event in stream:
            heard.append(event)
            if len(heard) == 12:
                break
        await stream.aclose()

    run_virtual(main)
    recording = read_recording(tmp_path / "run.jsonl")
    assert recording.events[:12] == heard
    assert isinstance(recording.ending, RunFailed)


def test_a_structured_answer_is_recorded(tmp_path: Path) -> None:
    witness = Witness(ScriptedModel([Call("final_answer", value=[1, "x"])], [Call("final_answer", value=[1, 2])]))
    agent = witness.agent(record=tmp_path / "run.jsonl")
    result: list[Result[Any]] = []

    async def main() -> None:
        with suppress(Exception):
            result.append(await agent.run("Go.", output=list[int]))

    run_virtual(main)
    recording = read_recording(tmp_path / "run.jsonl")
    assert recording.events == witness.events
    assert recording.settings["output"]["schema"]["properties"]["value"]["items"] == {"type": "integer"}
    assert [from_json(list(each.messages)) for each in recording.requests] == [r.messages for r in witness.requests]
    assert len(witness.requests) >= 1


# Approvals, and runs that wait


@tool(approve=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


def wait(call: ToolCall) -> Wait:
    return Wait()


def waiting_agent(witness: Witness, path: Path, on_approval: Callable[[ToolCall], Any] | None = None) -> Agent:
    return witness.agent([pay, look], on_approval=on_approval or wait, record=path)


def test_decisions_are_recorded(tmp_path: Path) -> None:
    decisions = {1: Allow(), 2: Deny("too much"), 3: Edit({"amount": 30})}

    async def decide(call: ToolCall) -> Any:
        await asyncio.sleep(0.5)
        return decisions[(call.arguments or {})["amount"]]

    witness = Witness(ScriptedModel([Call("pay", amount=n) for n in decisions], "Done."))
    run_virtual(lambda: waiting_agent(witness, tmp_path / "run.jsonl", decide).run("Go."))
    recording = read_recording(tmp_path / "run.jsonl")
    witness.assert_all_is_in(recording)
    assert [(line["decision"], line.get("reason"), line.get("arguments")) for line in recording.of("approval")] == [
        ("allow", None, None),
        ("deny", "too much", None),
        ("edit", None, {"amount": 30}),
    ]


def wait_and_resume(
    witness: Witness, place: Path, answer: Any, between: Coroutine[Any, Any, Any] | None = None
) -> None:
    agent = waiting_agent(witness, place)

    async def main() -> None:
        result = await agent.run("Go.", run_id="a")
        assert result.stop_reason == "waiting"
        if between is not None:
            await between
        await asyncio.sleep(60)
        done = await agent.resume(result.to_json(), {result.pending[0].id: answer})
        assert done.text == "Done."

    run_virtual(main, a_long_run.START)


WAITING: list[Answer] = [[Call("pay", amount=1), Call("look", what=2)], "Done."]


@pytest.mark.parametrize("one_file", [True, False])
def test_a_run_that_waited_continues_in_its_file(one_file: bool, tmp_path: Path) -> None:
    witness = Witness(ScriptedModel(*WAITING))
    wait_and_resume(witness, tmp_path / "run.jsonl" if one_file else tmp_path, Allow())
    (path,) = tmp_path.iterdir()
    recording = read_recording(path)
    witness.assert_all_is_in(recording)
    (resumed,) = recording.of("resumed")
    assert resumed["at"] == 60
    times = [line["at"] for line in recording.lines if "at" in line]
    assert times == sorted(times)
    assert isinstance(recording.ending, RunFinished)
    assert recording.ending.stop_reason == "answered"
    statuses = [line["status"] for line in recording.of("stage")]
    assert (statuses[0], statuses[-1]) == ("processing", "completed")


@pytest.mark.parametrize(
    ("answer", "decision"), [(Allow(), "allow"), (Deny("no"), "deny"), (Edit({"amount": 5}), "edit")]
)
def test_answers_to_a_waiting_run_are_recorded(answer: Any, decision: str, tmp_path: Path) -> None:
    wait_and_resume(Witness(ScriptedModel(*WAITING)), tmp_path / "run.jsonl", answer)
    recording = read_recording(tmp_path / "run.jsonl")
    after = recording.lines[next(n for n, line in enumerate(recording.lines) if line["line"] == "resumed") :]
    assert [line["decision"] for line in after if line["line"] == "approval"] == [decision]


@pytest.mark.parametrize("other", ["b-a", "a", "a-2"])
def test_a_run_continues_only_in_its_own_file(other: str, tmp_path: Path) -> None:
    witness = Witness(ScriptedModel(*WAITING))
    stranger = Agent(ScriptedModel("Hello."), record=tmp_path)

    async def meet() -> None:
        await asyncio.sleep(2)
        await stranger.run("Who is there?", run_id=other)

    wait_and_resume(witness, tmp_path, Allow(), meet())
    recordings = [read_recording(path) for path in sorted(tmp_path.iterdir())]
    ends = {(each.run, each.ending.text) for each in recordings if isinstance(each.ending, RunFinished)}
    assert ends == {("a", "Done."), (other, "Hello.")}
    (own,) = (
        each for each in recordings if each.ending is not None and each.events[-1].run == "a" and len(each.lines) > 9
    )
    witness.assert_all_is_in(own)


def test_a_run_does_not_continue_in_the_file_of_another(tmp_path: Path) -> None:
    waits = run_virtual(lambda: Agent(ScriptedModel([Call("pay", amount=1)]), [pay], on_approval=wait).run("x"))
    path = tmp_path / "run.jsonl"
    run_virtual(lambda: Agent(ScriptedModel("Hello."), record=path).run("Go."))
    before = path.read_bytes()
    agent = Agent(ScriptedModel("Done."), [pay], record=path)
    with pytest.raises(UserError, match=r"run\.jsonl"):
        run_virtual(lambda: agent.resume(waits, {waits.pending[0].id: Allow()}))
    assert path.read_bytes() == before


def test_an_agent_as_a_tool_has_its_own_recording(tmp_path: Path) -> None:
    inner = Witness(ScriptedModel([Call("look", what="it")], "It is 42."))
    outer = Witness(ScriptedModel([Call("ask", task="What is it?")], "Done."))
    expert = inner.agent(TOOLS, name="expert", record=tmp_path).as_tool("ask", "Knows things.")
    run_virtual(lambda: outer.agent([expert], record=tmp_path).run("Go.", run_id="outer"))
    recordings = {recording.agent_name: recording for recording in map(read_recording, tmp_path.iterdir())}
    outer.assert_all_is_in(recordings["main"])
    inner.assert_all_is_in(recordings["expert"])
    (result,) = recordings["main"].of("result")
    assert recordings["expert"].run == result["key"]


# Values that are hard to write


DEEP = "[" * 400 + "123456789012345678901234567890" + "]" * 400
RAW = {
    "a big integer": '{"what": 123456789012345678901234567890}',
    "half a surrogate pair": '{"what": "\\ud800 and \\udc00"}',
    "beyond any float": '{"what": [1e400, -1e400]}',
    "minus zero": '{"what": [-0.0, 0.1, 1e-320, 5e300]}',
    "deep": f'{{"what": {DEEP}}}',
    "control characters": '{"what": "\\u0000\\u001f\\u007f\\u2028\\u2029\\n"}',
    "names": '{"what": {"": 1, "\\n": 2, "line": "run", "\\ud83d\\ude00": 3}}',
    "not whole": '{"what": NaN}',
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
def test_arguments_are_recorded_exactly(raw: str, tmp_path: Path) -> None:
    witness = Witness(ScriptedModel([Call("look", raw)], "Done."))
    run_virtual(lambda: witness.agent(TOOLS, record=tmp_path / "run.jsonl").run("Go."))
    witness.assert_all_is_in(read_recording(tmp_path / "run.jsonl"))


def test_arguments_of_5_megabytes_are_recorded_completely(tmp_path: Path) -> None:
    big = "é" * 2_500_000
    witness = Witness(ScriptedModel([Call("look", what=big)], "Done."))
    run_virtual(lambda: witness.agent(TOOLS, record=tmp_path / "run.jsonl").run("Go."))
    witness.assert_all_is_in(read_recording(tmp_path / "run.jsonl"))


@pytest.mark.parametrize(
    "given",
    [
        "",
        None,
        "half \ud800",
        b"\xff\x00",
        {"n": 2**100, "inf": math.inf},
        [Media(mime="image/png", data="iVBORw0KGgo="), "a picture"],
        Media(url="https://example.com/a.png"),
        object,
    ],
)
def test_results_are_recorded_exactly(given: Any, tmp_path: Path) -> None:
    @tool
    async def give() -> Any:
        return given

    witness = Witness(ScriptedModel([Call("give")], "Done."))
    run_virtual(lambda: witness.agent([give], record=tmp_path / "run.jsonl").run("Go."))
    witness.assert_all_is_in(read_recording(tmp_path / "run.jsonl"))


@pytest.mark.parametrize("nonsense", [None, "text", 5, ToolResult("x", ("no part",))])  # pyright: ignore[reportArgumentType] - nonsense
def test_an_invalid_caller_does_not_end_a_recording(nonsense: Any, tmp_path: Path) -> None:
    class Foreign(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            return nonsense

    def play(path: Path | None) -> tuple[str, list[Event]]:
        events: list[Event] = []
        model = ScriptedModel([Call("look")], "Done.")
        agent = Agent(model, TOOLS, middleware=[Foreign()], sinks=[events.append], record=path)

        async def main() -> str:
            try:
                return (await agent.run("Go.", run_id="r")).text
            except Exception as error:  # noqa: BLE001 - whatever it is without a recorder
                return repr(error)

        return run_virtual(main), events

    path = tmp_path / "run.jsonl"
    assert play(path) == play(None)
    assert [event.seq for event in read_recording(path).events] == [event.seq for event in play(None)[1]]


def test_every_line_is_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    a_long_run.play(path)
    data = path.read_bytes()
    assert data.endswith(b"\n")
    lines: list[Line] = [json.loads(line) for line in data.splitlines()]
    assert lines[0]["line"] == "run"
    assert lines[0]["schema"] == 3
    assert all(isinstance(line["line"], str) for line in lines)
