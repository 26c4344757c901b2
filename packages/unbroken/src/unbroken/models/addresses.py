"""The address of a request: base URL and path joined, the part of it that may be shown, and the environment's proxy.

Pure except for the environment, which is read once, when a model is connected.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from inspect import isawaitable
from ipaddress import ip_address
from math import inf
from typing import TypeAlias

from yarl import URL

from unbroken.errors import MissingKey, Unauthorized, UserError
from unbroken.models.aws import AwsSigner
from unbroken.models.quirks import Quirks
from unbroken_wires.validation import checked


def read_base(text: object, provider: str, port: int = 0) -> URL:
    """A base URL as people write it: `127.0.0.1:11434`, `https://host/v1/`, `:8000`, or the full URL of one endpoint.
    `port` is the default for an address without scheme and port."""
    url = _parsed(text.strip()) if isinstance(text, str) else None
    if not isinstance(text, str) or url is None or (not port and _is_a_word(text.strip())):
        raise UserError(
            f"base_url of provider `{provider}` is not a web address: {_safe(str(text))}; write it like https://host/v1"
        )
    if port and "://" not in text and url.explicit_port is None:
        url = url.with_port(port)
    # The address that a server listens on (OLLAMA_HOST) may not be one to connect to.
    return url.with_host(_REACHED[url.host]) if url.host in _REACHED else url


_REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def _is_a_word(text: str) -> bool:
    """A name without a dot, a port or a path: hardly a server, except for localhost."""
    return text.lower() != "localhost" and not any(sign in text for sign in "./:")


def _parsed(text: str) -> URL | None:
    """None if it is not a web address."""
    if "://" not in text:
        if text.startswith(":") and text[1:].partition("/")[0].isdecimal():
            text = f"127.0.0.1{text}"
        text = f"http://{f'[{text}]' if ip_version(text) == 6 else text}"
    if any(not character.isprintable() or character.isspace() for character in text):
        return None
    try:
        url = URL(text)
    except ValueError:
        return None
    return url if url.scheme in ("http", "https") and url.host else None


def join(base: URL, path: str) -> URL:
    """Joins base URL and path. Segments that end one and start the other are used once, so a base with or without
    `/v1`, and the full URL of an endpoint, all lead to the same place. A user in the base is left out: see `basic`."""
    have = [part for part in base.raw_path.split("/") if part]
    want = [part for part in path.split("/") if part]
    shared = next((n for n in range(min(len(have), len(want)), 0, -1) if have[-n:] == want[:n]), 0)
    return URL.build(
        scheme=base.scheme,
        authority=base.host_port_subcomponent or "",
        path="/" + "/".join([*have, *want[shared:]]),
        query_string=base.raw_query_string,
        encoded=True,
    )


def shown(url: URL) -> str:
    """The address without query, user and password, which may contain keys."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


def basic(url: URL) -> str:
    """The `Authorization` header for the user and password of an address; empty if it has none."""
    if not url.raw_user:
        return ""
    return "Basic " + b64encode(f"{url.user}:{url.password or ''}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Proxy:
    url: URL
    authorization: str = ""
    """The `Proxy-Authorization` header, if the address had a user."""
    secrets: tuple[str, ...] = ()
    """Its secrets, which must not be shown."""

    def __repr__(self) -> str:
        return f"Proxy({shown(self.url)!r})"


def find_proxy(url: URL) -> Proxy | None:
    """The proxy for this address, from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. Loopback addresses never use a
    proxy: models run there, and no proxy could reach them."""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - start-up time

    proxies = getproxies()
    text = proxies.get(url.scheme) or proxies.get("all")
    host = url.host or ""
    if not text or _is_loopback(host) or proxy_bypass(host):
        return None
    proxy = _parsed(text)
    if proxy is None:
        raise UserError(
            f"the proxy {_safe(text)} from the environment cannot be used, only http and https proxies can: "
            f"set {url.scheme.upper()}_PROXY to one, or NO_PROXY={host}"
        )
    authorization = basic(proxy)
    found = (proxy.user or "", proxy.password or "", authorization.removeprefix("Basic "))
    return Proxy(proxy.with_user(None), authorization, found if authorization else ())


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def ip_version(host: str) -> int:
    """4 or 6; 0 if it is not an IP address."""
    try:
        return ip_address(host).version
    except ValueError:
        return 0


def _safe(text: str) -> str:
    scheme, colon, rest = text.partition("://") if "://" in text else ("", "", text)
    rest = " ".join(rest.rsplit("@", 1)[-1].split("?", 1)[0].split())
    return f"{scheme}{colon}{rest}"[:100] or "an empty text"


# Endpoint, key and time-outs of a provider, as `connect` has read them and before anything is sent.


Key: TypeAlias = str | Callable[[], str | Awaitable[str]] | None
"""A key, a function that returns one for each request, or none."""


@checked
@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `connect`: until the connection is open; `first_byte`: from there to the first byte of the answer;
    `idle`: between two reads; `total`: for all of it. `None` waits for ever. Time that the consumer takes counts only
    for `total`. Keep-alive bytes end a wait, but only for `alive` times as long as `idle`."""

    connect: float | None = 10
    first_byte: float | None = 120
    idle: float | None = 60
    total: float | None = None
    alive: float = 10

    @property
    def soonest(self) -> float:
        """The shortest of the time-outs."""
        return min((limit for limit in (self.connect, self.first_byte, self.idle) if limit is not None), default=inf)

    def __post_init__(self) -> None:
        for limit in fields(self):
            seconds: float | None = getattr(self, limit.name)
            if seconds is None or seconds > 0:
                continue
            name = "connect_timeout" if limit.name == "connect" else limit.name
            raise UserError(f"{name}={seconds!r} is not a time-out: give seconds above 0, or None to wait for ever")


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
    vendor: str = ""
    """The name of the provider's profile, whose rules its models follow."""
    secrets: tuple[str, ...] = ()
    """Secrets in addresses and headers, which must not be shown."""
    signer: AwsSigner | None = None
    """Signs each request, in place of a key."""

    def __repr__(self) -> str:
        return f"Endpoint('{self.provider}:{self.model}', {self.wire!r}, {shown(self.stream_url)!r})"


def check_key(key: object, provider: str) -> str:
    """The key without the line end that files and shells add; never quoted in an error."""
    if not isinstance(key, str):
        raise UserError(
            f"the key of provider `{provider}` is of the type {type(key).__name__}: "
            f"api_key is a text, or a function that returns one"
        )
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise Unauthorized(f"the key of provider `{provider}` holds characters that no key has: copy it again")
    return key


_REMEMBERED_KEYS = 4


class KeySource:
    """The key of a model: a fixed one, or one that a function gives for each request."""

    def __init__(self, key: Key, provider: str) -> None:
        self._provider = provider
        self._give = key if callable(key) else None
        self.fixed = None if callable(key) else check_key(key or "", provider)
        """None if a function gives it."""
        self.known = (self.fixed,) if self.fixed else ()
        """The last keys: an answer may quote one that has been replaced since."""

    @property
    def account(self) -> str:
        """Tells keys apart without saying anything about them; empty if a function gives the key, or there is none."""
        return blake2b(self.fixed.encode(), digest_size=3).hexdigest() if self.fixed else ""

    async def ask(self) -> str:
        """The key that the function gives now."""
        assert self._give is not None
        try:
            key = self._give()
            if isawaitable(key):
                key = await key
        except MissingKey:
            raise  # has the name and the reason
        except Exception as error:  # the user's function may raise anything
            raise Unauthorized(
                f"there is no key for provider `{self._provider}`: the api_key function raised {type(error).__name__}"
            ) from error
        key = check_key(key or "", self._provider)
        if key and key not in self.known:
            self.known = (key, *self.known)[:_REMEMBERED_KEYS]
        return key
