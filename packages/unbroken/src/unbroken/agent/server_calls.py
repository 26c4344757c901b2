"""The tools that the provider runs during a run: which of them are running, and the events about them.

A call may begin in one answer and end in the next: a provider may pause its turn between the two.
"""

from __future__ import annotations

from dataclasses import replace

from unbroken.agent.emitter import Emitter
from unbroken.events import ServerCallFinished, ServerCallStarted
from unbroken_wires.deltas import Delta, ServerCallEnded, ServerCallOpened, ServerCallSeen
from unbroken_wires.messages import Outcome, ServerCall

_KEPT = 2000
"""Characters of an error in an event."""


class ServerCalls:
    """One for each run."""

    def __init__(self, emitter: Emitter, seen: list[ServerCall]) -> None:
        self._emitter = emitter
        self._open: dict[str, ServerCall] = {}
        """The calls that have no result yet, by id."""
        self._mark = 0
        self.seen = seen
        """All calls, as the provider wrote them."""

    def begin_answer(self) -> None:
        """A request is sent."""
        self._mark = len(self.seen)

    def take(self, delta: Delta) -> None:
        match delta:
            case ServerCallOpened(call):
                self._open[call.id or ""] = call
                self._emitter.emit(
                    ServerCallStarted, call.id or "", call.tool or call.type, _name(call), call.arguments
                )
            case ServerCallSeen(call):
                self.seen.append(call)
            case ServerCallEnded(call, error):
                self._end(call, error, "failed" if error else "done")
            case _:
                pass

    def restart(self) -> None:
        """The answer broke off, and another one replaces it."""
        del self.seen[self._mark :]
        self.end()

    def end(self) -> None:
        """Nothing more is heard of the calls that are open."""
        for call in [*self._open.values()]:
            self._end(call, "", "unknown")

    def made_image(self) -> bool:
        """Is there an image in the last answer? Then it needs no text."""
        return any(call.tool == "image_generation" for call in self.seen[self._mark :])

    def _end(self, call: ServerCall, error: str, outcome: Outcome) -> None:
        begun = self._open.pop(call.id or "", None)
        if begun is not None:
            name, arguments = call.name or begun.name, call.arguments or begun.arguments
            call = replace(begun, name=name, arguments=arguments)
        tool = call.tool or call.type
        self._emitter.emit(ServerCallFinished, call.id or "", tool, _name(call), call.arguments, outcome, error[:_KEPT])


def _name(call: ServerCall) -> str:
    return call.name or call.tool or call.type
