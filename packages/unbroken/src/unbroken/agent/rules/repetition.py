"""Is the model stuck? If it repeats the same call in round after round, it is reminded, then the call is refused and
the rounds end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unbroken.agent.limits import StopReason
from unbroken.tools.caller import Prepared, note
from unbroken_wires.messages import ToolResult

REMIND_AT = 3
REFUSE_AT = 5

REMINDER = (
    "[You have made this same call {count} times in a row. Its result will not change: use what you have, or try "
    "something else.]"
)
REPEATED = "not executed: repeated"


class Repetition:
    """Counts, for each call of the last round, how many rounds in a row have made it."""

    def __init__(self) -> None:
        self._streaks: Mapping[str, int] = {}
        self.calm = True
        """No call of the last round is near a reminder, so the next ones need not be checked one by one."""

    def of(self, prepared: Prepared) -> int:
        """How many times in a row it was made, including this time."""
        if prepared.tool is not None and prepared.tool.repeat:
            return 1
        return self._streaks.get(prepared.fingerprint, 0) + 1

    @property
    def streaks(self) -> dict[str, int]:
        """The calls that were made more than once in a row."""
        return {call: count for call, count in self._streaks.items() if count > 1}

    def recall(self, streaks: Mapping[str, int]) -> None:
        self._streaks = streaks
        self.calm = max(self._streaks.values(), default=0) < REMIND_AT - 1

    def next_round(self, calls: Sequence[Prepared]) -> None:
        self.recall({call.fingerprint: self.of(call) for call in calls})

    def refuse(self, prepared: Prepared, place: int) -> str:
        return REPEATED if self.of(prepared) >= REFUSE_AT else ""

    def remind(self, calls: Sequence[Prepared], results: Sequence[ToolResult | None]) -> list[ToolResult | None]:
        """The results of these calls, before they are counted, with a reminder where one is due."""
        return [
            result
            if result is None or not REMIND_AT <= (count := self.of(each)) < REFUSE_AT
            else note(result, REMINDER.format(count=count))
            for each, result in zip(calls, results, strict=True)
        ]

    @property
    def stop(self) -> StopReason | None:
        """The calls of the last round are counted."""
        return "loop" if not self.calm and max(self._streaks.values()) >= REFUSE_AT else None
