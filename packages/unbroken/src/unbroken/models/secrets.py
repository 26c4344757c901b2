"""Masks keys, passwords and tokens in what is shown, because providers and libraries quote what they were sent.

Pure. The secrets are known when a model is connected, except for the keys of a key function.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from string import ascii_letters, digits
from typing import cast
from urllib.parse import quote, quote_plus

from yarl import URL

from unbroken.models.addresses import basic
from unbroken_wires.messages import Json

# The forms in which a secret may appear in a text: plain, escaped, percent-encoded, in hexadecimal, in base64. Pure.
# Base64 may have line breaks at any place (MIME, PEM): those forms are also searched in the text without its line
# breaks, but only if the text contains half of one.


Span = tuple[int, int]

_SHORTEST_ENCODED = 8
"""Minimum bytes of a secret whose hexadecimal and base64 forms are masked: shorter ones occur in other texts."""
_PERCENT = re.compile("%[0-9A-F]{2}")
_SAFE = ("", "/", "!'()*", "!'()*/", ";,/?:@&=+$-_.!~*'()#")
"""The characters that Python's `quote`, and `encodeURIComponent` and `encodeURI` of browsers, do not escape."""
_SHORTEST_LINE = 60
"""This many characters of a form have at most one line break, so one of their halves is unbroken."""
_BASE64 = ascii_letters + digits + "+/-_"
_LINE_BREAKS = re.compile(r"(?:(?:[\r\n]|\\+[rn])[ \t]*)+")
"""Line breaks, plain or escaped in JSON, with the indentation of the next line."""


def spellings(secret: str) -> set[str]:
    """Plain, as in a JSON string, as in addresses and forms, in hexadecimal and in base64."""
    data = secret.encode("utf-8", "replace")
    percent = {quote(secret, safe=safe, errors="replace") for safe in _SAFE}
    percent |= {quote_plus(secret, errors="replace"), "".join([f"%{byte:02X}" for byte in data])}
    encoded = {*percent, *(_lower_percent(each) for each in percent), *base64_forms(secret)}
    if len(data) >= _SHORTEST_ENCODED:
        encoded |= {data.hex(), data.hex().upper()}
    every = {secret, *encoded}
    escaped = {json.dumps(each, ensure_ascii=ascii)[1:-1] for each in every for ascii in (True, False)}
    return {*every, *escaped, *(each.replace("/", "\\/") for each in escaped)}


def base64_forms(secret: str) -> set[str]:
    """For each offset of the secret in the encoded text (`user:KEY`), without the first and last characters that depend
    on its neighbours."""
    data = secret.encode("utf-8", "replace")
    found: set[str] = set()
    if len(data) < _SHORTEST_ENCODED:
        return found
    for before in range(3):
        begin, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            found.add(encode(bytes(before) + data)[begin:end].decode())
    return found


class Folded:
    """The base64 forms of secrets, which may contain line breaks."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in base64_forms(secret)}
        self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        self._halves = tuple({half for form in forms for half in _halves(form)})
        self._halves_in_bytes = tuple(half.encode() for half in self._halves)
        self._begins = {form[0] for form in forms}
        self._longest = max(map(len, forms), default=0)

    def spans(self, text: str) -> list[Span]:
        """The spans of forms with line breaks."""
        return self._search(text) if any(half in text for half in self._halves) else []

    def spans_in_bytes(self, data: bytes) -> list[Span]:
        found = any(half in data for half in self._halves_in_bytes)
        return self._search(data.decode("latin-1")) if found else []

    def cut(self, text: str) -> int:
        """Where the end of the text may be the beginning of a form with line breaks; its length, if not."""
        size = len(text)
        window = text[max(0, size - 2 * self._longest) :]  # line breaks and indentation make a form longer
        if not any(sign in window for sign in "\n\r\\") or window.rstrip("\r\n \t")[-1:] not in _BASE64:
            return size
        joined = _Joined(window)
        if joined.broken:
            end = len(joined.text)
            begin = max(len(joined.text.rstrip(_BASE64)), end - self._longest + 1)
            for place in range(begin, end):
                if joined.text[place] in self._begins and self._begin_with(joined.text[place:]):
                    return size - len(window) + joined.place(place)
        return size

    def cut_in_bytes(self, data: bytes, at: int) -> int:
        at = max(at, len(data) - 2 * self._longest)
        return at + self.cut(data[at:].decode("latin-1"))

    def _search(self, text: str) -> list[Span]:
        joined = _Joined(text)
        if not joined.broken:
            return []
        found = [
            (joined.place(begin), joined.place(begin + len(form) - 1) + 1, len(form))
            for form in self._forms
            for begin in _places(form, joined.text)
        ]
        return [(begin, end) for begin, end, size in found if end - begin > size]

    def _begin_with(self, begin: str) -> bool:
        return any(len(begin) < len(form) and form.startswith(begin) for form in self._forms)


class _Joined:
    """A text without its line breaks, and the original positions of its characters."""

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._at: list[int] = []
        self._removed = [0]
        end = 0
        for found in _LINE_BREAKS.finditer(text):
            parts.append(text[end : found.start()])
            self._at.append(found.start() - self._removed[-1])
            self._removed.append(self._removed[-1] + found.end() - found.start())
            end = found.end()
        self.text = "".join([*parts, text[end:]])

    @property
    def broken(self) -> bool:
        return bool(self._at)

    def place(self, place: int) -> int:
        """The original position of this character."""
        return place + self._removed[bisect_right(self._at, place)]


def without_line_breaks(data: bytes) -> bytes:
    return _LINE_BREAKS.sub("", data.decode("latin-1")).encode("latin-1")


def united(spans: Iterable[Span]) -> list[Span]:
    """Sorted, with overlapping spans merged."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _places(form: str, text: str) -> Iterator[int]:
    place = text.find(form)
    while place >= 0:
        yield place
        place = text.find(form, place + len(form))


def _halves(form: str) -> tuple[str, str]:
    size = min(len(form), _SHORTEST_LINE)
    return form[: size // 2], form[size // 2 : size]


def _lower_percent(text: str) -> str:
    return _PERCENT.sub(lambda found: found[0].lower(), text)


MASK = "***"
_SHORTEST = 4
"""Minimum length of a secret: shorter values (`query={"v": "2"}`) occur in every text."""
_SHORTEST_CUT = 6
"""Minimum characters of a cut secret that are masked."""
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
    """The values of its query, decoded and as written, its user and its password."""
    yield from url.query.values()
    for pair in url.raw_query_string.split("&"):
        yield pair.partition("=")[2]
    yield from (url.user or "", url.password or "")
    yield basic(url).removeprefix("Basic ")


def collect(found: Iterable[str]) -> tuple[str, ...]:
    """The longest first, so that no part of one is left; also as they are spelled in an address."""
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
    """The unbroken forms, the longest first, so that no part of one is left; and those with line breaks."""
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
    """A quoted message may be cut in the middle of a secret."""
    if secret[:_SHORTEST_CUT] not in text[-len(secret) :]:
        return text
    for length in range(min(len(secret) - 1, len(text)), _SHORTEST_CUT - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + MASK
    return text
