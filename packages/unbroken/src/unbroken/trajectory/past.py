"""What is known of the part of a run that came before: of a new run nothing (`Past`); of a resumed run what its
recording says (`Continuation`), of a replayed run everything (`Playback`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from unbroken.tools.caller import Prepared
from unbroken.tools.context import CallContext
from unbroken_wires.messages import ToolCall, ToolResult


class Past:
    """That of a new run, and of one that is resumed from its result."""

    @property
    def replays_tools(self) -> bool:
        """Do all results come from the recording?"""
        return False

    def began(self, prepared: Prepared, turn: int) -> bool:
        """Had this call started when the process died, without a result, and may it have changed something?"""
        return False

    def shown_of(self, turn: int) -> tuple[str, str] | None:
        """The text and reasoning of this turn that listeners have already, if there is any."""
        return None

    def number_of(self, call: ToolCall, turn: int) -> int | None:
        """The number that this call had."""
        return None

    def orphan_of(self, call: ToolCall, number: int) -> int | None:
        """The number of a call of a response that broke off, which the call with this number was about to adopt."""
        return None

    def had_started(self, number: int) -> bool:
        """Had the call with this number started?"""
        return False

    def seconds_of(self, context: CallContext[Any]) -> float | None:
        """How long this call ran, if its result is known; then it does not run again."""
        return None

    def lost_calls(self) -> Iterable[tuple[int, ToolCall, ToolResult | None]]:
        """The calls that were not continued, with their numbers; and how one ended whose end was not reported yet."""
        return ()

    def went_to_background(self, turn: int, call_id: str) -> bool | None:
        """Did this call go to the background? None if that is still to be decided."""
        return None

    def arrivals(self, turn: int) -> Collection[str] | None:
        """The handles of the background calls whose results the history got after this turn. None if that is still to
        be decided."""
        return None


NOTHING_BEFORE = Past()
