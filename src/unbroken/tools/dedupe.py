"""Which calls of one message are identical and share one execution."""

from __future__ import annotations

from collections.abc import Iterable

from unbroken.tools.entry import Entry
from unbroken.tools.order import disturbs


def find_twins(entries: Iterable[Entry], share_all: bool) -> list[tuple[Entry, Entry]]:
    """Each call that shares the execution of another, with that other: the one which has started, else the first."""
    found: list[tuple[Entry, Entry]] = []
    first_of: dict[str, Entry] = {}
    for entry in entries:
        prepared = entry.prepared
        tool = prepared.tool
        if tool is None or prepared.refusal:
            continue
        if first_of and tool.effect != "read":
            # A read after a write may see something new, so it does not share with one before it.
            first_of = {
                fingerprint: first
                for fingerprint, first in first_of.items()
                if first.prepared.effect != "read" or not disturbs(prepared, first.prepared)
            }
        if not (tool.shared or (share_all and tool.dedupe is None)):
            continue
        first = first_of.setdefault(prepared.fingerprint, entry)
        if first is entry:
            continue
        original, sharer = (entry, first) if entry.started and not first.started else (first, entry)
        first_of[prepared.fingerprint] = original
        if not sharer.started:
            sharer.twin = original
            original.sharers += (sharer,)
            found.append((original, sharer))
    return found
