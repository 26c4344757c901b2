"""What was heard of a response so far: enough for a history if it is never heard to its end."""

from __future__ import annotations

from unbroken.messages import Assistant, ToolCall
from unbroken.tools.calling import Prepared


class Heard:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCall] = {}
        self.prepared: dict[int, Prepared] = {}

    def forget(self, index: int) -> None:
        self.calls.pop(index, None)
        self.prepared.pop(index, None)

    def message(self) -> Assistant:
        calls = tuple(call for _, call in sorted(self.calls.items()))
        return Assistant("".join(self.text), calls, "".join(self.reasoning))
