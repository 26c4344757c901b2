"""`Recorder`: one file of JSON Lines for each run, readable to its last whole line after a kill. Which file that is,
who may go on with it, and what must not stand in it. What stands in it is `run_recorder`; `lines` has the schema.

A recorder never breaks a run: where no file can be made it says so once in the log, and the run goes on without it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import cast

from unbroken.errors import UserError
from unbroken.events import (
    Event,
)
from unbroken.trajectory.companion import RunHead
from unbroken.trajectory.hiding import Hiding, secrets_in_environment
from unbroken.trajectory.recording import SUFFIX, Recording, run_of, summarize
from unbroken.trajectory.run_recorder import RunRecorder
from unbroken.trajectory.scribe import LOG, NOWHERE

try:
    import fcntl
except ImportError:  # Windows: there it is not seen that a run still goes on
    fcntl = None


class Recorder:
    """`path` is a folder, where each run gets a file of its own, or the name of a file (`….jsonl`), for one run.

    Give it to an agent as one of its `sinks`, or say `record=` there. Keys that models were connected with, and the
    values of variables that are named like one (`…_KEY`, `…_TOKEN`, `…_SECRET`, `…_PASSWORD`), are masked, and so is
    all that `secrets` lists.
    """

    def __init__(self, path: str | os.PathLike[str], *, secrets: Iterable[str] = ()) -> None:
        self.path = _path(path)
        given = _secrets(secrets)
        self._secrets = frozenset((*given, *secrets_in_environment()))
        self._told = False
        self._hiding = Hiding(self._secrets)
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
        """What it hides in any case."""
        return self._secrets

    def __call__(self, event: Event) -> None:
        """Events alone make no recording: an agent asks for a companion at the start of each run (`accompany`)."""

    def accompany(self, head: RunHead) -> RunRecorder:
        """What records one run, in its file; an agent asks for it when a run begins. `UserError` if the file is of
        another run, or of one that still goes on."""
        if not self._hiding.covers(head.secrets()):
            self._hiding = Hiding((*self._hiding.given, *head.secrets()))
        try:
            path, file = self._open(head)
        except OSError as error:  # no run fails because it cannot be recorded
            if not self._told:
                self._told = True
                LOG.warning("recording to %s failed, and runs go on without: %s", self.path, error.strerror or error)
            path, file = str(self.path), NOWHERE
        else:
            self._told = False
        return RunRecorder(path, file, head, self._hiding)

    @classmethod
    def of(cls, recording: Recording, secrets: Iterable[str] = ()) -> Recorder:
        """One that goes on with a recording, whatever its file is called."""
        recorder = cls(recording.path.parent, secrets=secrets)
        recorder.path, recorder._one_file = recording.path, True
        return recorder

    def _open(self, head: RunHead) -> tuple[str, int]:
        """The file of the run: one that goes on, or a new one."""
        if self._one_file:
            path = str(self.path)
            if not self.path.exists():
                return path, self._create(path)
            if not (head.goes_on and run_of(self.path) == head.run):
                raise UserError(f"{path} is there already, and is of another run: name another file, or a folder")
            return path, _go_on(path)
        name = _ODD.sub("_", head.run)[:80] or "run"
        if head.goes_on:
            begun = [file for file in self.path.glob(f"*{name}*{SUFFIX}") if _goes_on(file, head.run)]
            if begun:
                path = str(max(begun, key=lambda file: file.name))
                return path, _go_on(path)
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
        except FileNotFoundError:  # the folder was there when the recorder was made
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        _lock(file)
        return file


_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
_ODD = re.compile(r"[^\w.-]", re.ASCII)


@lru_cache(1)
def _in_words(second: int) -> str:
    """Most recordings begin in the same second as the one before."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(second))


def _lock(file: int) -> bool:
    """Held as long as the file is open, and gone with the process: who goes on with a run sees that it still goes."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _go_on(path: str) -> int:
    file = os.open(path, _FLAGS)
    if not _lock(file):
        os.close(file)
        raise UserError(f"{path}: the run still goes on, in this process or another; end that first")
    return file


def _goes_on(file: Path, run: str) -> bool:
    """Is it the recording of the run, and has that not come to its end?"""
    found = summarize(file)
    return found.run == run and not found.problem and found.stop_reason in ("", "waiting", "failed")


def _secrets(given: Iterable[str]) -> tuple[str, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    secrets = tuple(given) if several else (cast("str", given),)
    for secret in secrets:
        if not isinstance(secret, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            raise UserError(f"Recorder(secrets=…) holds a value of the type {type(secret).__name__}: give texts")
    return secrets


def _path(path: object) -> Path:
    if not path or not isinstance(path, str | os.PathLike):
        raise UserError(f"record={path!r} is no path: give the name of a folder, or of a file that ends in {SUFFIX}")
    return Path(cast("str", path)).expanduser()


def _unwritable(path: Path, error: Exception) -> UserError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"recording to {path} failed: {why}; name another place")
