"""Has the model lost its way? The same call in round after round is reminded of, then refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from unbroken.tools.caller import Prepared

REMIND_AT = 3
REFUSE_AT = 5

REMINDER = (
    "[You have made this same call {count} times in a row. Its result will not change: use what you have, or try "
    "something else.]"
)
REPEATED = "not executed: repeated"


class Repetition:
    """Counts, for each call of the last round, in how many rounds in a row it stood."""

    def __init__(self) -> None:
        self._streaks: dict[str, int] = {}
        self.calm = True
        """No call of the last round is near a reminder: the next ones need not be looked at one by one."""

    def of(self, prepared: Prepared) -> int:
        """How many times in a row it will have been made, this time included."""
        if prepared.tool is not None and prepared.tool.repeat:
            return 1
        return self._streaks.get(prepared.fingerprint, 0) + 1

    def verdict(self, prepared: Prepared) -> Literal["", "remind", "refuse"]:
        if self.calm:
            return ""
        count = self.of(prepared)
        return "refuse" if count >= REFUSE_AT else "remind" if count >= REMIND_AT else ""

    @property
    def streaks(self) -> dict[str, int]:
        """Those that matter: a call that was made once has no streak."""
        return {call: count for call, count in self._streaks.items() if count > 1}

    def recall(self, streaks: Mapping[str, int]) -> None:
        self._streaks = dict(streaks)
        self.calm = max(self._streaks.values(), default=0) < REMIND_AT - 1

    def next_round(self, calls: Sequence[Prepared]) -> None:
        self._streaks = {call.fingerprint: self.of(call) for call in calls}
        self.calm = max(self._streaks.values(), default=0) < REMIND_AT - 1
