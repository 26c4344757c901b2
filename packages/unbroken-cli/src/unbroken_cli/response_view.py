"""Prints a decoded response: on a terminal, in a pipe, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import orjson
import typer
from rich.console import Console
from rich.markup import escape as markup_escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text as RichText

from unbroken.clock import RealClock
from unbroken.errors import InvalidRequest, NotAResponse, ProviderError, StreamError, TimedOut, Unreachable, UserError
from unbroken.models.error_responses import Asked, read_failure
from unbroken.models.raw_log import Exchange, read_exchanges
from unbroken_cli.exits import print_line
from unbroken_cli.terminal_text import clean, escape, tokens_used
from unbroken_wires.decoding import Decoder, Response
from unbroken_wires.decoding.verdict import How, judge_failure
from unbroken_wires.deltas import (
    CallOpened,
    CallReady,
    CallSpoiled,
    CallWithdrawn,
    Delta,
    ReasoningDelta,
    ServerCallSeen,
    TextDelta,
    Verdict,
)
from unbroken_wires.messages import Assistant, Json, Request, ToolCall
from unbroken_wires.wires import WIRES, find_wire

SHOWN = 400
"""Characters of a long text that are shown on a terminal."""


class Live:
    """Prints what happens while the bytes arrive: the text immediately, each call as soon as its last byte has
    arrived."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._mid_line = False

    def show(self, delta: Delta, position: int) -> None:
        match delta:
            case TextDelta(text):
                self._print(escape(text), end="")
            case ReasoningDelta(text):
                self._print(f"[dim]{escape(text)}[/]", end="")
            case CallOpened(_, name, _):
                self._line(f"[cyan]…[/] [dim]byte {position:>6,}[/]  {escape(name)} begins")
            case CallReady(call):
                self._line(f"[green]✔[/] [dim]byte {position:>6,}[/]  {_call(call)}")
            case CallSpoiled(call):
                self._line(
                    f"[red]✘[/] [dim]byte {position:>6,}[/]  {escape(call.name)} will not run: {escape(call.problem)}"
                )
            case CallWithdrawn(index):
                self._line(
                    f"[yellow]↺[/] [dim]byte {position:>6,}[/]  call {index} is withdrawn: it is not a call to run"
                )
            case ServerCallSeen(seen):
                self._line(f"[dim]⚙ byte {position:>6,}  run by the provider: {escape(seen.name or seen.type)}[/]")
            case _:
                pass

    def close(self, response: Response) -> None:
        self._line(_closing(response, pretty=True))

    def _print(self, text: str, end: str) -> None:
        self._console.print(text, end=end, soft_wrap=True)
        self._mid_line = not text.endswith("\n")

    def _line(self, text: str) -> None:
        if self._mid_line:
            self._console.print()
        self._console.print(text, soft_wrap=True)
        self._mid_line = False


def show_pretty(console: Console, response: Response, wire: str, file: str) -> None:
    console.print(f"[bold]{escape(file)}[/]  [dim]{wire}[/]")
    show_contents(console, response)


def show_contents(console: Console, response: Response) -> None:
    for title, text, style in (("reasoning", response.reasoning, "dim"), ("text", response.text, "none")):
        if text:
            console.print(Panel(RichText(_short(text)), title=title, border_style=style, title_align="left"))
    if response.calls:
        table = Table(show_edge=False, pad_edge=False, header_style="bold")
        for column in ("", "call", "arguments", "id"):
            table.add_column(column, overflow="fold")
        for call in response.calls:
            mark, arguments = RichText("✔", "green"), RichText(_short(call.raw or "{}"))
            if call.problem:
                mark, arguments = RichText("✘", "red"), RichText(f"{clean(call.problem)}\n{arguments}", "red")
            table.add_row(mark, RichText(clean(call.name)), arguments, RichText(clean(call.id), "dim"))
        console.print(table)
    for call in response.server_calls:
        console.print(f"[dim]run by the provider:[/] {escape(call.name or call.type)}")
    console.print(_closing(response, pretty=True))


def show_plain(response: Response, *heading: str) -> None:
    lines = [*heading]
    if response.reasoning:
        lines.append(f"reasoning: {response.reasoning}")
    if response.text:
        lines.append(f"text: {response.text}")
    for call in response.calls:
        state = f"NOT COMPLETE ({call.problem})" if call.problem else "complete"
        lines.append(f"call: {call.name} {call.raw or '{}'} id={call.id} {state}")
    lines += [f"server call: {call.name or call.type}" for call in response.server_calls]
    for line in lines:
        typer.echo(clean(line))
    typer.echo(_closing(response, pretty=False))


def as_json(response: Response, wire: str, about: dict[str, Json] | None = None) -> str:
    """`about` comes first in the object. With it, the JSON is one line."""
    value: dict[str, Any] = {
        **(about or {}),
        "wire": wire,
        "complete": response.complete,
        "verdict": {**asdict(response.verdict), "whole": response.verdict.whole},
        "text": response.text,
        "reasoning": response.reasoning,
        "calls": [asdict(call) for call in response.calls],
        "server_calls": [asdict(call) for call in response.server_calls],
        "finish": response.finish,
        "usage": None if response.usage is None else {**response.usage.to_json(), "raw": dict(response.usage.raw)},
        "error": response.error,
    }
    text = json.dumps(_finite(value), ensure_ascii=False, indent=None if about else 2, allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def _finite(value: Json) -> Json:
    """Replaces NaN and Infinity, which a provider's numbers may contain, by null, as JSON requires."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Json]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Json]", value)]
    return value


def _call(call: ToolCall) -> str:
    return f"[bold]{escape(call.name)}[/] {markup_escape(_short(call.raw or '{}'))}"


def _short(text: str) -> str:
    text = clean(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def _closing(response: Response, pretty: bool) -> str:
    notes = [f"finish: {response.finish}"] if response.finish is not None else []
    if response.usage:
        notes.append(tokens_used(response.usage.input_tokens, response.usage.output_tokens))
    finish = ", ".join(notes) or "no finish reason"
    verdict = response.verdict
    if verdict.whole:
        return f"[green]complete[/]  [dim]{escape(finish)}[/]" if pretty else clean(f"complete; {finish}")
    if pretty:
        return f"[bold red]broken: {verdict.kind}[/]  {escape(verdict.reason)}  [dim]{escape(finish)}[/]"
    return clean(f"broken: {verdict.kind}: {verdict.reason}; {finish}")


# Prints a raw log: each exchange with its outcome, and its response decoded as it was when it arrived. This code
# decides nothing: verdicts come from `decoding`, and `models.error_responses` reads an answer that is not a response.


_HOW: dict[str, tuple[How, str]] = {
    "end": ("unfinished", ""),
    "closed": ("unfinished", "the rest was not read"),
    "lost": ("lost", "the connection was lost"),
    "silent": ("silent", "the stream fell silent"),
    "late": ("late", "the time limit was reached"),
}
_ABOUT = ("id", "at", "model", "url", "stream", "status", "how", "reason", "seconds", "resent")
_NOT_LOGGED: tuple[How, str] = ("unfinished", "the log ends before the response does")


@dataclass(frozen=True, slots=True)
class Decoding:
    """The options of the command line; the log has the rest."""

    wire: str
    tools: list[str]
    follow: bool
    chunk: int


def show_exchanges(pieces: Iterable[bytes], file: str, wanted: str, how: Decoding, json: bool) -> bool:
    """Shows all exchanges, or only the wanted one. Returns whether each response that was shown is complete."""
    console = Console(highlight=False)
    unread = _Unread(file)
    shown, last, complete = 0, 0, True
    for exchange in read_exchanges(unread.lines(pieces), unread):
        last = max(last, exchange.number)
        if wanted not in ("", str(exchange.number), exchange.id):
            continue
        if shown and not json:
            typer.echo()
        shown += 1
        complete = _show(console, exchange, how, json) and complete
    unread.report()
    if not shown:
        which = "it contains no complete exchange"
        if wanted and last:
            which = f"it contains no exchange {wanted}; they are numbered from 1 to {last}"
        raise NotAResponse(f"decoding {file} failed: {which}")
    return complete


class _Unread:
    """The lines that could not be read. They are reported once, at the end."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._numbers: list[int] = []
        self._cut = False

    def __call__(self, number: int, line: bytes) -> None:
        if line.endswith(b"\n"):
            self._numbers.append(number)
        else:
            self._cut = True

    def lines(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        held: list[bytes] = []
        for piece in pieces:
            *complete, rest = piece.split(b"\n")
            for line in complete:
                yield b"".join([*held, line, b"\n"])
                held.clear()
            held.append(rest)
        if last := b"".join(held):
            yield last

    def report(self) -> None:
        if self._numbers:
            lines = ", ".join(map(str, self._numbers[:5])) + (", …" if len(self._numbers) > 5 else "")
            what = "line" if len(self._numbers) == 1 else "lines"
            print_line(f"{self._file}: {what} {lines} skipped: damaged, or part of an exchange that begins elsewhere")
        if self._cut:
            print_line(f"{self._file}: the last line was skipped: it is incomplete, because its writer was stopped")


def _show(console: Console, exchange: Exchange, how: Decoding, json: bool) -> bool:
    wire = how.wire or exchange.wire
    if wire not in WIRES:
        raise UserError(f"exchange {exchange.number} has an unknown wire, {wire!r}: choose one with --wire")
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
    resent = ", sent resent" if exchange.resent else ""
    return f"{status}, {how} after {exchange.seconds:.2f} s{resent}"


def _about(exchange: Exchange) -> dict[str, Json]:
    return {"exchange": exchange.number, **{name: getattr(exchange, name) for name in _ABOUT}}


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
    kind, cause = _HOW.get(exchange.how, _NOT_LOGGED) if exchange.how else _NOT_LOGGED
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
    """None if this wire cannot read it: the user's settings may be anything."""
    try:
        body = orjson.loads(exchange.body)
        return replace(find_wire(wire).decode_request(body), stream=exchange.stream)
    except (orjson.JSONDecodeError, InvalidRequest):
        return None


def _failure(exchange: Exchange) -> Verdict:
    """The verdict on a request that got no response."""
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
            return Verdict("unfinished", "the request was abandoned before there was an answer")
        case _:
            return Verdict("unfinished", "the log ends before there was an answer")


def _nothing(verdict: Verdict) -> Response:
    message = Assistant("")
    return Response((), (), "", "", None, None, None, complete=False, verdict=verdict, message=message)
