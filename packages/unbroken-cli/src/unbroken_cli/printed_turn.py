"""Redraws text of the current turn when a retry replaces it.

A terminal cannot be read back, so `PrintedTurn` records what was printed. It redraws nothing if it cannot be sure of
the position: characters whose width differs between terminals, a resized window, text that scrolled away, or a tool
that may have printed.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

_JOINED = range(0x1F1E6, 0x1F200), range(0x1F3FB, 0x1F400)
"""Flag letters and skin tones: some terminals join them with their neighbours, others do not."""


class PrintedTurn:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._pieces: list[tuple[Text, str]] = []
        """Each piece with the part of the turn that it belongs to."""
        self._width = console.width
        self._redrawable = True
        self.mid_line = False

    def begin(self) -> None:
        """Starts a new turn. What was printed before stays."""
        self.end_line()
        self._pieces.clear()
        self._width, self._redrawable = self._console.width, True

    def forbid_redraw(self) -> None:
        """Others are printing too, so nothing of this turn can be redrawn."""
        self._redrawable = False

    def print(self, text: Text, part: str) -> None:
        self._pieces.append((text, part))
        self._console.print(text, end="", soft_wrap=True)
        self.mid_line = not text.plain.endswith("\n")

    def end_line(self) -> None:
        if self.mid_line:
            self.print(Text("\n"), self._pieces[-1][1] if self._pieces else "")

    def has(self, part: str) -> bool:
        return any(piece for piece, of in self._pieces if of == part)

    def remove(self, part: str) -> bool:
        """Removes this part of the turn from the terminal, if possible. Nothing else may be drawing at the same
        time."""
        above = rows_above("".join(piece.plain for piece, _ in self._pieces), self._width)
        console = self._console
        if not self._redrawable or above is None or console.width != self._width or console.legacy_windows:
            return False
        if above >= console.height - 1:
            return False
        up = f"\r\x1b[{above}A\x1b[J" if above else "\r\x1b[J"
        console.print(Segments([Segment(up, None, [(ControlType.CARRIAGE_RETURN,)])]), end="")
        kept = [(piece, of) for piece, of in self._pieces if of != part]
        self._pieces, self.mid_line = [], False
        for piece, of in kept:
            self.print(piece, of)
        return True


def rows_above(text: str, width: int) -> int | None:
    """How many rows the cursor has moved down after this text; None if that depends on the terminal."""
    rows = column = 0
    for character in text:
        if character == "\n":
            rows, column = rows + 1, 0
            continue
        wide = cell_len(character)
        if wide == 0 or not character.isprintable() or any(ord(character) in each for each in _JOINED):
            return None
        column += wide
        if column > width:
            rows, column = rows + 1, wide
    return rows
