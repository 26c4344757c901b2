"""What agents do that run as tools: their steps in words, and their calls as lanes below the call that runs them."""

from __future__ import annotations

from unbroken.errors import UserError
from unbroken.events import CallEvent, CallFinished, CallStarted, InnerEvent
from unbroken.trajectory.inner_runs import describe_step
from unbroken_viewer.picture_data import LONGEST_FIELD, CallLane, InnerLane
from unbroken_wires.wires.jsontext import dump_arguments

MOST = 500
"""Calls of agents inside one call that are drawn."""
SHOWN = 300
"""Characters of their arguments."""


class InnerLanes:
    """`feed` takes the events of inner agents, in order."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str, int, int], InnerLane] = {}
        """By their lane, their agent and their numbers."""

    def feed(self, event: InnerEvent, lane: CallLane, at: float) -> None:
        """Adds to the lane of the call what its agent, or an agent inside of that, has done."""
        lane.agent = event.agent[:LONGEST_FIELD]
        try:
            step, depth, inner = describe_step(event), 1, event.event
            while isinstance(inner, InnerEvent):
                event, depth, inner = inner, depth + 1, inner.event
        except UserError:
            return  # of a later version
        if step is not None:
            lane.steps.append((at, step[0][:LONGEST_FIELD], step[1]))
        if not isinstance(inner, CallEvent):
            return
        key = (id(lane), event.agent, event.call, inner.call)
        if isinstance(inner, CallStarted) and len(lane.inner) < MOST:
            shown = (dump_arguments(inner.arguments) or "")[:SHOWN]
            self._open[key] = InnerLane(event.agent[:LONGEST_FIELD], depth, inner.name[:LONGEST_FIELD], shown, at)
            lane.inner.append(self._open[key])
        elif isinstance(inner, CallFinished) and (found := self._open.pop(key, None)) is not None:
            found.ended, found.error = at, inner.error
