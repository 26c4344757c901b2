"""The wires: providers' protocols, each a room with its four corners. Here they are found by name."""

from __future__ import annotations

from unbroken.errors import UnknownWire
from unbroken.wires import anthropic, gemini, openai_chat, openai_responses
from unbroken.wires.wire import Wire

WIRES: dict[str, Wire] = {
    wire.name: wire for wire in (openai_chat.WIRE, openai_responses.WIRE, anthropic.WIRE, gemini.WIRE)
}


def find_wire(name: str) -> Wire:
    """The wire of that name; the error names those that there are."""
    try:
        return WIRES[name]
    except KeyError:
        raise UnknownWire(f"there is no wire {name!r}; there are: {', '.join(WIRES)}") from None


__all__ = ["WIRES", "Wire", "find_wire"]
