"""A recorded run can be replayed: exactly on virtual time, without a model or tools; if it diverges, that is
reported."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from unbroken import (
    Agent,
    Allow,
    CallContext,
    ChainBroken,
    Deny,
    Edit,
    Limits,
    ProviderError,
    Result,
    RetryingModel,
    Schedule,
    ScriptedModel,
    UserError,
    tool,
)
from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.events import CallFinished, Event, TextAdded, ToolCallsDetected, event_to_json
from unbroken.models.model import Model, closing
from unbroken.models.scripted import Answer, Break, Call, Cut, Pause, Say, Step, Think, Uses
from unbroken.tools.approval import Approval
from unbroken.tools.todo import todo_write
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken.trajectory.replay import RecordingEnded, ReplayDiverged, replay
from unbroken_testing import run_virtual
from unbroken_wires.deltas import Delta, TextDelta
from unbroken_wires.messages import Message, Request, ToolCall


@tool(effect="read")
async def look(context: CallContext[Any], what: str, seconds: float = 0.0) -> str:
    """Look, and report half-way."""
    await asyncio.sleep(seconds / 2)
    context.report(f"half of {what}", 0.5)
    await asyncio.sleep(seconds / 2)
    return f"saw {what}"


@tool(effect="read", timeout=0.4)
async def slow(what: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return f"{what} at last"


@tool(key=lambda arguments: arguments["what"])
async def write(what: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    if what == "b":
        raise ValueError("it cannot be written")
    return f"wrote {what}"


@tool(approve=lambda arguments: arguments["what"] != "a")
async def erase(what: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return f"erased {what}"


TOOLS = [look, slow, write, erase, todo_write]


async def decide(call: ToolCall) -> Approval:
    await asyncio.sleep(0.2)
    match (call.arguments or {}).get("what"):
        case "b":
            return Deny("not that")
        case "c":
            return Edit({"what": "d", "seconds": 0.1})
        case _:
            return Allow()


def agent(model: Model | None = None, **options: Any) -> Agent:
    return Agent(model or ScriptedModel("nobody asks this one"), TOOLS, on_approval=decide, **options)


def both(model: Any, folder: Path, output: Any = None, **options: Any) -> tuple[bytes, bytes]:
    """The recording of a run, and the recording of its replay."""
    first, second = folder / "first.jsonl", folder / "second.jsonl"

    async def main() -> None:
        with suppress(ChainBroken):
            await agent(model, record=first, **options).run("Go.", run_id="r", output=output)

    run_virtual(main, start=1_700_000_000.25)
    with suppress(ChainBroken):
        agent(**options).replay(first, output=output, sinks=[Recorder(second)])
    return first.read_bytes(), second.read_bytes()


SECONDS = st.sampled_from([0.0, 0.1, 0.3, 0.7])
WORDS = st.sampled_from(["a", "b", "c", "ä\n😀"])


@st.composite
def made_calls(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(["look", "look", "slow", "write", "erase", "no_such_tool"]))
    arguments: dict[str, Any] = {"what": draw(WORDS), "seconds": draw(SECONDS)}
    if draw(st.integers(0, 9)) == 0:
        arguments["seconds"] = "not a number"
    return Call(name, arguments, after=draw(SECONDS), pieces=2)


@st.composite
def turns(draw: st.DrawFn) -> list[Answer]:
    talk: list[Step] = draw(st.lists(st.sampled_from([Say("Let me see. ", over=0.2), Think("Hm. ")]), max_size=2))
    made = draw(st.lists(made_calls(), min_size=1, max_size=4))
    whole: list[Step] = [*talk, *made]
    if draw(st.booleans()):
        whole.append(Uses(10, 2))
    if draw(st.integers(0, 4)) == 0:
        whole.append(Cut("look", '{"what": "a'))
    again: list[Answer] = [whole]
    if draw(st.integers(0, 2)) == 0:
        again.insert(0, [*talk, *made[: draw(st.integers(1, 2))], Pause(draw(SECONDS)), Break()])
    return again


class Together:
    """A model that yields a number of deltas in one read."""

    def __init__(self, model: Model, read: int) -> None:
        self.name = model.name
        self._model = model
        self._read = read

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        read: list[Delta] = []
        async with closing(self._model.stream(request)) as batches:
            async for deltas in batches:
                for delta in deltas:
                    read.append(delta)
                    if len(read) == self._read:
                        yield read
                        read = []
        if read:
            yield read


@given(
    script=st.lists(turns(), max_size=3),
    schedule=st.sampled_from(list(Schedule)),
    wire=st.sampled_from(["openai-chat", "anthropic-messages", "openai-responses", "gemini"]),
    limits=st.sampled_from([Limits(), Limits(rounds=1), Limits(seconds=0.5, final_seconds=1), Limits(calls=2)]),
    on_error=st.sampled_from(["continue", "finish"]),
    several=st.sampled_from([True, True, False]),
    read=st.sampled_from([0, 1, 2, 5, 20]),
)
def test_any_run_on_virtual_time_replays_exactly(
    script: list[list[Answer]], schedule: Schedule, wire: str, limits: Limits, on_error: Any, several: bool, read: int
) -> None:
    answers = [answer for turn in script for answer in turn]
    model: Any = RetryingModel(
        ScriptedModel(*answers, "That is all.", wire=wire, loop_last=True), first_wait=0.1, jitter=lambda: 0.0
    )
    if read:
        model = Together(model, read)
    with tempfile.TemporaryDirectory() as folder:
        first, second = both(
            model, Path(folder), schedule=schedule, limits=limits, on_error=on_error, several_calls=several
        )
    assert first == second


def test_the_long_run_replays_exactly_with_and_without_its_code(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    recording = read_recording(tmp_path / "a.jsonl")
    a_long_run.agent(record=tmp_path / "not").replay(recording, sinks=[Recorder(tmp_path / "b.jsonl")])
    agent_of(recording).replay(recording, sinks=[Recorder(tmp_path / "c.jsonl")])
    first = (tmp_path / "a.jsonl").read_bytes()
    assert (tmp_path / "b.jsonl").read_bytes() == first
    assert (tmp_path / "c.jsonl").read_bytes() == first
    assert list((tmp_path / "not").iterdir()) == []  # what is only played again is no new run


def test_a_run_that_starts_in_the_middle_of_a_loops_life_keeps_its_times(tmp_path: Path) -> None:
    async def main() -> None:
        await asyncio.sleep(0.1 + 0.2)
        await agent(ScriptedModel([Call("look", what="a", seconds=0.1)], "So."), record=tmp_path / "a.jsonl").run("Go.")

    run_virtual(main, start=1_700_000_000.3)
    agent().replay(tmp_path / "a.jsonl", sinks=[Recorder(tmp_path / "b.jsonl")])
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


def test_simultaneous_actions_of_tools_replay_in_the_same_order(tmp_path: Path) -> None:
    @tool(effect="read")
    async def peek(context: CallContext[Any], what: str) -> str:
        context.report("begin")
        await asyncio.sleep(0)
        context.report("half", 0.5)
        await asyncio.sleep(0)
        return f"saw {what}"

    @tool
    async def put(what: str) -> str:
        await asyncio.sleep(0)
        return f"put {what}"

    @tool
    def thread(context: CallContext[Any]) -> str:
        reporting = threading.Thread(target=context.report, args=("from a thread of its own",))
        reporting.start()
        reporting.join()
        return "done"

    calls = [
        Call("put", what="x"),
        Call("peek", what="x"),
        Call("put", what="y"),
        Call("peek", what="y"),
        Call("thread"),
    ]
    for number, order in enumerate([calls, calls[::-1], [calls[1], calls[3], calls[0], calls[2]]]):
        first, second = tmp_path / f"{number}a.jsonl", tmp_path / f"{number}b.jsonl"
        tools = [peek, put, thread]
        run_virtual(lambda: Agent(ScriptedModel(order, "So."), tools, record=first).run("Go."))  # noqa: B023
        Agent(ScriptedModel(), tools).replay(first, sinks=[Recorder(second)])
        assert second.read_bytes() == first.read_bytes()


def test_a_trimmed_history_is_replayed_as_it_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    script = [[Call("look", what=str(number))] for number in range(4)]

    def last_two(said: tuple[Message, ...]) -> tuple[Message, ...]:
        return said[-2:]

    run_virtual(lambda: agent(ScriptedModel(*script, "So."), trim=last_two, record=path).run("Go."))
    recording = read_recording(path)
    assert agent_of(recording).replay(recording).text == "So."


def test_the_replay_of_a_cancelled_run_ends_with_an_explanation(tmp_path: Path) -> None:
    async def cancelled() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                script = ScriptedModel([Call("look", what="a", seconds=5)], "So.")
                await agent(script, record=tmp_path / "a.jsonl").run("Go.")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await agent(ScriptedModel([Say("A long", over=5)]), record=tmp_path / "b.jsonl").run("Go.")

    run_virtual(cancelled)
    for name, words in (("a", "ends while `look` runs"), ("b", "ends in the middle of an answer")):
        for clock in ("virtual", "real"):
            with pytest.raises(RecordingEnded, match=rf"{words}: the run failed there \(CancelledError\)"):
                agent().replay(tmp_path / f"{name}.jsonl", clock=clock, speed=10)  # type: ignore[arg-type]


def test_a_recording_with_a_missing_line_does_not_hang(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    for place, line in enumerate(lines):
        if line.startswith((b'{"line":"result"', b'{"line":"delta"')):
            (tmp_path / "b.jsonl").write_bytes(b"".join([*lines[:place], *lines[place + 1 :]]))
            with suppress(UserError, ChainBroken):
                a_long_run.agent().replay(tmp_path / "b.jsonl")


def test_long_answers_replay_in_linear_time(tmp_path: Path) -> None:
    """Joining the text for each of its pieces would take minutes here."""
    text = "word " * 60_000
    path = tmp_path / "a.jsonl"
    run_virtual(lambda: Agent(ScriptedModel([Say(text)]), record=path).run("Go."))
    assert Agent(ScriptedModel()).replay(path).text == text


def test_asterisks_in_a_prompt_are_wild_cards_only_if_something_was_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OF_THE_TEST_KEY", raising=False)
    line = "*" * 60

    def asked(instructions: str, **options: Any) -> Agent:
        return Agent(ScriptedModel("So."), instructions=f"{line} {instructions} {line}", **options)

    run_virtual(lambda: asked("Be nice.", record=tmp_path / "a.jsonl").run("Go."))
    with pytest.raises(ReplayDiverged):
        asked("Be rude.").replay(tmp_path / "a.jsonl")
    monkeypatch.setenv("OF_THE_TEST_KEY", "a-secret-of-the-test")
    run_virtual(lambda: asked("Say a-secret-of-the-test.", record=tmp_path / "b.jsonl").run("Go."))
    assert asked("Say a-secret-of-the-test.").replay(tmp_path / "b.jsonl").text == "So."
    with pytest.raises(ReplayDiverged) as diverged:
        asked("Whisper a-secret-of-the-test.").replay(tmp_path / "b.jsonl")
    assert "a-secret-of-the-test" not in str(diverged.value)


def test_a_run_in_real_time_replays_equally_except_for_times(tmp_path: Path) -> None:
    heard: list[Event] = []
    both_run, short_is_over = asyncio.Event(), asyncio.Event()  # timers of both may fire together on a busy machine

    def hear(event: Event) -> None:
        heard.append(event)
        if isinstance(event, ToolCallsDetected):
            both_run.set()
        elif isinstance(event, CallFinished) and event.name == "short":
            short_is_over.set()

    @tool(effect="read")
    async def long(context: CallContext[Any], what: str) -> str:
        await short_is_over.wait()
        context.report(f"half of {what}", 0.5)
        return f"saw {what}"

    @tool(effect="read")
    async def short(what: str) -> str:
        await both_run.wait()
        return f"{what} at once"

    calls = [Say("Hm. "), Call("long", what="a"), Call("short", what="b")]
    live = Agent(ScriptedModel(calls, "So."), [long, short], record=tmp_path / "a.jsonl")
    asyncio.run(live.run("Go.", sinks=[hear]))
    ends = [event.name for event in heard if isinstance(event, CallFinished)]
    again: list[Event] = []
    result = Agent(ScriptedModel(), [long, short]).replay(tmp_path / "a.jsonl", sinks=[again.append])
    assert (result.text, ends) == ("So.", ["short", "long"])
    assert [timeless(event) for event in again] == [timeless(event) for event in heard]


def timeless(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event_to_json(event).items() if name not in ("time", "seconds")}


def test_on_the_real_clock_a_replay_takes_as_long_as_the_speed_requires(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    result = a_long_run.agent().replay(tmp_path / "a.jsonl", clock="real", speed=20)
    assert result.seconds >= 4.55 / 20  # on a busy machine it is more
    assert result.text.startswith("Swim in the morning")
    playback = replay(tmp_path / "a.jsonl", clock="real", speed=20)  # its times, on a loop that is never late
    exact = run_virtual(lambda: a_long_run.agent().run(a_long_run.QUESTION, sinks=[playback]))
    assert exact.seconds == 0.2275
    assert exact.text == result.text


def test_live_tools_run_and_the_model_does_not(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    async def note(what: str) -> str:
        ran.append(what)
        return "noted"

    model = ScriptedModel([Call("note", what="x"), Call("note", what="y")], "Both are noted.")
    run_virtual(lambda: Agent(model, [note], record=tmp_path / "a.jsonl").run("Note them."))
    ran.clear()
    playing = Agent(ScriptedModel(), [note])
    assert playing.replay(tmp_path / "a.jsonl").text == "Both are noted."
    assert ran == []
    assert playing.replay(tmp_path / "a.jsonl", tools="live").text == "Both are noted."
    assert sorted(ran) == ["x", "y"]


def test_a_recording_is_middleware_of_any_agent(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    playback = replay(tmp_path / "a.jsonl")

    async def main() -> Result:
        instructions = a_long_run.INSTRUCTIONS
        playing = Agent(ScriptedModel(), a_long_run.TOOLS, instructions, guidance=False, middleware=[playback])
        return await playing.run(a_long_run.QUESTION, run_id=playback.run)

    result = run_virtual(main)
    assert (result.text[:4], result.rounds, len(result.calls)) == ("Swim", 3, 8)


def test_it_can_replay_inside_a_running_loop(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")

    async def main() -> Result:
        return a_long_run.agent().replay(tmp_path / "a.jsonl")

    assert asyncio.run(main()).rounds == 3


class Answered(BaseModel):
    city: str
    degrees: int


def test_a_typed_answer_is_replayed(tmp_path: Path) -> None:
    model = ScriptedModel([Call("look", what="a")], [Call("final_answer", city="Oslo", degrees=4)])
    first, second = both(model, tmp_path, Answered)
    assert first == second
    recording = read_recording(tmp_path / "first.jsonl")
    rebuilt = agent_of(recording).replay(recording, output=output_of(recording))
    assert rebuilt.output == {"city": "Oslo", "degrees": 4}


def test_a_failed_run_fails_again_with_the_same_error(tmp_path: Path) -> None:
    model = ScriptedModel([Say("Well"), Break()])
    with pytest.raises(ChainBroken) as before:
        run_virtual(lambda: agent(model, record=tmp_path / "a.jsonl").run("Go."))
    with pytest.raises(ChainBroken) as again:
        agent().replay(tmp_path / "a.jsonl")
    assert str(again.value) == str(before.value)
    assert again.value.verdicts == before.value.verdicts


def test_another_prompt_diverges_at_the_first_request(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    with pytest.raises(ReplayDiverged) as diverged:
        Agent(ScriptedModel(), a_long_run.TOOLS, "Be short.").replay(tmp_path / "a.jsonl")
    words = str(diverged.value)
    assert words.startswith("the run diverges from its recording: request 0, message 0 (system) is different now")
    assert '+   "text": "Be short.' in words


def test_another_tool_diverges_at_the_tools(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    fewer = Agent(ScriptedModel(), a_long_run.TOOLS[:3], a_long_run.INSTRUCTIONS, guidance=False)
    with pytest.raises(ReplayDiverged, match=r"request 0, what its tools are, is different now") as diverged:
        fewer.replay(tmp_path / "a.jsonl")
    assert '-  "name": "book",' in str(diverged.value)


def test_live_tools_with_other_results_diverge_at_the_next_request(tmp_path: Path) -> None:
    answer = "wet"

    @tool
    async def weather() -> str:
        return answer

    run_virtual(
        lambda: Agent(ScriptedModel([Call("weather")], "It is."), [weather], record=tmp_path / "a.jsonl").run("?")
    )
    answer = "dry"
    with pytest.raises(ReplayDiverged, match=r"request 1, message 3 \(tool\)") as diverged:
        Agent(ScriptedModel(), [weather]).replay(tmp_path / "a.jsonl", tools="live")
    assert '-     "text": "wet",' in str(diverged.value)
    assert '+     "text": "dry",' in str(diverged.value)


def test_a_call_with_other_arguments_diverges_at_that_call(tmp_path: Path) -> None:
    """The recording was changed by hand: the model's answer differs from what ran."""
    run_virtual(lambda: agent(ScriptedModel([Call("look", what="a")], "So."), record=tmp_path / "a.jsonl").run("Go."))
    text = (tmp_path / "a.jsonl").read_text()
    lines = [line for line in text.splitlines() if '"event":"call_started"' not in line]
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ReplayDiverged, match=r"turn 0, call `look` \(call_r0c0\) is different now"):
        agent().replay(tmp_path / "b.jsonl")


def test_the_replay_of_an_incomplete_recording_ends_there(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    asked = [number for number, line in enumerate(lines) if line.startswith(b'{"line":"request"')]
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[: asked[2]]))
    with pytest.raises(
        RecordingEnded, match=r"b\.jsonl ends here: its run was cut off; `agent\.resume` or `unbroken resume FILE`"
    ):
        a_long_run.agent().replay(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").write_bytes(b"".join(lines[: asked[1] + 3]))
    with pytest.raises(RecordingEnded, match=r"c\.jsonl ends in the middle of an answer"):
        a_long_run.agent().replay(tmp_path / "c.jsonl")


def test_wherever_a_recording_is_cut_its_replay_ends_with_an_explanation(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    ended = max(number for number, line in enumerate(lines) if b'"delta":"ended"' in line)
    for count in range(1, ended):
        (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[:count]))
        with pytest.raises((RecordingEnded, ReplayDiverged)):
            a_long_run.agent().replay(tmp_path / "cut.jsonl")


def test_events_are_replayed_as_they_were(tmp_path: Path) -> None:
    before: list[Event] = []
    a_long_run.play(tmp_path / "a.jsonl", sinks=[before.append])
    again: list[Event] = []
    a_long_run.agent().replay(tmp_path / "a.jsonl", sinks=[again.append])
    assert again == before
    assert sum(isinstance(event, TextAdded) for event in again) == 16
    assert sum(isinstance(event, CallFinished) for event in again) == 8


@pytest.mark.parametrize(("wrong", "words"), [({"clock": "fast"}, "clock='fast'"), ({"speed": 0}, "speed=0")])
def test_wrong_use_is_reported(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=words):
        replay(tmp_path / "a.jsonl", **wrong)


class HalfAnAnswer:
    """Reports something, and fails at the same instant."""

    name = "scripted:demo"

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        yield [TextDelta("half an ")]
        yield [TextDelta("answer")]
        raise ProviderError("the wire broke")


def test_events_just_before_a_failure_are_replayed_before_it(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with pytest.raises(ProviderError):
        run_virtual(lambda: agent(HalfAnAnswer(), record=first).run("Go.", run_id="r"))
    with pytest.raises(ProviderError):
        agent().replay(first, sinks=[Recorder(second)])
    assert second.read_bytes() == first.read_bytes()


def test_a_replay_reports_each_recorded_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    heard: list[Event] = []
    run_virtual(lambda: agent(ScriptedModel([Say("one two three four")]), record=path).run("Go."))
    agent().replay(path, sinks=[heard.append])
    assert [event.text for event in heard if isinstance(event, TextAdded)] == ["one ", "two ", "three ", "four"]
    assert [event.seq for event in heard] == [event.seq for event in read_recording(path).events]


def test_a_call_that_ended_at_the_moment_it_was_dropped_keeps_its_result(tmp_path: Path) -> None:
    """Its time is up when the retry without it ends."""
    call = Call("slow", {"what": "a", "seconds": 0.7}, pieces=2)
    broken = [Say("Let me see. ", over=0.2), call]
    script = [*broken, Break()], [*broken, Cut("look", '{"what": "a')], "That is all."
    model = RetryingModel(ScriptedModel(*script, wire="gemini"), first_wait=0.1, jitter=lambda: 0.0)
    first, second = both(model, tmp_path, schedule=Schedule.EAGER)
    assert b"Execution timeout after 0.4s" in first
    assert second == first


def test_tools_in_another_order_are_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_virtual(lambda: Agent(ScriptedModel("So."), [look, write], record=path).run("Go."))
    with pytest.raises(ReplayDiverged, match=r'request 0, the order of its tools, is different now\n(?s:.*)"look"'):
        Agent(ScriptedModel(), [write, look]).replay(path)


def test_a_call_with_a_damaged_line_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_virtual(lambda: agent(ScriptedModel([Call("write", what="a")], "So."), record=path).run("Go."))
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if b'"event":"call_started"' in line)
    again = lines[place].replace(b'"call":0', b'"call":0,"call_id":"another","name":"write","arguments":{"what":"a"}')
    assert again != lines[place]
    path.write_bytes(b"".join([*lines[:place], again, *lines[place + 1 :]]))
    with pytest.raises(ReplayDiverged, match=r"call `write` \(call_r0c0\) is recorded, but its result is missing"):
        agent().replay(path)


def test_a_resumed_run_replays_as_one(tmp_path: Path) -> None:
    """Its process died in the second round: the request with the half answer is sent only once."""

    def script(request: Request) -> Answer:
        rounds = sum(type(message).__name__ == "Assistant" for message in request.messages)
        return ([Call("look", what="a", seconds=0.2)], [Call("write", what="c", seconds=0.2)], "Done.")[rounds]

    run_virtual(lambda: agent(ScriptedModel(script), record=tmp_path / "a.jsonl").run("Go."))
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    asked = [number for number, line in enumerate(lines) if line.startswith(b'{"line":"request"')]
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[: asked[1] + 4]))
    resumed = run_virtual(lambda: agent(ScriptedModel(script)).resume(tmp_path / "b.jsonl"), start=3600.0)
    again = agent().replay(tmp_path / "b.jsonl")
    assert (again.text, again.messages, again.rounds) == (resumed.text, resumed.messages, 2)
    assert again.seconds == resumed.seconds == 0.4  # and not an hour: nobody was there
