"""Secrets taken out of bytes as they pass, also where a read cut one in two. What is no secret passes unchanged.

Pure. For words that people read, `secrets.mask` is the one: it also guesses what looks like a key. Here nothing is
guessed, because what is logged must be what was sent.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from unbroken.models.secrets import MASK, collect

_MASK = MASK.encode()
_WORDS = (
    "true false null none auto empty user model system developer assistant tool tool_calls tool_use tool_result "
    "function_call function parameters arguments messages message content contents parts text role type name index "
    "choices choice delta data event stop usage stream chat.completion.chunk response output input completed required "
    "properties object string number integer boolean array finish_reason reasoning_content candidates"
)
"""A wire is made of these: a placeholder like `none` that a server without keys is given is no secret, and a body
without them would be no body."""
_SHORTEST_CUT = 6
"""Bytes of a secret that say something of it, where a stream ends in the middle of one."""
_BEGIN = 3
"""Bytes by which a secret's beginning is looked for; every secret is longer."""
_SHORTEST_ENCODED = 8
"""Bytes of a secret whose hexadecimal and base64 forms are masked: those of a shorter one stand in other texts."""
_PERCENT = re.compile("%[0-9A-F]{2}")
_SHORTEST_NUMBER = 8
"""Digits: what is shorter stands in half of all numbers."""


class Masker:
    """What of some bytes may be shown. Bytes of one stream go through one `Passage`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = collect(secret for secret in secrets if is_secret(secret))
        spelled = {spelling.encode("utf-8", "replace") for secret in found for spelling in spellings(secret)}
        self.secrets = tuple(sorted(spelled, key=lambda secret: (-len(secret), secret)))
        self._any = re.compile(b"|".join(map(re.escape, self.secrets)) or b"(?!)")
        self._by_begin: dict[bytes, list[bytes]] = {}
        for secret in self.secrets:
            self._by_begin.setdefault(secret[:_BEGIN], []).append(secret)
        self._shorter = {begin[:length] for begin in self._by_begin for length in range(1, _BEGIN)}
        self._shortest = min(map(len, self.secrets), default=0)
        self._longest = max(map(len, self.secrets), default=0)

    def mask(self, data: bytes) -> bytes:
        return self._any.sub(_MASK, data) if self._found_in(data) else data

    def mask_text(self, text: str) -> str:
        return self.mask(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be shown of it already, and the rest: a secret may begin there whose end has not come."""
        shown, at = bytearray(), 0
        spans, cut = self.find(data)
        for begin, end in spans:
            shown += data[at:begin] + _MASK
            at = end
        return bytes(shown + data[at:cut]), data[cut:]

    def find(self, data: bytes) -> tuple[list[tuple[int, int]], int]:
        """Where secrets stand in it, and where one may begin whose end has not come: its length, if none does."""
        spans: list[tuple[int, int]] = []
        at, found = 0, self._found_in(data)
        while True:
            whole, cut = self._any.search(data, at) if found else None, self._cut(data, at)
            # Where both begin at one place, a longer secret may still come of it.
            if whole is None or whole.start() >= cut:
                return spans, cut
            spans.append(whole.span())
            at = whole.end()

    def find_rest(self, data: bytes) -> list[tuple[int, int]]:
        """The same at the end of a stream: what is left of a secret there still says much of it."""
        spans = [whole.span() for whole in self._any.finditer(data)]
        cut = self._cut(data, spans[-1][1] if spans else 0)
        return [*spans, (cut, len(data))] if len(data) - cut >= _SHORTEST_CUT else spans

    def gives_away(self, begin: bytes) -> bool:
        """It is so much of the beginning of a secret that it should not be shown."""
        return bool(begin) and any(
            len(begin) >= min(_SHORTEST_CUT, len(secret) // 2) and secret[: len(begin)] == begin[: len(secret)]
            for secret in self.secrets
        )

    def mask_rest(self, data: bytes) -> bytes:
        masked, at = bytearray(), 0
        for begin, end in self.find_rest(data):
            masked += data[at:begin] + _MASK
            at = end
        return bytes(masked + data[at:])

    def _found_in(self, data: bytes) -> bool:
        """Many searches for one text each are much quicker than one for any of them."""
        return len(data) >= self._shortest and any(secret in data for secret in self.secrets)

    def _cut(self, data: bytes, at: int) -> int:
        """Where the first secret begins that the end of the data cuts; the end, if none does."""
        size = len(data)
        cut, at = size, max(at, size - self._longest + 1)
        for begin, secrets in self._by_begin.items():
            place = data.find(begin, at)
            while 0 <= place < cut:
                tail = data[place:]
                if any(len(tail) < len(secret) and secret.startswith(tail) for secret in secrets):
                    cut = place
                place = data.find(begin, place + 1)
        if cut == size:
            places = range(max(at, size - _BEGIN + 1), size)
            return next((place for place in places if data[place:] in self._shorter), size)
        return cut


class Passage:
    """One stream on its way through a masker: `feed` gives what may be shown, `flush` the rest."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        shown, self._held = self._masker.split(self._held + chunk)
        return shown

    def flush(self) -> bytes:
        rest, self._held = self._held, b""
        return self._masker.mask_rest(rest)


def is_secret(text: str) -> bool:
    return text.lower() not in _WORDS and not (text.isdigit() and len(text) < _SHORTEST_NUMBER)


def spellings(secret: str) -> set[str]:
    """As it is, as JSON has it inside of a string, as addresses and forms have it, in hexadecimal and in base64."""
    percent = {quote(secret, safe=safe, errors="replace") for safe in ("", "/", "!'()*", "!'()*/")}
    percent.add(quote_plus(secret, errors="replace"))
    encoded = {*percent, *(_lower_percent(each) for each in percent)}
    data = secret.encode("utf-8", "replace")
    if len(data) >= _SHORTEST_ENCODED:
        encoded |= {data.hex(), data.hex().upper(), *_in_base64(data)}
    every = {secret, *encoded}
    escaped = {json.dumps(each, ensure_ascii=ascii)[1:-1] for each in every for ascii in (True, False)}
    return {*every, *escaped, *(each.replace("/", "\\/") for each in escaped)}


def _lower_percent(text: str) -> str:
    return _PERCENT.sub(lambda found: found[0].lower(), text)


def _in_base64(data: bytes) -> set[str]:
    """Wherever the secret begins in what was encoded (`user:KEY`): of its first and last characters those are left out
    that depend on what stands beside it."""
    found: set[str] = set()
    for before in range(3):
        begin, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            found.add(encode(bytes(before) + data)[begin:end].decode())
    return found
