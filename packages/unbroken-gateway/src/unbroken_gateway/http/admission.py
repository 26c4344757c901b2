"""Decides which requests are admitted: the key of a request, and the limits of a key.

Limits are counted per process: with several workers, a key has its limit in each of them. Nothing waits, and a refused
request does not count.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from types import TracebackType
from urllib.parse import parse_qs

from unbroken.asgi import Refused, Scope, is_foreign
from unbroken.clock import Clock, RealClock
from unbroken_gateway.http.cors import is_api
from unbroken_gateway.keys import GatewayKey, KeyRing
from unbroken_gateway.settings import GatewaySettings

MINUTE = 60.0
SOON = 1.0
"""`Retry-After` for a key with too many requests in flight: it is not known when one of them ends."""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The request is over a limit: `words` for the client, and the seconds to wait (Retry-After)."""

    words: str
    retry_after: float


@dataclass(slots=True)
class _Count:
    times: deque[float] = field(default_factory=deque[float])
    """When each request of the last minute began."""
    in_flight: int = 0


class Admission:
    """Finds the key of a request, or refuses the request."""

    def __init__(self, settings: GatewaySettings, keys: KeyRing | None) -> None:
        self._settings = settings
        self.keys = keys

    def admit(self, headers: Mapping[str, str], scope: Scope) -> GatewayKey | None:
        """None if the gateway requires no keys. Raises `Refused`."""
        if self.keys is None:
            if headers.get("origin") in self._settings.cors_origins and is_api(scope["path"]):
                headers = {"host": headers.get("host", "")}
            if not self._settings.open_to_all and is_foreign(headers, self._settings.host):
                raise Refused(403, "this gateway refuses requests from other web pages: turn keys on, and send one")
            return None
        secret = sent_key(headers, scope)
        if not secret:
            raise Refused(
                401, "this gateway requires a key: send it as `Authorization: Bearer …` or as your client does"
            )
        key = self.keys.find(secret)
        if key is None:
            if (old := self.keys.find_expired(secret)) is not None:
                raise Refused(
                    401, f"the key of `{old.name}` has expired: `unbroken keys rotate {old.name}` makes a new one"
                )
            if self._is_admin_variable(secret):
                raise Refused(401, "this key is for the admin API alone: `unbroken keys create` makes one for clients")
            raise Refused(401, "this gateway does not know the key that was sent: `unbroken keys create` makes one")
        return key

    def _is_admin_variable(self, secret: str) -> bool:
        variable = self._settings.admin_key_env
        own = os.environ.get(variable, "").strip() if variable else ""
        return bool(own) and compare_digest(secret.encode(), own.encode())


class KeyLimits:
    """`with limits.admit(key) as refused:` counts the request as in flight until the block ends, unless it returns an
    `OverLimit`. In any 60 seconds, no more requests begin than the key allows."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._counts: dict[str, _Count] = {}

    def admit(self, key: GatewayKey) -> _Slot:
        count = self._counts.get(_identity(key))
        if count is None:
            count = self._counts[_identity(key)] = _Count()
        if key.in_flight is not None and count.in_flight >= key.in_flight:
            requests = "request" if count.in_flight == 1 else "requests"
            words = f"key `{key.name}` has {count.in_flight} {requests} in flight and may have {key.in_flight}"
            return _Slot(None, OverLimit(f"{words}: wait until one has ended", SOON))
        if (wait := self._begin(key, count)) > 0:
            requests = "request" if key.requests_per_minute == 1 else "requests"
            words = f"key `{key.name}` may begin {key.requests_per_minute} {requests} a minute"
            return _Slot(
                None, OverLimit(f"{words}: wait {wait:.0f} s" if wait >= 1 else f"{words}: wait a second", wait)
            )
        return _Slot(count, None)

    def in_flight(self, key: GatewayKey) -> int:
        count = self._counts.get(_identity(key))
        return 0 if count is None else count.in_flight

    def _begin(self, key: GatewayKey, count: _Count) -> float:
        """Returns 0.0 if the request may begin and was counted, otherwise the seconds until it may."""
        if key.requests_per_minute is None:
            return 0.0
        now, times = self._clock.elapsed(), count.times
        while times and times[0] <= now - MINUTE:
            times.popleft()
        if len(times) >= key.requests_per_minute:
            return times[len(times) - key.requests_per_minute] + MINUTE - now
        times.append(now)
        return 0.0


def _identity(key: GatewayKey) -> str:
    """Not the name: a new key with the name of a revoked one starts at zero."""
    return key.id or key.name


class _Slot:
    """A class instead of a generator, for speed: one is made for each request."""

    __slots__ = ("_count", "refused")

    def __init__(self, count: _Count | None, refused: OverLimit | None) -> None:
        self._count = count
        self.refused = refused

    def __enter__(self) -> OverLimit | None:
        if self._count is not None:
            self._count.in_flight += 1
        return self.refused

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._count is not None:
            self._count.in_flight -= 1


UNLIMITED = _Slot(None, None)
"""For a request without a key: counts nothing."""


def sent_key(headers: Mapping[str, str], scope: Scope) -> str:
    """The gateway key of a request, from any header that clients use for it; empty if there is none."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and given.strip():
        return given.strip()
    if found := headers.get("x-api-key") or headers.get("x-goog-api-key") or headers.get("api-key"):
        return found.strip()
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return query.get("key", [""])[0]
