"""Markdown on a terminal: what is drawn while it arrives, that it is drawn once, and what hostile text can do."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from terminals import Terminal

from unbroken.models.scripted import Say
from unbroken_cli.markdown_stream import LONGEST, MarkdownStream
from unbroken_testing import serve

DOCUMENT = """# Results

Some **bold** text with `code` and a [link](https://example.com/x).
A second line.

- one
- two
  - nested
- three

1. first
1. second

| 名称 | 数量 | Note |
|:---|---:|---|
| 苹果 | 12 | red |
| pear | 3 | green |

> quoted 中文

```python
def f(x):
    return "x"

f(1)
```

Vec<String> stays.
"""
SHOWN = """Results

Some bold text with code and a link
(https://example.com/x).
A second line.

 • one
 • two
    • nested
 • three

 1 first
 2 second

 名称  数量  Note
 ─────────────────
 苹果    12  red
 pear     3  green

▌ quoted 中文

  def f(x):
      return "x"

  f(1)

Vec<String> stays.
"""


def a_console(width: int = 40) -> Console:
    return Console(width=width, height=20, force_terminal=True, color_system=None)


def drawn(document: str, pieces: list[str], width: int = 40) -> str:
    """All that is printed, when it arrives in these pieces. Indentation depends on how many items there are."""
    stream, printed = MarkdownStream(a_console(width)), list[str]()
    for piece in pieces:
        stream.feed(piece)
        stream.open_rows()
        printed.append(stream.advance().plain)
    printed.append(stream.finish().plain)
    return "".join(printed)


def in_pieces(document: str, size: int) -> list[str]:
    return [document[at : at + size] for at in range(0, len(document), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 30, 10_000])
def test_markdown_is_rendered_the_same_however_it_arrives(size: int) -> None:
    assert drawn(DOCUMENT, in_pieces(DOCUMENT, size)) == SHOWN


def test_a_closed_code_block_is_printed_as_soon_as_something_follows_it() -> None:
    """It may be longer than what the terminal redraws: its first lines would not be seen until later."""
    stream = MarkdownStream(a_console())
    stream.feed("```\n" + "".join(f"line {number}\n" for number in range(30)) + "```\nAnd")
    assert stream.advance().plain.split() == [word for number in range(30) for word in ("line", str(number))]
    assert stream.open_rows().plain.strip() == "And"


PARTS = (
    "# H\n",
    "\n",
    "text ",
    "**b**",
    "*i*",
    "`c`",
    "- a\n",
    "- b\n",
    "  - n\n",
    "1. x\n",
    "2. y\n",
    "10) z\n",
    "```py\n",
    "```\n",
    "~~~\n",
    "x = 1\n",
    "| a | b |\n",
    "|---|---|\n",
    "| 1 | 2 |\n",
    "> q\n",
    "---\n",
    "==\n",
    "    code\n",
    "中文",
    "[l](u)",
    "<b>",
    "\n\n",
    "* s\n",
    "  para\n",
    "![i](s)",
    "&#x202e;",
    "\\",
    "👨‍👩‍👧",
)


@given(parts=st.lists(st.sampled_from(PARTS), max_size=14), size=st.integers(1, 5))
def test_no_document_depends_on_the_pieces_it_arrives_in(parts: list[str], size: int) -> None:
    document = "".join(parts)
    at_once, bit_by_bit = (drawn(document, pieces) for pieces in ([document], in_pieces(document, size)))
    assert [line.strip() for line in bit_by_bit.split("\n")] == [line.strip() for line in at_once.split("\n")]


@pytest.mark.parametrize(
    ("document", "most"),
    [
        ("```python\n" + "x = 1  # y\n" * 200 + "```\n", 200),
        ("".join(f"- item {number}\n" for number in range(200)), 200),
        ("A sentence of some words. " * (LONGEST // 20) + "\n", 2 * LONGEST),
        ("字" * 2 * LONGEST, 2 * LONGEST),
        ("| a | b |\n|---|---|\n" + "| some | words |\n" * (LONGEST // 14), 3 * LONGEST),
        ("- one\n\n  ```\n" + "  code\n" * (LONGEST // 5), 2 * LONGEST),
    ],
    ids=["code", "list", "paragraph", "no spaces", "table", "code in a list"],
)
def test_only_a_bounded_part_of_a_long_block_is_drawn_again(document: str, most: int) -> None:
    stream, printed = MarkdownStream(a_console()), list[str]()
    for piece in in_pieces(document, max(len(document) // 8, 20)):
        stream.feed(piece)
        printed.append(stream.advance().plain)
        assert len(stream.open_rows()) < most
    printed.append(stream.finish().plain)
    shown = "".join(printed)
    for word in ("x = 1", "item", "words", "字", "code"):
        assert shown.count(word) == document.count(word)


def test_emphasis_looks_the_same_before_it_is_closed() -> None:
    stream = MarkdownStream(a_console())
    for piece, shown in (("Some **bo", "Some bo"), ("ld*", "Some bold"), ("* and `co", "Some bold and co")):
        stream.feed(piece)
        assert stream.open_rows().plain == shown


HOSTILE = (
    "a\x1b[2Jb \x1b]0;title\x07 \x9b31m \x08\x08 \x00 \x7f \r over \u202egnp.exe\u202c \u2066x\u2069 &#x202e;y "
    "&#27;[2J [ok](https://example.com/\x1b[2J) `\x1b[31m` ![\u202e](\u202e)\n\n```\x1b[2J\n\x1b[2J\u202e\n```\n\n"
    "| \x1b[2J | &#8238; |\n|---|---|\n| \x1b[1A | \u202e |\n"
)


def test_hostile_text_cannot_steer_the_terminal() -> None:
    shown = drawn(HOSTILE, in_pieces(HOSTILE, 3))
    kinds = {unicodedata.category(character) for character in shown.replace("\n", "")}
    assert not kinds & {"Cc", "Cf", "Cs"}
    assert "⟨U+202E⟩gnp.exe" in shown
    assert "␛[2J" in shown


@pytest.fixture(scope="module")
def pyte() -> Any:
    return pytest.importorskip("pyte", reason="pyte, a terminal emulator, is not installed (extra dev)")


CODE = "```\n" + "".join(f"line {number}\n" for number in range(200)) + "```\n"


def test_a_real_terminal_shows_it_without_flicker(pyte: Any) -> None:
    """Each frame that the terminal shows has all lines of the frame before it, apart from the open block."""
    columns, rows = 40, 24
    screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.1)
    feed = pyte.ByteStream(screen).feed
    with serve([Say(DOCUMENT, over=0.4), Say(CODE, chunks=40, over=0.4), Say(HOSTILE)]) as server:
        given = ("--model", "openai:m", "--base-url", server.base_url())
        with Terminal("run", "Hi", *given, columns=columns, rows=rows) as terminal:
            before: list[str] = []
            for frame in re.split(rb"(?<=\x1b\[\?2026l)", b"".join(terminal.pieces())):
                feed(frame)
                lines = all_lines(screen)
                assert len(lines) >= len(before) - 3
                assert lines[: max(len(before) - 6, 0)] == before[:-6]
                before = lines
            assert terminal.end() == 0
    lines = all_lines(screen)
    begins = next(at for at, line in enumerate(lines) if line == "Results")
    assert "\n".join(lines[begins : begins + SHOWN.count("\n")]) + "\n" == SHOWN
    assert [line.strip() for line in lines if line.startswith("  line ")] == [f"line {number}" for number in range(200)]
    assert any(line.startswith("✔ answered") for line in lines[-3:])


def all_lines(screen: Any) -> list[str]:
    kept = ["".join(row[at].data for at in range(screen.columns)) for row in screen.history.top]
    lines = [line.rstrip() for line in [*kept, *screen.display]]
    while lines and not lines[-1]:
        lines.pop()
    return lines
