"""`unbroken decode FILE`: what is in a provider's response, and whether it is complete; the same for each exchange of a
raw log (`response_view`).

Reads a file or standard input. This module only prints: everything comes from `decoding`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from unbroken.errors import NotAResponse, UserError
from unbroken.models.raw_log import MARK
from unbroken_cli.progress_line import progress
from unbroken_cli.response_view import Decoding, Live, as_json, show_exchanges, show_plain, show_pretty
from unbroken_cli.streams import is_terminal
from unbroken_wires.decoding import Decoder, guess_wire
from unbroken_wires.deltas import Delta
from unbroken_wires.wires import WIRES, find_wire

GUESSED_FROM = 65536
"""The wire should be recognised within this many bytes; otherwise the body is read to its end first."""


def decode_command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A recorded response, or a raw log; - reads standard input.")
    ],
    wire: Annotated[str, typer.Option(help=f"One of {', '.join(WIRES)}; guessed by default.")] = "",
    tools: Annotated[
        str,
        typer.Option(help="The names of the offered tools, comma-separated: recovers calls that leaked into the text."),
    ] = "",
    follow: Annotated[bool, typer.Option(help="Print each call as soon as its last byte has arrived.")] = False,
    chunk: Annotated[int, typer.Option(min=0, help="Bytes to feed at a time; 0 for a default.")] = 0,
    exchange: Annotated[str, typer.Option(help="Only this exchange of a raw log, by number or id.")] = "",
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of text; for a raw log one per line.")
    ] = False,
) -> None:
    """Show what is in a response: text, reasoning, every tool call, and whether it is complete.

    A raw log (`connect(raw_log=FILE)`) is shown exchange by exchange.

    Exit codes: 0 the response is complete; 1 it is broken, and the reason is printed; 2 there is no response, or the
    command was used wrongly. For a raw log, 0 if every response that is shown is complete.
    """
    if json and follow:
        raise UserError("--json and --follow cannot be used together: choose one of them")
    if wire:
        find_wire(wire)
    offered = [tool.strip() for tool in tools.split(",") if tool.strip()]
    size = chunk or (64 if follow else 65536)
    pieces = _read(file, size)
    begin = _begin(pieces)
    pieces = chain([begin], pieces)
    if begin.startswith(MARK):
        with _reading(file, follow):
            complete = show_exchanges(pieces, file, exchange, Decoding(wire, offered, follow, chunk), json)
        if not complete:
            raise typer.Exit(1)
        return
    if exchange:
        raise UserError(f"--exchange {exchange}: {file} is not a raw log; leave out the option")
    with _reading(file, follow):
        head = _until_guessed(pieces, wire)
    name = wire or _guess(head, file)
    decoder = Decoder(name, offered or None)
    console = Console(highlight=False)
    live = Live(console) if follow else None
    position = 0
    with _reading(file, follow):
        for piece in chain((head[at : at + size] for at in range(0, len(head), size)), pieces):
            position += len(piece)
            _show(live, decoder.feed(piece), position)
        _show(live, decoder.end(), position)
    response = decoder.response()
    if response.verdict.kind == "foreign":
        raise NotAResponse(f"decoding {file} as {name} failed: {response.verdict.reason}")
    if json:
        typer.echo(as_json(response, name))
    elif live is not None:
        live.close(response)
    elif console.is_terminal:
        show_pretty(console, response, name, file)
    else:
        show_plain(response, f"file: {file}", f"wire: {name}")
    if not response.verdict.whole:
        raise typer.Exit(1)


def _reading(file: str, follow: bool) -> AbstractContextManager[object]:
    typed = file == "-" and is_terminal(sys.stdin)
    return nullcontext() if follow or typed else progress(f"reading {file}")


def _show(live: Live | None, deltas: list[Delta], position: int) -> None:
    if live is not None:
        for delta in deltas:
            live.show(delta, position)


def _begin(pieces: Iterator[bytes]) -> bytes:
    """Reads enough to know whether it is a raw log: hardly ever more than the first piece."""
    begin = b""
    while len(begin) < len(MARK) and MARK.startswith(begin) and (piece := next(pieces, b"")):
        begin += piece
    return begin


def _until_guessed(pieces: Iterator[bytes], wire: str) -> bytes:
    """Reads enough to recognise the wire: everything, if nothing identifies it."""
    head, tried = bytearray(), 1
    if not wire:
        for piece in pieces:
            head += piece
            if 2 * tried <= len(head) < GUESSED_FROM:
                tried = len(head)
                if guess_wire(bytes(head)) is not None:
                    break
    return bytes(head)


def _guess(head: bytes, file: str) -> str:
    """The wire of a response that begins so."""
    name = guess_wire(head)
    if name is not None:
        return name
    if not head.strip():
        raise NotAResponse(f"decoding {file} failed: the body is empty")
    raise NotAResponse(f"decoding {file} failed: its wire was not recognised; name it with --wire")


def _read(file: str, size: int) -> Iterator[bytes]:
    """Yields the bytes as they arrive, so that a pipe can be followed while it is written."""
    try:
        if file == "-":
            if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, when the shell closed it
                raise UserError("reading standard input failed: it is closed; name a file instead")
            while piece := os.read(sys.stdin.fileno(), size):
                yield piece
            return
        with Path(file).open("rb") as body:
            while piece := body.read(size):
                yield piece
    except FileNotFoundError:
        raise UserError(f"reading {file} failed: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"reading {file} failed: it is a folder; name a file in it") from None
    except OSError as error:
        raise UserError(f"reading {file} failed: {error.strerror or error}") from None
