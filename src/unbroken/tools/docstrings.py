"""What a docstring says: the description of a function, and of each of its parameters.

Reads the Google, NumPy and reST styles, line by line and by hand. Not a checker: what looks like none of them is
description, and nothing in a docstring is an error. Types in docstrings are left out, because annotations have them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass

_HEADERS = "args|arguments|parameters|params|keyword args|keyword arguments|other parameters|参数|參數|参数说明"
_GOOGLE = re.compile(rf"\s*(?:{_HEADERS})\s*[:：]\s*", re.IGNORECASE)
_NUMPY = re.compile(rf"\s*(?:{_HEADERS})\s*", re.IGNORECASE)
_UNDERLINE = re.compile(r"\s*(?:-{3,}|={3,})\s*")

_GOOGLE_ENTRY = re.compile(
    r"""\s* (?:[-*]\s+)?            # some write a list
    `{0,2} \*{0,2} (?P<name>\w+) `{0,2}
    \s* (?:[(（].*?[)）])?          # the type, and whether it is optional
    (?: \s*[:：]\s* | \s+[-–—]{1,2}\s+ )
    (?P<text>.*)""",
    re.VERBOSE,
)
_NUMPY_ENTRY = re.compile(r"\s*(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?:[:：].*)?")
_FIELD = re.compile(r"\s*[:@](?P<kind>\w+)(?:\s+(?P<subject>[^:：]*?))?\s*[:：](?:\s+|$)(?P<text>.*)")
_PARAMETER_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword"}


@dataclass(frozen=True, slots=True)
class Docstring:
    description: str = ""
    """The summary and the body, without the part about the parameters."""
    parameters: dict[str, str] | None = None

    def of(self, parameter: str) -> str:
        return (self.parameters or {}).get(parameter, "")


def read_docstring(text: str | None) -> Docstring:
    lines = _lines_of(text or "")
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        line, below = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
        if _in_section(lines, at):
            kept.append(line)
            end = at + 1
        elif _GOOGLE.fullmatch(line) and _indent_of_next(lines, at + 1) > _indent(line):
            end = _end_of_block(lines, at + 1, _indent(line) + 1)
            _read_google(lines[at + 1 : end], found)
        elif _NUMPY.fullmatch(line) and _UNDERLINE.fullmatch(below):
            end = _end_of_numpy(lines, at + 2)
            _read_numpy(lines[at + 2 : end], found)
        elif (field := _FIELD.fullmatch(line)) and field["kind"].lower() in _PARAMETER_FIELDS | {"type"}:
            end = _end_of_field(lines, at + 1, _indent(line) + 1)
            words = (field["subject"] or "").split()
            if words and field["kind"].lower() != "type":
                found.setdefault(words[-1].lstrip("*"), [field["text"], *lines[at + 1 : end]])
        else:
            kept.append(line)
            end = at + 1
        at = end
    parameters = {name: text for name, texts in found.items() if (text := _join(texts))}
    return Docstring(re.sub(r"\n\s*\n(\s*\n)+", "\n\n", "\n".join(kept)).strip(), parameters)


def _lines_of(text: str) -> list[str]:
    """Without the margin. Where the first line is a header, the entries below it lose their own indentation with it."""
    lines = inspect.cleandoc(text).splitlines()
    first, *below = text.splitlines() or [""]
    if _GOOGLE.fullmatch(first) and _indent_of_next(below, 0) > 0 and _indent_of_next(lines, 1) == 0:
        return [lines[0], *(f"    {line}" for line in lines[1:])]
    return lines


def _in_section(lines: list[str], at: int) -> bool:
    """Below `Example:` or another header, parameters are not those of this function."""
    margin = _indent(lines[at])
    if margin == 0 or not lines[at].strip():
        return False
    above = next((line for line in reversed(lines[:at]) if line.strip() and _indent(line) < margin), "")
    return above.rstrip().endswith((":", "："))


def _read_google(block: list[str], found: dict[str, list[str]]) -> None:
    margin = _indent_of_next(block, 0)
    current: list[str] | None = None
    for line in block:
        if _indent(line) <= margin and (entry := _GOOGLE_ENTRY.fullmatch(line)):
            current = found.setdefault(entry["name"], [])
            current.append(entry["text"])
        elif current is not None:
            current.append(line)


def _read_numpy(block: list[str], found: dict[str, list[str]]) -> None:
    margin = _indent_of_next(block, 0)
    current: list[list[str]] = []
    for line in block:
        if line.strip() and _indent(line) <= margin and (entry := _NUMPY_ENTRY.fullmatch(line)):
            current = [found.setdefault(name.strip().lstrip("*"), []) for name in entry["names"].split(",")]
        else:
            for texts in current:
                texts.append(line)


def _end_of_block(lines: list[str], at: int, margin: int) -> int:
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) >= margin):
        at += 1
    return at


def _end_of_field(lines: list[str], at: int, margin: int) -> int:
    while at < len(lines) and lines[at].strip() and _indent(lines[at]) >= margin:
        at += 1
    return at


def _end_of_numpy(lines: list[str], at: int) -> int:
    """At the next underlined header, or at a line that can be neither an entry nor its text."""
    while at < len(lines):
        if at + 1 < len(lines) and lines[at].strip() and _UNDERLINE.fullmatch(lines[at + 1]):
            break
        if lines[at].strip() and _indent(lines[at]) == 0 and not _NUMPY_ENTRY.fullmatch(lines[at]):
            break
        at += 1
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indent_of_next(lines: list[str], at: int) -> int:
    return next((_indent(line) for line in lines[at:] if line.strip()), 0)


def _join(texts: Iterable[str]) -> str:
    """One line: a space between two lines, but none between two Chinese characters."""
    joined = ""
    for text in (text.strip() for text in texts):
        if not text:
            continue
        wide = joined and ord(joined[-1]) >= 0x2E80 and ord(text[0]) >= 0x2E80
        joined += text if wide or not joined else f" {text}"
    return joined
