"""Web pages of others: without keys, a browser on this machine must not be a way in for them. Pure.

A page can post to any address on the loopback, and with a name of its own that leads there (DNS rebinding) it can read
the answer too. Clients that are no browsers send no `Origin`, and ask for `localhost` or an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit


def is_foreign(headers: Mapping[str, str], host: str) -> bool:
    """Does this request come from somebody else's web page? `headers` by their names in lower case; `host` is the name
    that the gateway listens on."""
    return _is_foreign(
        headers.get("host", ""), headers.get("origin", ""), headers.get("sec-fetch-site", ""), host.lower()
    )


@lru_cache(maxsize=256)
def _is_foreign(host: str, origin: str, site: str, own_name: str) -> bool:
    asked = _name(f"//{host}")
    # A name without a dot is one of this network: nobody outside can make it lead here.
    own = "." not in asked or asked == own_name or asked.endswith(".localhost") or _is_address(asked)
    if not own:
        return True
    if site == "cross-site":
        return True
    return bool(origin) and _name(origin) != asked


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return "no.name"


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
