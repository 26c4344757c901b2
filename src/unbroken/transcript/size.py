"""How long a history is, by its characters: for estimates, where nobody has counted tokens."""

from __future__ import annotations

from typing import assert_never

from unbroken.messages import Assistant, Message, Part, System, Text, ToolMessage, User

CHARACTERS_PER_TOKEN = 4
"""For estimates, where a provider reports no usage."""


def characters(message: Message) -> int:
    """For estimates. Media are left out: nobody counts them alike."""
    match message:
        case Assistant():
            count = len(message.text) + len(message.reasoning)
            for call in message.calls:
                count += len(call.name) + len(call.raw)
            return count
        case ToolMessage():
            return sum([_texts(result.content) for result in message.results])
        case System() | User():
            return _texts(message.parts)
        case _:
            assert_never(message)


def _texts(parts: tuple[Part, ...] | tuple[Text, ...]) -> int:
    return sum([len(part.text) for part in parts if isinstance(part, Text)])
