"""Whether the requests of a run only grow: what is before their new messages has to stay as it was, or the provider's
cache is of no use, and models that check it refuse their earlier thinking.
"""

from __future__ import annotations

from collections.abc import Sequence

from unbroken_wires.messages import Assistant, Message, System, ToolSpec


class Prefix:
    """What the last request of a run began with. The same objects are compared at no cost."""

    def __init__(self) -> None:
        self.changed = ""
        """What the last request has changed: `tools`, `system`, `message 3`, without the instructions; empty: nothing
        but its new messages."""
        self.intact = True
        """Nothing has changed since the run began, and no answer is from before."""
        self._tools: Sequence[ToolSpec] | None = None
        self._messages: tuple[Message, ...] = ()
        self._agent: object = None
        self._instructions: list[tuple[int, System]] = []

    def take(self, tools: Sequence[ToolSpec], messages: tuple[Message, ...]) -> None:
        """Compares the next request with the last one."""
        if self._tools is None:
            self.intact = not any(isinstance(message, Assistant) for message in messages)
        else:
            self.changed = first_change((self._tools, self._messages), (tools, messages))
            self.intact = self.intact and not self.changed
        self._tools, self._messages = tools, messages

    def instruct(self, system: System, messages: tuple[Message, ...], agent: object) -> tuple[Message, ...]:
        """The messages behind the instructions with which this agent began. Other instructions that it has had since
        stand where they came in."""
        known = self._instructions
        if self._agent is not agent or (known and known[-1][0] > len(messages)):
            known.clear()
        self._agent = agent
        if not known or known[-1][1] != system:
            known.append((len(messages) if known else 0, system))
        parts: list[Message] = []
        for (at, given), (until, _) in zip(known, [*known[1:], (len(messages), system)], strict=True):
            parts += (given, *messages[at:until])
        return tuple(parts)


_Sent = tuple[Sequence[ToolSpec], tuple[Message, ...]]


def first_change(before: _Sent, now: _Sent) -> str:
    """The first region of a request that is not as it was: `tools`, `system`, `message 3`, or nothing."""
    if now[0] is not before[0] and tuple(now[0]) != tuple(before[0]):
        return "tools"
    old, new = before[1], now[1]
    if new[: len(old)] == old:
        return ""
    at = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), len(new))
    leading = next((n for n, message in enumerate(old) if not isinstance(message, System)), len(old))
    return "system" if at < leading else f"message {at - leading + 1}"
