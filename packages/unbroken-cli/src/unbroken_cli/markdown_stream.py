"""Renders Markdown while it arrives: blocks that can no longer change are returned once, and only the block that is
still being written is rendered again.

The parser is markdown-it and the renderer is rich's. What arrives is cut into blocks here: code is finished line by
line, a list item by item, everything else when the next block has begun. So the work for a piece of text depends on the
length of its block, not on what came before, and `LONGEST` bounds the block.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement
from rich.padding import Padding
from rich.rule import Rule
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text
from rich.theme import Theme

from unbroken_cli.terminal_text import clean_text

LONGEST = 8_000
"""Characters of a block that are rendered again and again. A longer one is cut there and continues as a new one."""
CONTEXT = 20
"""Lines of code before a new one that decide how it is coloured."""
LONGEST_LINE = 2_000
"""A longer line of code is not coloured."""

_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.code": "cyan",
        "markdown.block_quote": "italic",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.hr": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
"""The terminal's own colours, without backgrounds: readable on light and dark terminals."""
_CODE = ANSISyntaxTheme(
    {
        ("Comment",): Style(dim=True, italic=True),
        ("Keyword",): Style(color="magenta"),
        ("Literal", "String"): Style(color="green"),
        ("Literal", "Number"): Style(color="cyan"),
        ("Name", "Function"): Style(color="blue"),
        ("Name", "Class"): Style(color="blue"),
        ("Name", "Decorator"): Style(color="blue"),
        ("Name", "Tag"): Style(color="blue"),
        ("Generic", "Inserted"): Style(color="green"),
        ("Generic", "Deleted"): Style(color="red"),
        ("Generic", "Heading"): Style(bold=True),
    }
)
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")
"""HTML is shown as it is written (`Vec<String>` is not a tag to hide), and so are definitions of links."""
_EMPHASIS = re.compile(r"(?<!\\)(\*\*|`)")


@dataclass(slots=True)
class _Block:
    tokens: list[Token]
    start: int
    end: int

    @property
    def kind(self) -> str:
        return self.tokens[0].type


class MarkdownStream:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._rest = ""
        """What is not finished, from the beginning of a block."""
        self._any = False
        """Whether a block was finished before: then an empty row separates the next one."""
        self._code: deque[str] | None = None
        """The last lines of the code block that `_rest` continues, after its opening line."""
        self._number: int | None = None
        """The number of the next item, if `_rest` continues a list."""

    def feed(self, text: str) -> None:
        self._rest += clean_text(text)

    def advance(self) -> Text:
        """The blocks that are finished since the last time, to be printed once. They end with a line break."""
        blocks, lines = self._blocks(self._rest), self._rest.count("\n")
        done: list[Text] = []
        while len(blocks) > 1 and (blocks[1].start < lines or _is_closed_code(blocks[0])):
            done.append(self._finished(blocks.pop(0)))
        if blocks:
            self._rest = _from_line(self._rest, blocks[0].start)
        if len(blocks) == 1:
            done += self._part(blocks[0], lines)
        return Text.assemble(*done)

    def finish(self) -> Text:
        """All the rest, as it is."""
        done = [self._finished(block) for block in self._blocks(self._rest)]
        self._rest = ""
        return Text.assemble(*done)

    def open_rows(self) -> Text:
        """What is not finished, as it looks now, without a line break at the end."""
        before = self._any, self._code, self._number
        try:
            rows = [self._finished(block) for block in self._blocks(_closed(self._rest))]
        finally:
            self._any, self._code, self._number = before
        text = Text.assemble(*rows)
        text.remove_suffix("\n")
        return text

    def _blocks(self, source: str) -> list[_Block]:
        blocks: list[_Block] = []
        for token in _PARSER.parse(source):
            if token.level == 0 and token.nesting >= 0:
                start, end = token.map or (0, 0)
                blocks.append(_Block([], start, end))
            _make_safe(token)
            blocks[-1].tokens.append(token)
        return blocks

    def _part(self, block: _Block, lines: int) -> list[Text]:
        """The part of the open block that can no longer change."""
        if block.kind == "fence" and not _is_closed(block):
            return self._code_lines(block)
        if block.kind.endswith("list_open"):
            begun = [at for at in _items(block)[1:] if block.start + at < lines]
            if begun:
                return self._cut(block, begun[-1])
        if len(self._rest) > LONGEST:
            return self._cut(block, 0)
        return []

    def _cut(self, block: _Block, line: int) -> list[Text]:
        """Finishes the lines of the open block before this one; line 0: as many as there are."""
        begins = _from_line(self._rest, line) if line else ""
        if not line:
            at = max(self._rest.rfind("\n"), self._rest.rfind(" ", LONGEST // 2)) + 1
            begins = self._rest[at:] if at > LONGEST // 2 else ""
        first = self._rest[: len(self._rest) - len(begins)]
        if not line and block.kind == "table_open":  # what follows has the same columns
            begins = "\n".join([*self._rest.split("\n", 2)[:2], begins])
        elif not line and (opener := _open_fence(first)):
            begins = f"{opener}\n{begins}"
        number = _next_number(block, self._number, line) if line else None
        done = [self._finished(each) for each in self._blocks(first)]
        self._number, self._rest = number, begins
        return done

    def _code_lines(self, block: _Block) -> list[Text]:
        opener, _, rest = self._rest.partition("\n")
        code, _, last = rest.rpartition("\n")
        if "\n" not in rest or not opener:
            return []
        content = block.tokens[0].content.split("\n")[: code.count("\n") + 1]
        done = self._separated(self._code is not None)
        before = deque[str](maxlen=CONTEXT) if self._code is None else self._code
        done.append_text(self._coloured(content, block.tokens[0].info, before))
        before.extend(content)
        self._code = before
        self._rest = f"{opener}\n{last}"
        return [done]

    def _finished(self, block: _Block) -> Text:
        """A block, and the end of what it continues."""
        code, self._code = self._code, None
        number, self._number = self._number, None
        token = block.tokens[0]
        done = self._separated(code is not None or number is not None)
        if block.kind == "fence":
            content = token.content.split("\n")
            if content[-1] == "":
                content.pop()
            if code is not None and not content:
                return Text()
            return done.append_text(self._coloured(content, token.info, code or ()))
        if number is not None and block.kind == "ordered_list_open":
            token.attrs["start"] = number
        return done.append_text(self._rendered(block.tokens))

    def _separated(self, continues: bool) -> Text:
        before, self._any = self._any, True
        return Text("\n" if before and not continues else "")

    def _rendered(self, tokens: list[Token]) -> Text:
        rows = self._rows(_Rendered(tokens))
        while rows and not rows[0]:
            rows.pop(0)
        while rows and not rows[-1]:
            rows.pop()
        return Text("\n").join([*rows, Text()])

    def _coloured(self, lines: Sequence[str], info: str, before: Sequence[str] = ()) -> Text:
        code = Padding(_highlighted(lines, info, before), (0, 0, 0, 2))
        return Text("\n").join([*self._rows(code), Text()])

    def _rows(self, shown: RenderableType) -> list[Text]:
        with self._console.use_theme(_THEME):
            lines = self._console.render_lines(shown, self._console.options.update(height=None), pad=False)
        rows = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines]
        for row in rows:
            row.rstrip()
        return rows


def _highlighted(lines: Sequence[str], info: str, before: Sequence[str] = ()) -> Text:
    """The lines, coloured as they are after the ones before them."""
    lexer = info.split()[0] if info.split() else "text"
    if any(len(line) > LONGEST_LINE for line in (*before, *lines)):
        return Text("\n".join(lines))
    text = Syntax("", lexer, theme=_CODE).highlight("\n".join([*before, *lines]))
    coloured = [*text.split("\n", allow_blank=True)]
    missing = len(before) + len(lines) - len(coloured)  # empty lines at the end
    return Text("\n").join([*coloured, *[Text()] * missing][len(before) : len(before) + len(lines)])


class _Rendered(Markdown):
    """Tokens that are parsed already."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", hyperlinks=False)  # a link shows where it leads
        self.parsed = tokens


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _PlainCode(CodeBlock):
    """Code inside of a list or a quote."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Padding(_highlighted(str(self.text).rstrip().split("\n"), self.lexer_name), (0, 0, 0, 2))


class _Line(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr", characters="─")


_ELEMENTS: dict[str, type[MarkdownElement]] = {
    **Markdown.elements,
    "heading_open": _LeftHeading,
    "fence": _PlainCode,
    "code_block": _PlainCode,
    "hr": _Line,
}
_Rendered.elements = _ELEMENTS


def _make_safe(token: Token) -> None:
    """Entities (`&#x202e;`) are decoded by the parser. A line break stays one, and an image becomes text."""
    token.content = clean_text(token.content)
    if token.type == "softbreak":
        token.type = "hardbreak"
    elif token.type == "image":
        source = str(token.attrs.get("src", ""))
        token.type, token.tag, token.children = "text", "", None
        token.content = f"[image: {token.content}] ({source})" if token.content else f"[image] ({source})"
    children = token.children or []
    for child in children:
        _make_safe(child)
    if any(child.markup == "autolink" for child in children):  # its text is its address
        token.children = [child for child in children if child.markup != "autolink"]


def _is_closed_code(block: _Block) -> bool:
    """A closed code block, which nothing that follows can change."""
    return block.kind == "fence" and _is_closed(block)


def _is_closed(fence: _Block) -> bool:
    content = fence.tokens[0].content
    return fence.end - fence.start > content.count("\n") + (content[-1:] not in ("", "\n")) + 1


def _open_fence(source: str) -> str:
    """The line that began a code block which is still open, without its indentation."""
    opener = ""
    for line in source.split("\n"):
        mark = re.match(r"[\s>]*(?:[-*+]\s+|\d+[.)]\s+)*(`{3,}|~{3,})(.*)", line)
        if mark and opener and not mark[2].strip() and mark[1].startswith(opener[: len(mark[1])].split()[0][:3]):
            opener = ""
        elif mark and not opener:
            opener = mark[1] + mark[2]
    return opener


def _items(block: _Block) -> list[int]:
    """The lines where the items of a list begin, counted from the list's own first line."""
    opened = [token for token in block.tokens if token.type == "list_item_open" and token.level == 1]
    return [token.map[0] - block.start for token in opened if token.map]


def _next_number(block: _Block, number: int | None, line: int) -> int:
    """The number of the item that begins on this line."""
    first = int(block.tokens[0].attrs.get("start", 1)) if number is None else number
    return first + sum(at < line for at in _items(block))


def _closed(source: str) -> str:
    """The source as it is shown while it arrives: emphasis and code that have begun are closed, and half a mark at the
    end is left out, so that a word does not change its look when the rest arrives."""
    last = source.rpartition("\n\n")[2]
    line = last.rpartition("\n")[2]
    if re.fullmatch(r"\s*(`{1,2}|~{1,2}|[-*+]|\|[\s:|-]*)", line):
        return source[: len(source) - len(line)]
    if _open_fence(source):
        return source.rstrip("`") if re.fullmatch(r"\s*`+", line) else source
    marks: list[str] = []
    for mark in _EMPHASIS.findall(last):
        if marks and marks[-1] == mark:
            marks.pop()
        elif "`" not in marks:
            marks.append(mark)
    if not marks:
        return source.removesuffix("*") if last.endswith(" *") else source
    for mark in marks[::-1]:
        source = source[: -len(mark)] if source.endswith(mark) else f"{source.rstrip('*')}{mark}"
    return source


def _from_line(source: str, line: int) -> str:
    at = 0
    for _ in range(line):
        at = source.find("\n", at) + 1
    return source[at:]
