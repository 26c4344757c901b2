"""Programs that call each other: `@name(…)` is the file `name.dph` beside the one that calls it. Each is read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from unbroken.dph.parsing import parse_program, read_source
from unbroken.dph.source import Source
from unbroken.dph.syntax import Program

ENDING = ".dph"


@dataclass(slots=True)
class Library:
    _read: dict[Path, Program] = field(default_factory=dict[Path, Program])

    def find(self, name: str, caller: Source) -> Program | None:
        """The program of that name, or none. One that is there and cannot be read raises."""
        if caller.path is None:
            return None
        path = caller.path.parent / f"{name}{ENDING}"
        if path not in self._read:
            if not path.is_file():
                return None
            self._read[path] = parse_program(read_source(path))
        return self._read[path]
