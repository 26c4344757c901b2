"""`unbroken runs`, as a user runs it: what is printed, and the exit codes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import durable_app
import pytest
from terminals import Terminal, in_pipe, invoke
from typer.testing import Result

from unbroken.events import CallFinished
from unbroken.trajectory.recording import read_recording
from unbroken_durable.database_urls import connect

JOURNAL = "sqlite:///runs.db"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    durable_app.write_app(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNBROKEN_JOURNAL", JOURNAL)
    monkeypatch.setenv("TZ", "UTC")


def runs(*arguments: str, stdin: str = "") -> Result:
    return invoke("runs", *arguments, stdin=stdin)


def drive(run_id: str, *more: str) -> Result:
    return runs("drive", run_id, "--agents", "app.py:agents", *more)


def shown(run_id: str) -> dict[str, Any]:
    return json.loads(runs("show", run_id, "--json").stdout)


def waiting(run_id: str = "r", prompt: str = "refund") -> None:
    assert runs("start", "support", prompt, "--id", run_id, "--tenant", "acme").exit_code == 0
    assert drive(run_id).exit_code == 5


def test_a_run_is_started_driven_answered_and_driven_to_its_end() -> None:
    assert runs("start", "support", "refund", "--id", "order-7", "--tenant", "acme").stdout == "order-7\n"
    done = drive("order-7")
    assert (done.exit_code, done.stdout) == (5, "")
    assert "waiting: refund (id refund-1)" in done.stderr
    answered = runs("answer", "order-7", "refund-1", "--allow")
    assert (answered.exit_code, answered.stdout) == (
        0,
        "call `refund-1` of run `order-7` is answered; the run is ready\n",
    )
    done = drive("order-7")
    assert (done.exit_code, done.stdout) == (0, "Done.\n")
    assert "a tool prints this" in done.stderr
    assert shown("order-7")["text"] == "Done."


def test_the_same_id_starts_nothing_twice_and_another_question_under_it_is_refused() -> None:
    for _ in range(2):
        assert runs("start", "support", "refund", "--id", "r").exit_code == 0
    done = runs("start", "support", "ship", "--id", "r")
    assert (done.exit_code, "run `r` exists already" in done.stderr, "--id" in done.stderr) == (2, True, True)
    assert len(json.loads(runs("list", "--json").stdout)) == 1


def test_a_prompt_is_read_from_standard_input_and_an_id_is_made() -> None:
    run_id = runs("start", "support", "-", stdin="refund this").stdout.strip()
    assert shown(run_id)["question"] == "refund this"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (["--allow"], "order 7 was refunded"),
        (["--deny", "ask the bank"], "ask the bank"),
        (["--edit", '{"order": 9}'], "order 9 was refunded"),
    ],
)
def test_every_kind_of_answer_reaches_the_model(answer: list[str], result: str) -> None:
    waiting()
    assert runs("answer", "r", "refund-1", *answer).exit_code == 0
    assert drive("r").exit_code == 0
    assert runs("export", "r", "r.jsonl").stdout == "r.jsonl\n"
    finished = [event for event in read_recording("r.jsonl").events if isinstance(event, CallFinished)]
    assert result in finished[-1].text


def test_the_first_answer_counts() -> None:
    waiting()
    assert runs("answer", "r", "refund-1", "--allow").exit_code == 0
    done = runs("answer", "r", "refund-1", "--deny", "no")
    assert (done.exit_code, "was answered before, and the first answer counts" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["answer", "r", "refund-1"], "give one of --allow, --deny REASON, --edit JSON and --result TEXT"),
        (["answer", "r", "refund-1", "--allow", "--deny", "x"], "give one of"),
        (["answer", "r", "refund-1", "--edit", "{"], "the arguments are not JSON"),
        (["answer", "r", "refund-1", "--edit", "[]"], "must be a JSON object"),
        (
            ["answer", "r", "refund-1", "--result", "paid by hand"],
            "call `refund-1` (refund) waits for an approval, and its result comes from its tool: use --allow, --deny "
            "or --edit",
        ),
        (["start", "support", "x", "--answer-within", "1e12"], "--answer-within: give a number of seconds"),
        (["answer", "r", "other", "--allow"], "no call `other` waits for an answer; waiting: `refund-1` (refund)"),
        (["answer", "nobody", "refund-1", "--allow"], "has no run `nobody`"),
        (["show", "nobody"], "has no run `nobody`"),
        (["cancel", "nobody"], "has no run `nobody`"),
        (["list", "--state", "asleep"], "there is no such state; there are: ready, running"),
        (["drive", "r"], "no agents were given; use --agents MODULE:NAME"),
        (["drive", "r", "--agents", "app.py"], "write MODULE:NAME"),
        (["drive", "r", "--agents", "nowhere:agents"], "importing nowhere failed: ModuleNotFoundError"),
        (["drive", "r", "--agents", "nowhere.py:agents"], "there is no Python file nowhere.py"),
        (["drive", "r", "--agents", "app.py:nobody"], "app.py has no `nobody`"),
        (["drive", "r", "--agents", "app.py:nothing"], "got an empty dict"),
        (["drive", "r", "--agents", "app.py:number"], "expected a dict of agents by name, or an Agent, got int"),
        (["drive", "r", "--agents", "app.py:broken"], "`broken()` failed: ValueError: no key"),
        (["list", "--journal", "sqlite:///typo.db"], "there is no journal typo.db"),
        (["list", "--journal", "mysql://x"], "no journal can be opened at a URL of the kind `mysql`"),
        (["export", "r", "no/such/folder/r.jsonl"], "No such file or directory"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    waiting()
    done = runs(*arguments)
    assert (done.exit_code, words in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not Path("typo.db").exists()


def test_a_run_of_an_agent_that_is_not_given_stays_ready() -> None:
    runs("start", "support", "hello", "--id", "r")
    done = runs("drive", "r", "--agents", "app.py:single")
    assert done.exit_code == 2
    assert "run `r` is of agent `support`, which is not among those given: `single`" in done.stderr
    assert shown("r")["state"] == "ready"


def test_a_run_for_which_there_is_nothing_to_do_is_shown_as_it_is() -> None:
    waiting()
    done = drive("r")
    assert (done.exit_code, done.stdout) == (5, "")
    assert "run `r` waits for refund: unbroken runs answer r refund-1 --allow|--deny REASON|--edit JSON" in done.stderr
    runs("answer", "r", "refund-1", "--allow")
    for _ in range(2):
        done = drive("r")
        assert (done.exit_code, done.stdout) == (0, "Done.\n")


def test_a_client_tool_waits_for_its_result_and_says_so() -> None:
    waiting("r", "pick")
    assert "answer with: unbroken runs answer r pick-1 --result TEXT|--deny REASON" in runs("show", "r").stdout
    done = runs("answer", "r", "pick-1", "--allow")
    assert (done.exit_code, "use --result or --deny" in done.stderr) == (2, True)
    assert runs("answer", "r", "pick-1", "--result", "the red one").exit_code == 0
    assert drive("r").exit_code == 0


def test_without_a_journal_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNBROKEN_JOURNAL")
    done = runs("list")
    assert (done.exit_code, "use --journal, as in sqlite:///runs.db, or set UNBROKEN_JOURNAL" in done.stderr) == (
        2,
        True,
    )


def test_a_cancelled_run_stays_cancelled() -> None:
    waiting()
    assert runs("cancel", "r", "--reason", "not needed").stdout == "run `r` is cancelled\n"
    assert (shown("r")["state"], shown("r")["error"]) == ("cancelled", "not needed")
    again = runs("cancel", "r")
    assert (again.exit_code, "it has ended (cancelled)" in again.stderr) == (1, True)
    assert drive("r").exit_code == 1


def test_a_run_that_failed_exits_with_3_and_can_be_driven_again() -> None:
    runs("start", "support", "fail", "--id", "r")
    done = drive("r")
    assert (done.exit_code, "no such model" in done.stderr) == (3, True)
    assert shown("r")["state"] == "failed"


def test_a_list_in_a_pipe_has_columns_and_a_terminal_shows_a_table() -> None:
    waiting()
    runs("start", "support", "ship\x1b[31m it", "--id", "late")
    lines = [line.split("\t") for line in in_pipe("runs", "list").stdout.splitlines()]
    assert [line[:4] for line in lines] == [["late", "ready", "support", ""], ["r", "waiting", "support", "acme"]]
    assert lines[1][6] == "refund refund-1"
    assert "\x1b" not in lines[0][5]
    with Terminal("runs", "list") as terminal:
        assert terminal.end() == 0
    assert terminal.plain.split()[:7] == ["run", "state", "agent", "tenant", "changed", "question", "waits"]
    assert "\x1b[33mwaiting" in terminal.seen


def test_a_list_can_be_filtered_and_is_limited() -> None:
    waiting()
    for number in range(3):
        runs("start", "support", "ship", "--id", f"s{number}")
    assert [row["run_id"] for row in json.loads(runs("list", "--state", "waiting", "--json").stdout)] == ["r"]
    assert [row["run_id"] for row in json.loads(runs("list", "--tenant", "acme", "--json").stdout)] == ["r"]
    assert json.loads(runs("list", "--agent", "other", "--json").stdout) == []
    done = runs("list", "--limit", "2")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["s2", "s1"]
    assert "only the latest 2 are listed" in done.stderr
    assert len(runs("list", "--limit", "0").stdout.splitlines()) == 4


def test_a_call_that_waits_is_shown_completely() -> None:
    waiting()
    lines = runs("show", "r").stdout.splitlines()
    assert lines[0] == "run       r"
    assert "Tool call: refund, 1 argument" in lines
    assert "    1│ 7" in lines
    assert lines[-1] == "answer with: unbroken runs answer r refund-1 --allow|--deny REASON|--edit JSON"


def test_events_as_json_while_a_run_is_driven() -> None:
    runs("start", "support", "hello", "--id", "r")
    done = runs("drive", "r", "--agents", "app.py:made", "--json")
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert (done.exit_code, events[0], events[-1]) == (0, "run_started", "run_finished")


def test_a_run_that_another_driver_has_is_refused_unless_it_is_taken_over() -> None:
    runs("start", "support", "hello", "--id", "r")
    other = connect(JOURNAL)
    other.claim("r", time.time())
    done = drive("r")
    assert (done.exit_code, "give --take-over if you know" in done.stderr) == (1, True)
    assert drive("r", "--take-over").exit_code == 0
    other.close()
    assert shown("r")["supersessions"] == 1


def test_a_run_whose_drivers_died_says_so_and_is_started_again_by_hand() -> None:
    runs("start", "support", "hello", "--id", "r")
    refused = runs("retry", "r")
    assert (refused.exit_code, "it is ready, and only failed runs can" in refused.stderr) == (1, True)
    database = connect(JOURNAL)
    with database.transaction():
        database.change(
            "UPDATE unbroken_runs SET state = 'failed', deaths = 7, fruitless = 6, error = 'DriversDied: 6'"
        )
    database.close()
    assert "died      7 of its drivers, 6 in a row" in runs("show", "r").stdout.splitlines()
    done = drive("r")
    assert (done.exit_code, "DriversDied: 6" in done.stderr) == (3, True)
    assert runs("retry", "r").stdout == "run `r` is ready\n"
    assert drive("r").exit_code == 0
    assert (shown("r")["deaths"], shown("r")["fruitless"]) == (7, 0)


def test_the_recording_is_printed_or_written_into_a_folder(tmp_path: Path) -> None:
    waiting()
    printed = in_pipe("runs", "export", "r", "-").stdout
    assert runs("export", "r", ".").stdout == "r.jsonl\n"
    assert Path("r.jsonl").read_text() == printed
    runs("start", "support", "hello", "--id", "new")
    done = runs("export", "new", "-")
    assert (done.exit_code, "has no recording yet: it is ready" in done.stderr) == (2, True)


def test_runs_are_not_served_to_everybody_by_accident() -> None:
    done = runs("serve", "--host", "0.0.0.0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "give --keys-file, or confirm that it is intended with --open-to-all" in done.stderr
    Path("keys.json").write_text("{")
    assert "are damaged" in runs("serve", "--keys-file", "keys.json").stderr
    assert runs("serve", "--journal", "mysql://x").exit_code == 2


def test_a_run_has_the_limits_that_it_was_started_with() -> None:
    assert runs("start", "support", "refund", "--id", "r", "--calls", "0").exit_code == 0
    done = drive("r")
    assert (done.exit_code, "call limit" in done.stdout + done.stderr) == (0, True)
    wrong = runs("start", "support", "refund", "--rounds", "-1")
    assert (wrong.exit_code, "--rounds -1: a limit is 0 or more" in wrong.stderr) == (2, True)
