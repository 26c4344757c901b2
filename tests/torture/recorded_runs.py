"""Recorded runs of an agent whose processes are killed at any moment, and which several processes resume at once. Some
are recorded on a disk that fills up.

Every write tool appends to a ledger before it reports what it did, so a kill often falls between the effect and its
record. `check_runs` reads ledger and history: nothing was written twice, every call is answered once, and no result
speaks of an effect that is not in the ledger.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from child_processes import Child, Tell, load_first

from torture.checker import Report
from torture.history import History, Record, read_histories
from torture.processes import SmallDisk
from unbroken import Agent, Allow, CallContext, ScriptedModel, Wait, tool
from unbroken.errors import UnbrokenError
from unbroken.models.scripted import Answer, Call, Say
from unbroken.trajectory.recording import read_recording
from unbroken_wires.messages import Assistant, Request, ToolMessage
from unbroken_wires.transcript import from_json, to_json

load_first(__name__)

QUESTION = "Pay what is open."
ROUNDS = 3
RESUMED_AT_ONCE = (1, 2, 3)
MOMENTS = (0.05, 0.2, 0.6)
"""Seconds within which a process is killed."""
WAITS = "waiting"
LONGEST = 30.0
"""Seconds for one process."""


def script(request: Request) -> Answer:
    """The next answer depends on nothing but the history, as with a real model."""
    said = sum(isinstance(message, Assistant) for message in request.messages)
    if said >= ROUNDS:
        return "Everything is paid."
    numbers = [10 * said + at for at in range(4)]
    last = ("deposit", "pay_with_approval", "verified")[said]
    return [
        Say("One moment. ", over=0.01),
        Call("look", number=numbers[0]),
        Call("transfer", number=numbers[1]),
        Call("transfer", number=numbers[2]),
        Call(last, number=numbers[3]),
    ]


def make_agent(folder: Path, history: History, seed: str, **options: Any) -> Agent:
    dice = random.Random(seed)

    async def write(name: str, number: int, context: CallContext[Any]) -> str:
        await asyncio.sleep(dice.uniform(0, 0.01))
        history.write("effect", tool=name, number=number, key=context.key, attempt=context.attempt)
        await asyncio.sleep(dice.uniform(0, 0.05))
        return f"done {number}"

    @tool(effect="read")
    async def look(number: int) -> str:
        """Looks."""
        await asyncio.sleep(dice.uniform(0, 0.01))
        return f"seen {number}"

    @tool(effect="write")
    async def transfer(number: int, context: CallContext[Any]) -> str:
        """Transfers money."""
        return await write("transfer", number, context)

    @tool(effect="write", after_crash="rerun")
    async def deposit(number: int, context: CallContext[Any]) -> str:
        """Deposits money once for each key, however often it is called."""
        return await write("deposit", number, context)

    @tool(effect="write", after_crash=lambda arguments, key: find_effect(folder, key))
    async def verified(number: int, context: CallContext[Any]) -> str:
        """Pays; after a crash the ledger shows whether it did."""
        return await write("verified", number, context)

    @tool(effect="write", approve=True)
    async def pay_with_approval(number: int, context: CallContext[Any]) -> str:
        """Pays, if somebody agrees."""
        return await write("pay_with_approval", number, context)

    tools = [look, transfer, deposit, verified, pay_with_approval]
    return Agent(ScriptedModel(script), tools, on_approval=lambda call: Wait(), **options)


def find_effect(folder: Path, key: str) -> str | None:
    """The ledger's entry for this key."""
    effects = [one for one in read_histories(folder) if one["op"] == "effect" and one["key"] == key]
    return f"done {effects[0]['number']}" if effects else None


def play(tell: Tell, ledger: str, recording: str, seed: str, go: str = "") -> None:
    """One process: begins the run, or resumes it, when the file `go` is there."""
    tell("ready")
    folder, path = Path(ledger), Path(recording)
    history = History(folder / "ledger.jsonl")
    while go and not Path(go).exists():
        time.sleep(0.0005)
    try:
        if not path.exists():
            result = asyncio.run(make_agent(folder, history, seed, record=path).run(QUESTION))
        else:
            waiting = read_recording(path).ending
            pending = getattr(waiting, "pending", ()) if getattr(waiting, "stop_reason", "") == "waiting" else ()
            answers = {call["id"]: Allow() for call in pending}
            result = asyncio.run(make_agent(folder, history, seed).resume(path, answers))
    except UnbrokenError as error:  # somebody else has it, or it cannot be written
        history.write("refused", error=type(error).__name__, message=str(error))
        return
    history.write("finished", stop_reason=result.stop_reason, messages=to_json(result.messages))


def torture_run(folder: Path, seed: str, disk: SmallDisk | None = None) -> Report:
    """One run from its first process to its last. With a `disk` that is filled, and not only processes killed."""
    folder.mkdir(parents=True, exist_ok=True)
    recordings = (disk.folder if disk is not None else folder) / f"recording-of-{folder.name}"
    recordings.mkdir()
    run = _Run(folder, recordings / "run.jsonl", seed, disk)
    for group in range(run.dice.randrange(2, 6)):
        run.disturb(group)
    run.finish()
    shutil.copytree(recordings, folder / "recording", dirs_exist_ok=True)
    return check_runs(read_histories(folder), folder.name)


class _Run:
    def __init__(self, folder: Path, path: Path, seed: str, disk: SmallDisk | None) -> None:
        self.dice = random.Random(seed)
        self._folder = folder
        self._path = path
        self._seed = seed
        self._disk = disk
        self._history = History(folder / "faults.jsonl")

    def disturb(self, group: int) -> None:
        """Some processes begin at once; most are killed, or find the disk full."""
        dice = self.dice
        count = 1 if not group else dice.choice(RESUMED_AT_ONCE)
        go = self._folder / f"go-{group}"
        children = [self._child(f"{group}/{at}", str(go)) for at in range(count)]
        go.touch()
        time.sleep(dice.uniform(0, dice.choice(MOMENTS)))
        if self._disk is not None and dice.random() < 0.5:
            self._history.write("fault", kind="fill disk", group=group)
            self._disk.fill()
            time.sleep(dice.uniform(0, 0.2))
        for child in children:
            if dice.random() < 0.8:
                child.kill()
                self._history.write("killed", group=group)
        for child in children:
            if (code := child.wait(LONGEST)) not in (0, -signal.SIGKILL):
                self._history.write("crashed", where=f"process of {self._folder.name}", code=code)
        if self._disk is not None:
            self._disk.free()

    def finish(self) -> None:
        """Undisturbed, to the end."""
        for number in range(2 * ROUNDS):
            if self._is_empty():
                self._path.unlink()
            self._child(f"end/{number}").wait(LONGEST)
            if not self._path.exists() or self._is_empty():
                continue
            if getattr(read_recording(self._path).ending, "stop_reason", WAITS) != WAITS:
                break
        self._history.close()

    def _is_empty(self) -> bool:
        """Its process ended before the first line, so nothing has run. Nobody else has the file now."""
        return self._path.exists() and not self._path.stat().st_size

    def _child(self, name: str, go: str = "") -> Child:
        return Child(play, str(self._folder), str(self._path), f"{self._seed}/{name}", go)


def check_runs(records: Sequence[Record], name: str) -> Report:
    """The records of one run."""
    report = Report()
    report.counts.update(record["op"] for record in records)
    report.counts.update(f"refused: {record['error']}" for record in records if record["op"] == "refused")
    effects = [record for record in records if record["op"] == "effect"]
    for (kind, number), count in Counter((effect["tool"], effect["number"]) for effect in effects).items():
        same = [effect for effect in effects if effect["number"] == number]
        if count > 1 and (kind != "deposit" or len({effect["key"] for effect in same}) > 1):
            report.add("ran twice", f"{name}, call {number}", f"{kind} ran {count} times", *same)
    for record in records:
        if record["op"] == "crashed":
            report.add("crashed", record["where"], f"it ended with {record['code']}", record)
    ended = [record for record in records if record["op"] == "finished" and record["stop_reason"] == "answered"]
    # A process may be killed after the end of the run was recorded, before it has told anybody.
    told = any(record["op"] == "refused" and "has ended (answered)" in record["message"] for record in records)
    if not ended and not told:
        report.add("unfinished", name, "the run never came to its end", *records[-3:])
    for record in ended[-1:]:
        _check_messages(report, name, record, {effect["number"] for effect in effects})
    return report


def _check_messages(report: Report, name: str, record: Record, written: set[int]) -> None:
    """Every call is answered once, by what it did."""
    messages = from_json(record["messages"])
    calls = {call.id: call for said in messages if isinstance(said, Assistant) for call in said.calls}
    results = [result for said in messages if isinstance(said, ToolMessage) for result in said.results]
    for id, call in calls.items():
        answers = [result.text for result in results if result.call_id == id]
        if len(answers) != 1:
            words = f"{call.name} has {len(answers)} results"
            report.add("unanswered", f"{name}, call {id}", words, {"op": "result", "texts": answers})
        elif answers[0].startswith("done") and answers[0] != f"done {(call.arguments or {}).get('number')}":
            report.add("swapped", f"{name}, call {id}", f"{call.raw} is answered {answers[0]!r}", record)
        elif answers[0].startswith("done") and (call.arguments or {}).get("number") not in written:
            report.add("invented", f"{name}, call {id}", f"{answers[0]!r}, and nothing was written", record)
