"""The statements of a journal, for every database. They run in one thread, one transaction after another; `sqlite` and
`postgres` add what differs: the connection, the locks, and which errors pass by themselves."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from unbroken.errors import UnbrokenError, UserError
from unbroken_durable.deaths import OVERDUE, Deaths
from unbroken_durable.errors import (
    AlreadyAnswered,
    AnswerTooLate,
    Busy,
    JournalUnavailable,
    RunExists,
    Superseded,
    UnknownAgent,
    UnknownRun,
)
from unbroken_durable.large_values import put_back, take_out
from unbroken_durable.records import Append, Claim, PendingCall, RunRow, State
from unbroken_durable.schema import MIGRATIONS, VERSION_TABLE
from unbroken_wires.wires.jsontext import without_halves

T = TypeVar("T")

_ROW = (
    "run_id, agent, tenant, state, created, updated, question, pending, expires, error, token, supersessions, number, "
    "chunks, deaths, fruitless"
)


_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()


def _leave_locks() -> None:
    for database in _OPEN:
        database.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def redirect_to_nothing(file: int) -> None:
    """Points the file's number at nothing: code that still uses the number does no harm."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, file)
    os.close(nothing)


class Disconnected(Exception):
    """The database cannot be reached now."""


@dataclass(frozen=True, slots=True)
class NewRun:
    run_id: str
    agent: str
    tenant: str
    question: str
    input: str
    now: float
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Drivable:
    """Which runs a worker looks for."""

    limit: int = 100
    agents: tuple[str, ...] | None = None
    """Of these agents; None: of all."""
    per_tenant: int | None = None
    """None of a tenant that has as many active runs."""
    orphans: bool = True
    """Also those whose drivers have died; to find them costs a look at each driver's lock."""


class Database:
    """One connection, used by one thread at a time."""

    serial = "INTEGER PRIMARY KEY AUTOINCREMENT"
    bytes_type = "BLOB"
    without_rowid = " WITHOUT ROWID"
    for_update = ""

    def __init__(self, url: str) -> None:
        self.url = url
        """Without its password."""
        self.driver = os.urandom(8).hex()
        """Stands for this journal, in this process. As long as it lives it holds the lock of this name."""
        self.id = ""
        """Of the journal, in every process; known once the tables are there."""
        _OPEN.add(self)
        self._held: set[tuple[int, int]] = set()
        """The runs that drivers of this journal have, and their tokens."""
        self.deaths = Deaths()
        self._alone: tuple[int, int] | None = None
        """The one of them that is driven alone."""

    # What differs

    at_once = False
    """Small pieces of work take as long as writing to a file: they need no thread of their own."""

    def without_waiting(self) -> AbstractContextManager[None]:
        """Work inside of this block raises `Disconnected` where it would have to wait."""
        return nullcontext()

    def transaction(self, *, writes: bool = True) -> AbstractContextManager[None]:
        """Raises `Disconnected` if the database cannot be reached."""
        raise NotImplementedError

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def change(self, statement: str, *values: Any) -> int:
        """Returns how many rows were changed."""
        raise NotImplementedError

    def hold_lock(self) -> None:
        """Takes the lock with the name of this driver, if it has not got it. It ends with the process or its
        connection."""
        raise NotImplementedError

    def is_locked(self, driver: str) -> bool:
        """Does another driver live?"""
        raise NotImplementedError

    def notify(self, runs: Iterable[int]) -> None:
        """Wakes waiting tasks: these runs have changed."""

    def serialize(self, name: str) -> None:
        """Until the end of this transaction, no other one passes here with the same name."""

    def after_fork(self) -> None:
        """In a child: gives up its share of the lock, which would outlive the driver with it."""

    @property
    def needs_checkpoint(self) -> bool:
        """So much was written without waiting that `checkpoint` should be called."""
        return False

    def checkpoint(self) -> None:
        """Work that is put off until there is time."""

    def close(self) -> None:
        raise NotImplementedError

    # Tables

    def migrate(self) -> None:
        """Makes the tables, or brings those of an older version up to date."""
        with self.transaction():
            self.serialize("tables")
            self.change(VERSION_TABLE)
            rows = self.query("SELECT version FROM unbroken_version")
            version = int(rows[0][0]) if rows else 0
            if version > len(MIGRATIONS):
                raise UserError(
                    f"{self.url} is a journal of a newer version ({version}, and this one reads {len(MIGRATIONS)}): "
                    f"update unbroken"
                )
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    self.change(
                        statement.format(serial=self.serial, bytes=self.bytes_type, without_rowid=self.without_rowid)
                    )
            if not rows:
                self.change("INSERT INTO unbroken_version (version) VALUES (?)", len(MIGRATIONS))
            elif version < len(MIGRATIONS):
                self.change("UPDATE unbroken_version SET version = ?", len(MIGRATIONS))
            if not self._read_id():
                self.change("UPDATE unbroken_version SET journal = ?", os.urandom(4).hex())
            self.id = self._read_id()

    def _read_id(self) -> str:
        return str(self.query("SELECT journal FROM unbroken_version")[0][0])

    # Runs

    def start(self, new: NewRun) -> None:
        """Adds a run, unless there is one with this id. `UserError` if that one was asked something else."""
        with self.transaction():
            added = self.change(
                "INSERT INTO unbroken_runs (run_id, agent, tenant, state, created, updated, question, input, trace) "
                "VALUES (?, ?, ?, 'ready', ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO NOTHING",
                new.run_id,
                new.agent,
                new.tenant,
                new.now,
                new.now,
                new.question,
                new.input,
                new.trace,
            )
            rows = self.query("SELECT number, agent, tenant, input FROM unbroken_runs WHERE run_id = ?", new.run_id)
            if tuple(rows[0][1:]) != (new.agent, new.tenant, new.input):
                raise RunExists(
                    f"run `{new.run_id}` exists already, with another agent, tenant, question or limit: an id starts "
                    f"one run; give another run_id"
                )
            if added:
                self.notify([rows[0][0]])

    def find(self, run_id: str) -> RunRow:
        with self.transaction(writes=False):
            return self._find(run_id)

    def _find(self, run_id: str, suffix: str = "") -> RunRow:
        return _row(self._select(_ROW, run_id, suffix))

    def _select(self, columns: str, run_id: str, suffix: str = "") -> tuple[Any, ...]:
        rows = self.query(f"SELECT {columns} FROM unbroken_runs WHERE run_id = ?{suffix}", run_id)
        if not rows:
            raise UnknownRun(f"{self.url} has no run `{run_id}`; `unbroken runs list` shows those that it has")
        return rows[0]

    def find_all(self, wanted: dict[str, Any], limit: int | None) -> list[RunRow]:
        """The runs with these values, the latest first."""
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given)
        order = " ORDER BY number DESC" + ("" if limit is None else f" LIMIT {int(limit)}")
        with self.transaction(writes=False):
            rows = self.query(
                f"SELECT {_ROW} FROM unbroken_runs{f' WHERE {where}' if where else ''}{order}", *given.values()
            )
        return [_row(row) for row in rows]

    def drivable(self, now: float, wanted: Drivable) -> list[RunRow]:
        """Runs that a driver may take. The tenant with the fewest active runs comes first, and of its runs the one that
        has waited longest; behind them, for a while, those whose drivers have died."""
        marks = ", ".join("?" for _ in wanted.agents or ())
        of_agents = "" if wanted.agents is None else f" AND agent IN ({marks or 'NULL'})"
        values = wanted.agents or ()
        most = "" if wanted.per_tenant is None else f" WHERE place <= {int(wanted.per_tenant)}"
        with self.transaction(writes=False):
            left: list[tuple[Any, ...]] = []
            if wanted.orphans:
                left = self.query(
                    f"SELECT {_ROW}, driver FROM unbroken_runs WHERE state = 'running'{of_agents}", *values
                )
            rows = self.query(
                f"SELECT {_ROW} FROM (SELECT unbroken_runs.*, COALESCE(active.number_of, 0) + ROW_NUMBER() OVER "
                f"(PARTITION BY unbroken_runs.tenant ORDER BY updated, number) AS place FROM unbroken_runs LEFT JOIN "
                f"(SELECT tenant AS whose, COUNT(*) AS number_of FROM unbroken_runs WHERE state = 'running' "
                f"GROUP BY tenant) AS active ON active.whose = unbroken_runs.tenant "
                f"WHERE (state = 'ready' OR (state = 'waiting' AND expires <= ?)){of_agents}) AS ranked{most} "
                f"ORDER BY place, updated LIMIT {int(wanted.limit)}",
                now,
                *values,
            )
            others = {str(row[-1]) for row in left} - {self.driver}
            locked = {driver for driver in others if self.is_locked(driver)}
        orphans = [_row(row) for row in left if str(row[-1]) not in locked and not self._has(row)]
        if self._alone is not None:
            return []
        return self.deaths.in_turn([*map(_row, rows)], orphans, now, busy=bool(self._held))[: wanted.limit]

    def _has(self, row: tuple[Any, ...]) -> bool:
        """Does a driver of this journal have it?"""
        return (int(row[12]), int(row[10])) in self._held

    def cancelled_since(self, moment: float) -> list[str]:
        statement = "SELECT run_id FROM unbroken_runs WHERE state = 'cancelled' AND updated > ? ORDER BY updated"
        with self.transaction(writes=False):
            return [str(row[0]) for row in self.query(statement, moment)]

    def agents(self) -> set[str]:
        """The agents of runs that are ready."""
        with self.transaction(writes=False):
            return {str(row[0]) for row in self.query("SELECT DISTINCT agent FROM unbroken_runs WHERE state = 'ready'")}

    def count(self) -> list[tuple[str, int, float, int, int, int]]:
        """By state: how many, since when the oldest is in it, and how many drives, supersessions and deaths."""
        with self.transaction(writes=False):
            rows = self.query(
                "SELECT state, COUNT(*), MIN(updated), SUM(token), SUM(supersessions), SUM(deaths) FROM unbroken_runs "
                "GROUP BY state"
            )
        return [(str(row[0]), int(row[1]), float(row[2]), int(row[3]), int(row[4]), int(row[5])) for row in rows]

    def running_of(self, tenant: str) -> int:
        return int(
            self.query("SELECT COUNT(*) FROM unbroken_runs WHERE tenant = ? AND state = 'running'", tenant)[0][0]
        )

    # Drivers

    def claim(
        self,
        run_id: str,
        now: float,
        *,
        agents: Collection[str] | None = None,
        take_over: bool = False,
        per_tenant: int | None = None,
        always: bool = False,
    ) -> Claim | RunRow:
        """Makes the caller the driver of the run, as `Journal.claim` describes."""
        with self.transaction():
            self.hold_lock()
            found = self._select(f"{_ROW}, trace, input, driver", run_id, self.for_update)
            row, driver = _row(found), str(found[-1])
            if not always and not self._is_drivable(row, now):
                return row
            if agents is not None and row.agent not in agents:
                raise unknown_agent(row, agents)
            alive = self._is_alive(row, driver)
            if alive and not take_over:
                raise busy(run_id)
            died = row.state == "running" and not alive and driver != self.driver
            row = replace(row, deaths=row.deaths + died, fruitless=row.fruitless + died)
            alone = not always and self._is_alone(row, now)
            if per_tenant is not None and row.state != "running":
                self.serialize(f"tenant {row.tenant}")
                if self.running_of(row.tenant) >= per_tenant:
                    raise busy(run_id, f"{per_tenant} runs of its tenant are active")
            token = row.drives + 1
            self.change(
                "UPDATE unbroken_runs SET token = ?, driver = ?, state = 'running', updated = ?, "
                "supersessions = supersessions + ?, deaths = ?, fruitless = ? WHERE number = ?",
                token,
                self.driver,
                now,
                int(alive),
                row.deaths,
                row.fruitless,
                row.number,
            )
        self._held.add((row.number, token))
        if alone:
            self._alone = row.number, token
        return Claim(row, token, json.loads(found[-2]), trace=str(found[-3]), died=died, alone=alone)

    def _is_alone(self, row: RunRow, now: float) -> bool:
        """Is it driven alone, and not with other runs of this journal in this process? Raises `Busy` if not now. Once
        it has waited long, no other starts here before it."""
        if self._alone is not None:
            raise busy(row.run_id, "a run whose drivers have died is driven alone here", "wait for its end")
        if not self.deaths.isolate(row.fruitless):
            return False
        waited = self.deaths.waited(row, row.fruitless, now)
        if waited < 0 or (self._held and waited < OVERDUE):
            why = f"its last {row.fruitless} drivers have died, so it is driven alone, and later"
            raise busy(row.run_id, why, "drive it again in a minute")
        return True

    @property
    def has_others(self) -> bool:
        """Are other runs driven here beside the one that is to be driven alone?"""
        return bool(self._held - {self._alone})

    def retry(self, run_id: str, now: float) -> None:
        with self.transaction():
            row = self._find(run_id, self.for_update)
            if row.state != "failed":
                raise UserError(f"run `{run_id}` cannot be retried: it is {row.state}, and only failed runs can")
            self.change(
                "UPDATE unbroken_runs SET state = 'ready', fruitless = 0, updated = ? WHERE number = ?", now, row.number
            )
            self.notify([row.number])

    def _is_drivable(self, row: RunRow, now: float) -> bool:
        if row.state == "waiting":
            return row.expires is not None and now >= row.expires
        return row.state in ("ready", "running") or (row.state == "failed" and not self.deaths.are_final(row.fruitless))

    def _is_alive(self, row: RunRow, driver: str) -> bool:
        """Does its last driver live and drive it?"""
        if row.state != "running":
            return False
        return (row.number, row.drives) in self._held if driver == self.driver else self.is_locked(driver)

    def history(self, run: int) -> tuple[bytes, dict[int, dict[str, Any]], dict[str, bytes]]:
        """The recording of a run so far, all answers, and what `late_results` has for it."""
        with self.transaction(writes=False):
            return b"".join(self._chunks(run, 0)), self._answers(run), self._late_results(run)

    def _late_results(self, run: int) -> dict[str, bytes]:
        rows = self.query("SELECT key, line FROM unbroken_late_results WHERE run = ?", run)
        return {str(key): bytes(line) for key, line in rows}

    def release(self, run: int, token: int, state: State, now: float) -> None:
        """The driver leaves the run in this state, if it is still its own."""
        try:
            with self.transaction():
                self.change(
                    "UPDATE unbroken_runs SET state = ?, updated = ?, fruitless = 0 WHERE number = ? AND token = ? "
                    "AND state = 'running'",
                    state,
                    now,
                    run,
                    token,
                )
                self.notify([run])
        finally:
            self.forget(run, token)

    def forget(self, run: int, token: int) -> None:
        """The run has no driver in this journal any more."""
        self._held.discard((run, token))
        if self._alone == (run, token):
            self._alone = None

    def append(self, batch: Sequence[Append]) -> list[UnbrokenError | None]:
        """Stores lines of several runs in one transaction. Those of a driver that was superseded are refused: the error
        is in their place."""
        with self.transaction():
            results = [self._append(each) for each in batch]
            self.notify({each.run for each in batch})
        return results

    def _append(self, each: Append) -> UnbrokenError | None:
        changed = ""
        values: list[Any] = [each.updated]
        if each.state is not None:
            changed = ", state = ?, pending = ?, expires = ?, error = ?"
            values += [each.state, each.pending, each.expires, storable(each.error)]
        if each.trace:
            changed += ", trace = ?"
            values.append(each.trace)
        if each.progress:
            changed += ", fruitless = 0"
        guard = [each.run, each.token, each.position]
        stored = self.change(
            f"UPDATE unbroken_runs SET chunks = chunks + {int(bool(each.data))}, updated = ?{changed} "
            f"WHERE number = ? AND token = ? AND chunks = ?",
            *values,
            *guard,
        )
        if not stored:
            rows = self.query("SELECT run_id, token, chunks FROM unbroken_runs WHERE number = ?", each.run)
            if rows and (int(rows[0][1]), int(rows[0][2])) == (each.token, each.position + 1):
                return None  # the connection was lost after it had been stored
            if not rows:
                return JournalUnavailable(f"{self.url} does not have the run any more: nothing of it can be stored")
            run_id = str(rows[0][0])
            return Superseded(
                f"run `{run_id}` was taken over by another driver: nothing more of this one is stored", run_id
            )
        if each.state in ("answered", "cancelled"):
            self.change("DELETE FROM unbroken_late_results WHERE run = ?", each.run)
            if self.change("DELETE FROM unbroken_jobs WHERE run = ?", each.run):
                self.change("DELETE FROM unbroken_progress WHERE run = ?", each.run)
        if not each.data:
            return None
        data, large, texts = take_out(each.data)
        for digest, text in texts.items():
            self.change(
                "INSERT INTO unbroken_values (hash, data) VALUES (?, ?) ON CONFLICT (hash) DO NOTHING", digest, text
            )
        self.change(
            "INSERT INTO unbroken_chunks (run, position, token, data, large) VALUES (?, ?, ?, ?, ?)",
            each.run,
            each.position,
            each.token,
            data,
            large,
        )
        if each.state == "waiting":
            self._look_for_answers(each)
        return None

    def _look_for_answers(self, each: Append) -> None:
        """A call that the run waits for now may have been answered while it was driven, or its result come in late."""
        answered, pending = self._answers(each.run), json.loads(each.pending)
        late = any(call.get("uncertain") for call in pending) and bool(self._late_results(each.run))
        if late or any(call["call"] in answered for call in pending):
            self.change("UPDATE unbroken_runs SET state = 'ready' WHERE number = ?", each.run)

    def progress(self, runs: Sequence[int]) -> dict[int, tuple[int, int, State]]:
        """The current token of each run, how many appends it has, and its state."""
        marks = ", ".join("?" for _ in runs)
        with self.transaction(writes=False):
            rows = self.query(
                f"SELECT number, token, chunks, state FROM unbroken_runs WHERE number IN ({marks})", *runs
            )
        return {int(row[0]): (int(row[1]), int(row[2]), cast("State", row[3])) for row in rows}

    # What was recorded

    def has_tables(self) -> bool:
        """Is there a journal?"""
        raise NotImplementedError

    def ends(self, first: int, last: int) -> dict[int, tuple[bytes, bytes, int]]:
        """The first and the last append of the runs with these numbers, without large texts, and the bytes of all."""
        with self.transaction(writes=False):
            sizes = self.query(
                "SELECT run, SUM(LENGTH(data)) FROM unbroken_chunks WHERE run BETWEEN ? AND ? GROUP BY run",
                first,
                last,
            )
            rows = self.query(
                "SELECT run, position, data FROM unbroken_chunks JOIN unbroken_runs ON number = run "
                "WHERE run BETWEEN ? AND ? AND (position = 0 OR position = chunks - 1) ORDER BY run, position",
                first,
                last,
            )
        ends: dict[int, list[bytes]] = {}
        for run, _, data in rows:
            ends.setdefault(int(run), []).append(bytes(data))
        return {int(run): (ends[int(run)][0], ends[int(run)][-1], int(size)) for run, size in sizes}

    def chunks(self, run_id: str, after: int, most: int | None = None) -> tuple[RunRow, list[bytes]]:
        """The run, and its appends from this one on; `most`: how many."""
        with self.transaction(writes=False):
            row = self._find(run_id)
            return row, self._chunks(row.number, after, most) if row.chunks > after else []

    def _chunks(self, run: int, after: int, most: int | None = None) -> list[bytes]:
        limit = "" if most is None else f" LIMIT {int(most)}"
        rows = self.query(
            f"SELECT data, large FROM unbroken_chunks WHERE run = ? AND position >= ? ORDER BY position{limit}",
            run,
            after,
        )
        return [bytes(data) if large is None else put_back(bytes(data), large, self._value) for data, large in rows]

    def _value(self, digest: str) -> bytes:
        return bytes(self.query("SELECT data FROM unbroken_values WHERE hash = ?", digest)[0][0])

    # Answers

    def answer(self, run_id: str, now: float, encode: Callable[[RunRow], dict[int, tuple[str, str]]]) -> None:
        """Stores answers to calls that the run waits for, all or none: `encode` returns them by the numbers of the
        calls, each with its id. The run is ready then."""
        with self.transaction():
            row = self._find(run_id, self.for_update)
            given, encoded = self._answers(row.number), encode(row)
            for call, (call_id, _) in encoded.items():
                if call in given:
                    raise already_answered(run_id, call_id)
            if row.expires is not None and now >= row.expires:
                raise AnswerTooLate(f"run `{run_id}` continues without an answer: the time for one is over")
            for call, (call_id, answer) in encoded.items():
                self.change(
                    "INSERT INTO unbroken_answers (run, call, call_id, answer, given) VALUES (?, ?, ?, ?, ?)",
                    row.number,
                    call,
                    storable(call_id),
                    answer,
                    now,
                )
            self.change(
                "UPDATE unbroken_runs SET state = 'ready', updated = ? WHERE number = ? AND state = 'waiting'",
                now,
                row.number,
            )
            self.notify([row.number])

    def answered_ids(self, run: int) -> set[str]:
        return {str(row[0]) for row in self.query("SELECT call_id FROM unbroken_answers WHERE run = ?", run)}

    def _answers(self, run: int) -> dict[int, dict[str, Any]]:
        rows = self.query("SELECT call, answer FROM unbroken_answers WHERE run = ?", run)
        return {int(call): json.loads(answer) for call, answer in rows}


def storable(text: str) -> str:
    """Without what databases cannot store as text: zero bytes, and halves of characters."""
    return without_halves(text).replace("\0", "\ufffd")


def unknown_agent(row: RunRow, agents: Iterable[str]) -> UnknownAgent:
    known = ", ".join(f"`{name}`" for name in agents) or "none"
    return UnknownAgent(f"run `{row.run_id}` is of agent `{row.agent}`, which is not among those given: {known}")


_WAY_OUT = "wait for its end, or use take_over=True if you know that the driver is lost"


def busy(run_id: str, why: str = "another driver has it, and is alive", way_out: str = _WAY_OUT) -> Busy:
    return Busy(f"run `{run_id}` cannot be driven now: {why}; {way_out}", run_id)


def already_answered(run_id: str, call_id: str) -> AlreadyAnswered:
    return AlreadyAnswered(f"call `{call_id}` of run `{run_id}` was answered before, and the first answer counts")


def _row(row: tuple[Any, ...]) -> RunRow:
    error = row[9]
    try:
        pending = tuple(map(PendingCall, json.loads(row[7])))
    except (ValueError, TypeError):  # lists show the other runs nevertheless
        pending, error = (), error or "the calls that it waits for cannot be read: the database is damaged"
    return RunRow(
        run_id=row[0],
        agent=row[1],
        tenant=row[2],
        state=row[3],
        created=float(row[4]),
        updated=float(row[5]),
        question=row[6],
        pending=pending,
        expires=None if row[8] is None else float(row[8]),
        error=error,
        drives=int(row[10]),
        supersessions=int(row[11]),
        number=int(row[12]),
        chunks=int(row[13]),
        deaths=int(row[14]),
        fruitless=int(row[15]),
    )
