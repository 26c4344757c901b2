"""How long a history is, by its characters: for estimates, where nobody has counted tokens."""

from __future__ import annotations

from collections.abc import Sequence

from unbroken.messages import Assistant, Message, Part, Text, ToolMessage

CHARACTERS_PER_TOKEN = 4
"""For estimates, where a provider reports no usage."""


def characters(message: Message) -> int:
    """For estimates. Media are left out: nobody counts them alike."""
    if isinstance(message, Assistant):
        count = len(message.text) + len(message.reasoning)
        for call in message.calls:
            count += len(call.name) + len(call.raw)
        return count
    if isinstance(message, ToolMessage):
        return _texts([part for result in message.results for part in result.content])
    return _texts(message.parts)


def _texts(parts: Sequence[Part]) -> int:
    return sum([len(part.text) for part in parts if isinstance(part, Text)])
