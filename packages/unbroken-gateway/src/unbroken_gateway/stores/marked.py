"""Notices that a store came back empty, or is another one: the keys, the configuration and the spending that it held
are gone. What this process knows of them stays in force until it is written back, or an operator accepts the loss.

The store has a mark: a name in a group of counters, which is never evicted. It is made before the first key or amount
is stored, and read again after every record and together with every amount, so that nothing of an emptied store is
taken for what was there. Turns are not meant: `EmptiedStore` looks after them.

A gateway that misses its mark adds a line `MARK VERSION` to that group, for the others and for those that start later.
VERSION is how many changes of the records it has seen: who has seen less does not know what was revoked, and writes
nothing back by itself. The decision gets a new mark, and the old one a number that shows which decision it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Literal, TypeAlias

from unbroken_gateway.stores.records import NO_RECORD, Record
from unbroken_gateway.stores.store import Addition, Limit, Store, StoreUnavailable

log = logging.getLogger("unbroken.gateway")

MARKS = "marks"
"""The group of counters with the marks. A mark that is there is at least 1."""
RESTORED, ACCEPTED = 1 << 20, 1 << 40
"""From which number on it was decided what becomes of a mark that was gone."""
BRIEF = ("minute:", "reserved:")
"""Groups that begin so are about requests in flight and the running minute: nothing is lost with them."""
Decision: TypeAlias = Literal["restore", "accept"]
FOR_EVER = 100 * 365 * 86400.0
KEPT = 400 * 86400.0
"""Seconds for which amounts are kept that were written back; later additions to them may extend it."""
_BASE = 1 << 32
MOST = 20_000
"""Amounts that are remembered."""

_WAY_OUT = (
    "this gateway continues with what it knows: `unbroken admin store restore` writes that back,"
    " `unbroken admin store accept` continues with the store as it is"
)
EMPTIED = f"the store was emptied, and its keys, added configuration or spending are gone; {_WAY_OUT}"
REPLACED = f"the store is another one than before, or was emptied and used again; {_WAY_OUT}"
UNKNOWN = (
    "the store was emptied, and only gateways that used it before know what it held: `unbroken admin store restore` at"
    " one of them writes it back; if none is left, empty the store once more to begin anew"
)


class StoreEmptied(StoreUnavailable):
    """What the store held is gone, and it is not decided yet what becomes of it."""


class MarkedStore:
    """A store whose loss is noticed. `problem` is empty, or what has happened and what to do about it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.parts = store.parts
        self.get, self.put, self.stats, self.aclose = store.get, store.put, store.stats, store.aclose
        self.problem = ""
        self.may_restore = False
        """No gateway knows better than this one what the store held, and nobody has used it since."""
        self._mark: str = ""
        """The mark that was seen last; empty before the first use."""
        self._records: dict[str, Record] = {}
        """As last seen with this mark."""
        self._base = 0
        """Added to the versions that callers get: those of another mark are never the same."""
        self._amounts: dict[str, int] = {}
        """The counters, as last seen with this mark, by `GROUP NAME`."""
        self._behind = False
        """Another gateway has seen later changes of the records."""
        self._looking = asyncio.Lock()

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        if all(each.group.startswith(BRIEF) for each in additions):
            return await self._store.add(additions, once)
        marking = Addition(MARKS, {await self._known_mark(): 0}, FOR_EVER)
        *values, marks = await self._store.add([*additions, marking], once)
        names = list(dict.fromkeys(name for each in additions for name in each.amounts))
        return await self._checked([each.group for each in additions], names, values, marks)

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        if not names:  # a report, in which nobody is refused anything
            return await self._store.counters(groups)
        mark = await self._known_mark()
        *found, marks = await self._store.counters([*groups, MARKS], [*names, mark])
        return await self._checked(groups, names, found, marks)

    async def _checked(
        self, groups: Sequence[str], names: Sequence[str], found: list[dict[str, int]], marks: Mapping[str, int]
    ) -> list[dict[str, int]]:
        """What was found in the store with these marks; with what is known in addition, if the store was emptied."""
        if 0 < marks.get(self._mark, 0) < RESTORED:
            for group, counted in zip(groups, found, strict=True):
                for name, amount in counted.items():
                    self._remember(group, name, amount)
            return found
        await self.look()
        if not self.problem:
            return await self.counters(groups, names)
        return [
            {name: counted.get(name, 0) + self._amounts.get(f"{group} {name}", 0) for name in names}
            for group, counted in zip(groups, found, strict=True)
        ]

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        mark = await self._known_mark()
        *values, (state,) = await self._store.reserve(additions, [*limits, Limit(((MARKS, mark),), RESTORED)])
        counters = [limit.counters for limit in limits]
        if 0 < state < RESTORED:
            for places, found in zip(counters, values, strict=True):
                for (group, name), amount in zip(places, found, strict=True):
                    self._remember(group, name, amount)
            return values
        had_room = state <= 0 and all(map(Limit.has_room, limits, values))
        await self.look()
        if not self.problem:
            return values if had_room else await self.reserve(additions, limits)
        for places, found in zip(counters, values, strict=True):
            found[:] = [
                amount + self._amounts.get(f"{group} {name}", 0)
                for (group, name), amount in zip(places, found, strict=True)
            ]
        if had_room and not all(map(Limit.has_room, limits, values)):
            undone = [{name: -amount for name, amount in each.amounts.items()} for each in additions]
            await self._store.add(
                [Addition(each.group, amounts, each.ttl) for each, amounts in zip(additions, undone, strict=True)]
            )
        return values

    def _remember(self, group: str, name: str, amount: int) -> None:
        if group.startswith(BRIEF):
            return
        self._amounts.pop(f"{group} {name}", None)
        self._amounts[f"{group} {name}"] = amount
        if len(self._amounts) > MOST:
            del self._amounts[next(iter(self._amounts))]

    async def record(self, name: str, known: int = 0) -> Record | None:
        if self.problem:
            await self.look()
            self._refuse()
        base, seen = self._base, self._records.get(name, NO_RECORD)
        record = await self._store.record(name, max(known - base, 0) or -1)
        if record is None:
            return None
        if seen.version > record.version:  # evicted, or deleted by hand: this happens to no record otherwise
            await self._add_marks({self._mark: -1})
        await self.look()
        self._refuse()
        if base != self._base:  # it was read before the decision
            return await self.record(name, known)
        self._records[name] = record
        if not record.version:
            return record if known else None
        return Record(record.version + base, record.value)

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        """Who changes a record has just read it, so the mark was there."""
        before = version and version - self._base
        is_written = before >= 0 and await self._store.replace_record(name, value, before)
        if is_written:
            self._records[name] = Record(before + 1, value)
        return is_written

    async def ping(self) -> None:
        await self._store.ping()
        await self.look_again()
        self._refuse()

    async def look_again(self) -> None:
        """Looks for the mark, if the store has ever been used for what it protects."""
        if self._mark:
            await self.look()

    async def look(self) -> None:
        """Compares the marks of the store with the one that is known. The first look makes one."""
        async with self._looking:
            (marks,) = await self._store.counters([MARKS])
            # The smallest: the same for gateways that made theirs at the same time.
            present = min((name for name, state in marks.items() if 0 < state < RESTORED), default="")
            state = marks.get(self._mark, 0)
            if state <= 0 and (self._version or any(self._amounts.values())):
                await self._note_loss(marks, present)
                return
            if RESTORED <= state < ACCEPTED:
                await self._write_amounts({self._mark: 0})
            elif state >= ACCEPTED:
                self._amounts.clear()
            if not present and any(" " in name for name in marks):
                self._report(UNKNOWN)
                return
            if not present:
                await self._add_marks({(present := token_hex(8)): 1})
            if present != self._mark:
                records = {name: await self._store.record(name, -1) or NO_RECORD for name in self._records}
                (marks,) = await self._store.counters([MARKS])
                if present not in marks:  # emptied once more: what is known is not forgotten for that
                    return
                self._records, self._base = records, self._base + _BASE
            if self.problem:
                log.warning("store_decided: what the store has now is in force")
            self._mark, self.problem, self.may_restore = present, "", False

    async def decide(self, decision: Decision) -> None:
        """Writes back what is known, or forgets it. Of several gateways, the first one writes; the others add what they
        have counted beyond that."""
        mark = await self._known_mark()
        (lines,) = await self._store.counters([MARKS])
        # Gateways that miss an older mark have nothing to add.
        marks = {name.partition(" ")[0]: 2 * ACCEPTED for name in lines if " " in name}
        marks |= {mark: 2 * (RESTORED if decision == "restore" else ACCEPTED), token_hex(8): 1}
        if decision == "restore" and self._behind:
            raise StoreEmptied("another gateway knows later changes of the keys or the configuration: restore there")
        if decision == "accept":
            self._amounts.clear()
            self._records.clear()
        for name, known in self._records.items():
            # Nothing is overwritten: it may be newer.
            if known.version and not await self._store.replace_record(name, known.value, 0):
                now = await self._store.record(name)
                if now is None or now.value != known.value:
                    raise StoreEmptied(f"the store has other `{name}` by now, so nothing is written back; {_WAY_OUT}")
        await self._write_amounts(marks)
        await self.look()

    async def _known_mark(self) -> str:
        if not self._mark:
            await self.look()
            self._refuse()
        return self._mark

    def _refuse(self) -> None:
        if self.problem:
            raise StoreEmptied(self.problem)

    @property
    def _version(self) -> int:
        return sum(record.version for record in self._records.values())

    async def _note_loss(self, marks: Mapping[str, int], present: str) -> None:
        seen = [int(name.partition(" ")[2]) for name in marks if name.startswith(f"{self._mark} ")]
        self._behind = max(seen, default=0) > self._version
        # Others had a second to add what they have seen, since this one has.
        self.may_restore = not present and not self._behind and self._version in seen
        if self._version not in seen:
            await self._add_marks({f"{self._mark} {self._version}": RESTORED})
        self._report(REPLACED if present else EMPTIED)

    def _report(self, problem: str) -> None:
        if not self.problem:
            log.error("store_emptied: %s", problem)
        self.problem = problem

    async def _add_marks(self, marks: Mapping[str, int]) -> None:
        await self._store.add([Addition(MARKS, marks, FOR_EVER)])

    async def _write_amounts(self, marks: Mapping[str, int]) -> None:
        """Raises each counter to the most that any gateway knew, and adds to the marks with it. A group of counters has
        what was written back before; whoever has not read the last of it writes nothing, and tries again."""
        place, token = f"{MARKS} {self._mark}", token_hex(8)
        written = 0
        while not written:
            (before,) = await self._store.counters([place])
            more = {each: amount - before.get(each, 0) for each, amount in self._amounts.items()}
            missing = {each: amount for each, amount in more.items() if amount > 0}
            named = [(*each.split(" ", 1), amount) for each, amount in missing.items()]
            additions = [Addition(group, {name: amount}, KEPT) for group, name, amount in named]
            last = Addition(MARKS, marks, FOR_EVER), Addition(place, {**missing, token: 1}, KEPT)
            written = (await self._store.add([*additions, *last], f"{place} {len(before)}"))[-1][token]
