"""Which requests the gateway forwards to a provider unread: rules of one method and one path each.

`POST /v1/embeddings` is a rule; in `GET /v1/files/*`, `*` stands for one segment. A request that matches no rule is
refused. Pure: nothing is sent here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from unbroken.errors import UserError

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_SEGMENT = re.compile(rb"[A-Za-z0-9_.~:@=+,-]+")
"""Of a path, once its percent escapes are read. No slash, backslash, semicolon, percent sign or control character: a
server could read those as another path than the one that was checked."""
_RULE = re.compile(r"(?P<method>[A-Z]+) (?P<path>/v1(?:/(?:\*|[A-Za-z0-9_.~:@=+,-]+))+)")


@dataclass(frozen=True, slots=True)
class PassRule:
    """One method and one path."""

    method: str
    segments: tuple[str, ...]
    """Of the path; `*` stands for any one of them."""

    def __str__(self) -> str:
        return f"{self.method} /{'/'.join(self.segments)}"

    def matches(self, method: str, segments: tuple[str, ...]) -> bool:
        return (
            method == self.method
            and len(segments) == len(self.segments)
            and all(rule in ("*", segment) for rule, segment in zip(self.segments, segments, strict=True))
        )

    def ids(self, segments: tuple[str, ...]) -> tuple[str, ...]:
        """What stands in the places of the `*`."""
        return tuple(segment for rule, segment in zip(self.segments, segments, strict=True) if rule == "*")


def read_rule(text: str) -> PassRule:
    """`METHOD /v1/path`, as configuration and `--pass` have it."""
    found = _RULE.fullmatch(text)
    if found is None or found["method"] not in METHODS or {".", ".."} & {*found["path"].split("/")}:
        raise UserError(
            f"`{text[:200]}` does not name a request to pass through: write a method ({', '.join(METHODS)}) and a path "
            "below /v1, like `GET /v1/files/*`; `*` stands for one segment"
        )
    return PassRule(found["method"], tuple(found["path"][1:].split("/")))


MODEL_PATHS = (
    "POST /v1/embeddings",
    "POST /v1/moderations",
    "POST /v1/completions",
    "POST /v1/rerank",
    "POST /v1/images/generations",
    "POST /v1/images/edits",
    "POST /v1/images/variations",
    "POST /v1/audio/speech",
    "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations",
)
"""Requests that name the model that answers them and leave nothing behind at the provider: the default list. On these
paths the body has to name an alias, whatever the key."""

_MODEL_RULES = frozenset(map(read_rule, MODEL_PATHS))


def names_a_model(rule: PassRule) -> bool:
    return rule in _MODEL_RULES


def read_path(raw: bytes) -> tuple[str, ...] | None:
    """The segments of a path as it was sent, without its query; None if servers could disagree on what it means: an
    empty segment, `.` or `..`, an escaped slash, a parameter behind a semicolon."""
    parts = raw.split(b"/")[1:]
    segments = tuple(map(unquote_to_bytes, parts))
    if not raw.startswith(b"/") or any(not _SEGMENT.fullmatch(one) or one in (b".", b"..") for one in segments):
        return None
    return tuple(segment.decode("ascii") for segment in segments)


def find_rule(rules: Iterable[PassRule], method: str, segments: tuple[str, ...]) -> PassRule | None:
    return next((rule for rule in rules if rule.matches(method, segments)), None)
