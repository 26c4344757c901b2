"""How a scripted answer is spelled on each wire: the events that a provider of that wire streams, piece by piece, and
the same as one body.

Not the response encoders of `wires`: those write for a client of ours and give it each call whole; a provider writes
its calls in pieces, and may stop in the middle of one. What is written here is read by the same decoders as a
provider's own bytes.
"""

from __future__ import annotations

from unbroken.models.spelling.anthropic import MessagesSpelling
from unbroken.models.spelling.gemini import GeminiSpelling
from unbroken.models.spelling.openai_chat import ChatSpelling
from unbroken.models.spelling.openai_responses import ResponsesSpelling
from unbroken.models.spelling.spelling import Item, Kind, Spelling
from unbroken.wires import find_wire

SPELLINGS: dict[str, type[Spelling]] = {
    "openai-chat": ChatSpelling,
    "openai-responses": ResponsesSpelling,
    "anthropic-messages": MessagesSpelling,
    "gemini": GeminiSpelling,
}


def find_spelling(wire: str, model: str, id: str) -> Spelling:
    """The spelling of one answer; `model` and `id` are what it calls itself."""
    return SPELLINGS[find_wire(wire).name](model, id)


__all__ = ["Item", "Kind", "Spelling", "find_spelling"]
