"""What a client asks, once it is read and admitted: data, passed from the door to the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.gateway.doors import Door
from unbroken.gateway.upstreams import Upstream
from unbroken.wires.values import Object


@dataclass(frozen=True, slots=True)
class Asked:
    """What came in: read, admitted, and for a model that there is."""

    door: Door
    body: Object
    data: bytes
    """The same as bytes."""
    upstream: Upstream
    scope: str = ""
    """Whose it is: what one key's models said is not found by another."""
    serial: bool = False
    """By its profile or its alias the client can take one call at a time."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that are meant for the provider."""

    @property
    def wire(self) -> str:
        return self.door.wire
