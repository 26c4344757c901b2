"""What to do where a provider demands its own reasoning back and it is gone: cut by a client, or from another provider.

Each wire knows the ways that its providers accept; a provider profile names one of them (`Quirks.lost_reasoning`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from unbroken.messages import Request
from unbroken.wires import WIRES
from unbroken.wires.values import Object

LostReasoning: TypeAlias = Literal["", "blank", "off", "placeholder"]
"""Not demanded; a blank in its place; thinking is turned off for this request; a documented placeholder."""

WAYS = {way: replace for wire in WIRES.values() for way, replace in wire.lost_reasoning.items()}


def go_on(body: Object, request: Request, way: LostReasoning) -> tuple[Object, str]:
    """The body that the provider accepts, and what was done for that; empty if nothing is missing."""
    return WAYS[way](body, request) if way else (body, "")
