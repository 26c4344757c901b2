"""Where, how and how patiently a provider is asked: its row, the user's key and time-outs, after `connect` has read
them and before anything is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from math import inf, isnan
from typing import TypeAlias, TypeGuard

from yarl import URL

from unbroken.errors import Unauthorized, UserError
from unbroken.models.addresses import shown
from unbroken.models.quirks import Quirks
from unbroken.validation import checked

Key: TypeAlias = str | Callable[[], str | Awaitable[str]] | None
"""A key, or what gives one for each request, or none."""


@checked
@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `connect`: until the connection stands; `first_byte`: from there to the first byte of the answer;
    `idle`: between two reads; `total`: for all of it. `None` waits for ever. Time that the consumer takes counts only
    for `total`."""

    connect: float | None = 10
    first_byte: float | None = 120
    idle: float | None = 60
    total: float | None = None

    @property
    def soonest(self) -> float:
        """The shortest that something may be waited for."""
        return min((limit for limit in (self.connect, self.first_byte, self.idle) if limit is not None), default=inf)

    def __post_init__(self) -> None:
        for limit in fields(self):
            seconds: float | None = getattr(self, limit.name)
            if seconds is None or seconds > 0:
                continue
            name = "connect_timeout" if limit.name == "connect" else limit.name
            raise UserError(f"{name}={seconds!r} is no time-out: give seconds above 0, or None to wait for ever")


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)


@dataclass(frozen=True, slots=True)
class Endpoint:
    provider: str
    model: str
    wire: str
    stream_url: URL
    whole_url: URL
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    key_variable: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    quirks: Quirks = field(default_factory=Quirks)
    secrets: tuple[str, ...] = ()
    """What of addresses and headers must not be shown."""

    def __repr__(self) -> str:
        return f"Endpoint('{self.provider}:{self.model}', {self.wire!r}, {shown(self.stream_url)!r})"


def check_key(key: object, provider: str) -> str:
    """The key without the line end that files and shells leave; never quoted in an error."""
    if not isinstance(key, str):
        raise UserError(
            f"the key of provider `{provider}` is of the type {type(key).__name__}: "
            f"api_key is a text, or a function that gives one"
        )
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise Unauthorized(f"the key of provider `{provider}` holds characters that no key has: copy it once more")
    return key
