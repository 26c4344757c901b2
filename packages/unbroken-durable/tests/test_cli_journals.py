"""`unbroken view`, `stats` and `replay` on a journal, as a user runs them."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from pathlib import Path
from typing import Any

import aiohttp
import postgres_server
import pytest
from in_loop import in_loop
from terminals import invoke

from unbroken import Agent, Allow, ScriptedModel, tool
from unbroken.errors import UserError
from unbroken.models.scripted import Answer
from unbroken_durable import drive, open_journal
from unbroken_durable.recorded_runs import MOST_LISTED, RecordedRuns
from unbroken_testing import Call
from unbroken_viewer.page import whole_page
from unbroken_viewer.server import serving
from unbroken_wires.messages import Assistant, Request


@tool(approve=True)
def refund(order: int) -> str:
    """Refund."""
    if order == 13:
        raise ValueError("no such order")
    return "refunded " * 4000


def answer(request: Request) -> Answer:
    text = str(request.messages)
    if any(isinstance(message, Assistant) for message in request.messages) or "Hello" in text:
        return "Done."
    return [Call("refund", order=13 if "13" in text else 7, id="c")]


async def fill(url: str) -> None:
    agents = {"support": Agent(ScriptedModel(answer), [refund])}
    async with await open_journal(url) as journal:
        for run_id, prompt in (
            ("done", "Hello"),
            ("shop/7", "Refund 7"),
            ("shop/13", "Refund 13"),
            ("waits", "Refund"),
        ):
            await journal.start("support", prompt, run_id=run_id, tenant="acme")
            await drive(agents, journal, run_id)
        for run_id in ("shop/7", "shop/13"):
            await journal.answer(run_id, {"c": Allow()})
            await drive(agents, journal, run_id)
        await journal.start("support", "Later", run_id="new")
        await journal.start("support", "Hello", run_id="stopped")
        await journal.cancel("stopped")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("journal")
    url = f"sqlite:///{folder}/runs.db" if request.param == "sqlite" else postgres_server.empty_url()
    asyncio.run(fill(url))
    return url


def test_the_runs_of_a_journal_are_listed_like_a_folder_of_recordings(url: str) -> None:
    done = invoke("view", url, "--json")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    told = {row["name"]: (row["state"], row["calls"], row["failed"], row["prompt"]) for row in rows}
    assert [*told] == ["stopped", "new", "waits", "shop/13", "shop/7", "done"]
    assert told == {
        "stopped": ("cancelled", None, None, "Hello"),
        "new": ("ready", None, None, "Later"),
        "waits": ("waiting", 1, 0, "Refund"),
        "shop/13": ("answered", 1, 1, "Refund 13"),
        "shop/7": ("answered", 1, 0, "Refund 7"),
        "done": ("answered", 0, 0, "Hello"),
    }
    assert {row["model"] for row in rows if row["calls"] is not None} == {"scripted:demo"}
    assert "Refund 13" in invoke("view", url, "--plain").stdout


def test_one_run_is_drawn_as_its_exported_recording_is(url: str, tmp_path: Path) -> None:
    assert invoke("runs", "export", "shop/7", str(tmp_path / "r.jsonl"), "--journal", url).exit_code == 0
    ours = invoke("view", f"{url}#shop/7", "--plain")
    assert (ours.exit_code, ours.stdout) == (0, invoke("view", str(tmp_path / "r.jsonl"), "--plain").stdout)
    assert "events are missing" not in ours.stdout
    with RecordedRuns(f"{url}#shop/7") as runs:
        assert (runs.draw("shop/7").file, runs.draw("shop/7").turns[0].calls[0].result) != ("", None)
        with pytest.raises(UserError, match="only the run `shop/7` is shown"):
            runs.draw("done")


@in_loop
async def test_the_page_shows_runs_whose_ids_have_any_characters(url: str) -> None:
    with RecordedRuns(url) as runs:
        async with serving(runs) as address, aiohttp.ClientSession() as session:
            async with session.get(f"{address}runs") as listed:
                names = [row["name"] for row in await listed.json()]
            assert "shop/7" in names
            async with session.get(f"{address}runs/{urllib.parse.quote('shop/7', safe='')}") as drawn:
                assert (drawn.status, (await drawn.json())["file"]) == (200, "shop/7")
            async with session.get(f"{address}runs/nobody") as missing:
                assert (missing.status, "has no run `nobody`" in (await missing.json())["error"]) == (404, True)


def test_one_file_holds_every_run_that_has_a_recording(url: str) -> None:
    with RecordedRuns(url) as runs:
        page, left_out = whole_page(runs)
    assert b'"shop/13":{' in page
    assert left_out == [
        "run `stopped` has no recording yet: it is cancelled, and nobody has driven it",
        "run `new` has no recording yet: it is ready, and nobody has driven it",
    ]


def test_statistics_count_the_runs_of_a_journal_or_one_of_them(url: str, tmp_path: Path) -> None:
    told = json.loads(invoke("stats", url, "--json").stdout)
    assert (told["recordings"], told["left_out"]) == (4, [])
    assert (told["all"]["answered"], told["all"]["waiting"]) == (3, 1)
    assert told["all"]["tools"]["refund"]["failures"] == 1
    assert json.loads(invoke("stats", f"{url}#shop/7", "--json").stdout)["recordings"] == 1
    invoke("runs", "export", "done", str(tmp_path / "done.jsonl"), "--journal", url)
    assert json.loads(invoke("stats", url, str(tmp_path), "--json").stdout)["recordings"] == 5
    done = invoke("stats", f"{url}#new")
    assert (done.exit_code, "skipped: run `new` has no recording yet" in done.stderr) == (2, True)


def test_a_run_is_replayed(url: str) -> None:
    done = invoke("replay", f"{url}#done")
    assert (done.exit_code, done.stdout) == (0, "Done.\n")
    assert "replayed as recorded" in done.stderr
    assert invoke("replay", f"{url}#shop/7").exit_code == 3  # up to its approval


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["view", "URL#nobody"], "has no run `nobody`"),
        (["stats", "URL#nobody"], "has no run `nobody`"),
        (["replay", "URL#nobody"], "has no run `nobody`"),
        (["replay", "URL"], "is a journal: name one of its runs, as in "),
        (["resume", "URL#waits"], "to continue a run of a journal, use `unbroken runs answer`"),
        (["view", "sqlite:///no/such.db"], "there is no journal no/such.db"),
        (["view", "URL#new", "--plain"], "has no recording yet"),
    ],
)
def test_wrong_use_is_reported(url: str, arguments: list[str], words: str) -> None:
    done = invoke(*(argument.replace("URL", url) for argument in arguments))
    told = str(done.exception) + done.stderr
    assert (done.exit_code != 0, words in told) == (True, True), told


def test_an_sqlite_file_of_somebody_else_and_an_empty_database_are_no_journals(tmp_path: Path) -> None:
    (tmp_path / "other.db").touch()
    for url in (f"sqlite:///{tmp_path}/other.db", postgres_server.empty_url()):
        with pytest.raises(UserError, match="is no journal: it has none of its tables"):
            RecordedRuns(url)
    (tmp_path / "text.db").write_text("This is not a database, and long enough to be read as one." * 9)
    with pytest.raises(UserError, match="cannot be opened: file is not a database"):
        RecordedRuns(f"sqlite:///{tmp_path}/text.db")


@in_loop
async def test_of_many_runs_the_latest_are_listed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with await open_journal(url) as journal:
        for number in range(MOST_LISTED + 3):
            await journal.start("support", "Hi.", run_id=str(number))
    with RecordedRuns(url) as runs:
        assert [row.name for row in runs.rows()][:: MOST_LISTED - 1] == [str(MOST_LISTED + 2), "3"]
    done = await asyncio.to_thread(invoke, "view", url, "--plain")
    assert f"only the latest 1,000 of {MOST_LISTED + 3:,} runs are listed" in done.stderr
