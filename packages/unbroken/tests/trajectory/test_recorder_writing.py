"""When and what the recorder writes: nothing that a run relies on is only in memory, and nothing is changed on its way
to the file."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
from scenes import only

from unbroken import Agent, CallContext, ProviderError, Schedule, ScriptedModel, Tool, tool
from unbroken.events import CallFinished, CallStarted, Event, RunFinished, TextAdded, event_to_json
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.models.scripted import Call
from unbroken.trajectory.jsonl_writer import JsonlWriter, RecordingFile
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken.trajectory.redaction import Redactor
from unbroken_testing import run_virtual
from unbroken_wires.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, Verdict
from unbroken_wires.messages import Request, ToolCall, Usage


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def results_in(path: Path) -> list[str]:
    return [line["call_id"] for line in read_recording(path).of("result")]


class OneRead:
    """A model whose complete answer arrives in one read."""

    name = "one-read"

    def __init__(self, *deltas: Delta) -> None:
        self._deltas = deltas

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        await asyncio.sleep(0.25)
        yield self._deltas


# Before anybody relies on it


def test_a_writing_tool_starts_after_its_start_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    seen: list[list[str]] = []

    @tool
    async def pay(amount: int) -> str:
        seen.append([event.call_id for event in only(CallStarted, read_recording(path).events)])
        return f"paid {amount}"

    calls = [Call("pay", amount=amount, id=f"c{amount}") for amount in (1, 2, 3)]
    Agent(ScriptedModel(calls, "Paid."), [pay], record=path, schedule="sequential").run_sync("Pay.")
    assert seen == [["c1"], ["c1", "c2"], ["c1", "c2", "c3"]]


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_reported_result_is_already_in_the_file(schedule: Schedule, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    heard: list[str] = []

    @tool
    async def pay(amount: int) -> str:
        await asyncio.sleep(0.01 * (amount % 2))
        return f"paid {amount}"

    def listen(event: Event) -> None:
        if isinstance(event, CallFinished):
            heard.append(event.call_id)
            assert event.call_id in results_in(path)

    calls = [Call("pay", amount=amount, id=f"c{amount}") for amount in range(4)]
    agent = Agent(ScriptedModel(calls, "Paid."), [pay], record=path, sinks=[listen], schedule=schedule)
    assert agent.run_sync("Pay.").text == "Paid."
    assert sorted(heard) == ["c0", "c1", "c2", "c3"]  # a failing sink is removed, and would get no more events


def test_a_result_is_in_the_file_before_anything_else_runs_in_that_turn_of_the_loop(tmp_path: Path) -> None:
    """The next tool may block for a while, or end the process."""
    path = tmp_path / "run.jsonl"
    found: list[list[str]] = []

    @tool
    async def pay(amount: int) -> str:
        found.append(results_in(path))
        return f"paid {amount}"

    calls = [Call("pay", amount=amount, id=f"c{amount}") for amount in (1, 2, 3)]
    Agent(ScriptedModel(calls, "Paid."), [pay], record=path, schedule="parallel").run_sync("Pay.")
    assert found == [[], ["c1"], ["c1", "c2"]]


def test_urgent_lines_stay_urgent_while_they_wait_behind_half_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def main() -> None:
        file = RecordingFile(str(path), os.open(path, os.O_WRONLY | os.O_CREAT))
        writer = JsonlWriter(file, Redactor(["sk-0123456789abcdef"]))
        writer.put_pieces(0.1, 0, "text", ["It is sk-0123"])
        writer.put({"line": "event", "event": "call_started"})
        writer.urgent = True
        await asyncio.sleep(0.1)  # it is written by itself, as far as it can be
        assert (path.read_bytes(), writer.urgent) == (b"", True)
        writer.flush()
        assert ([line["line"] for line in lines_of(path)], writer.urgent) == (["pieces", "event"], False)
        writer.end()

    asyncio.run(main())


def test_a_line_that_is_not_json_is_noted_and_the_next_ones_are_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def main() -> None:
        file = RecordingFile(str(path), os.open(path, os.O_WRONLY | os.O_CREAT))
        writer = JsonlWriter(file, Redactor([]))
        writer.put({"line": "approval", "arguments": {"more": object()}})
        writer.put({"line": "event", "event": "call_started"})
        writer.end()

    asyncio.run(main())
    noted, after = lines_of(path)
    assert (noted["line"], after["line"]) == ("note", "event")
    assert noted["text"].startswith("a line `approval` could not be written: ")


# Unchanged values


def test_changes_of_arguments_by_a_tool_are_not_in_the_recording(tmp_path: Path) -> None:
    @tool(effect="read")
    async def sort(names: list[str]) -> str:
        names.sort()
        names.append("and more")
        return ", ".join(names)

    path = tmp_path / "run.jsonl"
    Agent(ScriptedModel([Call("sort", names=["b", "a"])], "Sorted."), [sort], record=path).run_sync("Sort.")
    said = [event.arguments for event in only(CallStarted, read_recording(path).events)]
    made = [line["call"]["arguments"] for line in lines_of(path) if line.get("delta") == "call_ready"]
    assert said == made == [{"names": ["b", "a"]}]


def test_pieces_of_one_read_are_one_group_and_one_event(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    model = OneRead(ReasoningDelta("Hm."), TextDelta("It "), TextDelta("is."), Ended(Verdict("whole")))
    heard: list[Event] = []
    run_virtual(lambda: Agent(model, record=path, sinks=[heard.append]).run("Is it?"), start=1_700_000_000.0)
    pieces = [line for line in lines_of(path) if line["line"] == "pieces"]
    assert [line["delta"] for line in pieces] == ["reasoning", "text"]
    assert [line["pieces"] for line in pieces] == [[[0.25, "Hm."]], [[0.25, "It ", "is."]]]
    assert [event.text for event in heard if isinstance(event, TextAdded)] == ["It is."]
    recorded = [event for event in read_recording(path).events if not isinstance(event, RunFinished)]
    assert recorded == [event for event in heard if not isinstance(event, RunFinished)]


def test_agents_that_share_a_recorder_keep_their_own_tools_instructions_and_settings(tmp_path: Path) -> None:
    @tool(effect="read")
    def sun() -> str:
        return "shines"

    @tool(effect="read")
    def rain() -> str:
        return "falls"

    recorder = Recorder(tmp_path)

    def ask(name: str, tools: Sequence[Tool], instructions: str, schedule: Schedule) -> None:
        agent = Agent(
            ScriptedModel("So."), tools, instructions=instructions, sinks=[recorder], schedule=schedule, name=name
        )
        agent.run_sync("How is it?")

    for _ in range(2):
        ask("one", [sun], "Be short.", Schedule.EAGER)
        ask("two", [sun, rain], "Be kind.", Schedule.PARALLEL)
    found = [read_recording(path) for path in tmp_path.iterdir()]
    assert len(found) == 4
    for recording in found:
        (request,) = recording.requests
        one = recording.agent_name == "one"
        assert [each["name"] for each in request.tools] == (["sun"] if one else ["sun", "rain"])
        assert request.messages[0]["content"][0]["text"].startswith("Be short." if one else "Be kind.")
        assert recording.settings["schedule"] == ("eager" if one else "parallel")


def test_a_tool_that_was_changed_between_two_runs_is_recorded_as_it_is(tmp_path: Path) -> None:
    @tool(effect="read")
    def look(city: str) -> str:
        return city

    agent = Agent(ScriptedModel("One.", "Two."), [look], record=tmp_path)
    agent.run_sync("1", run_id="first")
    properties: Any = look.spec.parameters["properties"]
    properties["city"]["enum"] = ["Rome"]
    agent.run_sync("2", run_id="second")
    for run, allowed in (("first", None), ("second", ["Rome"])):
        (path,) = tmp_path.glob(f"*{run}*")
        ((spec,),) = (request.tools for request in read_recording(path).requests)
        assert spec["parameters"]["properties"]["city"].get("enum") == allowed
    assert agent.replay(path).text == "Two."


def test_an_attribute_that_a_sink_adds_to_an_event_does_not_cost_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def hang(event: Any) -> None:
        event.seen = object()

    Agent(ScriptedModel("So."), sinks=[hang], record=path).run_sync("Go.")
    recording = read_recording(path)
    assert recording.ending is not None
    assert not list(recording.of("note"))


def test_a_number_beyond_floats_does_not_damage_what_is_written_after_it(tmp_path: Path) -> None:
    """From then on the slow encoder writes."""

    @tool(effect="read")
    def weigh(grams: Any) -> str:
        return "heavy"

    @tool(effect="read")
    def rest() -> str:
        return "rested"

    agent = Agent(
        ScriptedModel([Call("weigh", '{"grams": 1e999}')], "Heavy.", loop_last=True),
        lambda turn, _: [weigh] if turn == 0 else [weigh, rest],
        record=tmp_path,
    )
    agent.run_sync("Weigh.")
    (path,) = tmp_path.iterdir()
    recording = read_recording(path)
    assert not recording.problems
    assert [[each["name"] for each in request.tools] for request in recording.requests] == [
        ["weigh"],
        ["weigh", "rest"],
    ]
    (ready,) = (line for line in recording.lines if line.get("delta") == "call_ready")
    assert ready["call"]["arguments"] == {"grams": float("inf")}


def test_usage_of_calls_is_recorded_with_each_of_them(tmp_path: Path) -> None:
    @tool
    async def think(context: CallContext[Any], tokens: int) -> str:
        context.spend(Usage(tokens, 1))
        await asyncio.sleep(0.01)
        context.spend(Usage(tokens, 1))
        return "thought"

    @tool
    async def act() -> str:
        return "acted"

    calls = [Call("think", tokens=10, id="a"), Call("act", id="b"), Call("think", tokens=100, id="c")]
    path = tmp_path / "run.jsonl"
    Agent(ScriptedModel(calls, "So."), [think, act], record=path, schedule="parallel").run_sync("Go.")
    results = {line["call_id"]: line for line in read_recording(path).of("result")}
    assert "usage" not in results["b"]
    assert results["a"]["usage"]["input_tokens"] == 20
    assert results["c"]["usage"]["input_tokens"] == 200


# Nothing is left behind


def test_a_recorded_run_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    @tool
    async def act(what: str) -> str:
        return what

    async def main() -> int:
        model = ScriptedModel([Call("act", what="a"), Call("act", what="b")], "Done.", loop_last=True)
        agent = Agent(model, [act], record=tmp_path)
        await agent.run("Go.")
        gc.collect()
        gc.disable()
        try:
            await agent.run("Go.")
            return gc.collect()
        finally:
            gc.enable()

    assert asyncio.run(main()) == 0


def test_the_end_of_a_run_can_be_copied_and_sent_with_its_messages() -> None:
    heard: list[Event] = []
    Agent(ScriptedModel("So."), sinks=[heard.append]).run_sync("Go.")
    for end in (copy.copy(heard[-1]), copy.deepcopy(heard[-1]), pickle.loads(pickle.dumps(heard[-1]))):
        assert isinstance(end, RunFinished)
        assert end == heard[-1]
        assert [message["role"] for message in end.messages] == ["user", "assistant"]


def test_every_event_is_written_by_the_fast_encoder_as_it_is() -> None:
    written: list[Any] = []
    heard: list[Event] = []

    def write(event: Event) -> None:
        written.append(orjson.loads(orjson.dumps(event)))
        heard.append(event)

    @tool
    async def act() -> str:
        return "acted"

    Agent(ScriptedModel([Call("act")], "So."), [act], sinks=[write]).run_sync("Go.")
    assert isinstance(heard[-1], RunFinished)
    for fields, event in zip(written, heard, strict=True):
        assert {**event_to_json(event), **fields} == event_to_json(event)
        assert fields.keys() == event_to_json(event).keys() - {"event"}


# Several observers


class Listening(Middleware):
    """Sees the answers, and may fail at it."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.ends: list[str] = []

    def start(self, run: RunStart) -> Middleware:
        self.ends.clear()
        return self

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        if self.fails == "start":
            raise ValueError("deaf")
        try:
            async for deltas in call_next(request):
                yield deltas
        except BaseException as error:
            self.ends.append(type(error).__name__)
            raise
        self.ends.append("")
        if self.fails == "end":
            raise ValueError("cannot let go")


@pytest.mark.parametrize("fails", ["", "end", "start"])
def test_an_observer_that_saw_the_beginning_of_an_answer_sees_its_end(fails: str) -> None:
    outer, inner = Listening(), Listening(fails)
    agent = Agent(ScriptedModel("So."), middleware=[outer, inner])
    with pytest.raises(ProviderError, match=r"cannot let go|deaf") if fails else nullcontext():
        agent.run_sync("Go.")
    assert outer.ends == ["ValueError" if fails else ""]


def test_arguments_that_hide_a_secret_too_deep_are_left_out_and_the_run_continues(tmp_path: Path) -> None:
    secret = "sk-0123456789abcdef"
    deep: Any = secret
    for _ in range(700):
        deep = [deep]
    call = ToolCall("c1", "act", {"what": deep}, raw="{}")

    class Deep:
        name = "deep"

        async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
            yield [TextDelta("Done.") if len(request.messages) > 2 else CallReady(call), Ended(Verdict("whole"))]

    @tool
    async def act(what: Any) -> str:
        return "acted"

    path = tmp_path / "run.jsonl"
    agent = Agent(Deep(), [act], sinks=[Recorder(path, secrets=[secret])], guidance=False)
    assert agent.run_sync("Go.").text == "Done."
    assert secret not in path.read_text()
    assert any("nested too deep" in line["text"] for line in lines_of(path) if line["line"] == "note")
