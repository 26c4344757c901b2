"""What is wrong with a configuration, collected: one line for each mistake, which says where it was written, in a line
of the file or as an option."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unbroken.errors import UserError
from unbroken.gateway.config.toml_lines import Where
from unbroken.gateway.config.value_types import ELSEWHERE


class Mistakes:
    def __init__(self, file: str = "", lines: Mapping[Where, int] | None = None) -> None:
        self.file = file
        self._lines = lines or {}
        self._options: dict[Where, str] = {}
        self._found: list[tuple[int, str]] = []
        self.models: dict[str, tuple[Where, str]] = {}
        """Where the model of each alias stands, also in words; both are empty for one that came as an option."""

    def __bool__(self) -> bool:
        return bool(self._found)

    def note_model(self, alias: str, words: str) -> None:
        """Something is wrong with what is behind an alias."""
        self.note(*self.models.get(alias, ((), "")), words)

    def written_as(self, where: Where, option: str) -> None:
        """This value came as an option, whatever the file says."""
        self._options[where] = option

    def beside(self, where: Where, path: str) -> str:
        """A path that was written in the file is meant from where the file is."""
        path = str(Path(path).expanduser()) if path.startswith("~") else path
        return path if where in self._options or not self.file else str(Path(self.file).parent / path)

    def note(self, where: Where, table: str, words: str) -> None:
        """Something is wrong with a table, or with what is not there."""
        line = 0 if where in self._options else self._line(where)
        place = "" if where in self._options else f"{self.file}:{line}" if line else self.file
        self._found.append((line, ": ".join(part for part in (place, table, words) if part)))

    def note_value(self, where: Where, table: str, words: str) -> None:
        """Something is wrong with the value of a key; the words follow its name."""
        if option := self._options.get(where):
            self.note_option(option, words.replace(ELSEWHERE, "put it into a variable, and say --api-key-env VARIABLE"))
        else:
            self.note(where, table, f"`{where[-1]}` {words}")

    def note_option(self, option: str, words: str) -> None:
        self._found.append((0, f"{option} {words}"))

    def tell(self) -> None:
        """All of them as one error, in the order of the file; options come first."""
        if self._found:
            raise UserError("\n".join(words for _, words in sorted(self._found, key=lambda found: found[0])))

    def _line(self, where: Where) -> int:
        """That of the table, where the key itself is not found; 0 if nothing is."""
        return next((line for end in range(len(where), 0, -1) if (line := self._lines.get(where[:end]))), 0)
