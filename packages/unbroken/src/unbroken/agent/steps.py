"""`steps`: a run as thoughts, actions and observations in a fixed order, for interfaces that show one step at a time.

Whatever the schedule, each response with calls becomes: the thought, all actions in call order, then the observations
in call order, each followed by the to-do list if its call changed it. The calls themselves run as their schedule lets
them; only what is shown waits. A result is yielded as soon as those of all calls before it have been.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from unbroken.agent.streaming import Buffered, translate
from unbroken.events import (
    CallAdopted,
    CallBackgrounded,
    CallDropped,
    CallFinished,
    CallWritten,
    Event,
    RoundFinished,
    RunFailed,
    RunFinished,
    TextFinished,
    TodoUpdated,
    ToolCallsDetected,
)
from unbroken_wires.messages import Json

IN_BACKGROUND = "running in the background as {handle}"


@dataclass(frozen=True, slots=True)
class Thought:
    """What the model said before its calls."""

    type: ClassVar[str] = "thought"
    step: int
    """The number of the request, from 0: the `turn` of events."""
    content: str


@dataclass(frozen=True, slots=True)
class Action:
    """A call of the response, whether it will run or not."""

    type: ClassVar[str] = "action"
    step: int
    tool: str
    args: dict[str, Json]
    """Empty if they were cut off: then the call never runs."""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a call, as the model reads it."""

    type: ClassVar[str] = "observation"
    step: int
    tool: str
    result: str
    duration: float
    """How many seconds its tool ran: 0 if it did not."""
    error: bool = False
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class TodoUpdate:
    """The to-do list, after the observation of the call that changed it."""

    type: ClassVar[str] = "todo_update"
    step: int
    todos: list[dict[str, Json]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of the run: its answer, or the text with which a limit ended it."""

    type: ClassVar[str] = "answer"
    step: int
    content: str


Step: TypeAlias = Thought | Action | Observation | TodoUpdate | Answer


def steps(stream: AsyncIterable[Event]) -> Buffered[Step]:
    """A run (`agent.stream(…)`, or any events) as steps. If you stop reading, the run ends."""
    return translate(stream, Steps().take)


@dataclass(slots=True)
class _Call:
    """What is known of one call."""

    step: int
    name: str
    id: str
    args: dict[str, Json]
    shown: bool = False
    """Its action was yielded."""
    background: bool = False
    observation: Observation | None = None
    todos: list[TodoUpdate] = field(default_factory=list[TodoUpdate])


class Steps:
    """If you consume events yourself, `Steps` puts them in order: `take` returns the steps that are due now."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        """By number: the calls whose observations are not yielded yet."""
        self._order: deque[int] = deque()
        """The calls of the current response, without those whose observations were yielded."""

    def take(self, event: Event) -> list[Step]:
        """The steps that this event completes; most events complete none."""
        match event:
            case CallWritten():
                self._calls[event.call] = _Call(event.turn, event.name, event.call_id, event.arguments or {})
            case TextFinished(final=False):
                return [Thought(event.turn, event.text)]
            case ToolCallsDetected():
                return self._begin(event)
            case TodoUpdated():
                self._of(event).todos.append(TodoUpdate(event.turn, event.todos))
            case CallAdopted():
                before = self._calls.pop(event.adopted, None)
                if before is not None and event.adopted != event.call:
                    self._of(event).todos[:0] = before.todos
            case CallDropped():
                self._calls.pop(event.call, None)
            case CallBackgrounded():
                return self._answer(event, IN_BACKGROUND.format(handle=event.handle), 0.0, False)
            case CallFinished():
                return self._answer(event, event.text, event.seconds, event.error)
            case RoundFinished() | RunFailed():
                return self._flush()
            case RunFinished():
                end: list[Step] = [Answer(event.turn, event.text)] if event.stop_reason != "waiting" else []
                return [*self._flush(), *end]
            case _:
                pass
        return []

    def _of(self, event: TodoUpdated | CallAdopted | CallBackgrounded | CallFinished) -> _Call:
        """The call of an event. It is new if it was written in an earlier part of the run."""
        return self._calls.setdefault(event.call, _Call(event.turn, event.name, event.call_id, {}))

    def _begin(self, event: ToolCallsDetected) -> list[Step]:
        found: list[Step] = []
        for each in event.calls:
            number: int = each["call"]
            call = self._calls.setdefault(number, _Call(event.turn, each["name"], each["id"], each["arguments"] or {}))
            self._order.append(number)
            found.append(self._action(call))
        return [*found, *self._due()]

    def _action(self, call: _Call) -> Action:
        call.shown = True
        return Action(call.step, call.name, call.args, call.id)

    def _answer(self, event: CallBackgrounded | CallFinished, result: str, duration: float, error: bool) -> list[Step]:
        call = self._of(event)
        call.background = isinstance(event, CallBackgrounded)
        call.observation = Observation(call.step, call.name, result, duration, error, call.id)
        return self._due()

    def _due(self) -> list[Step]:
        """The observations that no earlier call of the response holds back."""
        found: list[Step] = []
        while self._order and (call := self._calls[self._order[0]]).observation is not None:
            found += self._observed(self._order.popleft(), call)
        return found

    def _observed(self, number: int, call: _Call) -> list[Step]:
        if call.observation is None:
            return []
        found: list[Step] = [call.observation, *call.todos]
        if call.background:  # its result comes in a later response
            call.background, call.observation, call.todos = False, None, []
        else:
            del self._calls[number]
        return found

    def _flush(self) -> list[Step]:
        """The end of a round. What is left are results behind a call that waits for somebody, results of calls that
        waited or went to the background earlier, and calls that continue."""
        self._order.clear()
        ended = {number: self._calls[number] for number in sorted(self._calls) if self._calls[number].observation}
        found: list[Step] = [self._action(call) for call in ended.values() if not call.shown]
        for number, call in ended.items():
            found += self._observed(number, call)
        return found
