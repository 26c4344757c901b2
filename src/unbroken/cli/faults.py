"""`unbroken faults`: a provider that breaks, to be put behind any client, and the list of what it can break.

`serve` runs the faulty upstream of `unbroken.testing` until it is interrupted, `list` prints its faults.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unbroken import testing
from unbroken.cli.faults_run import run_command
from unbroken.cli.options import LogLevelName
from unbroken.cli.terminal_text import clean, one_line
from unbroken.errors import UserError
from unbroken.logs import chosen_level, set_up_logs
from unbroken.wires import WIRES, find_wire

if TYPE_CHECKING:  # servers are loaded when one is started: the other commands start without
    from unbroken.testing import Fault, FaultyServer, Sent
    from unbroken.testing.reply import Stray

app = typer.Typer(
    help="A provider that breaks in every way that was seen in the field: test your own client with it.",
    no_args_is_help=True,
)

app.command("run")(run_command)

_LONGEST = 300


@app.command("list")
def list_command(
    json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """The faults: what each does, where, and what a good client makes of it.

    The outcome is what comes of one such response among good ones: answered; told (the model gets an error result and
    goes on); or a typed error.
    """
    if json:
        typer.echo(dumps([_as_json(fault) for fault in testing.FAULTS.values()], ensure_ascii=False, indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        for fault in testing.FAULTS.values():
            typer.echo("\t".join(_row(fault)))
        return
    table = Table("row", "fault", "what happens", "wires", "where", "outcome", box=None, pad_edge=False)
    for fault in testing.FAULTS.values():
        table.add_row(*map(escape, _row(fault)), style="" if fault.damages else "dim")
    console.print(table)


@app.command("serve")
def serve_command(
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What to break, NAME@120 after byte 120; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes any that is free.")] = 0,
    times: Annotated[
        str, typer.Option(metavar="N|all", help="How many responses meet each fault; then all is well.")
    ] = "1",
    wire: Annotated[
        list[str] | None, typer.Option(help=f"Break only this one: {', '.join(WIRES)}; may be repeated.")
    ] = None,
    differs: Annotated[bool, typer.Option("--differs", help="Give a different answer to a retry.")] = False,
    log_level: LogLevelName = "",
) -> None:
    """A provider on this machine that speaks all four wires, and breaks. Ctrl-C ends it.

    It calls the tools that it is offered, two at once, and answers when it has their results; any key and any model
    will do. A client can choose a fault for itself: by its model, fault:NAME, or by its base URL,
    http://HOST:PORT/fault/NAME (and /v1 where the client wants it). `unbroken faults list` has the names.
    """
    set_up_logs(level=chosen_level(log_level, "warning") or "warning")
    wires = {find_wire(name).name for name in wire or WIRES}
    chosen = [_on(testing.find_fault(name), wires) for name in fault or ()]
    server = testing.FaultyServer(
        testing.story,
        fault=chosen,
        times=_times(times),
        differs=differs,
        strict=False,
        port=port,
        on_sent=_print_sent,
        on_stray=_print_stray,
    )
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(server, [fault.name for fault in chosen], times))


async def _serve(server: FaultyServer, faults: list[str], times: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # on Windows an interrupt ends the loop itself
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
    async with server:
        for wire in WIRES:
            typer.echo(f"{wire:<20} {server.base_url(wire)}")
        if faults:
            what = (
                "every response" if times == "all" else f"the first {times}" if times != "1" else "the first response"
            )
            typer.echo(f"breaks {what}: {', '.join(faults)}; Ctrl-C ends it")
        else:
            typer.echo(f"breaks what the client chooses: {server.url}/fault/NAME, or model fault:NAME; Ctrl-C ends it")
        await stop.wait()


def _times(given: str) -> int | None:
    if given == "all":
        return None
    if not given.isdecimal() or not given.isascii() or int(given) < 1:
        raise UserError(f"--times {given}: give a whole number above 0, or all")
    return int(given)


def _on(fault: Fault, wires: set[str]) -> Fault:
    kept = tuple(wire for wire in fault.wires if wire in wires)
    if not kept:
        raise UserError(f"--fault {fault.name} happens on {', '.join(fault.wires)} only, and --wire leaves that out")
    return fault.on(kept)


def _print_sent(sent: Sent) -> None:
    """What came, and what became of it."""
    mode = "streamed" if sent.stream else "whole"
    came = f"{sent.number} {sent.wire} {mode} {clean(sent.model)[:60] or '-'} {sent.size:,} bytes"
    status = str(sent.status) if sent.status else "no answer"
    went = f"{status}, {len(sent.data):,} bytes"
    said = f"refused: {one_line(sent.refused, _LONGEST)}" if sent.refused else "well"
    typer.echo(f"{came} -> {went}: {sent.fault or said}")


def _print_stray(stray: Stray) -> None:
    """Mistakes in setting up a client: a wrong path, a body that is not JSON."""
    typer.echo(f"- {stray.method} {one_line(stray.path, 100)} -> {stray.status}: {one_line(stray.words, _LONGEST)}")


def _row(fault: Fault) -> tuple[str, ...]:
    wires = "all" if fault.wires == tuple(WIRES) else " ".join(WIRES[wire].http.short_name for wire in fault.wires)
    return str(fault.row), fault.name, fault.title, wires, " ".join(fault.modes), fault.outcome


def _as_json(fault: Fault) -> dict[str, Any]:
    return {
        "name": fault.name,
        "row": fault.row,
        "title": fault.title,
        "damages": fault.damages,
        "outcome": fault.outcome,
        "lasting": fault.lasting,
        "wires": fault.wires,
        "modes": fault.modes,
    }
