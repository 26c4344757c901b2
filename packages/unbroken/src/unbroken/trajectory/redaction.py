"""Masks secrets in recordings, wherever they are: in a text, in a line, in pieces of a stream.

The secrets are known in advance. They are searched for in the bytes to be written; only if one is found, the line is
parsed and its values are masked, so that it stays valid JSON. Names of the schema are never masked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import unquote

from unbroken.errors import PASSWORD
from unbroken.models.masking import is_secret
from unbroken.models.secrets import MASK, Folded, collect, spellings, united
from unbroken_wires.messages import Json
from unbroken_wires.wires.jsontext import loads_faithful

_NAMES = re.compile(r"(?:KEYS?|TOKENS?|SECRETS?)(?:_|$)|PASSWORD|PASSWD|CREDENTIAL|(?:^|_)(?:PWD|PAT|PASS|AUTH)(?:_|$)")
_SHORTEST = 8
_SHORTEST_CUT = 6
"""How many characters of a secret may be shown if a text ends in the middle of one."""
_SIGN = 6
"""Secrets are searched for by their first characters: those are few, because most encodings begin alike."""
_OWN_FIELDS = frozenset({"line", "event", "delta", "schema", "at", "turn", "seq", "time", "kind"})


def secrets_in_environment() -> tuple[str, ...]:
    """The values of variables that are named like secrets, and passwords in addresses."""
    found = [value.strip() for name, value in os.environ.items() if name != "PWD" and _NAMES.search(name.upper())]
    spelled = [address["password"] for value in os.environ.values() for address in PASSWORD.finditer(value)]
    return tuple(value for value in (*found, *spelled, *map(unquote, spelled)) if len(value) >= _SHORTEST)


class Redactor:
    """Masks secrets in texts and lines. False if there are no secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.given = frozenset(secrets)
        self.secrets = collect(secret for secret in map(str.strip, self.given) if is_secret(secret))
        said = {each for secret in self.secrets for each in spellings(secret)}
        written = said | {json.dumps(each, ensure_ascii=ascii)[1:-1] for each in said for ascii in (True, False)}
        longest_first = sorted(written, key=lambda each: -len(each))
        self._any = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._texts = tuple(_shortest(written))
        self._signs = tuple({each[:_SIGN] for each in self._texts})
        self._signs_in_bytes = tuple(each.encode("utf-8", "replace") for each in self._signs)
        self._bytes = tuple(each.encode("utf-8", "replace") for each in self._texts)
        self._folded = Folded(self.secrets)
        self._by_first: dict[str, list[str]] = {}
        for each in said:
            self._by_first.setdefault(each[0], []).append(each)
        self._begins = re.compile("|".join(map(re.escape, self._by_first)) or "(?!)")
        self._longest = max(map(len, said), default=0)

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def covers(self, secrets: Iterable[str]) -> bool:
        return self.given.issuperset(secrets)

    def text(self, text: str) -> str:
        shown, at = "", 0
        for begin, end in self.spans(text):
            shown += text[at:begin] + MASK
            at = end
        return shown + text[at:] if at else text

    def _in_text(self, text: str) -> bool:
        return self._in_one_piece(text) or bool(self._folded.spans(text))

    def _in_one_piece(self, text: str) -> bool:
        """Many searches for one text each are much faster than one search for any of them."""
        return any(sign in text for sign in self._signs) and any(each in text for each in self._texts)

    def _in_bytes(self, data: bytes) -> bool:
        if any(sign in data for sign in self._signs_in_bytes) and any(each in data for each in self._bytes):
            return True
        return bool(self._folded.spans_in_bytes(data))

    def lines(self, data: bytes) -> bytes:
        """Masks complete lines, each with its newline."""
        if not (self.secrets and self._in_bytes(data)):
            return data
        return b"\n".join(map(self._line, data.split(b"\n")))

    def _line(self, data: bytes) -> bytes:
        if not self._in_bytes(data):
            return data
        try:
            fields = cast("dict[str, Any]", loads_faithful(data))
            shown = {name: value if name in _OWN_FIELDS else self.value(value) for name, value in fields.items()}
            return json.dumps({**shown, "masked": True}, separators=(",", ":")).encode()
        except RecursionError:
            return b'{"line":"note","text":"a line with a secret in it is nested too deep to be masked","masked":true}'

    def value(self, value: Json) -> Json:
        """Masks secrets in every text of a JSON value, and in its keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(each) for each in cast("list[Json]", value)]
        if isinstance(value, dict):
            return {self.text(name): self.value(each) for name, each in cast("dict[str, Json]", value).items()}
        if isinstance(value, int | float) and not isinstance(value, bool) and self._in_text(str(value)):
            return MASK
        return value

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the text contains secrets."""
        spans = [found.span() for found in self._any.finditer(text)] if self._in_one_piece(text) else []
        folded = self._folded.spans(text)
        return united([*spans, *folded]) if folded else spans

    def is_clear(self, text: str) -> bool:
        """It contains no secret, and none can begin at its end."""
        return not self._in_text(text) and self.cut(text) == len(text)

    def cut(self, text: str) -> int:
        """Where the end of the text may be the beginning of a secret; its length, if it is not."""
        for begin in self._begins.finditer(text, max(0, len(text) - self._longest + 1)):
            tail = text[begin.start() :]
            if any(len(tail) < len(each) and each.startswith(tail) for each in self._by_first[begin[0]]):
                return min(begin.start(), self._folded.cut(text))
        return self._folded.cut(text)


class Pieces:
    """The pieces of one text, over which a secret may be spread. `feed` and `end` return the pieces that are final, in
    order and unchanged, except that a secret becomes *** in the piece in which it begins; and for each, whether it
    contained one."""

    __slots__ = ("_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: list[str] = []

    def feed(self, piece: str) -> list[tuple[str, bool]]:
        if not self._held and self._redactor.is_clear(piece):
            return [(piece, False)]
        self._held.append(piece)
        text = "".join(self._held)
        return self._settle(text, self._redactor.cut(text), ())

    def end(self) -> list[tuple[str, bool]]:
        """The text has ended: the beginning of a secret is shown, unless it is long."""
        text = "".join(self._held)
        cut = self._redactor.cut(text)
        return self._settle(text, len(text), ((cut, len(text)),) if len(text) - cut >= _SHORTEST_CUT else ())

    def _settle(self, text: str, sure: int, more: Iterable[tuple[int, int]]) -> list[tuple[str, bool]]:
        hidden = [*(span for span in self._redactor.spans(text) if span[0] < sure), *more]
        settled: list[tuple[str, bool]] = []
        at = 0
        while self._held and at + len(self._held[0]) <= sure:
            piece = self._held.pop(0)
            end = at + len(piece)
            shown, place, masked = "", at, False
            for begin, stop in hidden:
                if stop > at and begin < end:
                    shown += text[place : max(begin, place)] + (MASK if begin >= at else "")
                    place, masked = min(stop, end), True
            settled.append((shown + text[place:end], masked))
            at = end
        for begin, stop in hidden:  # the rest of a secret that reaches into the held text is not shown
            if begin < at < stop:
                self._drop(stop - at)
        return settled

    def _drop(self, count: int) -> None:
        for place, piece in enumerate(self._held):
            taken = min(count, len(piece))
            self._held[place] = piece[taken:]
            count -= taken


def _shortest(texts: Iterable[str]) -> Iterable[str]:
    """Without those that contain another one: they can only occur where the shorter one does."""
    kept: list[str] = []
    for text in sorted(texts, key=len):
        if not any(each in text for each in kept):
            kept.append(text)
    return kept
