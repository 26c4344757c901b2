"""A call while its pieces arrive: what is known of it so far, and its text as it grows.

Data only. Which piece belongs to it and when it is complete is decided in `calls`.
"""

from __future__ import annotations

from unbroken.decoding.scanner import Scanner
from unbroken.messages import ToolCall


class Pending:
    """A call while its pieces arrive. `done` is the announced call, ready or spoiled."""

    __slots__ = (
        "_scanner",
        "announced_again",
        "blocks",
        "done",
        "fragments",
        "half",
        "id",
        "index",
        "kind",
        "name",
        "opened",
        "own_index",
        "waits",
        "withdrawn",
    )

    def __init__(self, index: int, own_index: bool, id: str, name: str, kind: str) -> None:
        self.index = index
        self.own_index = own_index
        """The provider gave this call an index that no other call had."""
        self.id = id
        self.name = name
        self.kind = kind
        self.opened = False
        self.fragments: list[str] = []
        """What came since the last scan."""
        self.blocks: list[str] = []
        """What was scanned, in larger pieces: a hundred thousand small strings would cost their memory."""
        self._scanner: Scanner | None = None
        self.half = ""
        self.announced_again = ""
        """Its name once more, alone, after the close."""
        self.withdrawn = False
        self.waits = False
        """Its wire says where calls end, and has not said it yet."""
        self.done: ToolCall | None = None

    @property
    def scanner(self) -> Scanner:
        """Made when it is needed: nearly all calls are short, and read at one look."""
        if self._scanner is None:
            self._scanner = Scanner()
        return self._scanner

    @property
    def closed(self) -> bool:
        """Its outer object has closed, or it was announced."""
        return self.done is not None or (self._scanner is not None and self._scanner.closed)

    @property
    def raw(self) -> str:
        return "".join((*self.blocks, *self.fragments))

    @raw.setter
    def raw(self, text: str) -> None:
        self.blocks = [text]
        self.fragments = []

    @property
    def empty(self) -> bool:
        return not (self.blocks or self.fragments)
