"""Resumes a run from its recording: what was recorded before the run stopped is returned to the resumed run.

The last request is answered from the recording if its answer was complete. Calls that had finished get their recorded
results, by their idempotency keys. Nobody knows whether calls that had started and have no result took effect: their
tools decide what happens to them (`after_crash`). An approval holds for exactly that call. From there on the model and
the tools are asked.

Nothing runs with arguments that were masked when they were recorded: the model is asked to make such a call again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from unbroken.agent.aside import estimate
from unbroken.errors import Vetoed
from unbroken.events import ReasoningAdded, ReasoningReplaced, TextAdded, TextReplaced
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.models.model import closing
from unbroken.models.secrets import MASK
from unbroken.tools.approval import Allow, Approval, Edit, OnApproval, Wait, ask, settle, unknown
from unbroken.tools.caller import Caller, Prepared, failure, fingerprint, not_executed
from unbroken.tools.context import CallContext
from unbroken.tools.results import RESULT_LIMIT
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.divergence import compare_requests
from unbroken.trajectory.lines import Line, encode, read_delta
from unbroken.trajectory.past import Past
from unbroken.trajectory.recorded_run import RecordedResult, RecordedRun
from unbroken_wires.deltas import AttemptFailed, Delta, PartialResponse, Restarted, UsageReported
from unbroken_wires.messages import Request, ToolCall, ToolResult
from unbroken_wires.transcript.shorten import characters

LOG = logging.getLogger("unbroken.trajectory")

DIED = "cancelled: its process died"
MASKED = "not executed: its arguments were masked when the run was recorded; make the call again"


class Continuation(Middleware, Past):
    """Supplies a resumed run with what was recorded of it. `answers` are the new answers to calls that the run waits
    for. A run is `watched` if its listeners have its earlier events and get the new ones too: no text is reported
    twice, and a recorded answer stays whatever has changed."""

    mutates = False
    edits_answers = False

    def __init__(self, interrupted: RecordedRun, answers: Mapping[str, object], *, watched: bool = False) -> None:
        self._interrupted = interrupted
        self._watched = watched
        self._shown = _shown(interrupted) if watched else None
        self._turn = 0
        self._answer = interrupted.answer
        self._same = False
        """The calls are those of the recording."""
        self._toolbox: Toolbox | None = None
        self.others: Sequence[Middleware] = ()
        """The middleware of the run."""
        self._result_limit = RESULT_LIMIT
        self._veto: Callable[[Vetoed], None] | None = None
        self._loose = dict(interrupted.loose)
        """Calls that have not been continued yet."""
        runs = {id for id, answer in answers.items() if isinstance(answer, Allow | Edit)}
        self._uncertain = interrupted.uncertain - (runs & interrupted.asked_about)

    def start(self, run: RunStart) -> Continuation:
        self._result_limit = int(cast("int", run.settings.get("result_limit", RESULT_LIMIT)))
        self._veto = run.veto
        return self

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        self._toolbox, self._turn = toolbox, turn
        if self._veto is not None and turn in self._interrupted.vetoes:
            self._veto(Vetoed(self._interrupted.vetoes[turn]))

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        answer = self.recorded_answer(request)
        arriving = _play(answer, request) if answer else call_next(request)
        return arriving if self.shown_of(self._turn) is None else _again(arriving)

    def recorded_answer(self, request: Request) -> list[Line]:
        """The recorded answer to exactly this request, returned once."""
        answer, self._answer = self._answer, []
        recorded = self._interrupted.request
        if answer and recorded is not None and (words := compare_requests(recorded, request, recorded.turn)):
            if self._watched or any(map(self._writes, self._interrupted.started.values())):
                LOG.warning("the last request is different now, and its recorded answer stays: %s", words)
            else:
                LOG.warning("the last request is different now, so it is sent again: %s", words)
                answer = []
        self._same = bool(answer)
        return answer

    def continue_with_same_calls(self) -> None:
        """The calls are those of the recording, although no answer is replayed: the run waited in the middle of
        them."""
        self._same, self._answer = True, []
        self._loose = {}  # those that are left are in the history

    def _writes(self, call: ToolCall) -> bool:
        tool = self._toolbox.get(call.name) if self._toolbox is not None else None
        return tool is None or tool.effect != "read"

    # What the run asks about its earlier part

    def shown_of(self, turn: int) -> tuple[str, str] | None:
        request = self._interrupted.request
        return self._shown if request is not None and request.turn == turn else None

    def number_of(self, call: ToolCall, turn: int) -> int | None:
        found = self._interrupted
        number = found.number_of(call, turn) if self._same else None
        if number is None and self._loose and found.request is not None and found.request.turn == turn:
            mark = fingerprint(call)  # a call of an attempt that broke off, made again
            number = next((number for number, each in self._loose.items() if fingerprint(each) == mark), None)
        if number is not None:
            self._loose.pop(number, None)
        return number

    def orphan_of(self, call: ToolCall, number: int) -> int | None:
        started = self._interrupted.started_numbers
        if number in started or self._interrupted.recording.masked:
            return None
        mark = fingerprint(call)
        orphans = (other for other, each in self._loose.items() if other in started and fingerprint(each) == mark)
        orphan = next(orphans, None)
        if orphan is not None:
            del self._loose[orphan]
        return orphan

    def had_started(self, number: int) -> bool:
        found = self._interrupted
        begun = number in found.started_numbers or number in found.finished_numbers  # one of the client only ends
        return begun and number not in found.inner.waiting

    def lost_calls(self) -> list[tuple[int, ToolCall, ToolResult | None]]:
        lost, self._loose = [(number, call, self._end_of(number, call)) for number, call in self._loose.items()], {}
        return lost

    def _end_of(self, number: int, call: ToolCall) -> ToolResult | None:
        """How the call ended, if it had started and nothing has reported that."""
        found = self._interrupted
        if number not in found.started_numbers or number in found.finished_numbers:
            return None
        return found.returned.get(number) or failure(call, DIED, "cancelled")

    def seconds_of(self, context: CallContext[Any]) -> float | None:
        given = self._given(context)
        return None if given is None else given.seconds

    def _given(self, context: CallContext[Any]) -> RecordedResult | None:
        """The recorded result of the call, if it need not run again."""
        if context.name in self._live:
            return None
        found = self._interrupted
        given = found.results.get(context.key)
        if given is None and found.recording.masked and self._is_same(context.turn):
            given = found.by_id.get((context.turn, context.call_id))  # its key was computed from what is masked now
        return given

    def began(self, prepared: Prepared, turn: int) -> bool:
        """Had this call started, without a result, and may it have changed something?"""
        call = prepared.call
        return self._is_uncertain(call, turn, prepared.fingerprint) and not self._is_masked(call, turn)

    def _is_uncertain(self, call: ToolCall, turn: int, mark: str) -> bool:
        return self._had_begun(call, turn, mark) and self._writes(call) and not self._is_found_again(call)

    def _is_found_again(self, call: ToolCall) -> bool:
        tool = self._toolbox.get(call.name) if self._toolbox is not None else None
        if tool is not None and tool.role == "agent" and call.name in self._interrupted.agents:
            return True  # what happened inside is in the recording, and the run of the agent continues there
        return tool is not None and any(each.finds_again(tool) for each in self.others)

    def _had_begun(self, call: ToolCall, turn: int, mark: str) -> bool:
        found = self._interrupted
        if self._is_earlier(turn):
            return (turn, call.id) in found.unfinished
        if not self._uncertain or found.turn != turn:
            return False
        if self._same:
            return call.id in self._uncertain
        return mark in {fingerprint(found.started[id]) for id in self._uncertain}

    def _is_earlier(self, turn: int) -> bool:
        """Is it a turn before the last one? Of those, only calls in the background can still be open."""
        request = self._interrupted.request
        return request is not None and turn < request.turn

    def _is_same(self, turn: int) -> bool:
        """Are the calls of this turn those of the recording?"""
        return self._same or self._is_earlier(turn)

    def _is_masked(self, call: ToolCall, turn: int) -> bool:
        return (
            self._is_same(turn) and self._interrupted.recording.masked and MASK.encode() in encode(call.arguments or {})
        )

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        given = self._given(context)
        if given is None and (veto := self._interrupted.vetoes.get(context.turn)) is not None:
            return self._refused(veto, call, context)
        if given is not None:
            if given.usage is not None:
                context.spend(given.usage)
            if given.calls:
                context.count_calls(given.calls)
            context.ran_before = given.seconds
            return replace(given.result, call_id=call.id)
        if self._is_masked(call, context.turn):
            begun = self._had_begun(call, context.turn, context.fingerprint) and self._writes(call)
            return unknown(call) if begun else failure(call, MASKED, "not_executed")
        context.attempt += self._attempts(call, context)
        found = self._interrupted
        if found.inner.by_key:
            id = call.id if self._same else ""
            context.inner = found.inner.recording(found.recording.path, context.key, context.turn, id)
        tool = self._toolbox.get(call.name) if self._toolbox is not None else None
        if tool is not None and self._is_uncertain(call, context.turn, context.fingerprint):
            changed = found.changed.get((context.turn, call.id)) if self._is_same(context.turn) else None
            ran = call if changed is None else replace(call, arguments=changed)
            settled = await settle(tool, ran, context, self._result_limit)
            if settled is not None:
                return replace(settled, call_id=call.id, name=call.name)
        return await call_next(call, context)

    def _refused(self, veto: str, call: ToolCall, context: CallContext[Any]) -> ToolResult:
        """The result of a call of a round in which a check has ended the run: nothing more of it starts."""
        given = self._interrupted.by_id.get((context.turn, context.call_id))
        if given is not None:  # of the tool that takes a typed answer
            return given.result
        begun = self._had_begun(call, context.turn, context.fingerprint) and self._writes(call)
        return unknown(call) if begun else not_executed(call, veto)

    def _attempts(self, call: ToolCall, context: CallContext[Any]) -> int:
        if self._is_same(context.turn):
            return self._interrupted.begun[context.turn, call.id]
        return int((context.turn, context.fingerprint) in self._interrupted.alike)

    @property
    def _live(self) -> tuple[str, ...]:
        """The tool that takes a typed answer has to run again: its value is in no message."""
        tool = self._interrupted.recording.answer_tool
        return (tool,) if tool else ()

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        decisions = self._interrupted.decisions
        if not decisions:
            return on_approval

        async def resumed(call: ToolCall) -> Approval:
            decision = decisions.pop(call.id, None) if self._same else None
            if decision is not None and not isinstance(decision, ToolResult):
                return decision
            return Wait() if on_approval is None else await ask(on_approval, call)

        return resumed


def _shown(interrupted: RecordedRun) -> tuple[str, str] | None:
    """The text and the reasoning of the last answer that were emitted, complete or not; None if there is none."""
    text, reasoning = "", ""
    for event in interrupted.recording.events:
        if interrupted.request is None or event.turn != interrupted.request.turn:
            continue
        match event:
            case TextAdded():
                text += event.text
            case TextReplaced():
                text = event.text
            case ReasoningAdded():
                reasoning += event.text
            case ReasoningReplaced():
                reasoning = event.text
            case _:
                pass
    return (text, reasoning) if text or reasoning else None


async def _again(arriving: AsyncIterator[Sequence[Delta]]) -> AsyncIterator[Sequence[Delta]]:
    """An answer of which a part was emitted before: only the rest of it will be."""
    yield (Restarted(()),)
    async with closing(arriving) as batches:
        async for deltas in batches:
            yield deltas


async def _play(answer: list[Line], request: Request) -> AsyncIterator[Sequence[Delta]]:
    """What broke off is counted again, but its calls are not made again: those that ran were adopted or dropped."""
    so_far, reported = PartialResponse(), False
    restarts = [place for place, line in enumerate(answer) if line["line"] == "delta" and line["delta"] == "restarted"]
    for place, line in enumerate(answer):
        delta = read_delta(line, so_far)
        so_far.feed(delta)
        if restarts and place < restarts[-1]:
            if line["delta"].startswith("call_"):
                continue
            if isinstance(delta, AttemptFailed) and not reported and so_far.calls:  # without them it would cost less
                yield (UsageReported(estimate(sum(map(characters, request.messages)), so_far.message)),)
            if isinstance(delta, UsageReported):
                reported = bool(delta.usage.total_tokens)  # some servers report zeros for unknown
            elif isinstance(delta, AttemptFailed):
                reported = False
        yield (delta,)
