"""Every write, sync, opening, cut and renaming of a file fails once: those of a recording, and those of SQLite.

A scenario runs in a process of its own with `failing_io.c` preloaded, which fails the N-th operation with "no space
left" or "input/output error", or kills the process in the middle of it, for N = 1, 2, 3 until the scenario ends before
its N-th. Then the same scenario is brought to its end undisturbed, and what was promised is checked: a run ends with an
answer or an error of ours, writes nothing twice and can be read; a store gives back what was put, or nothing.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from torture.checker import Report
from torture.history import History, Record, read_histories
from torture.recorded_runs import ROUNDS, WAITS, check_runs, play
from unbroken.errors import UserError
from unbroken.trajectory.recording import read_recording
from unbroken_gateway.stores import StoreUnavailable
from unbroken_gateway.stores.sqlite import SQLiteStore

SOURCE = Path(__file__).with_name("failing_io.c")
HOWS = {"no space": str(errno.ENOSPC), "i/o error": str(errno.EIO), "killed": "kill"}
LONGEST = 60
"""Seconds for one process."""
PUTS = 5
MOST = 500
"""No scenario has as many operations."""


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def build(folder: Path) -> Path:
    """The library to preload. `RuntimeError` without a compiler."""
    if (found := compiler()) is None:
        raise RuntimeError("no C compiler is here to build failing_io.c")
    library = folder / "failing_io.so"
    command = [found, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


# Scenarios, each in a process of its own


def _no_word(*words: object) -> None:
    pass


def run_and_resume(folder: Path, files: Path) -> None:
    """A run that waits for an approval, and is resumed with it."""
    for number in range(2):
        play(_no_word, str(folder), str(files / "run.jsonl"), f"disturbed/{number}")


def finish_run(folder: Path, files: Path) -> None:
    """Undisturbed, to the end. Of a file without its first line nothing has run: it is removed."""
    path, history = files / "run.jsonl", History(folder / "finish.jsonl")
    for number in range(2 * ROUNDS):
        try:
            recording = read_recording(path) if path.exists() else None
        except UserError as error:
            history.write("unreadable", message=str(error))
            path.unlink()
            recording = None
        if recording is not None and getattr(recording.ending, "stop_reason", WAITS) != WAITS:
            break
        play(_no_word, str(folder), str(path), f"finish/{number}")
    history.close()


def value_of(number: int, key: str) -> bytes:
    return f"{number}/{key}/".encode() * 300


def put_and_get(folder: Path, files: Path) -> None:
    history = History(folder / "store.jsonl")

    async def main() -> None:
        try:
            store = SQLiteStore(str(files / "store.db"))
        except UserError as error:
            history.write("refused", error=type(error).__name__)
            return
        for number in range(PUTS):
            keys = [f"{number}/a", f"{number}/b"]
            try:
                await store.put({key: value_of(number, key) for key in keys}, 3600.0)
                history.write("put", number=number)
                found = await store.get(keys)
                history.write("got", number=number, right=found == [value_of(number, key) for key in keys])
            except StoreUnavailable as error:
                history.write("unavailable", number=number, error=str(error))
        with suppress(StoreUnavailable):
            await store.aclose()

    asyncio.run(main())
    history.close()


def look_into_store(folder: Path, files: Path) -> None:
    """The content of the file, read without faults."""
    history = History(folder / "look.jsonl")

    async def main() -> None:
        store = SQLiteStore(str(files / "store.db"))
        for number in range(PUTS):
            keys = [f"{number}/a", f"{number}/b"]
            found = await store.get(keys)
            right = [value == value_of(number, key) for value, key in zip(found, keys, strict=True)]
            history.write("found", number=number, there=[value is not None for value in found], right=right)
        await store.put({"after": b"1"}, 3600.0)
        history.write("usable", right=await store.get(["after"]) == [b"1"])
        await store.aclose()

    asyncio.run(main())
    history.close()


SCENARIOS = {"recording": (run_and_resume, finish_run), "sqlite": (put_and_get, look_into_store)}


# The sweep


def sweep(folder: Path, library: Path, numbers: Mapping[str, Sequence[int]] | None = None) -> Iterator[Trial]:
    """Each scenario, failing in each way. Without `numbers` every N, until the scenario ends before its N-th
    operation."""
    command = [sys.executable, "-m", "torture.write_faults", str(folder), json.dumps(numbers or {})]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    # One process has everything loaded, and forks for each N: to load it takes longer than the scenario.
    with subprocess.Popen(command, cwd=Path(__file__).parent.parent, env=environment, stdout=subprocess.PIPE) as every:
        assert every.stdout is not None
        for line in every.stdout:
            outcome = Outcome(**json.loads(line))
            yield Trial(outcome.name, outcome.how, _check(outcome))
    if every.returncode:
        raise RuntimeError(f"the process that tries every N ended with {every.returncode}")


@dataclass(frozen=True, slots=True)
class Trial:
    """One operation that failed, and what was found."""

    name: str
    how: str
    report: Report


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the processes of one N."""

    name: str
    how: str
    number: int
    folder: str
    disturbed: int
    after: int
    """Exit codes."""


def try_each(name: str, how: str, folder: Path, numbers: Sequence[int]) -> None:
    for number in numbers or range(1, MOST):
        here = folder / f"{name}-{HOWS[how]}-{number}"
        (here / "files").mkdir(parents=True)
        faults = {"FAULT_FOLDER": str(here / "files"), "FAULT_AT": str(number), "FAULT_HOW": HOWS[how]}
        disturbed = _fork(name, 0, here, {**faults, "FAULT_REACHED": str(here / "reached")})
        if not (here / "reached").exists() and not numbers and disturbed == 0:
            return
        after = _fork(name, 1, here, {})
        sys.stdout.write(json.dumps(asdict(Outcome(name, how, number, str(here), disturbed, after))) + "\n")
        sys.stdout.flush()


def _fork(name: str, part: int, folder: Path, environment: dict[str, str]) -> int:
    """The exit code of a process that does this part of the scenario; that of a signal is below 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(LONGEST)
            os.environ.update(environment)
            with open(folder / "errors", "ab", buffering=0) as errors:
                os.dup2(errors.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                SCENARIOS[name][part](folder, folder / "files")
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the exit code reports it
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _check(outcome: Outcome) -> Report:
    name, how = outcome.name, outcome.how
    folder = Path(outcome.folder)
    records = read_histories(folder)
    where = f"{name}, {how} at operation {outcome.number}"
    report = check_runs(records, where) if name == "recording" else Report()
    report.counts["reached"] += (folder / "reached").exists()
    allowed = (0, -signal.SIGKILL) if how == "killed" else (0,)
    for code, right in ((outcome.disturbed, allowed), (outcome.after, (0,))):
        if code not in right:
            words = (folder / "errors").read_text()[-1500:]
            report.add("crashed", where, f"a process ended with {code}: {words}")
    if name == "sqlite":
        check_store(report, where, records)
    elif any(one["op"] == "unreadable" for one in records) and _ran_before_it_was_unreadable(records):
        report.add("unreadable", where, "tools ran, and the recording cannot be read", *records)
    return report


def _ran_before_it_was_unreadable(records: Sequence[Record]) -> bool:
    operations = [record["op"] for record in records]
    return "effect" in operations[: operations.index("unreadable")]


def check_store(report: Report, where: str, records: Sequence[Record]) -> None:
    put = {record["number"] for record in records if record["op"] == "put"}
    for record in records:
        if record["op"] == "got" and not record["right"]:
            report.add("damaged", where, f"put {record['number']} was given back as something else", record)
        if record["op"] == "usable" and not record["right"]:
            report.add("unusable", where, "the store cannot be used after the fault", record)
        if record["op"] != "found":
            continue
        there, right = record["there"], record["right"]
        if there != right:
            report.add("damaged", where, f"put {record['number']} is in the file as something else", record)
        elif any(there) and not all(there):
            report.add("torn", where, f"put {record['number']} is there in part", record)
        elif record["number"] in put and not all(there):
            report.add("lost", where, f"put {record['number']} was confirmed and is not there", record)
    if not any(record["op"] == "usable" for record in records):
        report.add("unusable", where, "the store could not be opened after the fault", *records[-2:])


if __name__ == "__main__":
    only: dict[str, list[int]] = json.loads(sys.argv[2])
    for scenario in SCENARIOS:
        for way in HOWS:
            try_each(scenario, way, Path(sys.argv[1]), only.get(scenario, ()))
