"""Two things at one instant: a replay repeats their order, whatever it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import a_long_run
from hypothesis import given
from hypothesis import strategies as st
from test_replay import Together, look, slow, write

from unbroken import (
    Agent,
    Allow,
    CallContext,
    ChainBroken,
    Limits,
    RetryingModel,
    Schedule,
    ScriptedModel,
    Tool,
    client_tool,
    tool,
)
from unbroken.models.model import Model, close
from unbroken.models.scripted import Answer, Break, Call, Pause, Say
from unbroken.tools.approval import Approval
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken_testing import run_virtual
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Request, ToolCall


@tool(effect="read")
async def spin(context: CallContext[Any], what: str, seconds: float = 0.0) -> str:
    """Takes several turns of the loop, and reports in some of them."""
    for turn in range(len(what)):
        context.report(f"turn {turn}")
        await asyncio.sleep(0)
    await asyncio.sleep(seconds)
    return f"spun {what}"


@tool(effect="read")
async def instant(what: str, seconds: float = 0.0) -> str:
    return f"now {what}"


@tool
async def stubborn(context: CallContext[Any], what: str, seconds: float = 0.0) -> str:
    """Takes some time when it is cancelled."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        context.report("being cancelled")
        await asyncio.sleep(0.1 if what == "a" else 0)
        raise
    return "done"


@tool(approve=True)
async def pay(what: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "paid"


TOOLS = [look, slow, write, spin, instant, stubborn, pay]


async def decide(call: ToolCall) -> Approval:
    await asyncio.sleep(0.2)
    return Allow()


class ClosesLate:
    """A model whose stream ends some turns of the loop, and perhaps some time, after its last delta."""

    def __init__(self, model: Model, turns: int, seconds: float) -> None:
        self.name = model.name
        self._model, self._turns, self._seconds = model, turns, seconds

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        arriving = self._model.stream(request)
        try:
            async for deltas in arriving:
                yield deltas
            for _ in range(self._turns):
                await asyncio.sleep(0)
            await asyncio.sleep(self._seconds)
        finally:
            await close(arriving)


def record_and_replay(model: Model, folder: Path, tools: Sequence[Tool] = TOOLS, **options: Any) -> tuple[bytes, bytes]:
    first, second = folder / "first.jsonl", folder / "second.jsonl"

    async def main() -> None:
        with suppress(ChainBroken):
            await Agent(model, tools, on_approval=decide, record=first, **options).run("Go.", run_id="r")

    run_virtual(main, start=1_700_000_000.25)
    with suppress(ChainBroken):
        playing = Agent(ScriptedModel("nobody asks this one"), tools, on_approval=decide, **options)
        playing.replay(first, sinks=[Recorder(second)])
    return first.read_bytes(), second.read_bytes()


def broken_then(*attempts: Answer, wire: str = "openai-chat") -> RetryingModel[ScriptedModel]:
    script = ScriptedModel(*attempts, "That is all.", wire=wire, loop_last=True)
    return RetryingModel(script, first_wait=0.1, jitter=lambda: 0.0)


def test_a_stream_that_ends_one_loop_turn_after_a_tool_started_does_so_again(tmp_path: Path) -> None:
    """The first call is adopted and the next two share its result, so that nothing else happens in between."""
    looks = [Call("look", what="a", seconds=0.0) for _ in range(3)]
    script = [[Say("Hm. "), looks[0], Break()], [Say("Hm. "), *looks, Call("look", what="a", seconds=0.1)]]
    recorded, replayed = record_and_replay(ClosesLate(Together(broken_then(*script), 1), 0, 0.0), tmp_path)
    assert b'"line":"closed"' in recorded
    assert replayed == recorded


def test_a_repeated_call_id_in_the_second_attempt_gets_the_result_of_its_own_call(tmp_path: Path) -> None:
    first: Answer = [Call("slow", what="a", seconds=0.3), Break()]
    second: Answer = [Call("look", what="c", seconds=0.3), Call("instant", what="d", after=0.7)]
    recorded, replayed = record_and_replay(Together(broken_then(first, second), 20), tmp_path)
    assert b"saw c" in recorded
    assert replayed == recorded


def test_an_approval_that_the_time_limit_leaves_undecided_is_undecided_again(tmp_path: Path) -> None:
    model = ScriptedModel([Call("pay", what="a")], "So.")
    recorded, replayed = record_and_replay(model, tmp_path, limits=Limits(seconds=0.1, final_seconds=1))
    assert b'"approval":true' in recorded
    assert replayed == recorded


def test_a_call_for_the_client_that_the_time_limit_left_is_answered_when_the_time_is_up_again(tmp_path: Path) -> None:
    calls: Answer = [Call("instant", what="a"), Call("slow", what="b", seconds=5), Call("show", page=1)]
    show = client_tool("show", "Shows a page.", {"type": "object", "properties": {"page": {"type": "integer"}}})
    options: dict[str, Any] = {"limits": Limits(seconds=0.1, final_seconds=1), "schedule": Schedule.SEQUENTIAL}
    recorded, replayed = record_and_replay(ScriptedModel(calls, "So."), tmp_path, [*TOOLS, show], **options)
    assert recorded.index(b"time_up") < recorded.index(b"not executed")
    assert replayed == recorded


def test_a_tool_that_is_slow_to_cancel_is_slow_again(tmp_path: Path) -> None:
    calls: Answer = [Call("stubborn", what="a", seconds=5), Call("stubborn", what="b", seconds=5)]
    options: dict[str, Any] = {"limits": Limits(seconds=0.3, final_seconds=1), "schedule": Schedule.PARALLEL}
    recorded, replayed = record_and_replay(ScriptedModel(calls, "So."), tmp_path, **options)
    assert recorded.count(b"being cancelled") == 2
    assert replayed == recorded


def test_a_result_between_the_last_delta_and_the_end_of_the_stream_stays_there(tmp_path: Path) -> None:
    model = ClosesLate(ScriptedModel([Call("look", what="a", seconds=0.1)], "So."), 2, 0.3)
    recorded, replayed = record_and_replay(model, tmp_path)
    lines = [json.loads(line) for line in recorded.splitlines()]
    kinds = [line["line"] for line in lines]
    assert kinds.index("result") < kinds.index("closed")
    assert replayed == recorded


def test_a_recording_without_newer_lines_and_fields_replays_as_before(tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "a.jsonl")
    kept: list[str] = []
    for raw in (tmp_path / "a.jsonl").read_text().splitlines():
        line = json.loads(raw)
        line.pop("start", None)
        if line["line"] not in ("closed", "cancelled", "time_up"):
            kept.append(json.dumps(line))
    (tmp_path / "old.jsonl").write_text("\n".join(kept) + "\n")
    a_long_run.agent().replay(tmp_path / "old.jsonl", sinks=[Recorder(tmp_path / "b.jsonl")])
    assert read_recording(tmp_path / "b.jsonl").events == read_recording(tmp_path / "a.jsonl").events


SECONDS = st.sampled_from([0.0, 0.0, 0.1, 0.2, 0.3, 0.5])


@st.composite
def calls(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from([each.name for each in TOOLS] + ["spin"]))
    arguments: dict[str, Any] = {"what": draw(st.sampled_from(["a", "bb", "ccc"])), "seconds": draw(SECONDS)}
    return Call(name, arguments, after=draw(SECONDS), pieces=2)


@st.composite
def answers(draw: st.DrawFn) -> list[Answer]:
    talk = draw(st.lists(st.just(Say("Let me see. ", over=0.2)), max_size=1))
    made = draw(st.lists(calls(), min_size=1, max_size=4))
    attempts: list[Answer] = [[*talk, *made]]
    for _ in range(draw(st.integers(0, 2))):
        before = draw(st.permutations(made))[: draw(st.integers(1, 3))]
        attempts.insert(0, [*talk, *before, Pause(draw(SECONDS)), Break()])
    return attempts


@given(
    script=st.lists(answers(), min_size=1, max_size=2),
    schedule=st.sampled_from(list(Schedule)),
    limits=st.sampled_from([Limits(), Limits(seconds=0.3, final_seconds=0.3), Limits(seconds=0.5, final_seconds=1)]),
    on_error=st.sampled_from(["continue", "finish"]),
    read=st.sampled_from([1, 2, 20]),
    late=st.sampled_from([(0, 0.0), (1, 0.0), (3, 0.0), (0, 0.1)]),
)
def test_runs_with_many_simultaneous_events_replay_exactly(
    tmp_path_factory: Any,
    script: list[list[Answer]],
    schedule: Schedule,
    limits: Limits,
    on_error: Any,
    read: int,
    late: tuple[int, float],
) -> None:
    model = ClosesLate(Together(broken_then(*(each for some in script for each in some)), read), *late)
    options: dict[str, Any] = {"schedule": schedule, "limits": limits, "on_error": on_error}
    recorded, replayed = record_and_replay(model, tmp_path_factory.mktemp("ties"), **options)
    assert replayed == recorded


def test_a_call_that_starts_while_its_stream_is_closed_starts_there_again(tmp_path: Path) -> None:
    first: Answer = [Call("look", what="a", seconds=0.5), Break()]
    second: Answer = [Call("slow", what="b", seconds=0.1)]
    model = ClosesLate(Together(broken_then(first, second), 20), 3, 0.0)
    recorded, replayed = record_and_replay(model, tmp_path)
    assert replayed == recorded


def test_two_tools_that_the_time_limit_cancels_report_before_either_ends(tmp_path: Path) -> None:
    calls = [Call("stubborn", what=what, seconds=0.3, pieces=2) for what in ("bb", "a")]
    model = ScriptedModel(calls, "That is all.", loop_last=True)
    limits = Limits(seconds=0.3, final_seconds=0.3)
    first, second = record_and_replay(model, tmp_path, schedule=Schedule.PARALLEL, limits=limits)
    assert second == first
