"""What a server of ours sends back: a head, then bytes with pauses before them, then an end of some kind.

Only values. Who makes them is a script (`server`) or a fault (`faults`); who sends them is `server`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from unbroken.decoding import Decoder
from unbroken.models.script import Step

Chunks: TypeAlias = Iterator[tuple[float, bytes]]
"""What is sent: seconds to wait, then bytes. It may raise a `ProviderError`, which is sent with its status, or a
`ConnectionResetError`, which closes the connection; a `Reset` does so without a word."""

FOREVER = inf
"""A pause that ends when the client goes away, or the server stops."""


class Reset(ConnectionResetError):
    """The connection is reset: what the client has not read by then may be lost."""


@dataclass(slots=True)
class Reply:
    chunks: Chunks
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Stray:
    """A request that asked no model: a path or a method that is not there, a body that cannot be read, a wrong key, or
    one for the list of models. `words` say what it was told."""

    method: str
    path: str
    status: int
    words: str


@dataclass(slots=True)
class Sent:
    """One request, and what went out for it. `fault` is the name of the fault that it met, empty for none; `steps` are
    what the response means, `data` the bytes of its body as far as they were sent."""

    number: int
    wire: str
    model: str
    stream: bool
    size: int = 0
    """Bytes of the request's body."""
    fault: str = ""
    status: int = 0
    """0 as long as no head was sent."""
    refused: str = ""
    """Why it was answered with an error that is no fault's."""
    steps: tuple[Step, ...] = ()
    data: bytearray = field(default_factory=bytearray)
    over: bool = False
    """Nothing more will be sent."""

    @property
    def text(self) -> str:
        """The text in these bytes."""
        decoder = Decoder(self.wire)
        decoder.feed(bytes(self.data))
        return decoder.response().text
