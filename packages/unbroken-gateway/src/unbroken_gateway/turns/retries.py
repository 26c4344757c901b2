"""Repeats an answer for a retried request, and distinguishes a retry from a second request with the same content.

A person who regenerates an answer sends the same bytes, and so does a program that draws three samples, so equal bytes
prove nothing. A retry has an idempotency key, the header in which SDKs count their retries, or a first attempt by the
same client that is still in flight. Only answers in serial mode are repeated: they hold calls that the client would
lose with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from unbroken_gateway.turns.turn import Turn
from unbroken_wires.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Answered:
    """What a client in serial mode received: a text, and the first call of its turn."""

    text: str
    call: ToolCall | None = None
    turn: Turn | None = None
    lost: str = ""
    """The header about calls that are not released."""
    body: str = ""
    """The digest of the request's body."""


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """An answer as the store keeps it for a retry: the key of its turn, or its text if nothing was called; the digest
    of its request's body, and `lost` as above."""

    turn: str
    body: str
    lost: str = ""
    text: str = ""


class InFlight:
    """The requests of this process that are being answered, so that a second attempt waits for the first."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[Answered | None]] = {}

    async def wait(self, key: str) -> Answered | None:
        """The answer to the request with this key. None if there is no such request, or if it failed."""
        while (answer := self._answers.get(key)) is not None:
            answered = await asyncio.shield(answer)
            if answered is not None:
                return answered
        return None

    @asynccontextmanager
    async def answering(self, key: str) -> AsyncGenerator[asyncio.Future[Answered | None]]:
        """Set the answer on the future. If it never gets one, requests that wait for it ask the model themselves."""
        answer: asyncio.Future[Answered | None] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        try:
            yield answer
        finally:
            if self._answers.get(key) is answer:
                del self._answers[key]
            if not answer.done():
                answer.set_result(None)
