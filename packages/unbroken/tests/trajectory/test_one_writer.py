"""Several processes, threads and tasks resume one run at the same moment: its write runs once, the others get
`RunTaken`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thorough import ALL

from unbroken import Agent, Allow, Deny, Recorder, Result, ScriptedModel, Wait, tool
from unbroken.errors import RecordingFailed, RunTaken
from unbroken.events import CallFinished, Event, ToolCallsDetected
from unbroken.models.scripted import Answer, Call
from unbroken.tools.approval import OnApproval
from unbroken.trajectory.recording import list_recordings, read_recording
from unbroken_testing import run_virtual
from unbroken_wires.messages import Assistant, Request, ToolCall

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")

ROUNDS = 8 if ALL else 3
PROCESSES = 4


def script(request: Request) -> Answer:
    paid = any(isinstance(message, Assistant) for message in request.messages)
    return "Paid." if paid else [Call("pay", amount=5, id="a"), Call("pay", amount=7, id="b")]


def wait(call: ToolCall) -> Wait:
    return Wait()


def agent(done: Path, on_approval: OnApproval = wait, **options: Any) -> Agent:
    """Its tool records each execution."""

    @tool(approve=True)
    async def pay(amount: int) -> str:
        with done.open("a") as file:
            file.write(f"{amount}\n")
        await asyncio.sleep(0)
        return "paid"

    return Agent(ScriptedModel(script), [pay], on_approval=on_approval, **options)


def at_once(count: int, work: Callable[[], str]) -> Counter[str]:
    """Runs it in so many processes that start at the same moment: the outcome of each."""
    ready, go = os.pipe()
    told, tell = os.pipe()
    children: list[int] = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(ready, 1)  # until the parent closes its end
            try:
                came_to = work()
            except RunTaken as error:
                came_to = f"taken {error.run}"
            except BaseException as error:  # noqa: BLE001 - the parent compares it
                came_to = repr(error)
            os.write(tell, f"{came_to}\n".encode())
            os._exit(0)
        children.append(child)
    os.close(ready)
    os.close(go)
    os.close(tell)
    for child in children:
        os.waitpid(child, 0)
    with os.fdopen(told) as file:
        return Counter(file.read().splitlines())


def wait_for_approval(folder: Path, record: Path) -> tuple[Path, Result]:
    done = folder / "done"
    waits = run_virtual(lambda: agent(done, record=record).run("Pay.", run_id="r"))
    assert waits.stop_reason == "waiting"
    return done, waits


def answers(result: Result) -> dict[str, Any]:
    return {call.id: Allow() for call in result.pending}


@pytest.mark.parametrize("saved", ["path", "result", "json"])
def test_a_waiting_run_that_several_processes_approve_pays_once(saved: str, tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        record = folder / "run.jsonl"
        done, waits = wait_for_approval(folder, record)
        given: Any = {"path": record, "result": waits, "json": json.dumps(waits.to_json())}[saved]

        def approve() -> str:
            return run_virtual(lambda: agent(done, record=record).resume(given, answers(waits))).text  # noqa: B023

        assert at_once(PROCESSES, approve) == {"Paid.": 1, "taken r": PROCESSES - 1}
        assert done.read_text() == "5\n7\n"
        assert read_recording(record).problems == []


def test_a_saved_result_without_a_recording_is_resumed_only_once_into_a_folder(tmp_path: Path) -> None:
    done = tmp_path / "done"
    waits = run_virtual(lambda: agent(done).run("Pay.", run_id="r"))
    for number in range(ROUNDS):
        folder = tmp_path / str(number)

        def approve() -> str:
            return run_virtual(lambda: agent(done, record=folder).resume(waits, answers(waits))).text  # noqa: B023

        assert at_once(PROCESSES, approve) == {"Paid.": 1, "taken r": PROCESSES - 1}
    assert done.read_text() == "5\n7\n" * ROUNDS


def test_a_run_that_died_is_resumed_by_only_one_of_several_processes(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        done, record = folder / "done", folder / "run.jsonl"

        def die(event: Event) -> None:
            if isinstance(event, ToolCallsDetected):
                os.kill(os.getpid(), signal.SIGKILL)

        def pay() -> str:
            payer = agent(done, lambda call: Allow(), record=record, sinks=[die])  # noqa: B023
            return run_virtual(lambda: payer.run("Pay.", run_id="r")).text

        def resume() -> str:
            return run_virtual(lambda: agent(done, lambda call: Allow()).resume(record)).text  # noqa: B023

        assert at_once(1, pay) == {}
        assert at_once(PROCESSES, resume) == {"Paid.": 1, "taken r": PROCESSES - 1}
        assert done.read_text() == "5\n7\n"


def test_two_tasks_and_two_threads_of_one_process_are_two_writers(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    done, waits = wait_for_approval(tmp_path, record)

    async def approve() -> str:
        try:
            return (await agent(done).resume(record, answers(waits))).text
        except RunTaken as error:
            return str(error)

    async def tasks() -> list[str]:
        return await asyncio.gather(*(approve() for _ in range(3)))

    came_to: list[str] = []
    threads = [threading.Thread(target=lambda: came_to.extend(asyncio.run(tasks()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(came_to) == 9
    assert came_to.count("Paid.") == 1
    assert all("run `r`" in words for words in came_to if words != "Paid.")
    assert done.read_text() == "5\n7\n"


def test_a_run_that_is_active_cannot_be_resumed(tmp_path: Path) -> None:
    done, record = tmp_path / "done", tmp_path / "run.jsonl"

    async def main() -> None:
        async def resume_it(call: ToolCall) -> Allow:
            with pytest.raises(
                RunTaken, match=r"run `r` is still active, in this process or another; wait for its end"
            ):
                await agent(done).resume(record)
            return Allow()

        assert (await agent(done, resume_it, record=record).run("Pay.", run_id="r")).text == "Paid."

    asyncio.run(main())
    assert done.read_text() == "5\n7\n"


def test_the_lock_of_a_dead_process_is_released(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    done, waits = wait_for_approval(tmp_path, record)

    def die(event: Event) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def resume_and_die() -> str:
        return run_virtual(lambda: agent(done, sinks=[die]).resume(record, answers(waits))).text

    assert at_once(1, resume_and_die) == {}
    assert run_virtual(lambda: agent(done).resume(record, answers(waits))).text == "Paid."
    assert done.read_text() == "5\n7\n"


def test_a_stale_view_is_refused_after_somebody_else_resumed(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    done, waits = wait_for_approval(tmp_path, record)
    recording = read_recording(record)
    stream = agent(done).stream_resume(record, answers(waits))  # it has read the file, and not begun
    run_virtual(lambda: agent(done, record=record).resume(waits, {"a": Allow()}))  # b still waits
    for stale in (recording, waits, waits.to_json()):
        with pytest.raises(
            RunTaken, match=r"run\.jsonl: run `r` was resumed by somebody else; read there what happened"
        ) as no:
            run_virtual(lambda: agent(done, record=record).resume(stale, answers(waits)))  # noqa: B023
        assert no.value.run == "r"
    with pytest.raises(RunTaken):
        run_virtual(lambda: anext(stream))
    rest = run_virtual(lambda: agent(done, record=record).resume(record, {"b": Deny("no")}))
    assert rest.text == "Paid."
    assert done.read_text() == "5\n"


def test_a_saved_result_is_resumed_with_what_ran_before_the_process_died(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    done, waits = wait_for_approval(tmp_path, record)

    def die(event: Event) -> None:
        if isinstance(event, CallFinished):
            os.kill(os.getpid(), signal.SIGKILL)

    def approve_and_die() -> str:
        resumed = agent(done, record=record, sinks=[die], schedule="sequential")
        return run_virtual(lambda: resumed.resume(waits.to_json(), answers(waits))).text

    assert at_once(1, approve_and_die) == {}
    assert done.read_text() == "5\n"
    payer = agent(done, record=record, schedule="sequential")
    result = run_virtual(lambda: payer.resume(waits.to_json(), answers(waits)))
    assert (result.text, done.read_text()) == ("Paid.", "5\n7\n")
    assert len(list_recordings(tmp_path)) == 1


def test_a_saved_result_is_resumed_once_even_if_its_file_and_its_folder_are_named_in_turn(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    done, waits = wait_for_approval(tmp_path, record)
    first = run_virtual(lambda: agent(done, record=tmp_path).resume(waits.to_json(), answers(waits)))
    paid = done.read_text()
    for place in (tmp_path, record):
        with pytest.raises(RunTaken):
            run_virtual(lambda place=place: agent(done, record=place).resume(waits.to_json(), answers(waits)))
    assert (first.text, done.read_text()) == ("Paid.", paid)
    assert len(list_recordings(tmp_path)) == 1


def test_a_recording_that_cannot_be_opened_for_writing_is_not_resumed(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    done, waits = wait_for_approval(tmp_path, record)
    recording = read_recording(record)
    record.unlink()
    with pytest.raises(
        RecordingFailed, match=r"run `r` cannot be resumed, because its recording cannot be opened and locked"
    ):
        run_virtual(lambda: agent(done).resume(recording, answers(waits)))
    assert not done.exists()


def test_a_new_run_may_have_the_id_of_one_that_ended(tmp_path: Path) -> None:
    done, first = wait_for_approval(tmp_path, tmp_path / "runs")
    run_virtual(lambda: agent(done, record=tmp_path / "runs").resume(first, answers(first)))
    _, second = wait_for_approval(tmp_path, tmp_path / "runs")
    run_virtual(lambda: agent(done, record=Recorder(tmp_path / "runs")).resume(second, answers(second)))
    assert done.read_text() == "5\n7\n" * 2
    assert [each.stop_reason for each in list_recordings(tmp_path / "runs")] == ["answered"] * 2
