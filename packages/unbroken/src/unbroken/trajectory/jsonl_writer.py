"""Writes the lines of one recording: a few at a time, in order, without secrets. `run_recorder` makes the lines.

A line is handed to its `Target` after a short delay at the latest. A piece of a text that may be the beginning of a
secret, and everything after it, waits until that is known. If the target cannot be written, one warning is logged.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import orjson

from unbroken.clock import Deadline, deadline
from unbroken.trajectory.lines import Line, encode, exact
from unbroken.trajectory.redaction import Pieces, Redactor

LOG = logging.getLogger("unbroken.trajectory")

SOON = 0.002
"""Seconds after which a result is handed over, if storing takes more than writing."""
NOWHERE = -1
"""In place of a file that could not be opened."""


class _Piece:
    """A piece of a streamed text that may contain a secret; `text` is None until it is final."""

    __slots__ = ("at", "joined", "masked", "name", "text", "turn")

    def __init__(self, at: float, turn: int, name: str, joined: bool) -> None:
        self.at = at
        self.joined = joined
        """It arrived together with the one before."""
        self.turn = turn
        self.name = name
        self.text: str | None = None
        self.masked = False

    def follows(self, other: _Piece) -> bool:
        """May they share a line?"""
        return self.turn == other.turn and self.name == other.name and self.masked == other.masked


class Target:
    """Where the lines of one recording go."""

    delay = 0.05
    """Seconds after which a line is handed over at the latest."""
    later = False
    """What is written is stored later: `stored` waits for it."""
    path = ""
    """Its name."""
    is_open = True

    def has_lines(self) -> bool:
        """Has the recording begun?"""
        return False

    def ends_in_cut_line(self) -> bool:
        return False

    def write(self, data: bytes, urgent: bool) -> None:
        """Raises `OSError` if that is not possible."""
        raise NotImplementedError

    async def stored(self) -> None:
        """Waits until everything that was written is stored. Raises `OSError` if it cannot be."""

    def close(self) -> None:
        pass


class RecordingFile(Target):
    """An open file. NOWHERE stands for one that could not be opened."""

    def __init__(self, path: str, file: int) -> None:
        self.path = path
        self.is_open = file != NOWHERE
        self._file = file

    def has_lines(self) -> bool:
        return self.is_open and os.fstat(self._file).st_size > 0

    def ends_in_cut_line(self) -> bool:
        """Was the process that wrote it killed in the middle of a line?"""
        os.lseek(self._file, -1, os.SEEK_END)
        return os.read(self._file, 1) != b"\n"

    def write(self, data: bytes, urgent: bool) -> None:
        if urgent and not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "the file was deleted")
        while data:  # at once, unless the disk is full
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        if self.is_open:
            found = os.fstat(self._file)
            if stat.S_ISREG(found.st_mode) and not found.st_size:  # a full disk, and no recording that could be read
                with suppress(OSError):
                    os.unlink(self.path)
            os.close(self._file)
            self.is_open = False


class JsonlWriter:
    """Buffers and writes the lines. `target` must be open; it is closed at the end."""

    def __init__(self, target: Target, redactor: Redactor) -> None:
        self.target = target
        self.path = target.path
        self.broken = not target.is_open
        self.reason = ""
        """Why it cannot be written."""
        self.on_broken: Callable[[], None] | None = None
        self.urgent = False
        """It holds something that must be in the file before the run continues."""
        self.exact = False
        """It holds a number that the fast encoder would change."""
        self._redactor = redactor
        self._lines: list[bytes | _Piece] = []
        self._said: Line | None = None
        """The last pieces of a text: what follows immediately goes into the same line."""
        self._guarded = False
        """There are pieces among the lines."""
        self._timer: Deadline | None = None
        self._streams: dict[str, tuple[Pieces, deque[_Piece]]] = {}
        """Texts in which there may be a secret."""

    def hide(self, redactor: Redactor) -> None:
        """From now on these secrets are masked."""
        self.settle()
        self._redactor = redactor

    def end_cut_line(self) -> None:
        """Ends the last line, if the process that wrote it was killed in the middle."""
        self._lines.append(b"")

    def put(self, line: Line) -> None:
        if self._said is not None:
            self._end_said()
        try:
            self._lines.append(exact(line) if self.exact else orjson.dumps(line))
        except Exception:  # noqa: BLE001 - what the fast encoder does not take, or a user's value that is no JSON
            self._lines.append(_encoded(line))
        if self._timer is None:
            self._set_timer()

    def put_raw(self, lines: Sequence[bytes], urgent: bool) -> None:
        """Writes lines that are encoded already, at once."""
        self._end_said()
        self._lines += lines
        self.urgent = self.urgent or urgent
        self._write()

    def put_pieces(self, at: float, turn: int, name: str, texts: Sequence[str]) -> None:
        """Pieces of one text that arrived together."""
        said = self._said
        if self._redactor.secrets and (self._streams or not self._redactor.is_clear("".join(texts))):
            self._put_guarded(at, turn, name, texts)
        elif said is not None and said["turn"] == turn and said["delta"] == name:
            said["pieces"].append((at, *texts))
        else:
            if said is not None:
                self._end_said()
            self._said = {"line": "pieces", "turn": turn, "delta": name, "pieces": [(at, *texts)]}
        if self._timer is None:
            self._set_timer()

    def _end_said(self) -> None:
        said, self._said = self._said, None
        if said is not None:
            self._lines.append(_encoded(said))

    def _put_guarded(self, at: float, turn: int, name: str, texts: Sequence[str]) -> None:
        self._end_said()
        self._guarded = True
        if name not in self._streams:
            self._streams[name] = (Pieces(self._redactor), deque())
        pieces, waiting = self._streams[name]
        for place, text in enumerate(texts):
            piece = _Piece(at, turn, name, joined=place > 0)
            waiting.append(piece)
            _settle(waiting, pieces.feed(text))
            self._lines.append(piece)

    def settle(self) -> None:
        """The streamed texts have ended: everything held back is final."""
        if self._streams:
            for pieces, waiting in self._streams.values():
                _settle(waiting, pieces.end())
            self._streams.clear()

    def _set_timer(self) -> None:
        self._timer = deadline(asyncio.get_running_loop(), self.target.delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._write()

    def flush(self) -> None:
        """Now, and all of it."""
        if self._lines or self._said is not None:
            if self._streams:
                self.settle()
            self._write()

    def flush_soon(self) -> None:
        """Now; or, if storing takes more than writing, in a moment, together with what happens until then."""
        if self.target.later:
            asyncio.get_running_loop().call_later(SOON, self.flush)
        else:
            self.flush()

    def end(self) -> None:
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
        self.target.close()

    def _write(self) -> None:
        if self._said is not None:
            self._end_said()
        lines, self._lines = self._lines, []
        if self._guarded:
            lines = self._settled(lines)
        was_urgent, self.urgent = self.urgent, self.urgent and bool(self._lines)
        if not lines or self.broken or not self.target.is_open:
            return
        lines.append(b"")
        data = self._redactor.lines(b"\n".join(cast("list[bytes]", lines)))
        try:
            self.target.write(data, was_urgent)
        except OSError as error:
            self._give_up(error)

    async def stored(self) -> None:
        """Now, and all of it; returns when it is stored, or cannot be."""
        self.flush()
        if self.target.later and not self.broken:
            try:
                await self.target.stored()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self.broken:
            return
        self.broken, self.reason = True, error.strerror or str(error)
        if self.on_broken is not None:
            self.on_broken()
        LOG.warning("the recording %s is not written any more: %s", self.path, error.strerror or error)

    def _settled(self, lines: list[bytes | _Piece]) -> list[bytes | _Piece]:
        """Joins consecutive pieces into one line. What must wait is put back."""
        settled: list[bytes | _Piece] = []
        said: list[_Piece] = []
        self._guarded = False
        for place, line in enumerate(lines):
            if isinstance(line, _Piece):
                if line.text is None:
                    self._lines, self._guarded = lines[place:], True
                    break
                if said and not line.follows(said[-1]):
                    settled.append(_shared(said))
                    said = []
                said.append(line)
            else:
                if said:
                    settled.append(_shared(said))
                    said = []
                settled.append(line)
        if said:
            settled.append(_shared(said))
        return settled


def _encoded(line: Line) -> bytes:
    try:
        return encode(line)
    except Exception as error:  # noqa: BLE001 - a user's value that is no JSON
        return encode({"line": "note", "text": f"a line `{line['line']}` could not be written: {error}"[:500]})


def _shared(pieces: list[_Piece]) -> bytes:
    first = pieces[0]
    line: Line = {"line": "pieces", "turn": first.turn, "delta": first.name}
    if first.masked:
        line["masked"] = True
    groups: list[list[object]] = []
    for piece in pieces:
        if piece.joined and groups:
            groups[-1].append(piece.text)
        else:
            groups.append([piece.at, piece.text])
    line["pieces"] = groups
    return encode(line)


def _settle(waiting: deque[_Piece], texts: list[tuple[str, bool]]) -> None:
    for text, masked in texts:
        piece = waiting.popleft()
        piece.text, piece.masked = text, masked


# A lock on an open file, so that one run has one writer. The operating system drops it when the file is closed or its
# process dies, however it dies: a lock is never left behind.


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR_AWAY = 1 << 40
"""Windows locks bytes, and then nobody else can read them: this one is beyond the end of every recording."""


def lock(file: int, *, wait: bool = False, shared: bool = False) -> bool:
    """False if somebody else holds it: another process, or another task or thread of this one. With `wait`, returns
    once it is free. Several may hold a `shared` one, unless the system has none. `OSError` if the file system has no
    locks."""
    if sys.platform == "win32":
        place = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, _FAR_AWAY, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(file, place, os.SEEK_SET)
        return True
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
