"""What was already shown to somebody, and what of a second answer still has to be said.

After a broken stream the whole answer is asked for again. Text that was shown must not be shown twice, and must not
silently turn into another text. Pure strings; who asks again is decided above.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StillToSay:
    """`text` follows what was shown, unless `replaced`: then `text` is the whole answer and what was shown is void."""

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
        """What of the whole second `answer` is left to say."""
        shown = self.text
        if answer.startswith(shown):
            return StillToSay(answer[len(shown) :])
        if shown.startswith(answer):
            return StillToSay("")
        return StillToSay(answer, replaced=True)
