"""The raw log: the exact bytes that were sent to a provider and that came back, with secrets masked. One line of JSON
for each step, written at once, so that a killed process leaves everything except its last moment.

If the file cannot be written, the run continues. `unbroken decode` interprets the bytes later. They are the HTTP
bodies, without chunking and compression.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import weakref
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, cast

import orjson
from yarl import URL

from unbroken.clock import current_clock
from unbroken.errors import TimedOut, UnbrokenError, Unreachable, UserError
from unbroken.models.masking import Masker, Passage, SplitSecrets
from unbroken_wires.decoding.verdict import How
from unbroken_wires.messages import Json
from unbroken_wires.wires.jsontext import dumps

LOG = logging.getLogger("unbroken.models")

FORMAT = 1
MARK = b'{"raw_log":'
"""The beginning of every line."""

_HARMLESS = re.compile(
    r"content-(?:type|length|encoding)|transfer-encoding|date|server|via|retry-after(?:-ms)?|x-should-retry"
    r"|(?:x-|apim-)?request-id|cf-ray|openai-processing-ms|[a-z-]*ratelimit[a-z-]*"
)
"""Headers of an answer that contain no secret."""
_SHOWN_QUERY = ("alt", "api-version")
"""Query parameters that may be shown: every other value may be a key."""


class RawLog:
    """A file that exchanges are appended to; any number of models, threads and processes may share it.

    Raises `UserError` if the file cannot be written to. If that happens later, there is one warning, and no more lines.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _path(path)
        self._mark = secrets.token_hex(3)
        self._numbers = count(1)
        self._broken = False
        self._masker: tuple[tuple[str, ...], Masker] = ((), Masker(()))
        _refuse_foreign(self.path)
        try:
            # A pipe without a reader must not block the loop.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            self._file = os.open(self.path, flags, 0o600)
        except (OSError, ValueError) as error:
            raise _unwritable(self.path, error) from None
        weakref.finalize(self, os.close, self._file)
        if _is_torn(self.path):
            self._write(b"\n")

    def __repr__(self) -> str:
        return f"RawLog({self.path!r})"

    def begin(
        self,
        *,
        model: str,
        wire: str,
        url: URL,
        body: bytes,
        stream: bool,
        recovers: bool = False,
        secrets: Iterable[str] = (),
    ) -> Logged:
        """A request is about to be sent. `recovers`: calls that leak into the text of its answer are recovered."""
        masker = self._mask(tuple(secrets))
        # It includes the process id, because a fork copies the mark.
        exchange = Logged(self, f"{self._mark}-{os.getpid()}-{next(self._numbers)}", masker, stream)
        exchange.write(
            "request",
            at=datetime.fromtimestamp(current_clock().now(), UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            method="POST",
            url=masker.mask_text(str(_shown(url))),
            model=model,
            wire=wire,
            stream=stream,
            recovers=recovers,
            **_written(masker.mask(body), "body"),
        )
        return exchange

    def append(self, line: dict[str, Json]) -> None:
        if not self._broken:
            self._write(dumps(line) + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            while data:  # in one go, unless the disk is full
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._broken = True
            LOG.warning("raw_log=%s is not written any more: %s", self.path, error.strerror or error)

    def _mask(self, secrets: tuple[str, ...]) -> Masker:
        if self._masker[0] != secrets:  # a key function may return a new key
            self._masker = (secrets, Masker(secrets))
        return self._masker[1]


class Logged:
    """Logs one exchange: `RawLog.begin` writes the request, these methods the rest."""

    def __init__(self, log: RawLog, id: str, masker: Masker, stream: bool) -> None:
        self._log = log
        self._id = id
        self._masker = masker
        self._passage = Passage(masker)
        self._split_secrets = SplitSecrets(masker) if stream and masker.secrets else None
        self._clock = current_clock()
        self._began = self._clock.elapsed()
        self._read_to_end = False
        self._ended = False

    def write(self, kind: str, **more: Json) -> None:
        self._log.append({"raw_log": FORMAT, "exchange": self._id, "kind": kind, **more})

    def resent(self) -> None:
        """The connection was dead; the same request is sent on another."""
        self.write("resent", after=self._after())

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        harmless: dict[str, Json] = {
            name.lower(): self._masker.mask_text(value)
            for name, value in headers.items()
            if _HARMLESS.fullmatch(name.lower())
        }
        self.write("head", after=self._after(), status=status, headers=harmless)

    def reading(self, read: Callable[[], Awaitable[bytes]]) -> Callable[[], Awaitable[bytes]]:
        """Wraps the function so that its bytes are logged."""

        async def read_and_log() -> bytes:
            chunk = await read()
            self.feed(chunk)
            return chunk

        return read_and_log

    def feed(self, chunk: bytes) -> None:
        """Bytes of the body; none at its end."""
        if not chunk:
            self._read_to_end = True
        else:
            self._write_bytes(self._passage.feed(chunk))

    def end(self, cause: str = "", how: How = "unfinished") -> None:
        """The end of the answer. `cause` and `how` as for `Decoder.end`, if the provider did not end it."""
        if self._ended:
            return
        self._ended = True
        self._write_bytes(self._passage.flush(), last=True)
        said = how if how != "unfinished" else "end" if self._read_to_end else "closed"
        self.write("end", after=self._after(), how=said, reason=self._masker.mask_text(cause))

    def fail(self, error: BaseException) -> None:
        """There is no response: an error was raised instead."""
        cause = str(error) if isinstance(error, UnbrokenError) else ""
        match error:
            case TimedOut():
                self.end(cause, "late" if error.total else "silent")
            case Unreachable():
                self.end(cause, "lost")
            case _:
                self.end(cause)

    def _write_bytes(self, data: bytes, last: bool = False) -> None:
        if self._split_secrets is not None:
            data = self._split_secrets.feed(data) + (self._split_secrets.flush() if last else b"")
        if data:
            self.write("bytes", after=self._after(), **_written(data, "text"))

    def _after(self) -> float:
        return round(self._clock.elapsed() - self._began, 6)


@dataclass(slots=True)
class Exchange:
    """One exchange as read from a log."""

    number: int
    """Its number in the file, from 1."""
    id: str
    at: str
    url: str
    model: str
    wire: str
    stream: bool
    recovers: bool
    body: bytes
    resent: bool = False
    status: int | None = None
    """None if no head came."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    chunks: list[bytes] = field(default_factory=list[bytes])
    how: str | None = None
    """None if the log has no end for it."""
    reason: str = ""
    seconds: float = 0.0
    """Seconds from its first line to its last."""


def read_exchanges(lines: Iterable[bytes], unreadable: Callable[[int, bytes], None]) -> Iterator[Exchange]:
    """The exchanges of a log in the order in which they began. `unreadable` is called for each line that cannot be
    read, with its number and the line."""
    open_ones: dict[str, Exchange] = {}
    begun = count(1)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            _take(open_ones, orjson.loads(line), begun)
        except (ValueError, KeyError, TypeError, NotBase64):
            unreadable(number, line)
        while open_ones and (first := next(iter(open_ones.values()))).how is not None:
            yield open_ones.pop(first.id)
    yield from open_ones.values()


def _take(open_ones: dict[str, Exchange], line: dict[str, Any], begun: Iterator[int]) -> None:
    if line["raw_log"] != FORMAT:
        raise UserError(f"this raw log is of format {line['raw_log']!r}, and {FORMAT} can be read: update unbroken")
    id = line["exchange"]
    if line["kind"] == "request":
        at, url, model, wire = (_text(line[name]) for name in ("at", "url", "model", "wire"))
        stream, recovers, body = line["stream"] is True, line["recovers"] is True, _bytes(line, "body")
        open_ones[_text(id)] = Exchange(next(begun), id, at, url, model, wire, stream, recovers, body)
        return
    exchange = open_ones[id]
    exchange.seconds = float(line["after"])
    match line["kind"]:
        case "resent":
            exchange.resent = True
        case "head":
            exchange.status = int(line["status"])
            exchange.headers = {_text(name): _text(value) for name, value in dict(line["headers"]).items()}
        case "bytes":
            exchange.chunks.append(_bytes(line, "text"))
        case "end":
            exchange.reason = _text(line["reason"])
            exchange.how = _text(line["how"])
        case _:
            pass  # of a later version


def _written(data: bytes, name: str) -> dict[str, Json]:
    """As text if it is text, so that people can read it."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _bytes(line: dict[str, Any], name: str) -> bytes:
    return _text(line[name]).encode() if name in line else b64decode(_text(line["base64"]), validate=True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _shown(url: URL) -> URL:
    pairs = [(name, value if name in _SHOWN_QUERY else "***") for name, value in url.query.items()]
    return url.with_user(None).with_query(pairs)


def _path(path: object) -> str:
    if path == "":
        raise UserError("raw_log is empty: give the name of a file, or None for no log")
    try:
        return os.path.abspath(os.fsdecode(cast("str", path)))
    except TypeError:
        raise UserError(f"raw_log={path!r} is not a path: give the name of a file") from None


def _unwritable(path: str, error: Exception) -> UserError:
    folder = os.path.dirname(path)
    if isinstance(error, FileNotFoundError):
        return UserError(f"raw_log={path} cannot be written: there is no folder {folder}; make it, or name another")
    if isinstance(error, IsADirectoryError):
        return UserError(f"raw_log={path} cannot be written: it is a folder; name a file in it")
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"raw_log={path} cannot be written: {why}")


def _refuse_foreign(path: str) -> None:
    """Never appends to a file that is not a raw log."""
    begin = _peek(path, 0, len(MARK))
    if begin and begin != MARK[: len(begin)]:
        raise UserError(f"raw_log={path} is a file of another kind: name a new one, or an existing raw log")


def _is_torn(path: str) -> bool:
    """Whether the last line has no end: its writer was killed, or the disk was full."""
    return _peek(path, -1, 1) not in (b"", b"\n")


def _peek(path: str, at: int, size: int) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            return file.read(size)
    except (OSError, ValueError):  # not there, empty, or not ours to read
        return b""
