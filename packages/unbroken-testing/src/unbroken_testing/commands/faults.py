"""`unbroken faults`: a provider that breaks, to test any client with, and the list of its faults.

`serve` runs the faulty provider of `unbroken_testing` until it is interrupted, `list` prints its faults, `run` runs the
fault matrix.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.table import Table as Grid

import unbroken_testing as testing
from unbroken.errors import UserError
from unbroken.logs import chosen_level, set_up_logs
from unbroken_cli.exits import INTERRUPTED, print_line
from unbroken_cli.options import LogLevelName
from unbroken_cli.progress_line import progress
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean, counted, one_line
from unbroken_wires.wires import DEFAULT_WIRE, WIRES, find_wire

if TYPE_CHECKING:
    from unbroken_testing import Fault, FaultyServer, Sent
    from unbroken_testing.matrix import Case, Ended
    from unbroken_testing.scenario import Stray


# `unbroken faults run`: the fault matrix, against our own agent or against your program. `testing.matrix` and
# `testing.target` run and judge it; this file has the options, the progress line and the table.


WRONG = 1

OnEnded: TypeAlias = "Callable[[Ended], None]"
Player: TypeAlias = "Callable[[OnEnded], Coroutine[Any, Any, list[Ended]]]"


def run_command(
    fault: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this fault; may be repeated.")] = None,
    wire: Annotated[
        list[str] | None, typer.Option(help=f"Only this wire: {', '.join(WIRES)}; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the outcomes as a page (docs/faults.md); - prints it.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="Test this program instead of our agent; it is run once for each fault."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="Time limit for --target per fault, in seconds.")] = 30.0,
) -> None:
    """Break responses in every known way, on every wire, with and without streaming, and see what happens to the run.

    A --target gets an address and a key in its environment (OPENAI_BASE_URL and similar, UNBROKEN_MODEL,
    UNBROKEN_PROMPT); docs/faults.md describes what it has to do. It must use openai-chat, unless --wire names another.
    First it is run with nothing broken; if it sends requests without streaming, faults of streams are skipped.

    Exit codes: 0 all ended as expected; 1 something did not; 2 wrong use; 130 interrupted.
    """
    if not timeout > 0:  # NaN is not
        raise UserError(f"--timeout {timeout:g}: give seconds above 0")
    if write is not None and (fault or wire or target is not None):
        raise UserError("--write needs the complete matrix: leave out --fault, --wire and --target")
    printed = write == Path("-")
    if printed and json:
        raise UserError("--write - and --json both write to standard output: choose one")
    try:
        chosen, player = _our_agent(fault, wire) if target is None else _other_program(fault, wire, target, timeout)
        ended = _run_all(chosen, player)
    except KeyboardInterrupt:
        print_line("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    from unbroken_testing.matrix import make_page  # noqa: PLC0415 - start-up time

    if write is not None and not printed:
        _write(write, make_page(ended))
    if json:
        typer.echo(dumps([_run_as_json(each) for each in ended], ensure_ascii=False, indent=2))
    elif printed:
        typer.echo(make_page(ended), nl=False)
        _close(ended, err=True)
    else:
        _print(ended)
        _close(ended)
    raise typer.Exit(0 if all(each.good for each in ended) else WRONG)


def _our_agent(faults: Sequence[str] | None, wires: Sequence[str] | None) -> tuple[list[Case], Player]:
    from unbroken_testing import matrix  # noqa: PLC0415 - start-up time

    chosen = matrix.cases(_faults(faults), [find_wire(name).name for name in wires or WIRES])
    return _not_empty(chosen), lambda on_ended: matrix.play(chosen, on_ended)


def _other_program(
    faults: Sequence[str] | None, wires: Sequence[str] | None, command: str, timeout: float
) -> tuple[list[Case], Player]:
    """The faults that can happen to a program, given how it sends requests."""
    from unbroken_testing import matrix  # noqa: PLC0415 - start-up time
    from unbroken_testing.target import AT_ONCE, Target  # noqa: PLC0415 - start-up time

    target = Target(command, timeout)
    # A program's own results are not long, so its history never becomes too long.
    known = [each for each in _faults(faults) if each.longest is None]
    chosen: list[Case] = []
    for wire in [find_wire(name).name for name in wires or (DEFAULT_WIRE,)]:
        possible = _not_empty(matrix.cases(known, [wire], whens=("once",)))
        with progress("running the program with nothing broken"):
            mode = asyncio.run(target.rehearse(wire))
        here = [case for case in possible if case.mode == mode]
        chosen += here
        left = len({case.fault.name for case in possible} - {case.fault.name for case in here})
        if mode == "unstreamed" and left:
            why = f"faults that only happen to streams are skipped ({left})"
            print_line(f"--target sends requests to {wire} without streaming: {why}")
    return _not_empty(chosen), lambda on_ended: matrix.play(chosen, on_ended, target.play, AT_ONCE)


def _faults(names: Sequence[str] | None) -> list[Fault]:
    return [testing.find_fault(name) for name in names or testing.FAULTS]


def _not_empty(chosen: list[Case]) -> list[Case]:
    if not chosen:
        raise UserError("nothing to run: these faults do not happen on these wires; see `unbroken faults list`")
    return chosen


def _run_all(chosen: list[Case], player: Player) -> list[Ended]:
    """Runs them, with a progress bar on a terminal."""
    if not is_terminal(sys.stderr):
        return _unwrapped(player(lambda _: None))
    columns = (
        TextColumn("{task.description:<40}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[wrong]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("breaking responses", total=len(chosen), wrong="")
        wrong = 0

        def on_ended(ended: Ended) -> None:
            nonlocal wrong
            wrong += not ended.good
            note = f"[red]{wrong} not as expected[/red]" if wrong else ""
            progress.update(task, advance=1, description=f"{ended.case.fault.name}, {ended.case.wire}", wrong=note)

        return _unwrapped(player(on_ended))


def _unwrapped(work: Coroutine[Any, Any, list[Ended]]) -> list[Ended]:
    try:
        return asyncio.run(work)
    except* UserError as group:
        raise group.exceptions[0] from None


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, "utf-8")
    except OSError as error:
        raise UserError(f"--write {path}: it cannot be written: {error.strerror or error}") from None


def _print(ended: list[Ended]) -> None:
    from unbroken_testing.matrix import Table  # noqa: PLC0415 - start-up time

    table = Table(ended)
    broken = {each.case.fault.name for each in ended if not each.good}
    rows = [(str(fault.row), fault.name, *table.cells(fault)) for fault in table.faults]
    heads = ("row", "fault", *table.heads)
    if is_terminal(sys.stdout):
        console = Console(highlight=False)
        grid = Grid(*heads, box=None, pad_edge=False, title=table.title, title_justify="left")
        grid.columns[1].min_width = max(len(row[1]) for row in rows)
        for row in rows:
            grid.add_row(*map(escape, row), style="red" if row[1] in broken else "")
        console.print(grid)
    else:
        for row in (heads, *rows):
            typer.echo("\t".join(row))


def _close(ended: list[Ended], err: bool = False) -> None:
    from unbroken_testing.matrix import wrong_in_words  # noqa: PLC0415 - start-up time

    wrong = [each for each in ended if not each.good]
    for each in wrong:
        typer.echo(f"! {one_line(wrong_in_words(each), _LONGEST)}", err=err)
    outcome = f"{len(wrong)} not as expected" if wrong else "all as expected"
    typer.echo(f"{counted(len(ended), 'case')}, {outcome}", err=err)


def _run_as_json(ended: Ended) -> dict[str, Any]:
    case = ended.case
    return {
        "fault": case.fault.name,
        "row": case.fault.row,
        "wire": case.wire,
        "mode": case.mode,
        "when": case.when,
        "outcome": ended.outcome,
        "expected": ended.expected,
        "good": ended.good,
        "problems": ended.problems,
        "note": ended.note,
    }


app = typer.Typer(
    help="A provider that breaks in every way seen in practice, to test your own client with.",
    no_args_is_help=True,
)

app.command("run")(run_command)

_LONGEST = 300


@app.command("list")
def list_command(
    json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """List the faults: what each does, where it happens, and what a good client does with it.

    The outcome is for one such response among good ones: answered; reported (the model gets an error result and
    continues); or a typed error.
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
        typer.Option(metavar="NAME", help="The fault to cause, NAME@120 after byte 120; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes any free one.")] = 0,
    times: Annotated[
        str, typer.Option(metavar="N|all", help="How many responses have each fault; later ones are good.")
    ] = "1",
    wire: Annotated[
        list[str] | None, typer.Option(help=f"Break only this wire: {', '.join(WIRES)}; may be repeated.")
    ] = None,
    differs: Annotated[bool, typer.Option("--differs", help="Give a different answer to a retry.")] = False,
    log_level: LogLevelName = "",
) -> None:
    """Run a provider on this machine that speaks all wires, and breaks. Ctrl-C stops it.

    It calls the tools that it is offered, two at once, and answers when it has their results; it accepts any key and
    any model. A client can choose a fault itself: by its model, fault:NAME, or by its base URL,
    http://HOST:PORT/fault/NAME (followed by /v1 if the client needs it). `unbroken faults list` has the names.
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
            typer.echo(f"breaks {what}: {', '.join(faults)}; Ctrl-C stops it")
        else:
            typer.echo(f"breaks what the client chooses: {server.url}/fault/NAME, or model fault:NAME; Ctrl-C stops it")
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
    """Prints a request and the outcome."""
    mode = "streamed" if sent.stream else "unstreamed"
    request = f"{sent.number} {sent.wire} {mode} {clean(sent.model)[:60] or '-'} {sent.size:,} bytes"
    status = str(sent.status) if sent.status else "no answer"
    response = f"{status}, {len(sent.data):,} bytes"
    outcome = f"refused: {one_line(sent.refused, _LONGEST)}" if sent.refused else "good"
    typer.echo(f"{request} -> {response}: {sent.fault or outcome}")


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
