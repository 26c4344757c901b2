"""Text for people, on a terminal and in a pipe: makes texts of providers and models safe to print, and has the short
phrases for what happens in a run."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.events import Compacted, RequestRetried, RunFinished
    from unbroken_wires.messages import Json


_VISIBLE = (
    {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)
)

NAMES = {"\t": "TAB", "\r": "CR", "\n": "LF", "\x1b": "ESC", "\0": "NUL"}
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
"""Unicode categories of characters without a visible shape."""
BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5\ufffc⟨")
"""Letters and marks without a visible shape, and the bracket that our own marks use."""
SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
MOST_ACCENTS = 3
"""Marks on one letter that are shown unchanged: more of them would cover the rows around it."""
MAY_HAVE_RUN = "may have taken effect before the run stopped"
_UNSEEN = {
    code: f"⟨U+{code:04X}⟩"
    for code in (0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
}
"""Characters that are invisible or change the order of others. Joiners are not included: emoji and some scripts need
them."""

_REORDERED = _VISIBLE | {code: _UNSEEN[code] for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def clean(text: str) -> str:
    """A provider's text for a terminal: control characters become visible and have no effect."""
    return text.translate(_VISIBLE)


def clean_text(text: str) -> str:
    """A model's text for a terminal: also what would show words in another order than they are read by a program. Marks
    that a language needs stay."""
    return text.replace("\r\n", "\n").translate(_REORDERED)


def clean_line(text: str) -> str:
    """The same for a line between others: nothing in it may be hidden or reordered."""
    return clean(text).translate(_UNSEEN)


def escape(text: str) -> str:
    """A provider's text for rich, with markup escaped."""
    from rich.markup import escape  # noqa: PLC0415 - start-up time: a server prints nothing in colours

    return escape(clean(text))


def visible(text: str) -> str:
    """The text with every character written out that a reader could miss."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    accents = MOST_ACCENTS
    before = ""
    for character in text:
        category = unicodedata.category(character)
        if category.startswith("M"):
            plain = accents < MOST_ACCENTS and _is_accent(character, before)
            accents = accents + 1 if plain else MOST_ACCENTS
        else:
            plain = character == " " or not (category in HIDDEN or character in BLANK or _looks_like_ascii(character))
            accents = 0 if plain and category.startswith("L") else MOST_ACCENTS
        shown.append(character if plain else _mark(character))
        before = character
    return "".join(shown)


def _looks_like_ascii(character: str) -> bool:
    """Whether it looks like an ASCII punctuation mark but is another character. The Greek question mark looks like a
    semicolon. The wide forms in Chinese and Japanese are visibly different."""
    if character.isascii() or unicodedata.east_asian_width(character) == "F":
        return False
    same = unicodedata.normalize("NFKC", character)
    return len(same) == 1 and same.isascii() and not same.isalnum()


def _is_accent(character: str, before: str) -> bool:
    """Whether it is a visible mark on the letter before it, and does not merge with that letter into a single
    character."""
    if character in BLANK or any(ord(character) in each for each in SELECTORS):
        return False
    return len(unicodedata.normalize("NFC", before + character)) > 1


def _mark(character: str) -> str:
    return f"⟨{NAMES.get(character) or f'U+{ord(character):04X}'}⟩"


BROKEN = {
    "unfinished": "the stream ended too early",
    "lost": "the stream broke",
    "silent": "the stream fell silent",
    "late": "the answer took too long",
    "cut_call": "a call was cut",
    "error": "the stream broke with an error",
    "damaged": "the stream was damaged",
    "empty": "the answer was empty",
    "foreign": "the response was not readable",
    "too_long": "the context is too long",
    "limited": "too many requests",
    "unavailable": "the provider is not available",
    "unreachable": "the provider cannot be reached",
    "unanswered": "there was no answer",
    "refused": "the request was refused",
}
"""What was wrong, by the kind of the verdict."""


_REPEATED = re.compile(r"\Aprovider `[^`]*` (?:cannot be reached at |answered (?=\d))?")
"""The part of a reason that repeats the kind. It is removed to save space: only the address and the status are new."""


def one_line(text: str, longest: int = 200) -> str:
    """The text in one line, truncated if it is too long."""
    return _cut(clean_line(" ".join(text[: 8 * longest].split())), longest)


def in_brackets(arguments: Mapping[str, Json], longest: int = 60) -> str:
    """`(city="Rome", days=3)`, with every character written out that a reader could miss."""
    text = ", ".join(f"{name}={_value(value)}" for name, value in arguments.items())
    return f"({_cut(visible(' '.join(text[: 8 * longest].split())), longest)})"


def _cut(line: str, longest: int) -> str:
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def closing(event: RunFinished) -> str:
    """How a run ended, in one line."""
    from unbroken.run_view import shown_cost  # noqa: PLC0415 - start-up time: loads all events

    usage: dict[str, Any] = event.usage
    about = "about " if usage.get("estimated") else ""
    tokens = f"{about}{tokens_used(usage.get('input_tokens', 0), usage.get('output_tokens', 0))}"
    counts = f"{counted(event.rounds, 'round')}, {counted(event.calls, 'call')}"
    cost = "" if event.cost is None else f" · cost {about}{shown_cost(event.cost)}"
    if cost and event.cache_saving is not None and event.cache_saving > 0:
        cost += f" (the cache saved {shown_cost(event.cache_saving)})"
    how = event.stop_reason.replace("_", " ") + (", no answer" if event.cut_off else "")
    return f"{how} · {counts} · {tokens}{cost} · {seconds(event.seconds)}"


def retrying(event: RequestRetried) -> str:
    """`the stream broke (connection reset); retrying in 12 s…`"""
    what = BROKEN.get(event.kind, "the response was incomplete")
    why = f" ({one_line(_REPEATED.sub('', event.reason), 56)})" if event.reason else ""
    wait = f" in {event.wait:.0f} s" if event.wait >= 0.5 else ""
    return f"{what}{why}; {'trying another model' if event.elsewhere else 'retrying'}{wait}…"


def compacted(event: Compacted) -> str:
    """`12 messages are summarised: 98,000 tokens became about 14,000`"""
    if event.problem:
        return f"the history could not be summarised: {one_line(event.problem, 200)}"
    if not event.after:
        return "the provider has compacted the history"
    return f"{counted(event.messages, 'message')} summarised: {event.before:,} tokens became about {event.after:,}"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def tokens_used(given: int, written: int) -> str:
    """`1,024 tokens in, 12 out`"""
    return f"{given:,} token{'' if given == 1 else 's'} in, {written:,} out"


def _value(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
