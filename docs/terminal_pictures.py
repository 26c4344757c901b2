"""Draws docs/terminal/*.svg: real commands on a real terminal, and what they print.

    python docs/terminal_pictures.py            # draws all of them again
    python docs/terminal_pictures.py --check    # fails if a command prints something else than its picture shows

The models are scripts on a server of this machine, the rest is real: the command, the tools, the seconds. `--check` is
part of `make docs`; it ignores numbers and the lengths of bars. `terminal_scenes` has the commands.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from html import escape, unescape
from pathlib import Path
from unicodedata import east_asian_width

FOLDER = Path(__file__).parent / "terminal"
COLUMNS = 96
CELL, LINE = 8.0, 19
COLOURS = {
    30: "#8a9893",
    31: "#f5865b",
    32: "#5fd0a2",
    33: "#e6b84c",
    34: "#6fb3f2",
    35: "#d79bd8",
    36: "#63c6d8",
    37: "#e9eeea",
}
"""By their numbers on a terminal."""
STYLE = """
  text{font:13px ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
  text{fill:#dfe6e2;white-space:pre}
  .b{font-weight:700}.d{fill:#9daaa4}.i{font-style:italic}
"""


@dataclass(frozen=True)
class Pen:
    """How the next letters look."""

    colour: int = 0
    bold: bool = False
    dim: bool = False
    italic: bool = False

    def changed(self, codes: list[int]) -> Pen:
        pen = self
        for code in codes or [0]:
            match code:
                case 0:
                    pen = Pen()
                case 1:
                    pen = replace(pen, bold=True)
                case 2:
                    pen = replace(pen, dim=True)
                case 3:
                    pen = replace(pen, italic=True)
                case 22:
                    pen = replace(pen, bold=False, dim=False)
                case 23:
                    pen = replace(pen, italic=False)
                case 39:
                    pen = replace(pen, colour=0)
                case _ if 30 <= code <= 37 or 90 <= code <= 97:
                    pen = replace(pen, colour=code - 60 if code >= 90 else code)
                case _:
                    pass
        return pen

    @property
    def attributes(self) -> str:
        names = [name for name, on in (("b", self.bold), ("d", self.dim and not self.colour), ("i", self.italic)) if on]
        shown = f' class="{" ".join(names)}"' if names else ""
        return shown + (f' style="fill:{COLOURS[self.colour]}"' if self.colour else "")


@dataclass
class Screen:
    """What a terminal shows after these bytes: letters, colours, and the movements that our commands use."""

    rows: list[list[tuple[str, Pen]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    pen: Pen = Pen()

    def write(self, text: str) -> None:
        for control, letters in re.findall(r"(\x1b\[[\d;?]*[A-Za-z]|[\x00-\x1f])|([^\x00-\x1f\x1b]+)", text):
            if control:
                self._obey(control)
            for letter in letters:
                self._put(letter)

    def _put(self, letter: str) -> None:
        if self.column >= COLUMNS:
            self._obey("\n")
            self.column = 0
        line = self.rows[self.row]
        line += [(" ", Pen())] * (self.column - len(line))
        line[self.column : self.column + 1] = [(letter, self.pen)]
        self.column += 1

    def _obey(self, control: str) -> None:
        numbers = [int(number) for number in re.findall(r"\d+", control)]
        match control[-1]:
            case "\r" | "G":
                self.column = 0
            case "\n":
                self.row += 1
                self.rows += [[]] * (self.row == len(self.rows))
                self.rows[self.row] = list(self.rows[self.row])
            case "A":
                self.row = max(self.row - (numbers or [1])[0], 0)
            case "K":
                del self.rows[self.row][0 if numbers == [2] else self.column :]
            case "J":
                del self.rows[self.row][self.column :], self.rows[self.row + 1 :]
            case "m":
                self.pen = self.pen.changed(numbers)
            case _:
                pass

    @property
    def text(self) -> str:
        return "\n".join("".join(letter for letter, _ in row).rstrip() for row in self.rows).strip("\n")


def draw(title: str, screen: Screen) -> str:
    """One line of text for each run of letters that look the same, as wide as on the terminal whatever the font."""
    rows = screen.rows
    while rows and not any(letter.strip() for letter, _ in rows[-1]):
        rows = rows[:-1]
    shown: list[str] = []
    for number, row in enumerate(rows):
        start = 0
        x = 16.0
        while start < len(row):
            end = start + 1
            while end < len(row) and row[end][1] == row[start][1]:
                end += 1
            letters = "".join(letter for letter, _ in row[start:end])
            width = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in letters) * CELL
            if letters.strip():
                shown.append(
                    f'<text x="{x:g}" y="{54 + number * LINE}" textLength="{width:g}" lengthAdjust="spacingAndGlyphs"'
                    f"{row[start][1].attributes}>{escape(letters)}</text>"
                )
            x += width
            start = end
    wide, high = int(COLUMNS * CELL + 32), 54 + len(rows) * LINE
    dots = "".join(f'<circle cx="{x}" cy="18" r="5" fill="#3a4845"/>' for x in (20, 38, 56))
    named = escape(title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" aria-label="{named}">\n'
        f"<title>{named}</title>\n<style>{STYLE}</style>\n"
        f'<rect width="{wide}" height="{high}" rx="8" fill="#10181a"/>{dots}\n' + "\n".join(shown) + "\n</svg>\n"
    )


def words_of(svg: str) -> str:
    """What a picture shows, without numbers, bars and spaces, which differ from run to run."""
    told = unescape(" ".join(re.findall(r"<text[^>]*>(.*?)</text>", svg)))
    return re.sub(r"[\s\d.,─▒▓█░·…⠀-⣿]+", "", told)


def main(check: bool) -> int:
    from terminal_scenes import SCENES, play  # noqa: PLC0415 - it needs this module

    wrong = 0
    for name, scene in SCENES.items():
        svg = draw(scene.title, play(scene))
        file = FOLDER / f"{name}.svg"
        if not check:
            file.write_text(svg, "utf-8")
        elif words_of(svg) != words_of(file.read_text("utf-8")):
            wrong += 1
            sys.stderr.write(f"{file}: the command prints something else now; run: python docs/terminal_pictures.py\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
