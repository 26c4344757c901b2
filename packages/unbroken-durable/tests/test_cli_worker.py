"""`unbroken worker`, as a user runs it: what it prints, how it is stopped, what it serves."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import durable_app
import loaded_command
import pytest
from hidden_packages import run_without
from terminals import Terminal, environment, in_pipe, invoke

JOURNAL = "sqlite:///runs.db"
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    durable_app.write_app(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNBROKEN_JOURNAL", JOURNAL)


def start(prompt: str, run_id: str) -> None:
    assert invoke("runs", "start", "support", prompt, "--id", run_id, "--tenant", "acme").exit_code == 0


def state(run_id: str) -> str:
    return json.loads(invoke("runs", "show", run_id, "--json").stdout)["state"]


def ledger() -> list[str]:
    return Path("ledger").read_text().splitlines() if Path("ledger").exists() else []


class Working:
    def __init__(self, process: loaded_command.Started, out: IO[str]) -> None:
        self.process = process
        self.out = out

    def line(self, beginning: str) -> str:
        """The next line that begins so."""
        return next(line.rstrip("\n") for line in self.out if line.startswith(beginning))

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int, list[str]]:
        return self.process.wait(PATIENCE), self.out.read().splitlines()


@contextmanager
def working(*arguments: str) -> Generator[Working]:
    """A worker in a pipe, with its standard error in the file `errors`."""
    out, its_out = os.pipe()
    with open(os.devnull) as nothing, open("errors", "w") as errors:
        streams = nothing.fileno(), its_out, errors.fileno()
        process = loaded_command.start(
            "worker", "--agents", "app:agents", *arguments, streams=streams, env=environment()
        )
    os.close(its_out)
    with open(out) as stream:
        try:
            yield Working(process, stream)
        finally:
            process.kill()
            process.wait()


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def wait_until_shipping() -> None:
    wait_until(lambda: bool(ledger()))


def test_runs_are_driven_and_each_step_is_a_line_in_a_pipe() -> None:
    start("hello", "a")
    with working() as worker:
        assert worker.line("journal") == "journal: sqlite:///runs.db"
        assert worker.line("agents") == "agents: support"
        assert worker.line("driving") == "driving: a (support, acme)"
        assert worker.line("answered").startswith("answered: a (support, acme) 0.")
        start("refund", "b")
        assert worker.line("waiting").startswith("waiting: b (support, acme) 0.")
        assert invoke("runs", "answer", "b", "refund-1", "--allow").exit_code == 0
        assert worker.line("answered").startswith("answered: b (support, acme) 0.")
        worker.signal(signal.SIGINT)
        assert worker.end() == (0, [])
    assert "a tool prints this" in Path("errors").read_text()


def test_json_on_request() -> None:
    start("fail", "a")
    done = in_pipe("worker", "--agents", "app.py:agents", "--once", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [each["what"] for each in told] == ["began", "driving", "drove"]
    assert told[0]["agents"] == ["support"]
    assert (told[2]["run_id"], told[2]["tenant"], told[2]["state"]) == ("a", "acme", "failed")
    assert "no such model" in told[2]["words"]


def test_a_terminal_has_colours_and_the_time() -> None:
    start("hello", "a")
    with Terminal("worker", "--agents", "app:agents") as terminal:
        terminal.wait_for("Ctrl-C stops it")
        terminal.wait_for("answered   a (support, acme)")
        terminal.wait_for("waiting for runs")  # after a second a line moves
        start("ship refund", "b")
        terminal.wait_for("driving 1 run · ")
        wait_until_shipping()
        terminal.type("\x03")
        terminal.wait_for("\runbroken: stopping: 1 run to leave")
        Path("may_end").touch()
        assert terminal.end() == 0
    assert "\x1b[32manswered" in terminal.seen


def test_sigterm_lets_a_running_call_finish_and_leaves_the_rest_to_another_worker() -> None:
    start("ship refund", "a")
    start("hello", "later")
    with working("--concurrency", "1") as worker:
        wait_until_shipping()
        worker.signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in Path("errors").read_text())
        assert worker.process.poll() is None
        Path("may_end").touch()
        code, lines = worker.end()
    assert code == 0
    assert [line.split()[0] for line in lines] == ["journal:", "agents:", "driving:", "ready:"]
    assert ledger() == ["began 7", "ended 7"]
    assert "stopping: 1 run to leave; send the signal again to cancel running calls" in Path("errors").read_text()
    assert (state("a"), state("later")) == ("ready", "ready")
    in_pipe("worker", "--agents", "app:agents", "--once")
    assert (state("a"), state("later")) == ("waiting", "answered")
    assert ledger() == ["began 7", "ended 7"]


def test_a_second_signal_leaves_at_once_and_the_outcome_of_the_call_is_unknown() -> None:
    start("ship", "a")
    with working() as worker:
        wait_until_shipping()
        worker.signal(signal.SIGTERM)
        wait_until(lambda: "the signal again" in Path("errors").read_text())
        worker.signal(signal.SIGTERM)
        assert worker.end()[0] == 143
    assert state("a") == "ready"
    done = in_pipe("runs", "drive", "a", "--agents", "app:agents")
    assert (done.returncode, done.stdout) == (0, "Done.\n")
    assert "unknown: ship" in done.stderr
    assert ledger() == ["began 7"]


def test_the_run_of_a_killed_worker_is_finished_by_another_one() -> None:
    start("ship", "a")
    with working() as worker:
        wait_until_shipping()
        worker.process.kill()
        worker.process.wait()
        assert state("a") == "running"
        with working() as other:
            assert other.line("answered").startswith("answered: a (support, acme)")
            other.signal(signal.SIGTERM)
            assert other.end()[0] == 0
    assert ledger() == ["began 7"]


def test_metrics_count_the_runs_of_the_journal_and_the_drives() -> None:
    start("hello", "a")
    start("refund", "b")
    with working("--metrics-port", "0") as worker:
        address = worker.line("metrics").removeprefix("metrics: ")
        worker.line("waiting")
        numbers: dict[str, float] = {}
        while numbers.get('unbroken_runs{state="answered"}') != 1:
            with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
                lines = [line.split(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
            numbers = {name: float(value) for name, value in lines if name.startswith("unbroken_")}
        with urllib.request.urlopen(address.replace("/metrics", "/healthz"), timeout=PATIENCE) as answer:
            assert answer.read() == b"ok\n"
        worker.signal(signal.SIGINT)
        worker.end()
    assert numbers['unbroken_runs{state="waiting"}'] == 1
    assert numbers['unbroken_runs{state="failed"}'] == 0
    assert 0 <= numbers['unbroken_runs_oldest_seconds{state="waiting"}'] < PATIENCE
    assert (numbers["unbroken_drives_total"], numbers["unbroken_supersessions_total"]) == (2, 0)
    assert numbers['unbroken_worker_drives_total{outcome="waiting"}'] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no agents were given; use --agents MODULE:NAME"),
        (["--agents", "app.py:agents", "--journal", ""], "no journal was given"),
        (["--agents", "app.py:agents", "--journal", "sqlite:////proc/runs.db"], "cannot be opened"),
        (["--agents", "app.py:agents", "--concurrency", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    done = invoke("worker", *arguments)
    assert (done.exit_code, words in done.stderr) == (2, True), done.stderr


def test_a_port_that_is_taken_is_reported() -> None:
    with working("--metrics-port", "0") as worker:
        port = worker.line("metrics").rpartition(":")[2].partition("/")[0]
        done = in_pipe("worker", "--agents", "app:agents", "--metrics-port", port)
        assert (done.returncode, f"serving metrics on port {port} failed" in done.stderr) == (2, True)


def test_the_extra_is_named_if_prometheus_is_missing(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['unbroken', 'worker', '--agents', 'app.py:agents', '--metrics-port', '0']; "
        "from unbroken_cli import main; main()"
    )
    done = run_without("prometheus_client", program)
    assert (done.returncode, "pip install 'unbroken[metrics]'" in done.stderr) == (2, True), done.stderr


def test_an_agent_without_the_key_of_its_model_is_reported_before_it_takes_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path("keyless.py").write_text('from unbroken import Agent\n\nagent = Agent("openai:gpt-5", name="support")\n')
    start("Go.", "r1")
    done = invoke("worker", "--agents", "keyless:agent", "--once")
    assert done.exit_code == 2
    assert "agent `support`: provider `openai` needs a key: set OPENAI_API_KEY" in done.stderr
    assert state("r1") == "ready"
