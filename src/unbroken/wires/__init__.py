"""The wires, which are providers' protocols, by name. Each is a package of its own; a new one needs its line here."""

from __future__ import annotations

from unbroken.errors import UnknownWire
from unbroken.wires import anthropic, bedrock, cohere, gemini, ollama, openai_chat, openai_responses
from unbroken.wires.wire import Wire

WIRES: dict[str, Wire] = {
    wire.name: wire
    for wire in (
        openai_chat.WIRE,
        openai_responses.WIRE,
        anthropic.WIRE,
        gemini.WIRE,
        ollama.WIRE,
        cohere.WIRE,
        bedrock.WIRE,
    )
}

DEFAULT_WIRE = openai_chat.WIRE.name
"""The wire that other servers imitate: assumed where none is named, and the one that quirks are made for."""


def find_wire(name: str) -> Wire:
    """The wire of that name; the error lists the known names."""
    try:
        return WIRES[name]
    except KeyError:
        raise UnknownWire(f"there is no wire {name!r}; there are: {', '.join(WIRES)}") from None


__all__ = ["DEFAULT_WIRE", "WIRES", "Wire", "find_wire"]
