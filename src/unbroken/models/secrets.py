"""Keys, passwords and tokens, kept out of what is shown. Providers and libraries quote what they were sent: it is taken
out of their words again here.

Pure. What is secret is known when a model is connected, but for a key that a function gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import cast
from urllib.parse import quote, quote_plus

from yarl import URL

from unbroken.messages import Json
from unbroken.models.addresses import basic
from unbroken.models.spellings import Folded, spellings, united

MASK = "***"
_SHORTEST = 4
"""What is shorter is no secret (`query={"v": "2"}`), and would take half of every sentence with it."""
_SHORTEST_CUT = 6
"""Characters of a secret that show which one it is, where words were cut in the middle of it."""
_DEEPEST = 50

_KEYS = re.compile(
    r"\b(?:sk|gsk|xai|pk|rk|csk|fw|hf|tgp)[-_][A-Za-z0-9*_\-]{6,}"
    r"|\bAIza[A-Za-z0-9_\-*]{10,}"
    r"|(?<=Bearer )[^\s\"',]{4,}"
)


def in_headers(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        yield value
        if name.lower() in ("authorization", "proxy-authorization"):
            yield value.partition(" ")[2].strip()


def in_address(url: URL) -> Iterator[str]:
    """The values of its query, as they are and as they are spelled there, its user and its password."""
    yield from url.query.values()
    for pair in url.raw_query_string.split("&"):
        yield pair.partition("=")[2]
    yield from (url.user or "", url.password or "")
    yield basic(url).removeprefix("Basic ")


def collect(found: Iterable[str]) -> tuple[str, ...]:
    """The longest first, so that none is left in part; also as they are spelled in an address."""
    texts = list(found)
    spelled = {*texts, *(quote(text, safe="") for text in texts), *map(quote_plus, texts)}
    return tuple(sorted((text for text in spelled if len(text) >= _SHORTEST), key=lambda text: (-len(text), text)))


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, however they are encoded, and without anything that looks like a key."""
    literal, folded = _forms(tuple(secret for secret in secrets if len(secret) >= _SHORTEST))
    for begin, end in reversed(united(folded.spans(text))):
        text = text[:begin] + MASK + text[end:]
    for form in literal:
        text = _without_cut(text.replace(form, MASK), form)
    return _KEYS.sub(MASK, text)


@lru_cache(maxsize=64)
def _forms(secrets: tuple[str, ...]) -> tuple[tuple[str, ...], Folded]:
    """Those that stand in one piece, the longest first, so that none is left in part; and those with line breaks."""
    spelled = {form for secret in secrets for form in (*spellings(secret), _quoted(secret))}
    return tuple(sorted(spelled, key=lambda form: (-len(form), form))), Folded(secrets)


def _quoted(secret: str) -> str:
    """Libraries quote bytes as Python writes them."""
    return repr(secret.encode("utf-8", "replace"))[2:-1]


def mask_json(value: Json, secrets: tuple[str, ...], depth: int = 0) -> Json:
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, (list, dict)) and depth == _DEEPEST:
        return "…"
    if isinstance(value, list):
        return [mask_json(item, secrets, depth + 1) for item in cast("list[Json]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Json]", value)
        return {mask(name, secrets): mask_json(item, secrets, depth + 1) for name, item in fields.items()}
    return value


def _without_cut(text: str, secret: str) -> str:
    """Quoted words end at some length, perhaps in the middle of a secret."""
    if secret[:_SHORTEST_CUT] not in text[-len(secret) :]:
        return text
    for length in range(min(len(secret) - 1, len(text)), _SHORTEST_CUT - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + MASK
    return text
