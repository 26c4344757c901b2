"""What a model is to the loop: a request in, deltas out. One small signature that HTTP, scripts and guards all have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Protocol, cast

from unbroken.deltas import Delta
from unbroken.messages import Request


class Model(Protocol):
    """`stream` is a plain function that gives an async iterator. Its last delta is `Ended`; a response that broke off
    is an `Ended` whose verdict says so. It raises a `ProviderError` where there was no response at all.
    """

    @property
    def name(self) -> str:
        """For people and for records: `openai:gpt-5`."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """One question, and its answer delta by delta as it comes."""
        ...


def closing(stream: AsyncIterator[Delta]) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
    """A stream that is left early gives its connection back at once."""
    if hasattr(stream, "aclose"):  # a generator, or the stream of some library
        return aclosing(cast("AsyncGenerator[Delta]", stream))
    return nullcontext(stream)


async def close(stream: AsyncIterator[Delta]) -> None:
    """The same for one that is known to be left early."""
    if hasattr(stream, "aclose"):
        await cast("AsyncGenerator[Delta]", stream).aclose()
