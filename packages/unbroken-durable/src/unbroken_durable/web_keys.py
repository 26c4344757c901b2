"""Who may use `runs_app`: keys, their tenants, and what is refused where there are no keys."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from math import ceil
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from unbroken.asgi import Refused, Scope, is_foreign
from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError
from unbroken_durable.records import RunRow
from unbroken_durable.web_requests import mount_of

LOG = logging.getLogger("unbroken.durable")

COOKIE = "unbroken_key"
RECHECK = 1.0
"""Seconds after which the key of an open stream is looked up again."""


class Key(Protocol):
    """What a key stands for. A `GatewayKey` is one."""

    @property
    def name(self) -> str: ...
    @property
    def tenant(self) -> str:
        """Whose runs it sees; empty: those of the tenant with the name of the key."""
        ...

    @property
    def operator(self) -> bool:
        """It sees the runs of all tenants."""
        ...


class Keys(Protocol):
    """Knows keys: the `KeyRing` of the gateway, or your own."""

    def find(self, secret: str) -> Key | None: ...


class OverLimit(Protocol):
    """Why a request has to wait."""

    @property
    def words(self) -> str: ...
    @property
    def retry_after(self) -> float:
        """Seconds."""
        ...


class KeyLimits(Protocol):
    """Counts the requests of keys: `with limits.admit(key) as over:` until the block ends, unless `over` is not None.
    The gateway's `KeyLimits` is one."""

    def admit(self, key: Any, /) -> AbstractContextManager[OverLimit | None]: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    name: str
    tenant: str
    sees_all: bool
    key: Key | None = None

    def sees(self, row: RunRow) -> bool:
        return self.sees_all or row.tenant == self.tenant

    def tenant_for(self, wanted: str | None) -> str:
        """The tenant of a new run."""
        if wanted is None:
            return self.tenant
        if not self.sees_all and wanted != self.tenant:
            raise Refused(403, f"this key belongs to the tenant `{self.tenant}`, and to no other")
        return wanted


class Guard:
    """Admits requests. Without keys, only those of this machine, unless `open_to_all`."""

    def __init__(self, keys: Keys | None, open_to_all: bool, limits: KeyLimits | None = None) -> None:
        self._keys = keys
        self._open_to_all = open_to_all
        self._limits = limits
        self._failing = False
        """The keys cannot be read, and the log has it."""

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def admit(self, scope: Scope, headers: Mapping[str, str]) -> Caller:
        self.refuse_strangers(scope, headers)
        if self._keys is None:
            return Caller("", "", sees_all=True)
        secret = _sent_key(headers)
        challenge = {"www-authenticate": "Bearer"}
        if not secret:
            raise Refused(401, "a key is needed: send it as `Authorization: Bearer …`", challenge)
        key = self._look_up(self._keys, secret)
        if key is None:
            raise Refused(401, "the key that was sent is not known here: `unbroken keys create` makes one", challenge)
        return Caller(key.name, key.tenant or key.name, key.operator, key)

    def _look_up(self, keys: Keys, secret: str) -> Key | None:
        """If the keys cannot be read, nobody is admitted. No traceback is logged: an error of an unknown kind may hold
        the secret."""
        try:
            key = keys.find(secret)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - `keys` may be the user's own
            known = isinstance(error, UnbrokenError)
            if not self._failing:
                LOG.error("no key can be checked: %s", error if known else type(error).__name__)
            self._failing = True
            wait = max(1, ceil(getattr(error, "retry_after", 1.0))) if known else 1
            words = "keys cannot be checked now, because they cannot be read; nothing is lost, try again"
            raise Refused(503, words, {"retry-after": str(wait)}) from None
        self._failing = False
        return key

    @contextmanager
    def counting(self, caller: Caller) -> Generator[None]:
        """The request counts against the limits of its key as long as this block lasts; 429 beyond them."""
        if self._limits is None or caller.key is None:
            yield
            return
        with self._limits.admit(caller.key) as over:
            if over is not None:
                raise Refused(429, over.words, {"retry-after": str(max(1, ceil(over.retry_after)))})
            yield

    def refuse_strangers(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if self._keys is not None or self._open_to_all:
            return
        if not _is_local(scope, headers):
            raise Refused(403, "without keys this server answers requests from its own machine only: turn keys on")
        if is_foreign(headers, "localhost"):
            raise Refused(403, "without keys this server refuses requests from other web pages: turn keys on")

    def sign_in(self, scope: Scope, headers: Mapping[str, str]) -> dict[str, str]:
        """A browser's EventSource sends no header of its own, but cookies: this puts the key into one that no script
        can read."""
        self.admit(scope, {name: value for name, value in headers.items() if name != "cookie"})
        return _cookie(scope, headers, quote(_sent_key(headers))) if self.has_keys else {}

    def sign_out(self, scope: Scope, headers: Mapping[str, str]) -> dict[str, str]:
        return _cookie(scope, headers, "; Max-Age=0")


class Standing:
    """Whether a watcher may still see a run: keys are revoked, and their tenants change. Looked up at most
    once in `RECHECK` seconds."""

    def __init__(self, guard: Guard, scope: Scope, headers: Mapping[str, str], row: RunRow) -> None:
        self._guard, self._scope, self._headers, self._row = guard, scope, headers, row
        self._checked = current_clock().elapsed()

    def is_good(self) -> bool:
        now = current_clock().elapsed()
        if now - self._checked < RECHECK:
            return True
        self._checked = now
        try:
            return self._guard.admit(self._scope, self._headers).sees(self._row)
        except Refused:
            return False


def _sent_key(headers: Mapping[str, str]) -> str:
    """From the header, or from the cookie that `/session` has set if a page of this server sends it. Never from the
    address: proxies and browsers write addresses into logs and histories."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and given.strip():
        return given.strip()
    if given := headers.get("x-api-key", "").strip():
        return given
    if not _is_own_page(headers):
        return ""
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return unquote(value)
    return ""


def _cookie(scope: Scope, headers: Mapping[str, str], value: str) -> dict[str, str]:
    secure = "; Secure" if "https" in (scope.get("scheme"), headers.get("x-forwarded-proto")) else ""
    path = f"{quote(mount_of(scope))}/runs"
    return {"set-cookie": f"{COOKIE}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}"}


def _is_own_page(headers: Mapping[str, str]) -> bool:
    """`SameSite` alone would let in pages of other ports of the same machine, and of sister domains."""
    if site := headers.get("sec-fetch-site"):
        return site in ("same-origin", "none")
    origin = headers.get("origin", "")
    return not origin or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _is_local(scope: Scope, headers: Mapping[str, str]) -> bool:
    if "x-forwarded-for" in headers or "forwarded" in headers:
        return False  # a proxy on this machine speaks for others
    client = scope.get("client")
    if not client or not client[0]:
        return True  # a socket in the file system
    try:
        return ip_address(client[0]).is_loopback
    except ValueError:
        return False
