"""What a model is to the loop: a request in, deltas out. HTTP, scripts, retries and middleware share this signature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import NoReturn, Protocol, TypeVar, cast

from unbroken.deltas import Delta
from unbroken.errors import UserError
from unbroken.messages import Request


class Model(Protocol):
    """Anything that answers requests. Write one to connect a provider that Unbroken does not know."""

    @property
    def name(self) -> str:
        """For people and for records: `openai:gpt-5`."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        """The answer to one request, in batches of at least one delta: what arrives together is yielded together.

        The last delta is `Ended`; if the response broke off, its verdict says so. If there was no response at all,
        raise a `ProviderError`.
        """
        ...


T = TypeVar("T")


def refuse_single(model: str, given: object) -> NoReturn:
    """For a model that yields anything but batches."""
    raise UserError(f"model `{model}` yields a {type(given).__name__}, and `stream` yields batches: yield [delta]")


def closing(stream: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Closes the stream on the way out, so that one that is left early returns its connection at once."""
    if hasattr(stream, "aclose"):  # a generator, or the stream of some library
        return aclosing(cast("AsyncGenerator[T]", stream))
    return nullcontext(stream)


async def close(stream: AsyncIterator[T]) -> None:
    """Closes a stream that is left early."""
    if hasattr(stream, "aclose"):
        await cast("AsyncGenerator[T]", stream).aclose()
