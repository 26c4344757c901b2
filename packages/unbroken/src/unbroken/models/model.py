"""The model protocol: a request in, deltas out. Also the trace headers and the size limit of every request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from contextvars import ContextVar
from math import inf
from typing import NoReturn, Protocol, TypeVar, cast

from unbroken.errors import ProviderError, TooLarge, UserError
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Request


class Model(Protocol):
    """Anything that answers requests. Write one to connect a provider that Unbroken does not know."""

    @property
    def name(self) -> str:
        """For display and recordings: `openai:gpt-5`."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        """The answer to one request, in batches of at least one delta: what arrives together is yielded together.

        The last delta is `Ended`; if the response broke off, its verdict reports it. If there was no response at all,
        raise a `ProviderError`.
        """
        ...


T = TypeVar("T")


def refuse_single(model: str, given: object) -> NoReturn:
    """The error for a model that does not yield batches."""
    raise UserError(f"model `{model}` yields a {type(given).__name__}, and `stream` yields batches: yield [delta]")


def closing(stream: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Closes the stream at the end of the block, so that a stream that is left early returns its connection at once."""
    if hasattr(stream, "aclose"):  # a generator, or the stream of a library
        return aclosing(cast("AsyncGenerator[T]", stream))
    return nullcontext(stream)


async def close(stream: AsyncIterator[T]) -> None:
    """Closes a stream that is left early."""
    if hasattr(stream, "aclose"):
        await cast("AsyncGenerator[T]", stream).aclose()


# The trace headers of outgoing requests (`traceparent`, `tracestate`, `baggage`). The tracing code sets it around a
# request, so the sender need not know about tracing. Unset, it costs one lookup.


CARRIED: ContextVar[Mapping[str, str] | None] = ContextVar("unbroken carried", default=None)
"""Headers by name; None if nothing is traced."""


# How many bytes the responses to one request may have in all, retries and fallbacks included, and how many calls each
# of them. A server sets it, and it is checked wherever bytes of a provider are read.


class ResponseLimit:
    """Counts down. One object for all attempts at one answer."""

    __slots__ = ("_left", "max_calls", "most", "on_alive")

    def __init__(self, most: int, max_calls: float = inf) -> None:
        self.most = most
        self.max_calls = max_calls
        self._left = most
        self.on_alive: Callable[[], None] | None = None
        """Called when the provider sends something only to keep the connection alive."""

    @property
    def taken(self) -> int:
        """The bytes that were read."""
        return self.most - self._left

    def take(self, size: int) -> None:
        """Raises `TooLarge` once more than `most` bytes were read. A retry would be too large as well."""
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"the provider sent more than the {self.most:,} bytes that an answer may have, retries included "
                f"(`max_response`)"
            )


class Observer(Protocol):
    """Gets a call at each step of each request of a model, from any thread."""

    def asked(self) -> None: ...

    def answered(self, seconds: float) -> None:
        """The head of an answer came after so many seconds."""
        ...

    def succeeded(self) -> None:
        """The answer came to its end, and is one."""
        ...

    def failed(self, error: ProviderError | None) -> None:
        """There was no answer, or an error in its place, also in a response with a success status; None if it broke
        off."""
        ...

    def ended(self) -> None:
        """Once for each `asked`."""
        ...


class Attempts(Protocol):
    """Observes the attempts at one request."""

    def begin(self, model: object) -> Mapping[str, str] | None:
        """Returns headers to send with it."""
        ...

    def answered(self, status: int, error: str) -> None:
        """The answer to a request that is passed through has ended. `status` is 0 if there was none."""
        ...


class ResponseHead:
    """The head of the last response of a provider to one request, retries and fallbacks included."""

    __slots__ = ("asked", "attempts", "headers", "left_out", "model", "unread", "upstream")

    def __init__(self) -> None:
        self.attempts: Attempts | None = None
        """Set if the attempts are traced."""
        self.model = ""
        """The model that answered last, also one in Python; empty if none was asked."""
        self.asked = ""
        """The model that a request was sent to last; empty if it was not sent, or was answered with an error."""
        self.upstream = ""
        """The deployment or the model that sent it."""
        self.headers: Mapping[str, str] = {}
        self.left_out: tuple[str, ...] = ()
        """What the request was sent without, after the provider had refused it."""
        self.unread: tuple[str, ...] = ()
        """What the request was sent without, because only another account can read it."""


RESPONSE_HEAD: ContextVar[ResponseHead | None] = ContextVar("unbroken_response_head", default=None)
"""Set by a server that passes parts of it on. Unset, it costs one lookup."""

RESPONSE_LIMIT: ContextVar[ResponseLimit | None] = ContextVar("unbroken_response_limit", default=None)
