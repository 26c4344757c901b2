"""Settings. `MAX_TOOL_ROUNDS` is how many rounds of tool calls one question may take; with 1 the assistant searches
once and answers. The environment variable of the same name overrides it."""

from __future__ import annotations

import os

from unbroken import UserError

MAX_TOOL_ROUNDS = 2
MOST_ROUNDS = 20


def max_tool_rounds() -> int:
    """The value from the environment, or else `MAX_TOOL_ROUNDS`."""
    said = os.environ.get("MAX_TOOL_ROUNDS", "").strip()
    if not said:
        return MAX_TOOL_ROUNDS
    try:
        return check_rounds(int(said))
    except (ValueError, UserError):
        raise UserError(
            f"the environment variable MAX_TOOL_ROUNDS is {said!r}: set it to a whole number from 1 to {MOST_ROUNDS}, "
            f"or unset it for {MAX_TOOL_ROUNDS}"
        ) from None


def check_rounds(rounds: int) -> int:
    if not 1 <= rounds <= MOST_ROUNDS:
        raise UserError(f"{rounds} rounds of tool calls are not possible: give a number from 1 to {MOST_ROUNDS}")
    return rounds
