"""Strangers' texts, made harmless for a terminal."""

from __future__ import annotations

_VISIBLE = (
    {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)
)


def clean(text: str) -> str:
    """A provider's text for a terminal: control characters become visible ones and do nothing."""
    return text.translate(_VISIBLE)
