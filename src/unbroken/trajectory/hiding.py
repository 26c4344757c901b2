"""Secrets kept out of recordings, wherever they stand: in a text, in a line, in pieces over a stream.

What is secret is given. It is looked for in the bytes of what is written; only where one is found is a line taken apart
and its values masked, so that it stays a line. Words of the schema are no secrets.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, cast

from unbroken.messages import Json
from unbroken.models.masking import is_secret
from unbroken.models.secrets import MASK, collect
from unbroken.wires.jsontext import loads_faithful

_NAMES = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_SHORTEST = 8
_OWN_FIELDS = frozenset({"line", "event", "delta", "schema", "at", "turn", "seq", "time", "kind"})


def secrets_in_environment() -> tuple[str, ...]:
    """The values of variables that are named like secrets."""
    found = (value.strip() for name, value in os.environ.items() if _NAMES.search(name.upper()))
    return tuple(value for value in found if len(value) >= _SHORTEST)


class Hiding:
    """What may be shown of a text or a line. False if there is nothing to hide."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.given = frozenset(secrets)
        self.secrets = collect(secret for secret in map(str.strip, self.given) if is_secret(secret))
        spelled = sorted({each for secret in self.secrets for each in _spellings(secret)}, key=lambda each: -len(each))
        self._text = re.compile("|".join(map(re.escape, spelled)) or "(?!)")
        self._bytes = re.compile(b"|".join(re.escape(each.encode("utf-8", "replace")) for each in spelled) or b"(?!)")
        self._begins = re.compile("|".join({re.escape(secret[0]) for secret in self.secrets}) or "(?!)")
        self._longest = max(map(len, self.secrets), default=0)

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def covers(self, secrets: Iterable[str]) -> bool:
        return self.given.issuperset(secrets)

    def text(self, text: str) -> str:
        return self._text.sub(MASK, text)

    def lines(self, lines: list[bytes]) -> bytes:
        """All of them, each with its end."""
        data = b"\n".join(lines) + b"\n"
        if not self.secrets or self._bytes.search(data) is None:
            return data
        return b"\n".join(map(self._line, lines)) + b"\n"

    def _line(self, data: bytes) -> bytes:
        if self._bytes.search(data) is None:
            return data
        fields = cast("dict[str, Any]", loads_faithful(data))
        shown = {name: value if name in _OWN_FIELDS else self._value(value) for name, value in fields.items()}
        return json.dumps(shown, separators=(",", ":")).encode()

    def _value(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(each) for each in cast("list[Json]", value)]
        if isinstance(value, dict):
            return {self.text(name): self._value(each) for name, each in cast("dict[str, Json]", value).items()}
        if isinstance(value, int | float) and not isinstance(value, bool) and self._text.search(str(value)):
            return MASK
        return value

    def cut(self, text: str) -> int:
        """Where the end of the text may be the beginning of a secret; its length, if it is not."""
        for begin in self._begins.finditer(text, max(0, len(text) - self._longest + 1)):
            tail = text[begin.start() :]
            if any(len(tail) < len(secret) and secret.startswith(tail) for secret in self.secrets):
                return begin.start()
        return len(text)


class Stream:
    """A text that comes in pieces. What may be the beginning of a secret is held back until it is known."""

    __slots__ = ("_held", "_hiding")

    def __init__(self, hiding: Hiding) -> None:
        self._hiding = hiding
        self._held = ""

    def feed(self, piece: str) -> str:
        text = self._hiding.text(self._held + piece) if self._held else self._hiding.text(piece)
        cut = self._hiding.cut(text)
        self._held = text[cut:]
        return text[:cut]

    def end(self) -> str:
        """What was held back, and is no secret after all; half of a long one is still too much of it."""
        held, self._held = self._held, ""
        return MASK if len(held) >= _SHORTEST else held


def _spellings(secret: str) -> set[str]:
    """As it is, as JSON has it inside of a text, and as that stands inside of a text of JSON once more."""
    once = {json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    once |= {each.replace("/", "\\/") for each in once}
    twice = {json.dumps(each, ensure_ascii=ascii)[1:-1] for each in once for ascii in (True, False)}
    return {secret, *once, *twice}
