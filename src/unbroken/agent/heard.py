"""What was heard of a response so far: enough for a history if it is never heard to its end, and, if the response broke
off and is asked for again, for knowing what of it was said already."""

from __future__ import annotations

from unbroken.decoding.shown import Shown, StillToSay
from unbroken.messages import Assistant, ToolCall
from unbroken.tools.calling import Prepared


class Heard:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCall] = {}
        self.prepared: dict[int, Prepared] = {}
        self._shown: tuple[Shown, Shown] | None = None
        """Text and reasoning of the response that broke off."""

    @property
    def restarted(self) -> bool:
        """The response comes a second time: what it says is not said before it is known how it goes on."""
        return self._shown is not None

    @property
    def anything(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)

    def forget(self, index: int) -> None:
        self.calls.pop(index, None)
        self.prepared.pop(index, None)

    def restart(self) -> None:
        if self._shown is None:
            self._shown = Shown("".join(self.text)), Shown("".join(self.reasoning))
        self.text, self.reasoning, self.calls, self.prepared = [], [], {}, {}

    def still_to_say(self, text: str, reasoning: str) -> tuple[StillToSay, StillToSay]:
        shown, thought = self._shown or (Shown(), Shown())
        return shown.compare(text), thought.compare(reasoning)

    def received(self) -> Assistant:
        """The response, all of it, for a model that does not give its message itself."""
        calls = tuple(call for _, call in sorted(self.calls.items()))
        return Assistant("".join(self.text), calls, "".join(self.reasoning))

    def message(self) -> Assistant:
        """What somebody who listened has heard: of a second answer nothing was said yet."""
        received = self.received()
        if self._shown is None:
            return received
        return Assistant(self._shown[0].text, received.calls, self._shown[1].text)
