"""Durable runs that are handled roughly: killed between two approved calls, cancelled at bad moments, given hostile
text, opened by other names."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from durable_runs import in_a_child
from postgres_server import empty_url

from unbroken import Agent, Allow, ScriptedModel, tool
from unbroken.errors import UserError
from unbroken.models.scripted import Answer, Call, ErrorInside
from unbroken.trajectory.lines import exact
from unbroken_durable import AnswerTooLate, Busy, Journal, JournalUnavailable, Superseded, drive, open_journal
from unbroken_durable.database import Database
from unbroken_durable.large_values import LARGE, put_back, take_out
from unbroken_wires.messages import Assistant, Request


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}" if request.param == "sqlite" else empty_url()


def in_journal(url: str, work: Callable[[Journal], Any]) -> Any:
    async def main() -> Any:
        async with await open_journal(url) as journal:
            return await work(journal)

    return asyncio.run(main())


def answered(request: Request) -> int:
    return sum(isinstance(message, Assistant) for message in request.messages)


def payers(pause: float, output: Any = None) -> dict[str, Agent[Any, Any]]:
    @tool(approve=True)
    async def pay(n: int) -> str:
        """Pays."""
        await asyncio.sleep(0 if n == 1 else pause)
        return f"paid {n}"

    def script(request: Request) -> Answer:
        return "Done." if answered(request) else [Call("pay", n=1, id="a"), Call("pay", n=2, id="b")]

    return {"payer": Agent(ScriptedModel(script), [pay], output=output)}


def test_a_driver_that_dies_between_two_approved_calls_leaves_a_run_that_goes_on(url: str) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("payer", "Pay twice")
        await drive(payers(5), journal, run_id)
        await journal.answer(run_id, {"a": Allow(), "b": Allow()})
        driving = asyncio.create_task(drive(payers(5), journal, run_id))
        await asyncio.sleep(0.4)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        outcome = await drive(payers(0), journal, run_id)
        assert outcome.state == "answered"
        assert outcome.result is not None
        assert outcome.result.calls[0].result.text == "paid 1"
        assert outcome.result.calls[1].outcome == "unknown"

    in_journal(url, work)


def test_a_driver_that_is_cancelled_while_its_last_lines_are_stored_leaves_an_answered_run(url: str) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("payer", "Hi")
        agents = {"payer": Agent(ScriptedModel("Hello."))}
        driving = asyncio.create_task(drive(agents, journal, run_id))

        async def cancel_at_the_end() -> None:
            while not driving.done():
                await asyncio.sleep(0)
                if (await journal.run(run_id)).state == "answered":
                    driving.cancel()

        await asyncio.gather(driving, cancel_at_the_end(), return_exceptions=True)
        assert (await journal.run(run_id)).state == "answered"
        claim = await journal.claim(run_id, always=True)
        await journal.work(lambda database: database.change("UPDATE unbroken_runs SET state = 'answered'"))
        await journal.leave(claim, "ready")  # pyright: ignore[reportArgumentType] - it is a claim
        assert (await drive(agents, journal, run_id)).state == "answered"

    in_journal(url, work)


def test_a_claim_that_nobody_waits_for_any_more_is_given_back(url: str) -> None:
    async def work(journal: Journal) -> None:
        agents = {"payer": Agent(ScriptedModel("Hello."))}
        for turns in (0, 1, 2, 4, 8):
            run_id = await journal.start("payer", "Hi")
            driving = asyncio.create_task(drive(agents, journal, run_id))
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            driving.cancel()
            await asyncio.wait([driving])
            for _ in range(100):
                try:
                    await drive({"payer": Agent(ScriptedModel("Hello."))}, journal, run_id)
                except Busy:
                    await asyncio.sleep(0.02)
                else:
                    break
            assert (await journal.run(run_id)).state == "answered"

    in_journal(url, work)


@pytest.mark.parametrize("text", ["a zero \0 byte", "half \ud800 a character"])
def test_an_error_that_no_database_can_store_fails_its_own_run_and_no_other(url: str, text: str) -> None:
    @tool
    async def work_on(n: int) -> str:
        """Works."""
        return "ok"

    def fine(request: Request) -> Answer:
        done = answered(request)
        return "Fine." if done == 5 else [Call("work_on", n=done)]

    async def work(journal: Journal) -> None:
        def bad(request: Request) -> Answer:
            return [ErrorInside(text)]

        agents = {"bad": Agent(ScriptedModel(bad)), "good": Agent(ScriptedModel(fine), [work_on])}
        runs = [await journal.start(name, "Go") for name in ("bad", "good", "good", "bad", "good")]
        outcomes = await asyncio.gather(*(drive(agents, journal, run) for run in runs))
        assert [outcome.state for outcome in outcomes] == ["failed", "answered", "answered", "failed", "answered"]
        assert [(await journal.run(run)).state for run in runs] == [outcome.state for outcome in outcomes]
        row = await journal.cancel(await journal.start("good", "Go"), text)
        assert row.state == "cancelled"

    in_journal(url, work)


def test_an_answer_that_comes_after_the_run_went_on_without_it_is_refused(tmp_path: Path) -> None:
    @tool(approve=True)
    async def pay() -> str:
        """Pays."""
        return "paid"

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(0.5)
        return "waited"

    async def work(journal: Journal) -> None:
        agents = {"payer": Agent(ScriptedModel([Call("pay", id="p")], [Call("wait")], "Done."), [pay, wait])}
        run_id = await journal.start("payer", "Pay", answer_within=0.1)
        await drive(agents, journal, run_id)
        await asyncio.sleep(0.2)
        driving = asyncio.create_task(drive(agents, journal, run_id))
        await asyncio.sleep(0.2)
        with pytest.raises(AnswerTooLate, match="the time for one is over"):
            await journal.answer(run_id, {"p": Allow()})
        assert (await driving).state == "answered"

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


def test_a_process_that_opens_the_file_by_another_name_sees_the_same_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    monkeypatch.chdir(tmp_path)

    async def work(journal: Journal) -> None:
        run_id = await journal.start("payer", "Pay twice")
        claim = await journal.claim(run_id)
        monkeypatch.chdir("/")
        for name in ("link.db", "runs.db"):
            async with await open_journal(f"sqlite:///{tmp_path / name}") as other:
                with pytest.raises(Busy):
                    await other.claim(run_id)
        await journal.leave(claim, "ready")  # pyright: ignore[reportArgumentType] - it is a claim

    in_journal("sqlite:///runs.db", work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_a_child_of_a_driver_does_not_keep_its_lock(url: str, tmp_path: Path) -> None:
    async def claim_and_die(journal: Journal) -> None:
        await journal.start("payer", "Pay", run_id="r")
        await journal.claim("r")
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        (tmp_path / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(lambda: in_journal(url, claim_and_die)) == signal.SIGKILL
    child = int((tmp_path / "child").read_text())

    async def drive_it(journal: Journal) -> str:
        for _ in range(50):  # the server may take a moment to notice that the connection has ended
            try:
                return (await drive({"payer": Agent(ScriptedModel("Hello."))}, journal, "r")).state
            except Busy:
                await asyncio.sleep(0.1)
        return "busy"

    try:
        assert in_journal(url, drive_it) == "answered"
        os.kill(child, 0)  # it still lives
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [2**64 + 1, -(10**40), 1e300, 7])
def test_numbers_beside_a_large_text_stay_exact(number: float) -> None:
    line = {"line": "result", "n": number, "texts": ["x" * LARGE, "é\ud800" * LARGE]}
    data = exact(line) + b"\n" + exact({"line": "note", "text": "small"}) + b"\n"
    short, large, values = take_out(data)
    assert len(short) < 200
    assert large is not None
    assert put_back(short, large, values.__getitem__) == data


def test_an_agent_that_no_longer_has_a_type_for_its_answer_continues_with_text(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("payer", "Pay twice")
        await drive(payers(0, output=int), journal, run_id)
        await journal.answer(run_id, {"a": Allow(), "b": Allow()})
        outcome = await drive(payers(0), journal, run_id)
        assert outcome.state == "answered"
        assert "the type of the answer is different" in outcome.changed

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


@pytest.mark.parametrize(
    "given",
    [
        {"run_id": "x" * 501},
        {"run_id": "é" * 251},
        {"run_id": "a\0b"},
        {"tenant": "\ud800"},
        {"answer_within": 0},
        {"answer_within": -1},
        {"answer_within": float("nan")},
        {"answer_within": 10**400},
        {"answer_within": 10**5000},
        {"answer_within": True},
        {"answer_within": "x"},
    ],
    ids=lambda given: f"{next(iter(given))}",
)
def test_what_cannot_be_stored_is_refused_when_the_run_is_started(given: dict[str, Any], tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        with pytest.raises(UserError, match=next(iter(given))) as refused:
            await journal.start("payer", "Hi", **given)
        assert "at most" in str(refused.value)
        with pytest.raises(UserError, match="limit"):
            await journal.runs(limit=-1)
        assert await journal.runs() == []

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


def test_a_journal_belongs_to_one_event_loop(tmp_path: Path) -> None:
    async def opened() -> Journal:
        return await open_journal(f"sqlite:///{tmp_path / 'runs.db'}")

    journal = asyncio.run(opened())

    async def used_elsewhere() -> None:
        with pytest.raises(UserError, match="another event loop"):
            await journal.runs()
        with pytest.raises(UserError, match="another event loop"):
            await journal.start("payer", "Hi")

    asyncio.run(used_elsewhere())


def test_work_that_nobody_waits_for_any_more_still_has_the_database(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        began, end = threading.Event(), threading.Event()

        def look(database: Database) -> None:
            began.set()
            end.wait(10)

        looking = asyncio.create_task(journal.work(look))
        while not began.is_set():
            await asyncio.sleep(0.001)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        starting = asyncio.create_task(journal.start("payer", "Pay"))
        await asyncio.sleep(0.05)
        assert not starting.done()  # the thread uses the connection
        end.set()
        assert (await journal.run(await starting)).state == "ready"

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


def test_a_full_disk_is_named_in_the_log_before_patience_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'runs.db'}?synchronous=full"  # everything goes through one connection
        async with await open_journal(url, patience=60) as journal:
            await journal.work(lambda database: database.change("PRAGMA max_page_count = 1"))
            starting = asyncio.create_task(journal.start("payer", "Pay " * 100_000, run_id="r"))
            while not caplog.messages:
                await asyncio.sleep(0.01)
            assert "cannot be used now (database or disk is full): what is to be stored is tried again" in caplog.text
            await journal.work(lambda database: database.change("PRAGMA max_page_count = 1000000"))
            assert await starting == "r"
            assert [record.message.partition("runs.db")[2] for record in caplog.records] == [
                " cannot be used now (database or disk is full): what is to be stored is tried again",
                " can be reached again",
            ]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_call_of_a_driver_that_lost_its_run_is_not_said_to_be_cancelled_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began = asyncio.Event()

    @tool
    async def pay() -> str:
        """Pays, forever."""
        began.set()
        await asyncio.sleep(3600)
        return "paid"

    async def work(journal: Journal) -> None:
        run_id = await journal.start("payer", "Pay")
        first = asyncio.create_task(drive({"payer": Agent(ScriptedModel([Call("pay")]), [pay])}, journal, run_id))
        await began.wait()
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as other:
            agents = {"payer": Agent(ScriptedModel("Done."), [pay])}
            assert (await drive(agents, other, run_id, take_over=True)).state == "answered"
            with pytest.raises(Superseded):
                await first
        assert "Tool call pay failed: cancelled: the run is no longer driven here" in caplog.text
        assert "the run was cancelled" not in caplog.text

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


def test_a_run_with_a_damaged_recording_can_be_cancelled(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("payer", "Pay twice")
        await drive(payers(0), journal, run_id)
        await journal.work(lambda database: database.change("UPDATE unbroken_chunks SET data = ?", b"not a line\n"))
        assert (await journal.cancel(run_id)).state == "cancelled"

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


def test_those_who_watch_are_told_that_the_journal_was_closed(tmp_path: Path) -> None:
    async def main() -> None:
        journal = await open_journal(f"sqlite:///{tmp_path / 'runs.db'}")
        run_id = await journal.start("payer", "Hi")

        async def watch() -> None:
            async for _ in journal.events(run_id):
                pass

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.2)
        await journal.close()
        with pytest.raises(UserError, match="the journal is closed"):
            await asyncio.wait_for(watching, 5)

    asyncio.run(main())


def test_two_runs_never_share_an_exported_file(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        names: set[str] = set()
        for run_id in ("a/b", "a#b", "a_b", "x" * 400):
            await journal.start("payer", "Hi", run_id=run_id)
            await drive({"payer": Agent(ScriptedModel("Hello."))}, journal, run_id)
            names.add((await journal.export(run_id, tmp_path)).name)
        assert len(names) == 4

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


def test_a_damaged_list_of_calls_does_not_hide_the_other_runs(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        await journal.start("payer", "Pay", run_id="damaged")
        await journal.start("payer", "Pay", run_id="intact")
        damage = "UPDATE unbroken_runs SET pending = ? WHERE run_id = 'damaged'"
        for pending in ("[{", "5", "[5]"):
            await journal.work(lambda database, pending=pending: database.change(damage, pending))
            rows = {row.run_id: row for row in await journal.runs()}
            assert (rows["damaged"].pending, rows["intact"].error) == ((), "")
            assert "cannot be read: the database is damaged" in rows["damaged"].error

    in_journal(f"sqlite:///{tmp_path / 'runs.db'}", work)


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_runs_after_the_file_of_the_journal_was_deleted(tmp_path: Path, replaced: bool) -> None:
    file = tmp_path / "runs.db"
    paid: list[int] = []

    @tool
    def pay() -> str:
        """Pays."""
        paid.append(1)
        return "paid"

    async def work(journal: Journal) -> None:
        run_id = await journal.start("payer", "Pay")
        file.unlink()
        if replaced:
            file.write_bytes(b"")
        with pytest.raises(JournalUnavailable, match="deleted or replaced"):
            await drive({"payer": Agent(ScriptedModel(Call("pay"), "Done."), [pay])}, journal, run_id)
        with pytest.raises(JournalUnavailable, match="deleted or replaced"):
            await journal.start("payer", "Pay again")
        assert paid == []

    in_journal(f"sqlite:///{file}", work)
