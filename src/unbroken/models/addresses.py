"""Where a request goes: base URL and path put together, what of it may be shown, and the environment's proxy.

Pure but for the environment, which is read when a model is connected and not again.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from unbroken.errors import UserError


def read_base(text: str, provider: str) -> URL:
    """A base URL as people write it: `127.0.0.1:11434`, `https://host/v1/`, or the whole address of one endpoint."""
    if "://" not in text:
        text = f"http://{text}"
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(
            f"base_url of provider `{provider}` is not a web address: {_safe(text)}; begin it with https://"
        )
    if url.host == "0.0.0.0":  # where a server listens (OLLAMA_HOST), not where it is reached
        url = url.with_host("127.0.0.1")
    return url


def join(base: URL, path: str) -> URL:
    """The path after the base URL; what stands at the end of one and the start of the other stands there once, so that
    a base with or without `/v1`, and the whole address of an endpoint, all lead to the same place. A user in the base
    is not part of it: see `basic`."""
    have = [part for part in base.raw_path.split("/") if part]
    want = [part for part in path.split("/") if part]
    shared = next((n for n in range(min(len(have), len(want)), 0, -1) if have[-n:] == want[:n]), 0)
    return URL.build(
        scheme=base.scheme,
        host=base.host or "",
        port=base.explicit_port,
        path="/" + "/".join([*have, *want[shared:]]),
        query_string=base.raw_query_string,
        encoded=True,
    )


def shown(url: URL) -> str:
    """The address for people: without query, user and password, where keys may stand."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


def basic(url: URL) -> str:
    """The header that says the user and password of an address; empty if it has none."""
    if not url.raw_user:
        return ""
    return "Basic " + b64encode(f"{url.user}:{url.password or ''}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Proxy:
    url: URL
    authorization: str = ""
    """What `Proxy-Authorization` says, if the address had a user."""

    def __repr__(self) -> str:
        return f"Proxy({shown(self.url)!r})"


def find_proxy(url: URL) -> Proxy | None:
    """The proxy for this address as HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY say. An address of this machine is
    never asked for through a proxy: models run there, and no proxy could reach them."""
    proxies = getproxies()
    text = proxies.get(url.scheme) or proxies.get("all")
    host = url.host or ""
    if not text or _is_loopback(host) or proxy_bypass(host):
        return None
    proxy = URL(text if "://" in text else f"http://{text}")
    if proxy.scheme not in ("http", "https"):
        raise UserError(
            f"the proxy {shown(proxy)} from the environment cannot be used, only http and https proxies can: "
            f"set HTTPS_PROXY to one, or NO_PROXY={host}"
        )
    return Proxy(proxy.with_user(None), basic(proxy))


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _safe(text: str) -> str:
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.rsplit('@', 1)[-1].split('?', 1)[0]}"[:100]
