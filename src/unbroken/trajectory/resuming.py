"""A run that was cut off goes on from its recording: what it had by then, and who gives it that again.

The last request is asked once more, and answered from the recording if its answer was whole. Calls that had finished
get what they gave, by their idempotency keys; calls that were in flight run again, and are told that they do
(`CallContext.attempt`). What was decided about a call is not asked again, as long as it is that very call. From there
on the world is asked.

What was masked when it was recorded is never done: such a call is answered so, and the model may make it again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from unbroken.deltas import Delta
from unbroken.errors import UserError
from unbroken.events import RunFinished
from unbroken.messages import Message, Request, ToolCall, ToolResult, Usage, User
from unbroken.models.model import Model
from unbroken.models.secrets import MASK
from unbroken.tools.approval import Approval, OnApproval, Wait, ask
from unbroken.tools.calling import Caller, failure, fingerprint
from unbroken.tools.context import CallContext
from unbroken.trajectory.companion import Companion, RunHead
from unbroken.trajectory.departure import compare_requests
from unbroken.trajectory.lines import Hearing, Line, encode, read_approval, read_delta, read_usage
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken.transcript import from_json
from unbroken.transcript.saved import read_result

LOG = logging.getLogger("unbroken.trajectory")

MASKED = "not executed: its arguments were masked when the run was recorded; make the call again"


@dataclass(frozen=True, slots=True)
class Given:
    """What a call gave, what it used itself, and how long it took."""

    result: ToolResult
    usage: Usage | None
    seconds: float


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
    results: dict[str, Given] = field(default_factory=dict[str, "Given"])
    """What calls gave, by their keys."""
    by_id: dict[tuple[int, str], Given] = field(default_factory=dict[tuple[int, str], "Given"])
    """The same, by their turns and ids."""
    begun: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    """How often each call was begun, by its turn and its id."""
    alike: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Calls that were begun, by their turn and what they are."""
    decisions: dict[str, Approval | ToolResult] = field(default_factory=dict[str, "Approval | ToolResult"])
    """What was decided about calls of the last answer, and what the client gave for them, by their ids."""


def find_interruption(recording: Recording) -> Interrupted:
    """Raises `UserError` for a run that came to its end."""
    ending = recording.ending
    if isinstance(ending, RunFinished) and ending.stop_reason != "waiting":
        raise UserError(f"{recording.path}: the run has ended ({ending.stop_reason}); there is nothing to go on with")
    saved = recording.head.get("question")
    question = from_json([saved])[0] if saved else None
    found = Interrupted(
        recording,
        (),
        question if isinstance(question, User) else None,
        {},
        _seconds(recording),
        max((event.seq for event in recording.events), default=-1) + 1,
    )
    requests = iter(recording.requests)
    history: list[Line] = recording.head.get("messages", [])
    known: list[Line] | None = None
    noted: list[Line] = []
    coming: list[Line] = []
    whole: dict[int, list[Line]] = {}
    starts: dict[tuple[int, str], float] = {}
    for line in recording.lines:
        match line["line"]:
            case "history":
                noted = known = [*noted[: line["keep"]], *line["messages"]]
            case "request":
                before, found.request = found.request, next(requests)
                found.state = line.get("state", {})
                sent = found.request.messages
                is_system = bool(sent) and sent[0].get("role") == "system"
                history = known if known is not None else list(sent[1:] if is_system else sent)
                known, coming, found.question = None, [], None
                if before is None or before.turn != found.request.turn:
                    found.decisions = {}
            case "delta":
                coming.append(line)
                if line["delta"] == "ended" and line["verdict"]["kind"] == "whole":
                    whole[line["turn"]] = coming
            case "event" if line["event"] == "call_started":
                found.begun[line["turn"], line["call_id"]] += 1
                starts.setdefault((line["turn"], line["call_id"]), line["time"])
                found.alike.add((line["turn"], fingerprint(ToolCall("", line["name"], line["arguments"]))))
            case "result" if not line["key"]:  # the client's own
                found.decisions[line["call_id"]] = read_result(line["result"])
            case "result":
                took = recording.time_at(line["at"]) - starts.get((line["turn"], line["call_id"]), inf)
                given = Given(read_result(line["result"]), read_usage(line.get("usage")), round(max(took, 0.0), 6))
                found.results.setdefault(line["key"], given)  # the first ran, another would be only given again
                found.by_id.setdefault((line["turn"], line["call_id"]), given)
            case "approval" if line["decision"] != "wait":
                found.decisions[line["call_id"]] = read_approval(line)
            case _:
                pass
    found.messages = from_json(history)
    if found.request is not None:
        found.answer = whole.get(found.request.turn, [])
    return found


def _seconds(recording: Recording) -> float:
    """How long it has been going, without the time that nobody was there."""
    total = began = last = 0.0
    for line in recording.lines:
        if line["line"] == "resumed":
            total, began = total + last - began, line["at"]
        last = max(line.get("at", 0.0), began) if line["line"] == "resumed" else max(line.get("at", 0.0), last)
    return round(total + last - began, 9)


class Continuation(Companion):
    """Goes along with the rest of the run."""

    def __init__(self, interrupted: Interrupted) -> None:
        self._interrupted = interrupted
        self._answer = interrupted.answer
        self._same = False
        """The calls are those of the recording."""

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
            answer = []
        self._same = bool(answer)
        return answer

    def goes_on_with_same_calls(self) -> None:
        """The calls are those of the recording, though no answer is played: the run waited in the middle of them."""
        self._same = True

    def caller(self, caller: Caller) -> Caller:
        async def resumed(call: ToolCall, context: CallContext[Any]) -> ToolResult:
            found = self._interrupted
            given = found.results.get(context.key)
            if given is None and self._same:  # its key was made of what is masked now
                given = found.by_id.get((context.turn, call.id))
            if given is not None and call.name not in self._live:
                if given.usage is not None:
                    context.spend(given.usage)
                context.ran_before = given.seconds
                return replace(given.result, call_id=call.id)
            if self._same and found.recording.masked and MASK.encode() in encode(call.arguments or {}):
                return failure(call, MASKED)
            context.attempt += self._attempts(call, context)
            return await caller(call, context)

        return resumed

    def _attempts(self, call: ToolCall, context: CallContext[Any]) -> int:
        if self._same:
            return self._interrupted.begun[context.turn, call.id]
        return int((context.turn, context.fingerprint) in self._interrupted.alike)

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
            decision = decisions.pop(call.id, None) if self._same else None
            if decision is not None and not isinstance(decision, ToolResult):
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
        delta = read_delta(line, hearing)
        hearing.feed(delta)
        yield delta
