"""Converts recordings of schemas 1 and 2, which earlier versions wrote, to schema 3, which this version reads.

    python scripts/convert_recordings.py RECORDING_OR_FOLDER… --into FOLDER

The original stays as it is. A line that cannot be read is copied: the reader of the new recording reports it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from schema_1 import Upgrade

from unbroken.errors import UserError
from unbroken.events import event_from_json
from unbroken.trajectory.known import Known
from unbroken.trajectory.line_checks import is_line
from unbroken.trajectory.line_reader import BEGINNING, read_json
from unbroken.trajectory.lines import SCHEMA, Line, exact


class Converter:
    """Of one recording. `feed` takes one raw line after the other and returns those of schema 3."""

    def __init__(self) -> None:
        self._known: Known | None = None
        self._upgrade: Upgrade | None = None
        self._inner: dict[str, Converter] = {}
        """Of the runs of agents that ran as tools, by the keys of their calls."""

    def feed(self, raw: bytes) -> list[bytes]:
        line = read_json(raw)
        if line is None:
            return [raw]
        if self._known is None:
            return [exact(self._begin(line)) + b"\n"]
        if line.get("line") == "resumed" and "schema" in line:
            self._upgrade = None
            line["schema"] = SCHEMA
        lines = [line] if self._upgrade is None else self._upgrade.feed(line)
        if not lines or not all(map(is_line, lines)):
            return [raw]
        return [exact(each) + b"\n" for line in lines for each in self._convert(self._known, line)]

    def _begin(self, head: Line) -> Line:
        if head.get("line") != "run" or head.get("schema") not in (1, 2):
            raise UserError(f"it is of schema {head.get('schema')}, and not 1 or 2")
        self._upgrade = Upgrade(str(head.get("run", ""))) if head["schema"] == 1 else None
        head = {**head, "schema": SCHEMA}
        self._known = Known(head)
        return head

    def _convert(self, known: Known, line: Line) -> Iterator[Line]:
        if line["line"] == "event":
            yield _short_event(known, line)
        elif line["line"] == "inner":
            inner = self._inner.setdefault(line["key"], Converter())
            for of in inner.feed(exact(line["of"]) + b"\n"):
                yield known.shorten({**line, "of": read_json(of)})
        else:
            if line["line"] == "pieces":
                for _, *texts in line["pieces"]:
                    known.streamed(line["delta"], texts)
            elif line["line"] == "delta" and line["delta"] in ("text", "reasoning"):
                known.streamed(line["delta"], [line["text"]])
            if line.get("masked"):
                known.lose_count()
            yield known.shorten(line)


def _short_event(known: Known, line: Line) -> Line:
    try:
        event = event_from_json(line)
    except UserError:  # of a later version
        return line
    names = {"line", "event", *(each.name for each in fields(event))}
    return {**known.shorten_event(event), **{name: value for name, value in line.items() if name not in names}}


def convert(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a recording in schema 3. `UserError` if it is of another schema than 1 or 2."""
    converter = Converter()
    for raw in lines:
        yield from converter.feed(raw)


def _recordings(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        for path in sorted(place.glob("**/*.jsonl")) if place.is_dir() else (place,):
            with path.open("rb") as file:
                if file.read(len(BEGINNING)) == BEGINNING:
                    yield path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+", metavar="RECORDING_OR_FOLDER")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="where the new recordings go")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    failed = converted = 0
    for path in _recordings(given.recordings):
        target: Path = given.into / path.name
        try:
            if target.exists():
                raise UserError(f"{target} exists already")
            with path.open("rb") as file:
                lines = list(convert(file))
            target.write_bytes(b"".join(lines))
            converted += 1
        except (UserError, OSError) as error:
            failed += 1
            print(f"{path} was not converted: {error}", file=sys.stderr)
    print(f"{converted} recordings converted into {given.into}" + (f", {failed} not" if failed else ""))
    return 1 if failed or not converted else 0


if __name__ == "__main__":
    sys.exit(main())
