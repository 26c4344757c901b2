"""Calls of a message that broke off: they continue until it is known whether the retried message contains them.

This module only decides which calls may adopt which orphans; the batch does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unbroken.tools.caller import Prepared
from unbroken.tools.entry import Entry
from unbroken.tools.schedule import disturbs


class Orphans:
    """By name and arguments: the first call of each that started."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry) -> None:
        entry.orphaned = True
        self._entries.setdefault(entry.prepared.fingerprint, entry)

    def find(self, prepared: Prepared) -> Entry | None:
        return self._entries.get(prepared.fingerprint)

    def pop(self, prepared: Prepared) -> Entry | None:
        return self._entries.pop(prepared.fingerprint, None)

    def pop_all(self) -> list[Entry]:
        orphans = list(self._entries.values())
        self._entries = {}
        return orphans

    def adoptions(self, entries: Mapping[int, Entry]) -> Iterator[tuple[int, Entry]]:
        """The places of the calls, in call order, that may adopt an orphan, each with its orphan. A call after one that
        may change what it reads has to run again, with its own key."""
        changing: list[Prepared] = []
        for place, entry in entries.items():
            prepared = entry.prepared
            if prepared.effect != "read":
                changing.append(prepared)
            elif self.find(prepared) is not None and not (entry.started or prepared.refusal or prepared.asks):
                if any(disturbs(each, prepared) for each in changing):
                    prepared.nth += 1
                else:
                    yield place, self._entries.pop(prepared.fingerprint)


NO_ORPHANS = Orphans()
"""Shared by all messages that never break off: nothing is ever added to it."""
