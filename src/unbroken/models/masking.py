"""Secrets taken out of bytes as they pass, also where a read cut one in two. What is no secret passes unchanged.

Pure. For words that people read, `secrets.mask` is the one: it also guesses what looks like a key. Here nothing is
guessed, because what is logged must be what was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

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
_SHORTEST_NUMBER = 8
"""Digits: what is shorter stands in half of all numbers."""


class Masker:
    """What of some bytes may be shown. Bytes of one stream go through one `Passage`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = collect(secret for secret in secrets if is_secret(secret))
        spelled = {spelling.encode() for secret in found for spelling in _spellings(secret)}
        self.secrets = tuple(sorted(spelled, key=lambda secret: (-len(secret), secret)))
        self._any = re.compile(b"|".join(map(re.escape, self.secrets)) or b"(?!)")
        self._begins = re.compile(b"|".join({re.escape(secret[:1]) for secret in self.secrets}) or b"(?!)")
        self._longest = max(map(len, self.secrets), default=0)

    def mask(self, data: bytes) -> bytes:
        return self._any.sub(_MASK, data)

    def mask_text(self, text: str) -> str:
        return self.mask(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be shown of it already, and the rest: a secret may begin there whose end has not come."""
        shown, at = bytearray(), 0
        while True:
            whole, cut = self._any.search(data, at), self._cut(data, at)
            # Where both begin at one place, a longer secret may still come of it.
            if whole is None or whole.start() >= cut:
                return bytes(shown + data[at:cut]), data[cut:]
            shown += data[at : whole.start()] + _MASK
            at = whole.end()

    def mask_rest(self, data: bytes) -> bytes:
        """The rest of a stream that has ended: what is left of a secret there still says much of it."""
        masked, at = bytearray(), 0
        for whole in self._any.finditer(data):
            masked += data[at : whole.start()] + _MASK
            at = whole.end()
        cut = self._cut(data, at)
        enough = len(data) - cut >= _SHORTEST_CUT
        return bytes(masked + (data[at:cut] + _MASK if enough else data[at:]))

    def _cut(self, data: bytes, at: int) -> int:
        """Where the first secret begins that the end of the data cuts; the end, if none does."""
        for begin in self._begins.finditer(data, max(at, len(data) - self._longest + 1)):
            tail = data[begin.start() :]
            if any(len(tail) < len(secret) and secret.startswith(tail) for secret in self.secrets):
                return begin.start()
        return len(data)


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


def _spellings(secret: str) -> set[str]:
    """As it is, and as JSON has it inside of a string."""
    escaped = {json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    return {secret, *escaped, *(spelling.replace("/", "\\/") for spelling in escaped)}
