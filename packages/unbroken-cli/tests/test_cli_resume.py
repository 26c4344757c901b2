"""`unbroken resume`: a run whose process was killed, or that waits for somebody, continued from the shell."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from terminals import Terminal, in_pipe, invoke

from unbroken import Agent, ScriptedModel, Wait, tool
from unbroken.events import RunFinished
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, ScriptedServer, run_virtual, serve
from unbroken_wires.messages import System

BANK = """
import os, signal
from pathlib import Path
from unbroken import tool

HERE = Path(__file__).parent

@tool(effect="read")
def balance(account: str) -> str:
    "What is left."
    with (HERE / "asked").open("a") as file:
        file.write(account)
    return "100"

@tool({settings})
def pay(amount: int) -> str:
    "Pay; the first time the process dies in the middle of it."
    with (HERE / "paid").open("a") as file:
        file.write(f"{{amount}} ")
    if (HERE / "armed").exists():
        (HERE / "armed").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"paid {{amount}}"
"""

CALLS = [Call("balance", account="mine", id="b"), Call("pay", amount=5, id="p")]


class Bank:
    """A run whose process was killed while it paid."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder = folder
        (folder / "bank.py").write_text(BANK.format(settings=settings))
        (folder / "armed").touch()
        with serve([*CALLS]) as server:
            options = ("--record", str(folder / "runs"), "-i", "Be careful.", "--rounds", "7")
            done = in_pipe("run", "Pay 5.", "--model", "openai:m", *self.at(server), *options)
        assert done.returncode == -signal.SIGKILL
        (self.file,) = map(str, (folder / "runs").iterdir())

    def at(self, server: ScriptedServer) -> tuple[str, ...]:
        return "--base-url", server.base_url(), "--tools", str(self.folder / "bank.py")

    def resume(self, *options: str, answer: str = "Done.") -> tuple[int, str, str]:
        """Exit code, standard output and standard error; the model says the answer to whatever it is asked."""
        with serve(answer) as server:
            done = invoke("resume", self.file, *self.at(server), *options)
            self.asked = list(server.requests)
        return done.exit_code, done.stdout, done.stderr

    def noted(self, name: str) -> str:
        return (self.folder / name).read_text()

    def results(self) -> list[str]:
        ending = read_recording(self.file).ending
        assert isinstance(ending, RunFinished)
        (results,) = (message["results"] for message in ending.messages if message["role"] == "tool")
        return [result["content"][0]["text"] for result in results]


@pytest.fixture
def bank(tmp_path: Path) -> Callable[[str], Bank]:
    return lambda settings: Bank(tmp_path, settings)


def test_a_killed_run_continues_with_its_settings_and_runs_nothing_twice(bank: Callable[[str], Bank]) -> None:
    shop = bank("")
    code, out, err = shop.resume()
    assert (code, out) == (0, "Done.\n")
    assert "unknown: pay" in err
    assert (shop.noted("asked"), shop.noted("paid")) == ("mine", "5 ")
    assert shop.results()[0] == "100"
    assert shop.results()[1].startswith("Error: outcome unknown")
    (asked,) = shop.asked
    assert isinstance(asked.messages[0], System)
    assert asked.messages[0].text.startswith("Be careful.")


@pytest.mark.parametrize(
    ("answer", "paid", "result"),
    [
        ("allow", "5 5 ", "paid 5"),
        ('edit:{"amount": 6}', "5 6 ", "paid 6"),
        ("deny:ask the bank", "5 ", "Error: outcome unknown"),
        ("deny", "5 ", "Error: outcome unknown"),
        ("result:it was paid: yes", "5 ", "it was paid: yes"),
    ],
)
def test_a_call_of_unknown_outcome_waits_until_it_is_answered(
    answer: str, paid: str, result: str, bank: Callable[[str], Bank]
) -> None:
    shop = bank('after_crash="wait"')
    code, out, err = shop.resume()
    assert (code, out) == (5, "")
    assert "uncertain: pay(amount=5) may have taken effect before the run stopped" in err
    assert "waiting: pay (id p)" in err
    assert shop.resume()[0] == 5  # nobody has answered
    assert shop.noted("paid") == "5 "
    assert shop.resume("--answer", f"p={answer}")[:2] == (0, "Done.\n")
    assert (shop.noted("asked"), shop.noted("paid")) == ("mine", paid)
    assert shop.results()[1].startswith(result)
    assert shop.resume()[0] == 2  # it has ended


def test_a_run_that_waits_after_a_crash_is_replayed_to_where_it_waits(bank: Callable[[str], Bank]) -> None:
    shop = bank('after_crash="wait"')
    for _ in range(2):  # a resume without an answer changes nothing
        shop.resume()
        done = invoke("replay", shop.file)
        assert (done.exit_code, "time" in done.stderr, "failed" in done.stderr) == (0, False, False)
        assert "uncertain: pay(amount=5)" in done.stderr
    shop.resume("--answer", "p=allow")
    done = invoke("replay", shop.file)
    assert (done.exit_code, "replayed until the run waited" in done.stderr) == (3, True)


def test_a_terminal_and_a_pipe_report_a_call_of_unknown_outcome_in_the_same_words(bank: Callable[[str], Bank]) -> None:
    shop = bank('after_crash="wait"')
    lines = (
        "uncertain: pay(amount=5) may have taken effect before the run stopped",
        "waiting: pay (id p)",
        "unbroken: answer with --answer p=allow|deny|edit:{…}|result:TEXT",
    )
    _, _, err = shop.resume()
    assert [line in err.splitlines() for line in lines] == [True, True, True]
    with serve("Done.") as server, Terminal("resume", shop.file, *shop.at(server)) as terminal:
        for line in lines:
            terminal.wait_for(line)
        assert terminal.end() == 5


def test_the_word_of_a_decision_can_be_a_result_text(bank: Callable[[str], Bank]) -> None:
    shop = bank('after_crash="wait"')
    shop.resume()
    assert shop.resume("--answer", "p=result:allow")[0] == 0
    assert shop.results()[1] == "allow"


def test_events_of_the_continuation_are_json_on_request(bank: Callable[[str], Bank]) -> None:
    code, out, _ = bank("").resume("--json")
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert (code, events[-1]) == (0, "run_finished")


def test_on_a_terminal_a_person_approves_waiting_calls(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK.format(settings="approve=True"))
    file = waiting(tmp_path / "run.jsonl")
    with serve("Done.") as server:
        options = ("--model", "openai:m", "--base-url", server.base_url(), "--tools", str(tmp_path / "bank.py"))
        with Terminal("resume", str(file), *options) as terminal:
            terminal.wait_for("run it?")
            terminal.type("y\r")
            terminal.wait_for("Done.")
            assert terminal.end() == 0
    assert (tmp_path / "paid").read_text() == "5 "


def waiting(file: Path) -> Path:
    """A run that waits for the approval of `pay`, recorded by a program."""

    @tool(approve=True)
    def pay(amount: int) -> str:
        return "never"

    agent = Agent(ScriptedModel([Call("pay", amount=5, id="p")]), [pay], on_approval=lambda call: Wait(), record=file)
    assert run_virtual(lambda: agent.run("Pay.")).stop_reason == "waiting"
    return file


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--answer", "p"], "--answer p: write CALL_ID=ANSWER, where ANSWER is allow, deny, deny:REASON"),
        (["--answer", "p=yes"], "--answer p=yes: write CALL_ID=ANSWER"),
        (["--answer", "=allow"], "--answer =allow: write CALL_ID=ANSWER"),
        (["--answer", "p=edit:5"], "the arguments must be a JSON object"),
        (["--answer", "p=edit:{"], "the arguments are not JSON"),
        (["--answer", "p=allow", "--answer", "p=deny"], "--answer: p has two answers"),
        (["--answer", "q=allow"], "no call with the id `q` is waiting; waiting: `p` (pay)"),
    ],
)
def test_an_impossible_answer_is_refused_and_nothing_runs(options: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK.format(settings=""))
    file = waiting(tmp_path / "run.jsonl")
    before = file.read_bytes()
    with serve("Done.") as server:
        model = ("--model", "openai:m", "--base-url", server.base_url(), "--tools", str(tmp_path / "bank.py"))
        done = invoke("resume", str(file), *model, *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert (file.read_bytes(), (tmp_path / "paid").exists()) == (before, False)


def test_a_run_of_a_custom_model_needs_another_model(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK.format(settings=""))
    file = waiting(tmp_path / "run.jsonl")
    done = invoke("resume", str(file), "--tools", str(tmp_path / "bank.py"))
    assert (done.exit_code, done.stdout) == (2, "")
    words = f"unbroken: {file} was recorded with `scripted:demo`, which no provider has: choose one with --model\n"
    assert done.stderr == words


def test_a_run_is_not_resumed_without_its_tools(tmp_path: Path) -> None:
    file = waiting(tmp_path / "run.jsonl")
    done = invoke("resume", str(file), "--model", "openai:m")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{file} uses the tools pay: name their sources with --tools, --mcp or --todo" in done.stderr


def test_only_a_recording_of_an_agent_is_accepted(tmp_path: Path) -> None:
    head = {"line": "run", "schema": 3, "run": "r", "time": 1.0, "model": "m"}
    (tmp_path / "gateway.jsonl").write_text(json.dumps(head) + "\n")
    for name in ("none.jsonl", "gateway.jsonl"):
        done = invoke("resume", str(tmp_path / name), "--model", "openai:m")
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)


def test_a_run_that_died_before_its_first_request_is_refused(tmp_path: Path) -> None:
    file = waiting(tmp_path / "run.jsonl")
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    with serve("Done.") as server:
        done = invoke("resume", str(file), "--model", "openai:m", "--base-url", server.base_url())
    assert done.exit_code == 2
    assert "ends before the first request: there is nothing to resume, run it again" in done.stderr
