"""A durable run whose processes are killed, and what must hold afterwards.

Each tool writes to a ledger of its own before it returns, so that a kill may fall between the effect and its record.
`check` compares the ledger with the history of the run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unbroken import Agent, Allow, CallContext, ScriptedModel, tool
from unbroken.events import Event, ReasoningAdded, TextAdded, TextReplaced
from unbroken.models.scripted import Answer, Call, Say
from unbroken_durable import Journal, Outcome, drive, open_journal
from unbroken_durable.database import Database
from unbroken_durable.records import Append
from unbroken_wires.messages import Assistant, Request, ToolMessage

QUESTION = "Pay what is open."
ANSWER = "Everything is paid, and nothing is left to do."
ROUNDS = 3
LOST = "outcome unknown"
OFTEN = 1000
"""Drivers die here in a row, and it is not the fault of their runs."""


def script(request: Request) -> Answer:
    """The next answer depends on nothing but the history, as with a real model."""
    said = sum(isinstance(message, Assistant) for message in request.messages)
    if said >= ROUNDS:
        return [Say(ANSWER, chunks=8, over=0.02)]
    numbers = [10 * said + at for at in range(4)]
    last = ("deposit", "refund", "verified")[said]
    return [
        Say(f"Step {said + 1} begins. ", chunks=4, over=0.01),
        Call("look", number=numbers[0]),
        Call("transfer", number=numbers[1]),
        Call("transfer", number=numbers[2]),
        Call(last, number=numbers[3]),
    ]


class Ledger:
    """What the tools did, in a database of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS effects (tool TEXT, number INTEGER, key TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS reads (id INTEGER PRIMARY KEY, key TEXT)")
        connection.close()

    def write(self, tool: str, number: int, key: str) -> None:
        with sqlite3.connect(self.path, timeout=10) as connection:
            connection.execute("INSERT INTO effects VALUES (?, ?, ?)", (tool, number, key))
        connection.close()

    def write_read(self, key: str) -> int:
        """Returns the number of the execution."""
        with sqlite3.connect(self.path, timeout=10) as connection:
            number = connection.execute("INSERT INTO reads (key) VALUES (?)", (key,)).lastrowid
        connection.close()
        assert number is not None
        return number

    def reads(self, run_id: str) -> dict[str, list[int]]:
        """The executions of the reads of a run, by their keys."""
        found: dict[str, list[int]] = {}
        connection = sqlite3.connect(self.path, timeout=10)
        for number, key in connection.execute("SELECT id, key FROM reads ORDER BY id"):
            if key.startswith(f"{run_id}-"):
                found.setdefault(key, []).append(number)
        connection.close()
        return found

    def rows(self, run_id: str = "") -> list[tuple[str, int, str]]:
        """Of one run, or of all: a key begins with the id of its run."""
        begin = f"{run_id}-" if run_id else ""
        connection = sqlite3.connect(self.path, timeout=10)
        try:
            return connection.execute(
                "SELECT tool, number, key FROM effects WHERE substr(key, 1, ?) = ?", (len(begin), begin)
            ).fetchall()
        finally:
            connection.close()

    def find(self, key: str) -> str | None:
        return next((f"done {number}" for _, number, known in self.rows() if known == key), None)


def agents_of(ledger: Ledger, pause: float = 0.002) -> dict[str, Agent]:
    """The agent `payer`. Its tools take `pause` seconds before and after they write to the ledger."""

    async def write(name: str, number: int, context: CallContext[Any]) -> str:
        await asyncio.sleep(pause)
        ledger.write(name, number, context.key)
        await asyncio.sleep(pause)
        return f"done {number}"

    @tool(effect="read")
    async def look(number: int, context: CallContext[Any]) -> str:
        """Looks."""
        await asyncio.sleep(pause)
        return f"seen {number}, look {ledger.write_read(context.key)}"

    @tool(effect="write")
    async def transfer(number: int, context: CallContext[Any]) -> str:
        """Transfers money."""
        return await write("transfer", number, context)

    @tool(effect="write", after_crash="rerun")
    async def deposit(number: int, context: CallContext[Any]) -> str:
        """Deposits money once for each key, however often it is called."""
        return await write("deposit", number, context)

    @tool(effect="write", after_crash=lambda arguments, key: ledger.find(key))
    async def verified(number: int, context: CallContext[Any]) -> str:
        """Pays; after a crash the ledger shows whether it did."""
        return await write("verified", number, context)

    @tool(effect="write", approve=True)
    async def refund(number: int, context: CallContext[Any]) -> str:
        """Refunds, if somebody agrees."""
        return await write("refund", number, context)

    return {"payer": Agent(ScriptedModel(script), [look, transfer, deposit, verified, refund])}


async def drive_to_the_end(journal: Journal, agents: dict[str, Agent], run_id: str, **options: Any) -> Outcome:
    """Drives, and allows what waits."""
    while True:
        outcome = await drive(agents, journal, run_id, **options)
        if outcome.state != "waiting":
            return outcome
        row = await journal.run(run_id)
        await journal.answer(run_id, {call["id"]: Allow() for call in row.pending})


def in_a_child(work: Callable[[], Any]) -> int:
    """Runs it in a process of its own; returns the signal that ended it, or its exit code negated."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def kill_at_append(is_due: Callable[[Append], bool], *, after: bool) -> None:
    """In this process, an append that is due kills it, before or after it is stored."""
    original = Database.append

    def append(self: Database, batch: Sequence[Append]) -> Any:
        due = [is_due(each) for each in batch]
        if any(due) and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        stored = original(self, batch)
        if any(due):
            os.kill(os.getpid(), signal.SIGKILL)
        return stored

    Database.append = append


def kill_as_planned(kill: tuple[int, bool] | None) -> None:
    """`kill`: which append kills this process, and whether that is stored before."""
    if kill is not None:
        number, after = kill
        numbers = itertools.count(1)
        kill_at_append(lambda _: next(numbers) == number, after=after)


def run_in_a_child(url: str, ledger: Ledger, run_id: str, kill: tuple[int, bool] | None = None) -> int:
    """A process that drives the run to its end; `kill`: which append kills it, and whether that is stored before."""

    async def main() -> None:
        kill_as_planned(kill)
        async with await open_journal(url, deaths=OFTEN) as journal:
            await journal.start("payer", QUESTION, run_id=run_id)
            outcome = await drive_to_the_end(journal, agents_of(ledger), run_id)
            assert outcome.state == "answered", outcome

    return in_a_child(lambda: asyncio.run(main()))


def check(outcome: Outcome, events: Sequence[Event], ledger: Ledger, *, taken_over: bool = False) -> None:
    """The same answer as without a crash; every call has one result; the ledger agrees with it. `taken_over`: a driver
    lost the run while it was alive, and what it was doing may have gone on."""
    assert outcome.state == "answered", outcome
    assert outcome.result is not None
    assert outcome.result.text == ANSWER
    check_history(outcome, ledger, taken_over=taken_over)
    check_events(events)


def check_history(outcome: Outcome, ledger: Ledger, *, taken_over: bool) -> None:
    assert outcome.result is not None
    rows = ledger.rows(outcome.run_id)
    done = Counter((tool, number) for tool, number, _ in rows)
    messages = outcome.result.messages
    said = [message for message in messages if isinstance(message, Assistant) and message.calls]
    told = [message for message in messages if isinstance(message, ToolMessage)]
    assert len(said) == len(told) == ROUNDS
    looks: list[int] = []
    for asked, results in zip(said, told, strict=True):
        assert [call.id for call in asked.calls] == [result.call_id for result in results.results]
        for call, result in zip(asked.calls, results.results, strict=True):
            assert call.arguments is not None
            if call.name == "look":
                seen, _, execution = result.text.partition(", look ")
                assert seen == f"seen {call.arguments['number']}"
                looks.append(int(execution))
                continue
            times = done[call.name, int(str(call.arguments["number"]))]
            if LOST in result.text:
                assert call.name in ("transfer", "refund"), f"{call.name} is safe to repeat"
                assert times <= 1, (call, times)
            else:
                assert result.text == f"done {call.arguments['number']}", result.text
                assert times == 1 or (call.name == "deposit" and times >= 1), (call, times)
    keys = Counter(key for tool, _, key in rows if tool != "deposit")
    assert all(count == 1 for count in keys.values()), keys
    if not taken_over:  # a read may run again, but not after its result was stored
        assert sorted(looks) == sorted(executions[-1] for executions in ledger.reads(outcome.run_id).values())


def check_events(events: Sequence[Event]) -> None:
    """Numbers without a gap, from 1; nobody was told a text twice."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, TextAdded):
            texts[event.turn] = texts.get(event.turn, "") + event.text
        elif isinstance(event, TextReplaced):
            texts[event.turn] = event.text
        assert not isinstance(event, ReasoningAdded)
    assert [texts[turn] for turn in sorted(texts)] == [*(f"Step {n + 1} begins. " for n in range(ROUNDS)), ANSWER]


async def all_events(journal: Journal, run_id: str) -> list[Event]:
    return [event async for event in journal.events(run_id)]


def count_appends(url: str, ledger: Ledger) -> int:
    """How many appends the run needs if its process is not killed."""

    async def main() -> int:
        async with await open_journal(url) as journal:
            await journal.start("payer", QUESTION, run_id="counted")
            await drive_to_the_end(journal, agents_of(ledger), "counted")
            return (await journal.run("counted")).chunks

    return asyncio.run(main())
