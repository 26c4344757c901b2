"""Rules for call ids (`Wire.id_rule`), and `fit`, which makes an id follow them.

A provider's id is kept as it is wherever its own wire reads it. Only when a history goes to another wire may an id be
too long there, or have characters that are not allowed; then call and result get the same short form, always the same
for the same id.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class IdRule:
    longest: int
    allowed: str = r"[^\x00-\x1f]"
    """A regular expression for one character."""
    shortest: int = 1


@cache
def _all_of(allowed: str) -> re.Pattern[str]:
    return re.compile(f"{allowed}*")


MISTRAL = IdRule(9, "[A-Za-z0-9]", shortest=9)
MINTED = "minted id"
"""The note of a call that came without one."""


def fit(id: str, rule: IdRule) -> str:
    """The id itself where the rule allows it, else a short form with a digest, so that different ids stay different."""
    if rule.shortest <= len(id) <= rule.longest and _all_of(rule.allowed).fullmatch(id):
        return id
    digest = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    if rule.longest < 24:
        return digest[: rule.longest]
    readable = "".join(re.findall(rule.allowed, id))[: rule.longest - len(digest) - 1]
    return f"{readable}_{digest}"
