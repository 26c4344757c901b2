"""What a model is to the loop: a request in, deltas out. One small signature that HTTP, scripts and guards all have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, Protocol, TypeVar, cast

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


T = TypeVar("T")
M = TypeVar("M", bound=type)


def reads_together(kind: M) -> M:
    """Marks a class whose `reads` says what its `stream` says, with those deltas in one list that came together. Each
    step of a generator costs more than most deltas do."""
    made: Any = kind
    made.reads.says_the_same_as = made.stream
    return kind


def reads(model: Model, request: Request) -> AsyncIterator[Sequence[Delta]]:
    """What a model says, in lists of at least one delta: as it came, or one by one, of a model that only streams.

    Asked of the class itself, and only as long as its `stream` is the one that it came with: a wrapper may pass on
    every attribute that it does not know, and who puts another `stream` in its place means that.
    """
    kind = type(model).__dict__
    own: Any = kind.get("reads")
    stream = kind.get("stream")
    if stream is None or getattr(own, "says_the_same_as", None) is not stream or "stream" in model.__dict__:
        return _one_by_one(model.stream(request))
    return own(model, request)


async def _one_by_one(stream: AsyncIterator[Delta]) -> AsyncIterator[Sequence[Delta]]:
    async with closing(stream):
        async for delta in stream:
            yield (delta,)


async def apart(together: AsyncIterator[Sequence[Delta]]) -> AsyncIterator[Delta]:
    """The `stream` of a model that has `reads`."""
    async with closing(together):
        async for deltas in together:
            for delta in deltas:
                yield delta


def closing(stream: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """A stream that is left early gives its connection back at once."""
    if hasattr(stream, "aclose"):  # a generator, or the stream of some library
        return aclosing(cast("AsyncGenerator[T]", stream))
    return nullcontext(stream)


async def close(stream: AsyncIterator[T]) -> None:
    """The same for one that is known to be left early."""
    if hasattr(stream, "aclose"):
        await cast("AsyncGenerator[T]", stream).aclose()
