"""A recording cannot be written: the disk is full, a file may not grow, a folder is missing. By default no write starts
whose start is not recorded, and everything done so far is kept."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import subprocess
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from terminals import in_pipe

from unbroken import Agent, Recorder, ScriptedModel, UserError, tool
from unbroken.errors import RecordingFailed
from unbroken.events import CallFinished, Event, RecordingIncomplete, RunFailed, RunStarted
from unbroken.models.scripted import Answer, Call
from unbroken.trajectory.recording import read_recording
from unbroken_testing import run_virtual, serve
from unbroken_wires.messages import Assistant, Request, ToolMessage

SIZE = 64 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A real file system with room for 64 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def script(request: Request) -> Answer:
    said = sum(isinstance(message, Assistant) for message in request.messages)
    return (
        [Call("pay", amount=1)],
        [Call("look"), Call("fill")],
        [Call("look"), Call("pay", amount=2), Call("pay", amount=3)],
        "Done.",
    )[said]


def fill_up(path: Path) -> None:
    with path.open("ab", buffering=0) as file, suppress(OSError):
        for size in (512, 1):
            while file.write(bytes(size)):
                pass


class Shop:
    """Pays three times; after the first somebody fills the disk."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.paid: list[int] = []
        self.filled = False

    def agent(self, record: Any, **options: Any) -> Agent:
        @tool(overlap=True)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        @tool(effect="read")
        async def look() -> str:
            await asyncio.sleep(1)
            return "x" * 9000

        @tool(effect="read")
        async def fill() -> str:
            if len(self.paid) == 1 and not self.filled:
                self.filled = True
                fill_up(self.disk / "full")
            return "there is no room"

        return Agent(ScriptedModel(script), [pay, look, fill], record=record, **options)


def test_on_a_full_disk_no_write_starts_and_the_run_can_be_resumed(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop, record = Shop(small_disk), small_disk / "run.jsonl"
    heard: list[Event] = []
    with caplog.at_level(logging.WARNING, "unbroken.trajectory"), pytest.raises(RecordingFailed) as stopped:
        run_virtual(lambda: shop.agent(record, sinks=[heard.append]).run("Pay.", run_id="r"))
    words = "failed (No space left on device), so `pay` did not start"
    assert str(stopped.value).startswith(f"recording to {record} {words}")
    assert "or continue with agent.run(history=error.messages), which has them" in str(stopped.value)
    assert shop.paid == [1]
    *_, last = stopped.value.messages
    assert isinstance(last, ToolMessage)
    refused = "Error: not executed: the recording of the run cannot be written"
    assert [result.text for result in last.results] == ["x" * 9000, refused, refused]
    (incomplete,) = (event for event in heard if isinstance(event, RecordingIncomplete))
    assert (incomplete.path, incomplete.reason) == (str(record), "No space left on device")
    assert isinstance(heard[-1], RunFailed)
    assert [event.outcome for event in heard if isinstance(event, CallFinished)][-3:].count("not_executed") == 2
    assert caplog.text.count("is not written any more") == 1
    (small_disk / "full").unlink()
    assert run_virtual(lambda: shop.agent(record).resume(record)).stop_reason == "answered"
    assert sorted(shop.paid) == [1, 2, 3]
    assert len(read_recording(record).problems) <= 1


def test_a_recorder_may_continue_without_the_recording(small_disk: Path) -> None:
    shop, heard = Shop(small_disk), list[Event]()
    recorder = Recorder(small_disk / "run.jsonl", on_failure="continue")
    result = run_virtual(lambda: shop.agent(recorder, sinks=[heard.append]).run("Pay."))
    assert (result.text, sorted(shop.paid)) == ("Done.", [1, 2, 3])
    assert sum(isinstance(event, RecordingIncomplete) for event in heard) == 1


@pytest.mark.parametrize("on_failure", ["stop", "continue"])
def test_a_run_whose_file_cannot_be_written_does_not_start_unless_allowed(on_failure: Any, small_disk: Path) -> None:
    shop, heard = Shop(small_disk), list[Event]()
    recorder = Recorder(small_disk / "run.jsonl", on_failure=on_failure)
    (small_disk / "full").write_bytes(bytes(SIZE))
    agent = shop.agent(recorder, sinks=[heard.append])
    if on_failure == "stop":
        with pytest.raises(
            RecordingFailed, match=r"so the run did not start.*make the place writable and run it again"
        ):
            run_virtual(lambda: agent.run("Pay."))
        assert shop.paid == []
        assert not any(isinstance(event, RunStarted) for event in heard)
        assert not (small_disk / "run.jsonl").exists()
    else:
        assert run_virtual(lambda: agent.run("Pay.")).text == "Done."
        assert not (small_disk / "run.jsonl").exists()  # nothing could be written
        assert [type(event).__name__ for event in heard].count("RecordingIncomplete") == 1


def test_a_run_is_not_resumed_if_that_cannot_be_written(small_disk: Path) -> None:
    shop, record = Shop(small_disk), small_disk / "run.jsonl"
    with pytest.raises(RecordingFailed):
        run_virtual(lambda: shop.agent(record).run("Pay."))
    fill_up(small_disk / "full")
    for on_failure in ("stop", "continue"):
        recorder = Recorder(small_disk, on_failure=on_failure)
        with pytest.raises(RecordingFailed, match=r"so the run did not start.*free disk space and resume it again"):
            run_virtual(lambda: shop.agent(recorder).resume(record))  # noqa: B023
    assert shop.paid == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_a_file_size_limit_counts_as_a_full_disk(tmp_path: Path) -> None:
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        shop = Shop(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        try:
            run_virtual(lambda: shop.agent(tmp_path / "run.jsonl").run("Pay."))
            os.write(tell, b"it ended")
        except RecordingFailed as error:
            os.write(tell, f"{shop.paid} {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(tell)
    with os.fdopen(told) as file:
        words = file.read()
    assert words.startswith(f"[1] recording to {tmp_path / 'run.jsonl'} failed (File too large), so `pay` did not")


@pytest.mark.parametrize("wrong", ["ignore", "", None, True])
def test_an_unknown_policy_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Recorder\(on_failure=.*\): expected 'stop' or 'continue'"):
        Recorder(tmp_path, on_failure=wrong)


SHOP = """
import resource
from pathlib import Path
from unbroken import tool

@tool(effect="read")
def jam() -> str:
    "From now on no file may grow."
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return "jammed"

@tool
def pay() -> str:
    "Leave a mark."
    (Path(__file__).parent / "paid").mkdir()
    return "paid"
"""


@pytest.mark.parametrize(
    ("policy", "paid", "ended"),
    [
        ((), False, (3, "")),
        (("--record-failure", "stop"), False, (3, "")),
        (("--record-failure", "continue"), True, (0, "Done.\n")),
    ],
    ids=str,
)
def test_the_command_line_stops_or_continues_as_it_is_asked_to(
    policy: tuple[str, ...], paid: bool, ended: tuple[int, str], tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    options = ("--tools", str(tmp_path / "shop.py"), "--record", str(tmp_path / "runs"), *policy)
    with serve([Call("jam")], [Call("pay")], "Done.") as server:
        done = in_pipe("run", "Pay.", "--model", "openai:m", "--base-url", server.base_url(), *options)
    assert (done.returncode, done.stdout) == ended
    assert (tmp_path / "paid").exists() is paid
    assert "File too large" in done.stderr
    assert ("so `pay` did not" in done.stderr) is not paid


def test_the_command_line_refuses_an_unknown_policy(tmp_path: Path) -> None:
    with serve("Done.") as server:
        model = ("--model", "openai:m", "--base-url", server.base_url())
        done = in_pipe("run", "Pay.", *model, "--record", str(tmp_path), "--record-failure", "ignore")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--record-failure ignore: give stop or continue" in done.stderr


def test_the_command_line_refuses_a_policy_without_a_recording() -> None:
    with serve("Done.") as server:
        model = ("--model", "openai:m", "--base-url", server.base_url())
        done = in_pipe("run", "Pay.", *model, "--record-failure", "continue")
        assert server.requests == []
    assert (done.returncode, done.stdout) == (2, "")
    assert "--record-failure continue: nothing is recorded; name a folder with --record DIR" in done.stderr


def test_no_write_starts_after_the_recording_was_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    ran: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pays."""
        ran.append(amount)
        if amount == 1:
            shutil.rmtree(folder)
        return "paid"

    agent = Agent(ScriptedModel([Call("pay", amount=1)], [Call("pay", amount=2)], "Done."), [pay], record=folder)
    with pytest.raises(RecordingFailed, match=r"the file was deleted.*`pay` did not start"):
        agent.run_sync("Pay.")
    assert ran == [1]
