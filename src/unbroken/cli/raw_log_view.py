"""A raw log for people: each exchange with what became of it, its response decoded as it was when it came. Decides
nothing: verdicts come from `decoding`, and an answer that is no response is read by `models.failures`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import orjson
import typer
from rich.console import Console

from unbroken.cli.exits import print_line
from unbroken.cli.response_view import Live, as_json, show_contents, show_plain
from unbroken.cli.terminal_text import clean, escape
from unbroken.clock import RealClock
from unbroken.decoding import Decoder, Response
from unbroken.decoding.verdict import How, judge_failure
from unbroken.errors import InvalidRequest, NotAResponse, ProviderError, StreamError, TimedOut, Unreachable, UserError
from unbroken.messages import Assistant, Json, Request
from unbroken.models.error_responses import Asked, read_failure
from unbroken.models.raw_log import Exchange, read_exchanges
from unbroken.verdicts import Verdict
from unbroken.wires import WIRES, find_wire

_HOW: dict[str, tuple[How, str]] = {
    "end": ("unfinished", ""),
    "closed": ("unfinished", "it was not read any further"),
    "lost": ("lost", "the connection was lost"),
    "silent": ("silent", "the stream fell silent"),
    "late": ("late", "the time was up"),
}
_UNTOLD: tuple[How, str] = ("unfinished", "the log ends before the response does")


@dataclass(frozen=True, slots=True)
class Decoding:
    """What was given on the command line; the log has the rest."""

    wire: str
    tools: list[str]
    follow: bool
    chunk: int


def show_exchanges(pieces: Iterable[bytes], file: str, wanted: str, how: Decoding, json: bool) -> bool:
    """Shows them all, or the one that is wanted. Returns whether each that was shown is complete."""
    console = Console(highlight=False)
    unread = _Unread(file)
    shown, last, whole = 0, 0, True
    for exchange in read_exchanges(unread.lines(pieces), unread):
        last = max(last, exchange.number)
        if wanted not in ("", str(exchange.number), exchange.id):
            continue
        if shown and not json:
            typer.echo()
        shown += 1
        whole = _show(console, exchange, how, json) and whole
    unread.report()
    if not shown:
        which = "there is no whole exchange in it"
        if wanted and last:
            which = f"there is no exchange {wanted} in it; they are numbered from 1 to {last}"
        raise NotAResponse(f"decoding {file} failed: {which}")
    return whole


class _Unread:
    """The lines that could not be read; they are reported once, at the end."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._numbers: list[int] = []
        self._torn = False

    def __call__(self, number: int, line: bytes) -> None:
        if line.endswith(b"\n"):
            self._numbers.append(number)
        else:
            self._torn = True

    def lines(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        held: list[bytes] = []
        for piece in pieces:
            *whole, rest = piece.split(b"\n")
            for line in whole:
                yield b"".join([*held, line, b"\n"])
                held.clear()
            held.append(rest)
        if last := b"".join(held):
            yield last

    def report(self) -> None:
        if self._numbers:
            lines = ", ".join(map(str, self._numbers[:5])) + (", …" if len(self._numbers) > 5 else "")
            what = "line" if len(self._numbers) == 1 else "lines"
            print_line(
                f"{self._file}: {what} {lines} left out: torn, or of an exchange whose beginning is not in the file"
            )
        if self._torn:
            print_line(f"{self._file}: the last line left out: it is torn, whoever wrote it was stopped")


def _show(console: Console, exchange: Exchange, how: Decoding, json: bool) -> bool:
    wire = how.wire or exchange.wire
    if wire not in WIRES:
        raise UserError(f"exchange {exchange.number} is of a wire that is not known, {wire!r}: say one with --wire")
    live = Live(console) if how.follow else None
    name = f"exchange {exchange.number}"
    facts = f"{exchange.at}  {exchange.model}  {wire}  {_ending(exchange)}"
    pretty = console.is_terminal
    if pretty and not json:
        console.print(f"[bold]{name}[/]  [dim]{escape(facts)}[/]", soft_wrap=True)
    elif live is not None:
        typer.echo(f"{name}: {clean(facts)}")
    response = _decode(exchange, wire, how, live)
    if json:
        typer.echo(as_json(response, wire, _about(exchange)))
    elif live is not None:
        live.close(response)
    elif pretty:
        show_contents(console, response)
    else:
        show_plain(response, f"{name}: {clean(facts)}")
    return response.verdict.whole


def _ending(exchange: Exchange) -> str:
    status = "no answer" if exchange.status is None else str(exchange.status)
    how = "not ended" if exchange.how is None else exchange.how
    twice = ", sent twice" if exchange.resent else ""
    return f"{status}, {how} after {exchange.seconds:.2f} s{twice}"


def _about(exchange: Exchange) -> dict[str, Json]:
    return {
        "exchange": exchange.number,
        "id": exchange.id,
        "at": exchange.at,
        "model": exchange.model,
        "url": exchange.url,
        "stream": exchange.stream,
        "status": exchange.status,
        "how": exchange.how,
        "reason": exchange.reason,
        "seconds": exchange.seconds,
        "resent": exchange.resent,
    }


def _decode(exchange: Exchange, wire: str, how: Decoding, live: Live | None) -> Response:
    if exchange.status is None or exchange.status >= 300:
        return _nothing(_failure(exchange))
    request = _request(exchange, wire)
    offered = [tool.name for tool in request.tools] if request and exchange.recovers else []
    decoder = Decoder(wire, how.tools or offered or None, request)
    position = 0
    try:
        for chunk in _in_pieces(exchange.chunks, how.chunk):
            position += len(chunk)
            for delta in decoder.feed(chunk):
                if live is not None:
                    live.show(delta, position)
    except StreamError:
        pass  # beyond a limit, as the verdict reports
    kind, cause = _HOW.get(exchange.how, _UNTOLD) if exchange.how else _UNTOLD
    try:
        decoder.end(exchange.reason or cause, kind)
    except StreamError:
        decoder.end(exchange.reason or cause, kind)
    return decoder.response()


def _in_pieces(chunks: list[bytes], size: int) -> Iterable[bytes]:
    if not size:
        return chunks
    body = b"".join(chunks)
    return (body[at : at + size] for at in range(0, len(body), size))


def _request(exchange: Exchange, wire: str) -> Request | None:
    """None if it is not one that this wire can read: the settings of a user may be of any kind."""
    try:
        body = orjson.loads(exchange.body)
        return replace(find_wire(wire).decode_request(body), stream=exchange.stream)
    except (orjson.JSONDecodeError, InvalidRequest):
        return None


def _failure(exchange: Exchange) -> Verdict:
    """What became of a request that no response came to."""
    if exchange.status is not None:
        provider, _, model = exchange.model.partition(":")
        asked = Asked(provider, model, exchange.url.partition("?")[0], key="***")
        now = RealClock().now()
        return judge_failure(read_failure(asked, exchange.status, exchange.headers, b"".join(exchange.chunks), now))
    match exchange.how:
        case "lost":
            return judge_failure(Unreachable(exchange.reason))
        case "silent" | "late":
            error = TimedOut(exchange.reason)
            error.total = exchange.how == "late"
            return judge_failure(error)
        case "end" | "closed" if exchange.reason:
            return judge_failure(ProviderError(exchange.reason))
        case "end" | "closed":
            return Verdict("unfinished", "the request was given up before an answer came")
        case _:
            return Verdict("unfinished", "the log ends before an answer came")


def _nothing(verdict: Verdict) -> Response:
    message = Assistant("")
    return Response((), (), "", "", None, None, None, complete=False, verdict=verdict, message=message)
