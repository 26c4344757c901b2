"""Says when the top-level JSON object of a call's arguments closes: one pass, no parsing, no byte looked at twice.

Not a parser: it follows brackets and strings only. A text that closes here is then parsed once, strictly, in
`arguments`. "It parses" is no evidence that a call is complete (`{"a": 1}` may be the start of more text; a number can
grow), so the close of the outer object is; and anything but white space after it spoils the call.
"""

from __future__ import annotations

import re

MAX_DEPTH = 512

_MARKS = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')
_BLANK = " \t\r\n"


class Scanner:
    """Feed it the text in any pieces. `closed` turns true at the brace that ends the outer object."""

    __slots__ = ("_escaped", "_in_string", "_open", "closed", "foreign", "spoiled", "too_deep")

    def __init__(self) -> None:
        self.closed = False
        self.spoiled = False
        """Something other than white space came after the close, or a bracket closed what it did not open."""
        self.foreign = False
        """The text does not start with a brace: whatever it is, it is not an object."""
        self.too_deep = False
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> bool:
        """Returns `closed`."""
        at, end = 0, len(text)
        if self.spoiled or self.too_deep or self.foreign:
            return self.closed
        if not self._open:
            at = end - len(text.lstrip(_BLANK))
            if at == end:
                return self.closed
            if self.closed:
                self.spoiled = True
                return True
            if text[at] != "{":
                self.foreign = True
                return False
        while at < end:
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                    at += 1
                    continue
                found = _STRING_END.search(text, at)
                if found is None:
                    break
                at = found.end()
                if found.group() == "\\":
                    self._escaped = True
                else:
                    self._in_string = False
                continue
            found = _MARKS.search(text, at)
            if found is None:
                break
            at = found.end()
            if self._bracket(found.group()):
                if text[at:].strip(_BLANK):
                    self.spoiled = True
                break
        return self.closed

    def _bracket(self, mark: str) -> bool:
        """Follow one mark outside strings; true when there is nothing more to follow."""
        if mark == '"':
            self._in_string = True
        elif mark in "{[":
            self._open.append("}" if mark == "{" else "]")
            if len(self._open) > MAX_DEPTH:
                self.too_deep = True
                return True
        elif self._open.pop() != mark:
            self.spoiled = True
            return True
        elif not self._open:
            self.closed = True
            return True
        return False
