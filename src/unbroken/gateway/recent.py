"""The last requests, for the status page: who asked what kind of thing, and how it went. Never what was said: no
message, no arguments, no result."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

KEPT = 100
LONGEST = 200
"""Characters of a name or an error: a client, or a model, may have chosen it."""
MOST_CALLS = 20


@dataclass(frozen=True, slots=True)
class RecentRequest:
    at: float
    """When it came, in seconds since 1970."""
    client_wire: str
    alias: str
    status: int
    seconds: float
    key: str = ""
    """The name of the gateway key, never the key."""
    upstream_wire: str = ""
    """Empty where the model has none."""
    streamed: bool = False
    first_token: float | None = None
    """Seconds from the request to the first of the answer."""
    calls: tuple[str, ...] = ()
    """Names of the tools that the client was given calls of."""
    handed: str = ""
    """`2/3` where a call was handed out that had been held, or others are held behind it."""
    repairs: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    """What broke, for each time that the answer was asked for again."""
    error: str = ""
    """Without secrets."""
    input_tokens: int = 0
    output_tokens: int = 0


class Recent:
    """A ring: the newest push the oldest out."""

    def __init__(self, kept: int = KEPT) -> None:
        self._requests: deque[RecentRequest] = deque(maxlen=kept)

    def add(self, request: RecentRequest) -> None:
        if len(request.calls) > MOST_CALLS or any(
            len(said) > LONGEST for said in (request.alias, request.error, *request.calls)
        ):
            request = replace(
                request,
                alias=_cut(request.alias),
                error=_cut(request.error),
                calls=tuple(_cut(name) for name in request.calls[:MOST_CALLS]),
            )
        self._requests.append(request)

    def latest(self) -> tuple[RecentRequest, ...]:
        """The newest first."""
        return tuple(reversed(self._requests))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
