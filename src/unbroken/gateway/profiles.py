"""Who a client is, by its key, a header or its User-Agent, and whether it takes one call at a time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unbroken.gateway.settings import ClientProfile


def find_profile(profiles: Iterable[ClientProfile], key: str, headers: Mapping[str, str]) -> ClientProfile | None:
    """The first that fits. `headers` by their names in lower case."""
    return next((profile for profile in profiles if _fits(profile, key, headers)), None)


def _fits(profile: ClientProfile, key: str, headers: Mapping[str, str]) -> bool:
    if not (profile.key or profile.header or profile.user_agent):
        return False
    if profile.key and profile.key != key:
        return False
    if profile.user_agent and profile.user_agent.lower() not in headers.get("user-agent", "").lower():
        return False
    if not profile.header:
        return True
    name, _, value = (part.strip() for part in profile.header.partition(":"))
    found = headers.get(name.lower())
    return found is not None and (not value or found.strip().lower() == value.lower())
