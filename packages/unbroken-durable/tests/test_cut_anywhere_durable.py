"""A journal that is cut after any transaction, as the death of a process leaves it, is driven on by new agents: what
holds for recordings (tests/trajectory/test_cut_anywhere_properties.py of the library) holds for durable runs.

SQLite's own log is cut: it has the transactions one after another, and what ends with one of them is a database.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from cut_runs import (
    PROMPT,
    Ended,
    Plan,
    World,
    agent_of,
    answers_to,
    check_continued,
    check_uncut,
    in_flight,
    plans,
    some_places,
)
from durable_runs import OFTEN
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import fewer

from unbroken.errors import UserError
from unbroken_durable import Journal, drive, open_journal
from unbroken_testing import run_virtual


def transactions(database: Path) -> list[int]:
    """Where each of them ends in the log beside the database."""
    log = Path(f"{database}-wal")
    data = log.read_bytes() if log.exists() else b""
    page, salts = int.from_bytes(data[8:12], "big"), data[16:24]
    ends: list[int] = []
    for at in range(32, len(data), 24 + page):
        assert data[at + 8 : at + 16] == salts, "the log has begun anew, and its beginning is lost"
        if int.from_bytes(data[at + 4 : at + 8], "big"):  # its last page
            ends.append(at + 24 + page)
    return ends


def stored(database: Path) -> int:
    return len(transactions(database))


async def drive_on(plan: Plan, world: World, journal: Journal) -> Ended:
    """Drives the run, each time with a new agent, until it has an answer."""
    for _ in range(20):  # a run that waited for ever would be a violation, too
        outcome = await drive({"main": agent_of(plan, world)}, journal, "r")
        if outcome.state != "waiting":
            assert outcome.result is not None, outcome
            return Ended.of(outcome.result, world)
        row = await journal.run("r")
        uncertain = [call.id for call in row.pending if call.uncertain]
        await journal.answer("r", answers_to(row.pending, uncertain, world))
    raise AssertionError("the run waits again and again")


def play(plan: Plan, folder: Path) -> tuple[Ended, bytes]:
    """The run that is not cut, and the log of its journal; `empty.db` is the journal before it."""
    database = folder / "runs.db"

    async def make() -> None:
        async with await open_journal(f"sqlite:///{database}"):
            pass

    async def main() -> tuple[Ended, bytes]:
        async with await open_journal(f"sqlite:///{database}") as journal:
            await journal.start("main", PROMPT, run_id="r")
            ended = await drive_on(plan, World(database, stored), journal)
            return ended, Path(f"{database}-wal").read_bytes()

    run_virtual(make)
    shutil.copy(database, folder / "empty.db")
    ended, log = run_virtual(main)
    Path(f"{folder / 'whole.db'}-wal").write_bytes(log)
    check_uncut(plan, ended)
    return ended, log


def check_cut(plan: Plan, uncut: Ended, log: bytes, number: int, database: Path) -> None:
    shutil.copy(database.parent / "empty.db", database)
    Path(f"{database}-wal").write_bytes(log[: transactions(database.parent / "whole.db")[number - 1]])
    world = uncut.world.cut(number, database)

    async def main() -> tuple[Ended, set[str]]:
        async with await open_journal(f"sqlite:///{database}", deaths=OFTEN) as journal:
            try:
                open_calls = in_flight(await journal.recording("r"))
            except UserError:  # nobody has driven it yet
                open_calls = set[str]()
            return await drive_on(plan, world, journal), open_calls

    continued, open_calls = run_virtual(main)
    check_continued(plan, continued, uncut, open_calls)


@settings(max_examples=fewer(10))
@given(plans(), st.integers(0, 1_000_000))
def test_a_durable_run_is_driven_on_from_any_transaction(plan: Plan, seed: int) -> None:
    with TemporaryDirectory() as name:
        uncut, log = play(plan, Path(name))
        for number in some_places(stored(Path(name) / "whole.db"), 5, seed, uncut):
            check_cut(plan, uncut, log, number, Path(name) / f"{number}.db")


@settings(max_examples=fewer(5))
@given(plans(background=True), st.integers(0, 1_000_000))
def test_a_durable_run_with_calls_in_the_background_is_driven_on(plan: Plan, seed: int) -> None:
    with TemporaryDirectory() as name:
        uncut, log = play(plan, Path(name))
        for number in some_places(stored(Path(name) / "whole.db"), 5, seed, uncut):
            check_cut(plan, uncut, log, number, Path(name) / f"{number}.db")
