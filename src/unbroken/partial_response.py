"""What the deltas of one response add up to so far. The one place where deltas are accumulated."""

from __future__ import annotations

from unbroken.deltas import CallReady, CallSpoiled, CallWithdrawn, Delta, ReasoningDelta, Restarted, TextDelta
from unbroken.messages import Assistant, ToolCall


class PartialResponse:
    """Feed it deltas; `message` is the answer as far as it has arrived."""

    __slots__ = ("calls", "reasoning", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCall] = {}
        """By index. Only calls that are complete, and those that can no longer become so (`ToolCall.problem`)."""

    def feed(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text):
                self.text.append(text)
            case ReasoningDelta(text):
                self.reasoning.append(text)
            case CallReady(call) | CallSpoiled(call):
                self.calls[call.index] = call
            case CallWithdrawn(index):
                self.calls.pop(index, None)
            case Restarted():
                self.restart()
            case _:
                pass

    def restart(self) -> None:
        """The response broke off, and another comes in its place, from the beginning."""
        self.text, self.reasoning, self.calls = [], [], {}

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.reasoning or self.calls)

    @property
    def message(self) -> Assistant:
        return Assistant("".join(self.text), self._in_order(), "".join(self.reasoning))

    def matches(self, message: Assistant) -> bool:
        """Does the message hold exactly what arrived?"""
        if "".join(self.text) != message.text or "".join(self.reasoning) != message.reasoning:
            return False
        return self._in_order() == message.calls

    def _in_order(self) -> tuple[ToolCall, ...]:
        return tuple([self.calls[index] for index in sorted(self.calls)])
