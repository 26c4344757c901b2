"""What was already shown to a user, and which part of a second answer still has to be shown.

After a broken stream the request is retried. Text that was shown must not be shown twice, and must not silently turn
into another text. Pure strings; the caller decides about retries.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StillToSay:
    """`text` follows what was shown, unless `replaced`: then `text` is the complete answer and what was shown is
    void."""

    text: str
    replaced: bool = False


class Shown:
    def __init__(self, text: str = "") -> None:
        self._pieces: list[str] = [text] if text else []

    def feed(self, text: str) -> None:
        """This was shown, after all the rest."""
        self._pieces.append(text)

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "".join(self._pieces)

    def compare(self, answer: str) -> StillToSay:
        """What is left to show of the complete second `answer`."""
        shown = self.text
        if answer.startswith(shown):
            return StillToSay(answer[len(shown) :])
        if shown.startswith(answer):
            return StillToSay("")
        return StillToSay(answer, replaced=True)
