"""Journals of older versions: they are brought up to date when they are opened, and their runs go on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import postgres_server
import pytest
from in_loop import in_loop

from unbroken import Agent, ScriptedModel
from unbroken_durable import drive, open_journal
from unbroken_durable.database_urls import connect
from unbroken_durable.schema import MIGRATIONS, VERSION_TABLE


def make_old(url: str, version: int) -> None:
    """A journal as that version made it, with a run that is ready."""
    database = connect(url)
    forms = {
        "serial": database.serial,
        "bytes": database.bytes_type,
        "without_rowid": database.without_rowid,
    }
    with database.transaction():
        database.change(VERSION_TABLE)
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                database.change(statement.format(**forms))
        database.change("INSERT INTO unbroken_version (version) VALUES (?)", version)
        database.change(
            "INSERT INTO unbroken_runs (run_id, agent, tenant, state, created, updated, question, input) "
            "VALUES ('old', 'a', 'acme', 'ready', 1, 1, 'Hi.', ?)",
            '{"question": {"role": "user", "content": [{"type": "text", "text": "Hi."}]}}',
        )
    database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
@in_loop
async def test_the_runs_of_an_older_journal_are_driven(tmp_path: Path, kind: str, version: int) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else postgres_server.empty_url()
    make_old(url, version)
    for _ in range(2):  # the second time nothing is left to do
        async with await open_journal(url) as journal:
            outcome = await drive({"a": Agent(ScriptedModel("Hello."))}, journal, "old")
            assert outcome.result is not None
            assert (outcome.state, outcome.result.text) == ("answered", "Hello.")


def test_processes_that_open_a_new_journal_at_the_same_moment_do_not_disturb_each_other(tmp_path: Path) -> None:
    for number in range(20):
        url, moment = f"sqlite:///{tmp_path}/{number}.db", time.monotonic() + 0.05
        children = [in_child(url, moment) for _ in range(4)]
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4


def in_child(url: str, moment: float) -> int:
    child = os.fork()
    if child:
        return child
    try:
        while time.monotonic() < moment:
            pass
        database = connect(url)
        database.migrate()
        database.close()
        os._exit(0)
    finally:
        os._exit(1)
