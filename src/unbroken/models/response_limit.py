"""How many bytes the responses to one request may have in all, retries and fallbacks included, and how many calls each
of them. A server sets it, and it is checked wherever bytes of a provider are read."""

from __future__ import annotations

from contextvars import ContextVar
from math import inf

from unbroken.errors import TooLarge
from unbroken.verdicts import Verdict


class ResponseLimit:
    """Counts down. One object for all tries at one answer."""

    __slots__ = ("_left", "max_calls", "most")

    def __init__(self, most: int, max_calls: float = inf) -> None:
        self.most = most
        self.max_calls = max_calls
        self._left = most

    def take(self, size: int) -> None:
        """Raises `TooLarge` once more than `most` bytes were read. Another try would be too large as well."""
        self._left -= size
        if self._left < 0:
            words = (
                f"the provider sent more than the {self.most:,} bytes that an answer may have, retries included "
                f"(`max_response`)"
            )
            error = TooLarge(words)
            error.verdicts = (Verdict("too_large", words),)
            raise error


RESPONSE_LIMIT: ContextVar[ResponseLimit | None] = ContextVar("unbroken_response_limit", default=None)
