"""Draws docs/waterfall*.svg, the picture on the home page: one run, from its recording, as the viewer shows it.

Run `python docs/waterfall_picture.py` to draw it again. The run uses virtual time, so that the picture is always the
same; a test compares. It is dark in both themes of the site, and has a narrow form for phones.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import a_long_run  # noqa: E402 - from the folder above

from unbroken.trajectory.recording import read_recording  # noqa: E402
from unbroken_viewer.picture import Picture, draw  # noqa: E402
from unbroken_viewer.picture_data import CallLane, Turn  # noqa: E402

ROW = 27
HEAD = 34
STYLE = """
  .p{fill:#10181a}.g{stroke:#26322f}.b{fill:#16211f}.n{fill:#f0f3ef}.s{fill:#a9b6b0}.c{fill:#8fd3b6}.x{fill:#f5a36b}
  .text{fill:#7d8fa6}.write{fill:#56b4e9}.run{fill:#3c7ddb}.early{fill:#22bd8e}.fail{fill:#ee7f33}
  .share{fill:none;stroke:#e09cc0;stroke-dasharray:3 2}.cut{stroke:#ee7f33;stroke-width:1.5;stroke-dasharray:4 3}
  .t{stroke:#56656f;stroke-width:2}
  text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Noto Sans SC","Noto Sans CJK SC",sans-serif}
  .n{font-weight:600}.k{font-size:11.5px}.a{fill:#83928b}
"""


@dataclass(frozen=True)
class Words:
    """What stands on the picture, in one language."""

    title: str
    round: str
    answer: str
    early: str
    shared: str
    broke: str
    kept: str
    timed_out: str
    written: str
    runs: str
    failed: str


WORDS = {
    "": Words(
        title="One run: three rounds, eight calls, a broken stream and a time-out. Every call is answered once.",
        round="Round {}",
        answer="Answer",
        early="starts while the model still writes",
        shared="the same call: shares the result",
        broke="the stream breaks: retried",
        kept="was running: kept",
        timed_out="timed out: the model gets an error",
        written="is written",
        runs="runs",
        failed="failed",
    ),
    ".zh-CN": Words(
        title="一次运行：三轮、八个调用、一次断流、一次超时。每个调用恰好得到一个结果。",
        round="第 {} 轮",
        answer="回答",
        early="模型还在写，它已开始执行",
        shared="相同的调用：共用结果",
        broke="流断了：重试",
        kept="正在执行：接管",
        timed_out="超时：模型得到一条错误",
        written="正在写出",
        runs="执行",
        failed="失败",
    ),
}


class Drawing:
    """One picture of a run. `narrow` leaves out arguments, and writes notes on lines of their own."""

    def __init__(self, picture: Picture, words: Words, narrow: bool) -> None:
        self.words, self.narrow = words, narrow
        self.width, self.left, self.right = (366, 96, 12) if narrow else (900, 188, 130)
        self.seconds = picture.seconds
        self.y = HEAD
        self.explained = False
        self.parts: list[str] = []
        self.cuts: list[float] = []
        for turn in picture.turns:
            self._turn(turn)

    def x(self, at: float) -> float:
        return round(self.left + at / self.seconds * (self.width - self.left - self.right), 1)

    def _bar(self, kind: str, start: float, end: float) -> None:
        x, wide = self.x(start), max(self.x(end) - self.x(start), 3)
        inset = 0.5 if kind == "share" else 0
        self.parts.append(
            f'<rect class="{kind}" x="{x + inset}" y="{self.y + 7 + inset}" width="{wide:.1f}" '
            f'height="{13 - 2 * inset}" rx="2.5"/>'
        )

    def _text(self, words: str, x: float, kind: str, end: bool = False, after: str = "") -> None:
        anchor = ' text-anchor="end"' if end else ""
        rest = f'<tspan class="k a" dx="8">{escape(after)}</tspan>' if after else ""
        self.parts.append(f'<text class="{kind}" x="{x}" y="{self.y + 18}"{anchor}>{escape(words)}{rest}</text>')

    def _note(self, words: str, start: float, end: float, kind: str = "c") -> None:
        """Beside its bar, where there is room for it."""
        if self.narrow:
            return
        room = 7.0 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in words)
        left = self.x(end) + 8 + room > self.width
        self._text(words, self.x(start) - 8 if left else self.x(end) + 8, f"{kind} k", end=left)

    def _turn(self, turn: Turn) -> None:
        self.parts.append(f'<rect class="b" x="0" y="{self.y}" width="{self.width}" height="{ROW}"/>')
        self._text(self.words.round.format(turn.round) if turn.round else self.words.answer, 14, "n")
        for attempt in turn.attempts:
            if attempt.pieces:
                middle = self.y + 13.5
                first, last = self.x(attempt.pieces[0].start), self.x(attempt.pieces[-1].end)
                self.parts.append(f'<path class="t" d="M{first} {middle}H{last}"/>')
            for piece in attempt.pieces:
                self._bar("text" if piece.kind == "text" else "write", piece.start, piece.end)
            if attempt.broken and attempt.ended is not None:
                self.cuts.append(attempt.ended)
                self._note(self.words.broke, attempt.asked, attempt.ended, "x")
        self.y += ROW
        for call in turn.calls:
            self._call(call)

    def _call(self, call: CallLane) -> None:
        said = "" if self.narrow or call.arguments is None else call.arguments.text.split('"')[-2]
        self._text(call.name, 26, "s", after=said)
        start, end = call.started or call.written or 0.0, call.ended or self.seconds
        if call.duplicate_of:
            self._bar("share", call.opened or start, end)
            self._note(self.words.shared, call.opened or start, end)
        else:
            kind = "fail" if call.error else "early" if call.early else "run"
            if call.opened is not None and call.written is not None and call.written > call.opened:
                self._bar("write", call.opened, call.written)
            self._bar(kind, start, end)
            if call.error:
                self._note(self.words.timed_out, start, end, "x")
            elif call.adopted_from:
                self._note(self.words.kept, start, end)
            elif call.early and not self.explained:
                self.explained = True
                self._note(self.words.early, start, end)
        self.y += ROW

    def svg(self) -> str:
        bottom = self.y
        grid = "".join(
            f'<path class="g" d="M{self.x(second)} {HEAD - 6}V{bottom}"/>'
            f'<text class="s k" x="{self.x(second) + 4}" y="20">{second} s</text>'
            for second in range(int(self.seconds) + 1)
        )
        cuts = "".join(f'<path class="cut" d="M{self.x(at)} {HEAD}V{bottom}"/>' for at in self.cuts)
        legend, x = "", 14.0
        entries = [
            ("write", self.words.written),
            ("early", self.words.early),
            ("run", self.words.runs),
            ("fail", self.words.timed_out if self.narrow else self.words.failed),
            *([("share", self.words.shared), ("cut", self.words.broke)] if self.narrow else []),
        ]
        y = bottom + 10
        for kind, words in entries:
            room = 26 + 6.4 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in words)
            if x + room > self.width:
                x, y = 14.0, y + 22
            if kind == "cut":
                legend += f'<path class="cut" d="M{x + 7:.0f} {y - 1}v18"/>'
            else:
                legend += f'<rect class="{kind}" x="{x:.0f}" y="{y + 3}" width="14" height="10" rx="2"/>'
            legend += f'<text class="s k" x="{x + 20:.0f}" y="{y + 12}">{escape(words)}</text>'
            x += room + 10
        height = y + 26
        rounds = [part for part in self.parts if 'class="b"' in part]
        rest = [part for part in self.parts if 'class="b"' not in part]
        shown = "\n".join([*rounds, grid, cuts, *rest])
        title = escape(self.words.title)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}" role="img" '
            f'aria-label="{title}">\n<title>{title}</title>\n<style>{STYLE}</style>\n'
            f'<rect class="p" width="{self.width}" height="{height}" rx="8"/>\n{shown}\n{legend}\n</svg>\n'
        )


def pictures() -> dict[str, str]:
    """Each file of docs/ with its content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        a_long_run.play(path)
        picture = draw(read_recording(path))
    return {
        f"waterfall{'-narrow' if narrow else ''}{language}.svg": Drawing(picture, words, narrow).svg()
        for language, words in WORDS.items()
        for narrow in (False, True)
    }


if __name__ == "__main__":
    for name, content in pictures().items():
        (ROOT / "docs" / name).write_text(content, "utf-8")
