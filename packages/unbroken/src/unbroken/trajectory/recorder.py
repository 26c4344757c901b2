"""`Recorder`: one file of JSON Lines for each run, readable to its last complete line after a kill. It chooses the
file, decides who may resume it, and masks secrets. `run_recorder` writes the content; `lines` has the schema.

If a recording cannot be written, a tool that may change something does not start (`on_failure="stop"`), or the run
continues without it (`"continue"`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self

from unbroken.errors import RecordingFailed, RunTaken, UserError
from unbroken.middleware import Middleware, RunStart
from unbroken.trajectory.jsonl_writer import LOG, NOWHERE, RecordingFile, lock
from unbroken.trajectory.recording import SUFFIX, Recording, run_of
from unbroken.trajectory.redaction import Redactor, secrets_in_environment
from unbroken.trajectory.run_recorder import WRITE_FIRST, OnFailure, RunRecorder, stopped
from unbroken_wires.validation import checked


class Resumed(NamedTuple):
    """A recording whose run continues, and how many bytes it had when it was read."""

    path: Path
    run: str
    size: int


@checked
class Recorder(Middleware):
    """`path` is a folder, where each run gets a file of its own, or the name of a file (`….jsonl`), for one run.

    `Agent(record=path)` makes one; give it as middleware if you need its options. Keys that models were connected with,
    and the values of variables that are named like secrets (docs/recordings.md lists the names), are masked, and so is
    everything in `secrets`.

    If the file cannot be written (a full disk), `on_failure="stop"` lets no tool start that may change something: the
    run ends with `RecordingFailed`. `"continue"` runs on without the recording. Both send `RecordingIncomplete`.
    """

    records = True

    def __init__(
        self, path: str | os.PathLike[str], *, secrets: str | Iterable[str] = (), on_failure: OnFailure = "stop"
    ) -> None:
        self.path = _path(path)
        self.on_failure: OnFailure = on_failure
        given = _secrets(secrets)
        self._secrets = frozenset((*given, *secrets_in_environment()))
        self._told = False
        self._continued: Resumed | None = None
        self._redactor = Redactor(self._secrets)
        try:
            if "\0" in str(self.path):
                raise ValueError("no name has a zero byte in it")
            self._one_file = self.path.suffix == SUFFIX and not self.path.is_dir()
            self._folder = self.path.parent if self._one_file else self.path
            self._folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise _unwritable(self.path, error) from None

    def __repr__(self) -> str:
        return f"Recorder({str(self.path)!r})"

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets that are always masked."""
        return self._secrets

    def start(self, run: RunStart) -> RunRecorder:
        """Opens the file of a run. `UserError` if it is of another run, `RunTaken` if somebody else resumed the run."""
        head = run
        if not self._redactor.covers(head.secrets()):
            self._redactor = Redactor((*self._redactor.given, *head.secrets()))
        why = ""
        try:
            path, file = self._open(head)
        except OSError as error:
            why = error.strerror or str(error)
            if self._continued is not None:
                raise RecordingFailed(
                    f"{self.path}: run `{head.run}` cannot be resumed, because its recording cannot be opened and "
                    f"locked: {why}"
                ) from None
            if self.on_failure == "stop":
                raise stopped(self.path, why, "the run did not start", WRITE_FIRST) from None
            if not self._told:
                self._told = True
                LOG.warning("recording to %s failed, so runs are not recorded: %s", self.path, error.strerror or error)
            path, file = str(self.path), NOWHERE
        else:
            self._told = False
        recorder = RunRecorder(RecordingFile(path, file), head, self._redactor, self.on_failure, why)
        if recorder.broken and file != NOWHERE and (self.on_failure == "stop" or head.resumed):
            recorder.end()  # without its first line the resume would not be recorded
            if self._continued is not None:
                raise stopped(path, recorder.reason, "the run did not start", "free disk space and resume it again")
            with suppress(OSError):  # nothing has happened that it could report
                os.unlink(path)
            raise stopped(path, recorder.reason, "the run did not start", WRITE_FIRST)
        return recorder

    def resume(self, path: Path, run: str, size: int) -> Self:
        """Appends to a recording that was read, whatever its file is called. `RunTaken` when the run starts, if
        somebody else has written to the file since."""
        recorder = copy(self)
        recorder.path, recorder._folder = path, path.parent
        recorder._one_file, recorder._continued = True, Resumed(path, run, size)
        return recorder

    def recordings_of(self, run: str) -> list[Path]:
        if self._one_file:
            return [self.path] if run_of(self.path) == run else []
        name = _file_name(run)
        files = self.path.glob(f"*{SUFFIX}")  # the file may have any name
        return sorted(
            file for file in files if (name in file.name or not _DATED.match(file.name)) and run_of(file) == run
        )

    def _open(self, head: RunStart) -> tuple[str, int]:
        """The file of the run: one that is resumed, or a new one."""
        if self._continued is not None:
            return str(self.path), _reopen(self._continued)
        if self._one_file:
            path = str(self.path)
            try:
                return path, self._create(path)
            except FileExistsError:
                raise UserError(
                    f"{path} exists already and belongs to another run: name another file, or a folder"
                ) from None
        name = _file_name(head.run)
        if head.resumed:  # without the time in its name, so that only one of two can create it
            path = f"{self._folder}{os.sep}{name}{SUFFIX}"
            try:
                return path, self._create(path)
            except FileExistsError:
                raise already_resumed(Path(path), head.run) from None
        stem = f"{self._folder}{os.sep}{_in_words(int(head.clock.now()))}-{name}"
        path = f"{stem}{SUFFIX}"
        for number in count(2):
            try:
                return path, self._create(path)
            except FileExistsError:
                path = f"{stem}-{number}{SUFFIX}"
        raise AssertionError("there is no end of numbers")

    def _create(self, path: str) -> int:
        try:
            file = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:  # the folder existed when the recorder was made
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):  # a file system without locks: resuming the run raises the error
            lock(file, wait=True)  # another process may just be reading the empty file
        return file


_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
_DATED = re.compile(r"[0-9]{8}-[0-9]{6}-")
"""How the file names that a recorder makes begin: the id of the run follows."""
_ODD = re.compile(r"[^\w.-]", re.ASCII)


def _file_name(run: str) -> str:
    """The id of a run as a part of a file's name."""
    return _ODD.sub("_", run)[:80] or "run"


@lru_cache(1)
def _in_words(second: int) -> str:
    """Cached: most recordings begin in the same second as the one before."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(second))


def already_resumed(path: Path, run: str) -> RunTaken:
    return RunTaken(
        f"{path}: run `{run}` was resumed by somebody else; read there what happened, or resume it from that file",
        run,
    )


def refuse_taken(recording: Recording) -> None:
    """Raises `RunTaken` if somebody else resumes the run, or has done so since the recording was read."""
    with suppress(OSError):
        os.close(_reopen(Resumed(recording.path, recording.run, recording.size)))


def _reopen(recording: Resumed) -> int:
    """Opens the file again, locked and unchanged since it was read."""
    path, run, _ = recording
    file = os.open(path, _FLAGS)
    try:
        if not lock(file):
            raise RunTaken(
                f"{path}: run `{run}` is still active, in this process or another; wait for its end, or end it, and "
                f"resume it then",
                run,
            )
        if os.fstat(file).st_size != recording.size:
            raise already_resumed(path, run)
    except BaseException:
        os.close(file)
        raise
    return file


def _secrets(given: str | Iterable[str]) -> tuple[str, ...]:
    secrets = (given,) if isinstance(given, str) else tuple(given)
    for secret in secrets:  # the type check does not look into a generator
        if not isinstance(secret, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            raise UserError(f"Recorder(secrets=…) holds a value of the type {type(secret).__name__}: give texts")
    return secrets


def _path(path: str | os.PathLike[str]) -> Path:
    if not path:
        raise UserError(f"record={path!r} is not a path: give the name of a folder, or of a file that ends in {SUFFIX}")
    return Path(path).expanduser()


def _unwritable(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileExistsError):
        return UserError(
            f"{error.filename} is a file and no folder: name a folder, or a new file that ends in {SUFFIX}"
        )
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"recording to {path} failed: {why}; name another place")
