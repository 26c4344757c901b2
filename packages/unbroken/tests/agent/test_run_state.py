"""The state of a live run and the one that its recording has are the same, at every request and for every call: a run
that is continued decides as one that was never interrupted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cut_runs import PROMPT, Plan, World, agent_of, answers_to, plans
from hypothesis import given, settings
from strategies import fewer

from unbroken import CallContext, Result, ToolCall, ToolResult
from unbroken.agent.recorded_state import cut_state, ended_result, waiting_result
from unbroken.agent.run import Run
from unbroken.agent.run_state import CallRecord, RunState
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.tools.caller import Caller
from unbroken.tools.handles import BackgroundCall
from unbroken.trajectory.recorded_run import RecordedRun
from unbroken.trajectory.recording import Recording, parse_recording, read_recording
from unbroken_testing import run_virtual
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Json, Message, Request


@dataclass
class Seen(Middleware):
    """What the live run was when it sent a request, and when it ran a call."""

    requests: list[tuple[dict[str, Json], tuple[Message, ...]]] = field(default_factory=list[Any])
    calls: list[tuple[int, list[CallRecord], int]] = field(default_factory=list[Any])
    """The turn of the request before; the calls that had results by then; how many hand-offs there were."""
    run: RunStart | None = None

    def start(self, run: RunStart) -> Seen:
        self.run = run
        return self

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        assert self.run is not None
        self.requests.append((self.run.state(), self.run.history()))
        async for deltas in call_next(request):
            yield deltas

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        if isinstance(context.host, Run) and context.host.inside.path == "main" and context.turn >= 0:
            state, turn = context.host.state, context.host.state.used.requests - 1
            before = [record for record in state.calls if record.turn < turn]  # a run that waited has others, too
            self.calls.append((turn, before, len(state.handoffs)))
        return await call_next(call, context)


def known(calls: Sequence[CallRecord]) -> list[tuple[str, str]]:
    return [(record.id, record.result.text) for record in calls]


def play(plan: Plan, path: Path, seen: Seen) -> Result[Any]:
    world = World(path)
    result = run_virtual(lambda: agent_of(plan, world, record=path, middleware=[seen]).run(PROMPT, run_id="r"))
    while result.stop_reason == "waiting":
        waiting, answers = result, answers_to(result.pending, result.uncertain, world)
        check_waiting(read_recording(path), waiting)
        result = run_virtual(lambda: agent_of(plan, world, record=path, middleware=[seen]).resume(path, answers))  # noqa: B023
    return result


def check_waiting(recording: Recording, result: Result[Any]) -> None:
    """Compares the result that waits, and what continues it, with what the recording says of them."""
    read = waiting_result(recording)
    assert read is not None
    mine, theirs = read.state(), result.state()
    if result.inner:  # their calls are counted when they continue
        mine.used.calls = theirs.used.calls
    assert mine.recorded(prepares=False) == theirs.recorded(prepares=False)
    assert (mine.transcript.messages, known(mine.calls)) == (theirs.transcript.messages, known(theirs.calls))
    assert pending_calls(read.pending) == pending_calls(result.pending)
    assert (read.numbers, read.uncertain) == (result.numbers, result.uncertain)
    assert (read.answered, read.usage) == (result.answered, result.usage)
    assert [*map(continued, read.background)] == [*map(continued, result.background)]


def continued(call: BackgroundCall) -> tuple[str, int, int, ToolResult | None, bool, int]:
    return call.handle, call.turn, call.number, call.result, call.delivered, call.nth


def pending_calls(calls: Sequence[ToolCall]) -> list[tuple[str, str, Any, str]]:
    return [(call.id, call.name, call.arguments, call.agent) for call in calls]


def states_at_requests(path: Path) -> list[RunState]:
    """What the recording says of the run at each request: the state in which it is sent."""
    raw, found = path.read_bytes().splitlines(keepends=True), list[RunState]()
    for count, line in enumerate(raw):
        if line.startswith(b'{"line":"request"'):
            state = cut_state(RecordedRun.of(parse_recording(raw[: count + 1], path)))
            state.next_turn()
            found.append(state)
    return found


def check(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        path, seen = Path(folder) / "r.jsonl", Seen()
        result = play(plan, path, seen)
        read = states_at_requests(path)
        assert [(state.recorded(prepares=False), state.transcript.messages) for state in read] == seen.requests
        for turn, calls, handoffs in seen.calls:
            ended = [record for record in read[turn].calls if record.outcome != "running"]  # others may have, meanwhile
            ids = {record.id for record in ended}
            assert known(ended) == known([record for record in calls if record.id in ids])
            assert [record.id for record in read[turn].calls] == [record.id for record in calls]
            assert len(read[turn].handoffs) == handoffs
        shown = ended_result(read_recording(path))
        assert [(each.id, each.result) for each in shown.calls] == [(each.id, each.result) for each in result.calls]
        assert (shown.messages, shown.usage, shown.verdicts) == (result.messages, result.usage, result.verdicts)


@settings(max_examples=fewer(40))
@given(plans())
def test_a_recording_has_the_state_of_the_live_run_at_every_request(plan: Plan) -> None:
    check(plan)


@settings(max_examples=fewer(20))
@given(plans(background=True))
def test_that_holds_with_calls_in_the_background(plan: Plan) -> None:
    check(plan)
