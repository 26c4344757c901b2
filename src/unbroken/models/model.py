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


def reads(model: Model, request: Request) -> AsyncIterator[Sequence[Delta]]:
    """The same deltas, those together that came together: what a model with `reads` has to say of them, one that has
    only `stream` says one by one. Each step of a generator costs more than most deltas do.

    Asked of the class itself: what stands in front of another model may pass on every attribute it does not know, and
    a subclass that has only a `stream` of its own means that.
    """
    kind: Any = type(model)
    if "reads" in kind.__dict__:
        return kind.reads(model, request)
    return _one_by_one(model.stream(request))


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
