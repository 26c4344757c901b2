"""The short words for what happens in a run, the same on a terminal and in a pipe."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from unbroken.cli.cleaning import clean
from unbroken.events import RequestRetried, RunFinished
from unbroken.messages import Json

BROKEN = {
    "unfinished": "the stream ended too early",
    "lost": "the stream broke",
    "silent": "the stream fell silent",
    "late": "the answer took too long",
    "cut_call": "a call was cut",
    "error": "the stream broke with an error",
    "damaged": "the stream was damaged",
    "empty": "the answer was empty",
    "foreign": "that was no answer",
    "too_long": "the context is too long",
    "limited": "too many requests",
    "unavailable": "the provider is not available",
    "unreachable": "the provider cannot be reached",
    "unanswered": "no answer came",
    "refused": "the request was refused",
}
"""What was wrong, by the kind of a verdict."""


_SAID_ALREADY = re.compile(r"\Aprovider `[^`]*` (?:cannot be reached at |answered (?=\d))?")
"""Of a reason: what the kind has said. There is little room, and the address and the status are what is new."""


def one_line(text: str, longest: int = 200) -> str:
    """The text in one line, cut where it is too long."""
    line = clean(" ".join(text[: 8 * longest].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def in_brackets(arguments: Mapping[str, Json], longest: int = 60) -> str:
    """`(city="Rome", days=3)`"""
    return f"({one_line(', '.join(f'{name}={_value(value)}' for name, value in arguments.items()), longest)})"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def closing(event: RunFinished) -> str:
    """How a run ended, in one line."""
    usage: dict[str, Any] = event.usage
    about = "about " if usage.get("estimated") else ""
    tokens = f"{about}{usage.get('input_tokens', 0):,} tokens in, {usage.get('output_tokens', 0):,} out"
    counts = f"{counted(event.rounds, 'round')}, {counted(event.calls, 'call')}"
    return f"{event.stop_reason.replace('_', ' ')} · {counts} · {tokens} · {seconds(event.seconds)}"


def retrying(event: RequestRetried) -> str:
    """`the stream broke (connection reset); asking again in 12 s…`"""
    what = BROKEN.get(event.kind, "there was no whole answer")
    why = f" ({one_line(_SAID_ALREADY.sub('', event.reason), 56)})" if event.reason else ""
    wait = f" in {event.wait:.0f} s" if event.wait >= 0.5 else ""
    return f"{what}{why}; asking {'another model' if event.elsewhere else 'again'}{wait}…"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _value(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
