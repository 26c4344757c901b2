"""A client's request after its key is checked and its body is read, and what follows from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from unbroken.gateway.http.routes import Route
from unbroken.gateway.settings import ClientProfile
from unbroken.gateway.upstreams.upstream import Upstream
from unbroken.messages import Json
from unbroken.wires import find_wire
from unbroken.wires.parts import MEDIA_OF
from unbroken.wires.values import Object, as_dict, as_text, dicts

IDEMPOTENCY = ("idempotency-key", "x-idempotency-key")
RETRIES = "x-stainless-retry-count"
"""Sent with every request by the SDKs of OpenAI and Anthropic; "0" with the first attempt."""

_RETRY = re.compile("[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a request reveals about being one of several attempts."""

    client: str = ""
    """The client's address, if known."""
    key: str = ""
    """Its idempotency key."""
    retry: bool = False
    """Its SDK marks it as a retry."""
    counted: bool = False
    """Its SDK counts attempts, so a retry will be marked as one."""

    @property
    def first(self) -> bool:
        """Its SDK marks it as the first attempt."""
        return self.counted and not self.retry

    @property
    def name(self) -> str:
        """The same for all attempts of one client at the same request."""
        return f"key {self.key}" if self.key else f"client {self.client}"


def read_attempt(headers: Mapping[str, str], peer: str) -> Attempt:
    key = next((headers[name] for name in IDEMPOTENCY if headers.get(name)), "")
    client = "\n".join((headers.get("x-forwarded-for", peer), headers.get("user-agent", "")))
    count = headers.get(RETRIES, "").strip()
    retry = _RETRY.fullmatch(count) is not None
    return Attempt(client, key, retry, retry or count == "0")


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request that was read and admitted, for a model that exists."""

    route: Route
    body: Object
    data: bytes
    """The same as bytes."""
    upstream: Upstream
    scope: str = ""
    """The caller: one key never finds answers that were given to another."""
    key: str = ""
    """The name of its gateway key."""
    serial: bool = False
    """The client's profile or the alias requires one call at a time."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers that are forwarded to the provider."""
    attempt: Attempt = field(default_factory=Attempt)
    """Whether it is a retry."""

    @property
    def wire(self) -> str:
        return self.route.wire


def ends_in_result(incoming: ClientRequest) -> bool:
    """Does the client's last message bring a result? Text beside a result is not a new question. Neither are a result's
    images, which two wires can only carry in a separate message."""
    raw = incoming.body.get(incoming.route.http.messages_field)
    history = find_wire(incoming.wire).history
    for message in reversed(cast("list[Json]", raw) if isinstance(raw, list) else []):
        if as_dict(message).get("role") in ("system", "developer") or _brings_images(as_dict(message)):
            continue
        return any(piece.kind == "result" for piece in history.pieces(message))
    return False


_MEDIA = frozenset({"image_url", "input_image", "file", "input_file", "input_audio"})


def _brings_images(message: Object) -> bool:
    """A user message with nothing but media and the text by which our encoder links them to a result."""
    parts = dicts(message.get("content"))
    media = [part for part in parts if as_text(part.get("type")) in _MEDIA]
    texts = [as_text(part.get("text")) for part in parts if part.get("type") in ("text", "input_text")]
    if message.get("role") != "user" or not media or len(media) + len(texts) < len(parts):
        return False
    return all(not text.strip() or text.startswith(MEDIA_OF) for text in texts)


def find_profile(profiles: Iterable[ClientProfile], key: str, headers: Mapping[str, str]) -> ClientProfile | None:
    """The first profile that matches. `headers` have lower-case names."""
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
