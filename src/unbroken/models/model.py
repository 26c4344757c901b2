"""What a model is to the loop: a request in, deltas out. One small signature that HTTP, scripts and guards all have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

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

    def stream(self, request: Request) -> AsyncIterator[Delta]: ...
