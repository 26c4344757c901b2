"""A run that was cut off goes on from its recording: what it had by then, and who gives it that again.

The last request is asked once more, and answered from the recording if its answer was whole. Calls that had finished
get what they gave, by their idempotency keys; calls that were in flight run again, and are told that they do
(`CallContext.attempt`). What was decided about a call is not asked again. From there on the world is asked.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from unbroken.deltas import Delta
from unbroken.errors import UserError
from unbroken.events import RunFinished
from unbroken.messages import Message, Request, ToolCall, ToolResult, User
from unbroken.models.model import Model
from unbroken.tools.approval import Approval, OnApproval, Wait, ask
from unbroken.tools.calling import Caller
from unbroken.tools.context import CallContext
from unbroken.trajectory.companion import Companion, RunHead
from unbroken.trajectory.departure import compare_requests
from unbroken.trajectory.lines import Hearing, Line, read_approval, read_delta
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken.transcript import from_json
from unbroken.transcript.saved import read_result

LOG = logging.getLogger("unbroken.trajectory")


@dataclass(slots=True)
class Interrupted:
    """Where a run was cut off."""

    recording: Recording
    messages: tuple[Message, ...]
    """The history when the model was asked last."""
    question: User | None
    """What was to be asked, if the model had not been asked yet."""
    state: Line
    """What the run had used and noted by then."""
    seconds: float
    """How long it had been going."""
    next_seq: int
    request: RecordedRequest | None = None
    answer: list[Line] = field(default_factory=list[Line])
    """The deltas that came, if the answer was whole."""
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    """What calls gave, by their keys."""
    attempts: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    """How often each call was begun, by its turn and its id."""
    decisions: dict[str, Approval] = field(default_factory=dict[str, Approval])


def find_interruption(recording: Recording) -> Interrupted:
    """Raises `UserError` for a run that came to its end."""
    ending = recording.ending
    if isinstance(ending, RunFinished):
        raise UserError(f"{recording.path}: the run has ended ({ending.stop_reason}); there is nothing to go on with")
    saved = recording.head.get("question")
    question = from_json([saved])[0] if saved else None
    found = Interrupted(
        recording,
        from_json(recording.head.get("messages", [])),
        question if isinstance(question, User) else None,
        {},
        max((line.get("at", 0.0) for line in recording.lines), default=0.0),
        max((event.seq for event in recording.events), default=-1) + 1,
    )
    requests = iter(recording.requests)
    history: list[Line] = recording.head.get("messages", [])
    known: list[Line] | None = None
    for line in recording.lines:
        match line["line"]:
            case "history":
                known = line["messages"]
            case "request":
                found.request, found.state = next(requests), line.get("state", {})
                sent = found.request.messages
                is_system = bool(sent) and sent[0].get("role") == "system"
                history = known if known is not None else list(sent[1:] if is_system else sent)
                known = None
                found.answer = []
                found.question = None
            case "delta":
                found.answer.append(line)
            case "failed" | "resumed":
                found.answer = []
            case "event" if line["event"] == "call_started":
                found.attempts[line["turn"], line["call_id"]] += 1
            case "result":
                found.results[line["key"]] = read_result(line["result"])
            case "approval" if line["decision"] != "wait":
                found.decisions[line["call_id"]] = read_approval(line)
            case _:
                pass
    found.messages = from_json(history)
    if not found.answer or found.answer[-1]["delta"] != "ended" or found.answer[-1]["verdict"]["kind"] != "whole":
        found.answer = []
    return found


class Continuation(Companion):
    """Goes along with the rest of the run."""

    def __init__(self, interrupted: Interrupted) -> None:
        self._interrupted = interrupted
        self._answer = interrupted.answer

    def accompany(self, head: RunHead) -> Companion:
        return self

    def model(self, model: Model) -> Model:
        return _Continued(model, self)

    def recorded_answer(self, request: Request) -> list[Line]:
        """The answer that came to this very request, once."""
        answer, self._answer = self._answer, []
        recorded = self._interrupted.request
        if answer and recorded is not None and (words := compare_requests(recorded, request, recorded.turn)):
            LOG.warning("the last request of the recording is asked anew, because it is another one now: %s", words)
            return []
        return answer

    def caller(self, caller: Caller) -> Caller:
        async def resumed(call: ToolCall, context: CallContext[Any]) -> ToolResult:
            key = context.key
            result = self._interrupted.results.get(key)
            if result is not None and call.name not in self._live:
                return replace(result, call_id=call.id)
            context.attempt += self._interrupted.attempts[context.turn, call.id]
            return await caller(call, context)

        return resumed

    @property
    def _live(self) -> tuple[str, ...]:
        """The tool that takes a typed answer has to take it again: it is in no message."""
        output: Line = self._interrupted.recording.settings.get("output") or {}
        return (output["tool"],) if output else ()

    def approval(self, on_approval: OnApproval | None) -> OnApproval | None:
        decisions = self._interrupted.decisions
        if not decisions:
            return on_approval

        async def resumed(call: ToolCall) -> Approval:
            decision = decisions.pop(call.id, None)
            if decision is not None:
                return decision
            return Wait() if on_approval is None else await ask(on_approval, call)

        return resumed


class _Continued:
    def __init__(self, model: Model, continuation: Continuation) -> None:
        self._model = model
        self._continuation = continuation

    @property
    def name(self) -> str:
        return self._model.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        answer = self._continuation.recorded_answer(request)
        return _play(answer) if answer else self._model.stream(request)


async def _play(answer: list[Line]) -> AsyncIterator[Delta]:
    hearing = Hearing()
    for line in answer:
        delta = read_delta(line, hearing.message)
        hearing.feed(delta)
        yield delta
