"""Secrets taken out of bytes as they pass, also where a read cut one in two. What is no secret passes unchanged.

Pure. For words that people read, `secrets.mask` is the one: it also guesses what looks like a key. Here nothing is
guessed, because what is logged must be what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from unbroken.models.secrets import MASK, Folded, Span, collect, spellings, united, without_line_breaks

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
_SIGN = 6
"""Where no secret's beginning of so many bytes stands, none does: they are few, because most spellings begin alike."""
_SHORTEST_NUMBER = 8
"""Digits: what is shorter stands in half of all numbers."""


class Masker:
    """What of some bytes may be shown. Bytes of one stream go through one `Passage`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = collect(secret for secret in secrets if is_secret(secret))
        spelled = {spelling.encode("utf-8", "replace") for secret in found for spelling in spellings(secret)}
        self.secrets = tuple(sorted(spelled, key=lambda secret: (-len(secret), secret)))
        self._signs = tuple({secret[:_SIGN] for secret in self.secrets})
        self._folded = Folded(found)
        self._any = re.compile(b"|".join(map(re.escape, self.secrets)) or b"(?!)")
        self._by_begin: dict[bytes, list[bytes]] = {}
        for secret in self.secrets:
            self._by_begin.setdefault(secret[:_BEGIN], []).append(secret)
        self._shorter = {begin[:length] for begin in self._by_begin for length in range(1, _BEGIN)}
        self._shortest = min(map(len, self.secrets), default=0)
        self._longest = max(map(len, self.secrets), default=0)

    def mask(self, data: bytes) -> bytes:
        return _without(data, self._spans(data))

    def mask_text(self, text: str) -> str:
        return self.mask(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be shown of it already, and the rest: a secret may begin there whose end has not come."""
        spans, cut = self.find(data)
        return _without(data[:cut], spans), data[cut:]

    def find(self, data: bytes) -> tuple[list[Span], int]:
        """Where secrets stand in it, and where one may begin whose end has not come: its length, if none does."""
        spans: list[Span] = []
        at, found = 0, self._found_in(data)
        folded = self._folded.spans_in_bytes(data)
        while True:
            whole, cut = self._any.search(data, at) if found else None, self._cut(data, at)
            # Where both begin at one place, a longer secret may still come of it.
            if whole is None or whole.start() >= cut:
                break
            spans.append(whole.span())
            at = whole.end()
        if not folded:
            return spans, cut
        spans = united([*spans, *(span for span in folded if span[0] < cut)])
        at = spans[-1][1] if spans else 0
        return spans, cut if at <= cut else self._cut(data, at)  # what is hidden is no beginning of another

    def find_rest(self, data: bytes) -> list[Span]:
        """The same at the end of a stream: what is left of a secret there still says much of it."""
        spans = self._spans(data)
        cut = self._cut(data, spans[-1][1] if spans else 0)
        return [*spans, (cut, len(data))] if len(data) - cut >= _SHORTEST_CUT else spans

    def gives_away(self, begin: bytes) -> bool:
        """It is so much of the beginning of a secret that it should not be shown."""
        begin = without_line_breaks(begin)
        return bool(begin) and any(
            len(begin) >= min(_SHORTEST_CUT, len(secret) // 2) and secret[: len(begin)] == begin[: len(secret)]
            for secret in self.secrets
        )

    def mask_rest(self, data: bytes) -> bytes:
        return _without(data, self.find_rest(data))

    def _spans(self, data: bytes) -> list[Span]:
        spans = [whole.span() for whole in self._any.finditer(data)] if self._found_in(data) else []
        folded = self._folded.spans_in_bytes(data)
        return united([*spans, *folded]) if folded else spans

    def _found_in(self, data: bytes) -> bool:
        """Many searches for one text each are much quicker than one for any of them."""
        if len(data) < self._shortest or not any(sign in data for sign in self._signs):
            return False
        return any(secret in data for secret in self.secrets)

    def _cut(self, data: bytes, at: int) -> int:
        """Where the first secret begins that the end of the data cuts; the end, if none does."""
        return min(self._cut_in_one_piece(data, at), self._folded.cut_in_bytes(data, at))

    def _cut_in_one_piece(self, data: bytes, at: int) -> int:
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


def _without(data: bytes, spans: list[Span]) -> bytes:
    if not spans:
        return data
    shown, at = bytearray(), 0
    for begin, end in spans:
        shown += data[at:begin] + _MASK
        at = end
    return bytes(shown + data[at:])


def is_secret(text: str) -> bool:
    return text.lower() not in _WORDS and not (text.isdigit() and len(text) < _SHORTEST_NUMBER)
