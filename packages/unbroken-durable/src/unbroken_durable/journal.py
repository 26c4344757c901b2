"""`Journal`: runs that outlive their process, in a database. It holds the recording of each run and decides who may
write to it; `driving` carries a run on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from unbroken.agent.limits import limits_to_json
from unbroken.agent.prompts import Prompt, to_user
from unbroken.agent.streaming import Buffered
from unbroken.clock import current_clock
from unbroken.errors import UserError
from unbroken.events import Event
from unbroken.trajectory.otel import current_traceparent
from unbroken.trajectory.recording import Recording
from unbroken.trajectory.redaction import Redactor, secrets_in_environment
from unbroken_durable.answers import encode_answers
from unbroken_durable.changes import POLL, Changes, Waiter
from unbroken_durable.database import Database, Disconnected, Drivable, NewRun, storable
from unbroken_durable.database_urls import connect
from unbroken_durable.deaths import DEATHS, Deaths
from unbroken_durable.errors import DriversDied, JournalUnavailable
from unbroken_durable.late_results import find, forget, hand_in, open_results, read_late
from unbroken_durable.records import (
    ENDED,
    LONGEST_NAME,
    LONGEST_WAIT,
    STATES,
    Append,
    Claim,
    RunRow,
    StartOptions,
    State,
    is_too_long,
    is_wait,
)
from unbroken_durable.run_lines import RunEvents, file_name, last_lines, parse
from unbroken_wires.messages import ToolResult
from unbroken_wires.transcript import to_json
from unbroken_wires.validation import check_options, checked

LOG = logging.getLogger("unbroken.durable")

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for which a database that cannot be reached is tried again."""
_SMALL = 64 * 1024
"""Bytes up to which lines are stored at once, if the database can do that."""
_NOTICED = 0.3
"""Seconds after which it is logged that a database cannot be reached."""
PAGE = 256
"""Appends that are read at once to follow the events of a run."""
_QUESTION = 200
"""Characters of the question that lists show."""


async def open_journal(
    url: str, *, secrets: Iterable[str] = (), patience: float = PATIENCE, deaths: int = DEATHS
) -> Journal:
    """Opens the journal at `sqlite:///runs.db` or `postgresql://…`, and makes its tables if there are none.

    What is in `secrets`, and in environment variables that are named like secrets, is masked in what is stored of a
    run. `patience`: for how many seconds a database that cannot be reached is tried again. `deaths`: a run so many of
    whose drivers have died in a row is driven alone, and after as many again it fails with `DriversDied`.
    """
    journal = Journal(url, secrets=secrets, patience=patience, deaths=deaths)
    try:
        await journal.open()
    except BaseException:
        await journal.close()
        raise
    return journal


@checked
class Journal:
    """Made by `open_journal`. Use it as an async context, or `close` it."""

    def __init__(
        self, url: str, *, secrets: Iterable[str] = (), patience: float = PATIENCE, deaths: int = DEATHS
    ) -> None:
        if deaths < 1:
            raise UserError(f"open_journal(deaths={deaths}): give a number from 1")
        self.redactor = Redactor((*secrets, *secrets_in_environment()))
        self._url = url
        self._patience = patience
        self._deaths = Deaths(deaths)
        self._thread = ThreadPoolExecutor(1, "unbroken-journal")
        self._database: Database | None = None
        self._changes = Changes(url, self._in_thread, self._now)
        self._queue: list[tuple[Append, asyncio.Future[None]]] = []
        self._appending: asyncio.Task[None] | None = None
        self.left: set[str] = set()
        """Runs whose driver in this process stops before their end: what runs for them elsewhere continues."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_use = 0
        """Pieces of work that the thread has to do."""
        self._outage = ""
        """Why the database cannot be reached, if that was logged."""
        self._checkpoint: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[None]] = set()
        """Runs that are left when the database is back."""

    def redactor_of(self, secrets: Iterable[str]) -> Redactor:
        """Masks these secrets too, from now on in every run."""
        if not self.redactor.covers(secrets):
            self.redactor = Redactor((*self.redactor.given, *secrets))
        return self.redactor

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._database = await self._in_thread(lambda: connect(self._url))
        self._database.deaths = self._deaths
        await self.work(Database.migrate)
        self._changes.database = self._database

    async def close(self) -> None:
        """Waits for what is being stored. Runs that are still driven are left as if the process had ended."""
        for task in (self._appending, self._checkpoint):
            if task is not None:
                await asyncio.wait([task])
        for task in self._releasing:
            task.cancel()
        database, self._database = self._database, None  # watchers get an error
        await self._changes.close()
        if database is not None:
            await self._in_thread(database.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return self._database.url if self._database is not None else "the journal"

    @property
    def id(self) -> str:
        """A short random text that tells this journal from others, in every process."""
        return self._opened().id

    # Runs

    async def start(self, agent: str, prompt: Prompt, **options: Unpack[StartOptions]) -> str:
        """Adds a run for the agent with this name and returns its id. Nothing runs yet: `drive` does that. The same id
        starts nothing twice. `StartOptions` lists the other arguments."""
        check_options(
            "journal.start", StartOptions, options, also=("agent", "prompt"), unchecked=("history", "answer_within")
        )
        run_id, tenant = options.get("run_id"), options.get("tenant", "")
        history, limits, answer_within = options.get("history"), options.get("limits"), options.get("answer_within")
        if run_id == "":
            raise UserError("journal.start(run_id=''): the id is empty; give one, or leave it out to get a random one")
        for name, value in (("run_id", run_id or ""), ("agent", agent), ("tenant", tenant)):
            if is_too_long(value) or storable(value) != value:
                raise UserError(
                    f"journal.start({name}=…): give at most {LONGEST_NAME} bytes of UTF-8, without zero bytes and "
                    f"halves of characters; these are {len(value.encode('utf-8', 'surrogatepass'))}"
                )
        if answer_within is not None and not is_wait(answer_within):
            raise UserError(
                f"journal.start(answer_within=…): give a number of seconds, more than 0 and at most {LONGEST_WAIT:,}"
            )
        id = run_id or os.urandom(8).hex()
        question = to_user(prompt)
        given: dict[str, Any] = {"question": to_json([question])[0]}
        if history:
            given["history"] = to_json(tuple(history))
        if limits is not None:
            given["limits"] = limits_to_json(limits)
        if answer_within is not None:
            given["answer_within"] = answer_within
        text = " ".join("".join(getattr(part, "text", "") for part in question.parts).split())
        shown = storable(self.redactor.text(text)[:_QUESTION])
        new = NewRun(id, agent, tenant, shown, json.dumps(given), current_clock().now(), current_traceparent())
        await self.work(lambda database: database.start(new), small=True)
        self._changes.ring()
        return id

    async def run(self, run_id: str) -> RunRow:
        """One run; `UnknownRun` if there is none with this id."""
        return await self.work(lambda database: database.find(run_id))

    async def runs(
        self,
        *,
        state: State | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Runs, the latest first: all, or those in this state, of this tenant, of this agent."""
        if state is not None and state not in STATES:
            raise UserError(f"journal.runs(state={state!r}): there is no such state; there are {', '.join(STATES)}")
        if limit is not None and limit < 0:
            raise UserError(f"journal.runs(limit={limit}): give a number from 0, or leave it out")
        wanted = {"state": state, "tenant": tenant, "agent": agent}
        return await self.work(lambda database: database.find_all(wanted, limit))

    async def answer(self, run_id: str, answers: Mapping[str, object]) -> None:
        """Answers calls that the run waits for, by call id: `Allow()`, `Deny()`, `Edit({…})`, or the result of a call
        that ran elsewhere. The run is `ready` then. `AlreadyAnswered` if a call has an answer: the first one counts.
        `AnswerTooLate` if the run has waited as long as it should."""
        database = self._opened()

        def encoded(row: RunRow) -> dict[int, tuple[str, str]]:
            return encode_answers(row, answers, database.answered_ids(row.number))

        now = current_clock().now()
        await self.work(lambda database: database.answer(run_id, now, encoded), small=True)
        self._changes.ring()

    async def cancel(self, run_id: str, reason: str = "the run was cancelled") -> RunRow:
        """Ends a run that has not ended, wherever it is driven: its driver stops, and running calls are cancelled."""
        row = await self.run(run_id)
        if row.state in ("answered", "cancelled"):
            raise UserError(f"run `{run_id}` cannot be cancelled: it has ended ({row.state})")
        claim = await self.claim(run_id, take_over=True, always=True)
        assert isinstance(claim, Claim)
        if claim.row.state in ("answered", "cancelled"):
            await self.leave(claim, claim.row.state)
            raise UserError(f"run `{run_id}` cannot be cancelled: it has ended ({claim.row.state})")
        return await self._end(claim, "cancelled", asyncio.CancelledError(reason))

    async def _end(self, claim: Claim, state: State, error: BaseException) -> RunRow:
        """Ends a run from outside, in its recording too."""
        kind, reason, data = type(error).__name__, storable(self.redactor.text(str(error))), b""
        with suppress(UserError):  # if the recording cannot be read, only the row says it
            data = last_lines(claim, kind, reason) if claim.data else b""
        shown = f"{kind}: {reason}" if state == "failed" else reason
        end = Append(claim.row.number, claim.token, claim.row.chunks, data, 0.0, state, error=shown)
        try:
            await self.append(end)
        finally:
            await self.leave(claim, None)
        return await self.run(claim.row.run_id)

    async def retry(self, run_id: str) -> None:
        """Starts a run again that has failed: it is `ready`. `drive` does that too, unless the drivers of the run died
        (`DriversDied`)."""
        now = current_clock().now()
        await self.work(lambda database: database.retry(run_id, now), small=True)
        self._changes.ring()

    # What happened

    def events(self, run_id: str, after: int = 0) -> Buffered[Event]:
        """The events of a run after this number, without a gap: those that are there, then those that come. Ends after
        the last event of a run that has ended. The numbers start at 1."""
        reader, chunks = RunEvents(run_id), 0

        async def fetch() -> tuple[Iterable[Event], bool]:
            nonlocal chunks
            with self._changes.listening() as changed:
                row, data = await self.work(lambda database: database.chunks(run_id, chunks, PAGE))
                chunks += len(data)
                ended = row.state in ENDED and row.chunks == chunks
                if not (data or ended):
                    await changed.wait()
                return [event for event in reader.feed(data) if event.seq > after], ended

        return Buffered(fetch)

    async def recorded_bytes(self, run_id: str) -> bytes:
        """The recording as a file would hold it."""
        row, data = await self.work(lambda database: database.chunks(run_id, 0))
        if not data:
            raise UserError(f"run `{run_id}` has no recording yet: it is {row.state}, and nobody has driven it")
        return b"".join(data)

    async def recording(self, run_id: str) -> Recording:
        """The recording of the run so far: for the viewer, statistics and replays."""
        return parse(await self.recorded_bytes(run_id), run_id)

    async def export(self, run_id: str, path: str | os.PathLike[str]) -> Path:
        """Writes the recording to a file, or into a folder, and returns its name."""
        data = await self.recorded_bytes(run_id)
        parse(data, run_id)  # it can be read
        target = Path(path)
        if target.is_dir():
            target = target / file_name(run_id)
        target.write_bytes(data)
        return target

    # For drivers and workers

    async def claim(
        self,
        run_id: str,
        *,
        agents: Collection[str] | None = None,
        take_over: bool = False,
        per_tenant: int | None = None,
        always: bool = False,
    ) -> Claim | RunRow:
        """Makes the caller the run's driver: only appends with this claim's token are stored. `Busy` if another driver
        is alive, unless `take_over`, if the tenant has as many active runs as it may, or if its drivers died and it may
        not be driven alone now. `UnknownAgent` if its agent is not among `agents`. Returns the row of a run that has
        ended, or waits, and leaves it as it is, unless `always`. A run too many of whose drivers died has failed."""
        now = current_clock().now()

        def work(database: Database) -> Claim | RunRow:
            return database.claim(run_id, now, agents=agents, take_over=take_over, per_tenant=per_tenant, always=always)

        try:
            claim = self._now(work)
        except Disconnected:
            claiming = asyncio.create_task(self.work(work))
            try:
                claim = await asyncio.shield(claiming)
            except asyncio.CancelledError:  # the thread cannot be stopped: what it claims is given back
                self._releasing.add(asyncio.create_task(self._give_back(claiming)))
                raise
        if isinstance(claim, RunRow):
            return claim
        row = claim.row
        if claim.died:
            counts = row.deaths, row.fruitless
            LOG.warning(
                "run %s: its driver has died: %d by now, %d in a row without a result of a call", run_id, *counts
            )
        try:
            if row.chunks:
                history = await self.work(lambda database: database.history(row.number))
                claim.data, claim.answers, late = history
                if late and not always:
                    await self._fold_in(claim, late)
            while claim.alone and self._opened().has_others:
                await asyncio.sleep(POLL)
        except BaseException:
            await self.give_back(claim)
            raise
        if always or not self._deaths.are_final(row.fruitless):
            return claim
        error = DriversDied(
            f"{row.fruitless} processes died in a row while they drove it, {self._deaths.limit} of them with no other "
            f"run, and none came further; mend its agent, then start it again: `unbroken runs retry {run_id}`"
        )
        return await self._end(claim, "failed", error)

    async def _fold_in(self, claim: Claim, late: dict[str, bytes]) -> None:
        """Late results belong to the recording, unless their calls have other ones."""
        run, data = claim.row.number, open_results(parse(claim.data, claim.row.run_id), late)
        if data:
            await self.append(Append(run, claim.token, claim.row.chunks, data, 0.0))
            claim.data += data
            claim.row = replace(claim.row, chunks=claim.row.chunks + 1)
        await self.work(partial(forget, run=run, keys=late.keys()))

    async def hand_in(self, run: int, results: Mapping[str, bytes]) -> None:
        """Results of calls, by their keys, that the driver of the run may not know: from one that has lost it."""
        try:
            await self.work(partial(hand_in, run=run, results=results), small=True)
        except JournalUnavailable as error:
            LOG.warning("results of %d calls could not be handed in: %s", len(results), error)
        else:
            self._changes.ring()

    async def late_result(self, run: int, key: str) -> ToolResult | None:
        """What an earlier driver has handed in for the call with this key."""
        line = await self.work(partial(find, run=run, key=key), small=True)
        return None if line is None else read_late(line)

    def watch(self, claim: Claim, on_lost: Callable[[], object]) -> None:
        """Calls `on_lost` when another driver has taken over the run, or somebody has cancelled it."""
        self._changes.watch(claim.row.number, claim.token, on_lost)

    async def leave(self, claim: Claim, state: State | None) -> None:
        """Gives the run back, in this state, or in the one that the last append has set."""
        self.left.discard(claim.row.run_id)
        run, token, now = claim.row.number, claim.token, current_clock().now()
        self._changes.unwatch(run, token)
        if state is None:
            if self._database is not None:
                self._database.forget(run, token)
            return
        try:
            await self.work(lambda database: database.release(run, token, state, now), small=True)
        except JournalUnavailable:
            # This process lives, so nobody else would take the run as long as the journal says that it is driven here.
            self._releasing.add(asyncio.create_task(self._release_later(run, token, state)))

    async def give_back(self, claim: Claim) -> None:
        """Leaves a run as it was: nobody drives it."""
        await self.leave(claim, "ready" if claim.row.state == "running" else claim.row.state)

    async def _give_back(self, claiming: asyncio.Task[Claim | RunRow]) -> None:
        """Leaves a run whose claim nobody waits for any more."""
        await asyncio.wait([claiming])
        if claiming.exception() is None and isinstance(claim := claiming.result(), Claim):
            await self.give_back(claim)
        current = asyncio.current_task()
        if current is not None:
            self._releasing.discard(current)

    async def _release_later(self, run: int, token: int, state: State) -> None:
        """Leaves a run as soon as the database can be reached again."""
        while self._database is not None:
            with suppress(JournalUnavailable):
                await self.work(lambda database: database.release(run, token, state, current_clock().now()))
                break
        current = asyncio.current_task()
        if current is not None:
            self._releasing.discard(current)

    def append(self, lines: Append) -> asyncio.Future[None]:
        """Stores lines in the order of the calls; the future fails with `Superseded` or `JournalUnavailable`. Lines of
        several runs are stored in one transaction."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lines.updated = current_clock().now()
        if not self._queue and self._appending is None and len(lines.data) < _SMALL:
            try:
                _settle(stored, self._now(lambda database: database.append([lines]))[0])
            except Disconnected:
                pass
            except Exception as error:  # noqa: BLE001 - tasks that wait for these lines get it
                _settle(stored, error)
                return stored
            else:
                self._changes.ring()
                return stored
        self._queue.append((lines, stored))
        if self._appending is None:
            self._appending = asyncio.create_task(self._append_all())
        return stored

    async def _append_all(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                batch.sort(key=lambda each: each[0].run)  # two processes never wait for each other
                lines = [each for each, _ in batch]
                try:
                    results = await self.work(lambda database, lines=lines: database.append(lines))
                except Exception:  # noqa: BLE001 - whatever it is, it is the fault of one of them
                    results = [await self._append_one(each) for each in lines]
                for (_, stored), result in zip(batch, results, strict=True):
                    _settle(stored, result)
                self._changes.ring()
        finally:
            self._appending = None

    async def _append_one(self, lines: Append) -> Exception | None:
        try:
            return (await self.work(lambda database: database.append([lines])))[0]
        except Exception as error:  # noqa: BLE001 - tasks that wait for these lines get it
            return error

    async def drivable(
        self,
        limit: int = 100,
        *,
        agents: Iterable[str] | None = None,
        per_tenant: int | None = None,
        orphans: bool = True,
    ) -> list[RunRow]:
        """Runs that may be driven: ready ones, waiting ones whose time is over, and `orphans`, whose drivers have died;
        of those that are driven alone one, if there is nothing else. The tenant with the fewest active runs comes
        first; none of a tenant that has `per_tenant` of them."""
        now, names = current_clock().now(), None if agents is None else tuple(agents)
        return await self.work(lambda database: database.drivable(now, Drivable(limit, names, per_tenant, orphans)))

    async def cancelled_since(self, moment: float) -> list[str]:
        """The ids of runs that were cancelled after this time."""
        return await self.work(lambda database: database.cancelled_since(moment))

    async def agents(self) -> set[str]:
        """The names of the agents of runs that are ready."""
        return await self.work(Database.agents)

    async def count(self) -> list[tuple[str, int, float, int, int, int]]:
        """For each state: how many runs, the time since when the oldest is in it, drives, supersessions, deaths."""
        return await self.work(Database.count)

    def ring(self) -> None:
        """Wakes those in this process who listen. Changes by other processes are noticed without it."""
        self._changes.ring()

    async def changed(self, timeout: float) -> None:
        """Returns when a run has changed, or after this many seconds."""
        with self.listening() as changed:
            await changed.wait(timeout)

    def listening(self) -> AbstractContextManager[Waiter]:
        """`with journal.listening() as changed:` look, then `await changed.wait(timeout)`: it returns at once if
        something has changed since the look began."""
        return self._changes.listening()

    async def work(self, work: Callable[[Database], T], *, small: bool = False) -> T:
        """Runs database work in the journal's thread; tries again while the database cannot be reached. `small` work is
        done at once if the database can do that."""
        database = self._opened()
        if small:
            with suppress(Disconnected):
                return self._now(work)
        clock = current_clock()
        began, wait = clock.elapsed(), 0.05
        while True:
            try:
                done = await self._in_thread(lambda: work(database))
            except Disconnected as error:
                self._report_outage(str(error), clock.elapsed() - began)
                if clock.elapsed() - began > self._patience:
                    raise JournalUnavailable(
                        f"{database.url} cannot be reached since {self._patience:g} s: {error}; what was stored is "
                        f"safe, drive the run again when it is back"
                    ) from None
                await asyncio.sleep(wait)
                wait = min(wait * 2, 2.0)
            else:
                if self._outage:
                    LOG.warning("%s can be reached again", database.url)
                    self._outage = ""
                return done

    def _report_outage(self, reason: str, seconds: float) -> None:
        """Each reason once, unless it passes at once."""
        if seconds >= _NOTICED and reason != self._outage:
            self._outage = reason
            LOG.warning("%s cannot be used now (%s): what is to be stored is tried again", self.url, reason)

    def _now(self, work: Callable[[Database], T]) -> T:
        """Work on a local database that need not wait for anything; otherwise raises `Disconnected`."""
        database = self._opened()
        self._check_loop()
        if not database.at_once or self._in_use:
            raise Disconnected("it is in use")
        with database.without_waiting():
            done = work(database)
        if database.needs_checkpoint and self._checkpoint is None:
            self._checkpoint = asyncio.create_task(self._in_thread(database.checkpoint))
            self._checkpoint.add_done_callback(self._checkpointed)
        return done

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._checkpoint = None
        if not task.cancelled() and task.exception() is not None:
            LOG.warning("%s could not be tidied up: %s", self.url, task.exception())

    def _opened(self) -> Database:
        if self._database is None:
            raise UserError("the journal is closed; open it again with open_journal")
        return self._database

    async def _in_thread(self, work: Callable[[], T]) -> T:
        running = self._check_loop().run_in_executor(self._thread, work)
        self._in_use += 1
        running.add_done_callback(self._done)
        # If the waiting task is cancelled, the thread works on, and the database is in use until it is done.
        return await asyncio.shield(running)

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """A journal belongs to the event loop that opened it."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and loop is not self._loop:
            raise UserError(f"{self.url} was opened in another event loop; open the journal in each loop that uses it")
        return loop

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._in_use -= 1


def _settle(stored: asyncio.Future[None], result: Exception | None) -> None:
    if stored.done():
        return
    if result is None:
        stored.set_result(None)
    else:
        stored.set_exception(result)
        stored.exception()  # a waiting task gets it; there may be none
