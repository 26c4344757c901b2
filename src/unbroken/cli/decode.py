"""`unbroken decode FILE`: what is in a provider's response, and whether it is whole.

Reads a file or standard input. Shows; decides nothing: all of it comes from `decoding`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from unbroken.cli.show import Live, as_json, show_plain, show_pretty
from unbroken.decoding import Decoder, guess_wire
from unbroken.errors import NotAResponse, UserError
from unbroken.wires import WIRES, find_wire


def decode_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recorded response; - reads standard input.")],
    wire: Annotated[str, typer.Option(help=f"One of {', '.join(WIRES)}; guessed when absent.")] = "",
    tools: Annotated[
        str, typer.Option(help="Offered tool names, comma-separated: recovers calls that leaked into text.")
    ] = "",
    follow: Annotated[bool, typer.Option(help="Print each call in the moment its last byte has arrived.")] = False,
    chunk: Annotated[int, typer.Option(min=1, help="Bytes that are fed at a time.")] = 65536,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Show what is in a response: text, reasoning, every tool call, and whether it is whole.

    Exits with 0 when the response is whole, with 1 when it is broken (the reason is printed), with 2 when the file is
    not a response.
    """
    if wire:
        find_wire(wire)
    body = _read(file)
    name = wire or guess_wire(body)
    if name is None:
        if not body.strip():
            raise NotAResponse(f"decoding {file} failed: the body is empty")
        raise NotAResponse(f"decoding {file} failed: it looks like none of the wires; say which it is with --wire")
    decoder = Decoder(name, [tool.strip() for tool in tools.split(",") if tool.strip()] or None)
    console = Console(highlight=False)
    live = Live(console) if follow and not json else None
    for start in range(0, len(body), chunk):
        for delta in decoder.feed(body[start : start + chunk]):
            if live is not None:
                live.show(delta, min(start + chunk, len(body)))
    for delta in decoder.end():
        if live is not None:
            live.show(delta, len(body))
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
        show_plain(response, name, file)
    if not response.verdict.whole:
        raise typer.Exit(1)


def _read(file: str) -> bytes:
    try:
        if file == "-":
            if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, when the shell closed it
                raise UserError("reading standard input failed: it is closed; name a file instead")
            return sys.stdin.buffer.read()
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise UserError(f"reading {file} failed: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"reading {file} failed: it is a folder; name a file in it") from None
    except OSError as error:
        raise UserError(f"reading {file} failed: {error.strerror or error}") from None
