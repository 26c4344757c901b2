"""`unbroken view FILE|DIR|URL`: recordings in the browser, in one HTML file, in the terminal, or as JSON.

`viewer` builds what is shown; this module selects the output, and opens the browser.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from unbroken.errors import UserError
from unbroken.logs import chosen_level, set_up_logs
from unbroken.trajectory.recording import is_recording
from unbroken_cli.exits import print_line
from unbroken_cli.journal_runs import open_journal
from unbroken_cli.options import LogLevelName, is_journal, shown_place
from unbroken_cli.progress_line import progress
from unbroken_cli.run_picture import COARSE, FINE, list_lines, picture_lines
from unbroken_viewer.listing import Listing, Shelf, recordings_below
from unbroken_viewer.page import whole_page
from unbroken_viewer.picture import picture_json

_NAMED = 5
"""How many folders with recordings an error message names."""


def view_command(
    place: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR|URL",
            help="A recording, a folder of recordings, a journal, or URL#ID for one of its runs.",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the page; 0 takes any free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address without opening a browser.")] = False,
    html: Annotated[
        str | None,
        typer.Option(metavar="OUT.html", help="Write the page as one self-contained file; - prints it."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Draw the same picture in the terminal.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the data of the page as JSON.")] = False,
    log_level: LogLevelName = "",
) -> None:
    """View recorded runs: a list of them, and each as a waterfall, with its messages and events.

    The page is served on this machine only (127.0.0.1) until Ctrl-C.

    Exit codes: 0 shown; 2 there is no recording, or it cannot be read, or the port is taken.
    """
    set_up_logs(level=chosen_level(log_level, "warning") or "warning")
    if html == "":
        raise UserError("--html: the name of the file is empty; give one, or - to print the page")
    if sum((bool(html), plain, json)) > 1:
        raise UserError("--html, --plain and --json cannot be used together: choose one of them")
    with opened(place) as shelf:
        with progress(f"reading {shown_place(place)}"):
            found = shelf.one or bool(shelf.rows(0))
        if not found:
            raise UserError(f"there is no recording in {shown_place(place)}: {_instead(shelf)}")
        if html:
            _write(shelf, html)
        elif plain:
            _print(shelf)
        elif json:
            with progress(f"reading {shown_place(place)}"):
                data = picture_json(shelf.draw(shelf.name) if shelf.one else shelf.rows())
            typer.echo(data.decode("utf-8", "replace"))
        else:
            try:
                asyncio.run(_serve(shelf, port, not no_open and _has_display()))
            except KeyboardInterrupt:
                typer.echo("", err=True)  # after the ^C


@contextmanager
def opened(place: str) -> Generator[Listing]:
    """The recordings of a folder or a journal, or a single one."""
    if not is_journal(place):
        yield Shelf(Path(place))
        return
    with open_journal(place) as runs:
        if not runs.one and (count := runs.count()) > runs.most_listed:
            print_line(f"only the latest {runs.most_listed:,} of {count:,} runs are listed; URL#ID shows any of them")
        yield runs


def _instead(shelf: Listing) -> str:
    if not isinstance(shelf, Shelf):
        return "`unbroken runs start` adds a run"
    folder = shelf.path
    below = recordings_below(folder)
    if not below:
        return "Agent(record=…) and unbroken run --record write recordings"
    named = ", ".join(map(str, below[:_NAMED])) + (f" and {len(below) - _NAMED} more" if len(below) > _NAMED else "")
    return f"some are in {named}; name that folder" if len(below) == 1 else f"some are in {named}; name one of them"


async def _serve(shelf: Listing, port: int, opens: bool) -> None:
    import webbrowser  # noqa: PLC0415 - start-up time

    from unbroken_viewer.server import serving  # noqa: PLC0415 - start-up time: it loads aiohttp

    async with serving(shelf, port) as address:
        typer.echo(address)
        sys.stdout.flush()
        print_line("Ctrl-C stops it")
        if opens:
            await asyncio.to_thread(webbrowser.open, address)
        await asyncio.Event().wait()


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _write(shelf: Listing, out: str) -> None:
    if out != "-" and is_recording(out):
        raise UserError(f"{out} is a recording and would be overwritten: name another file for the page")
    with progress("making the page"):
        page, left_out = whole_page(shelf)
    for words in left_out:
        print_line(words)
    if out == "-":
        typer.echo(page.decode("utf-8", "replace"), nl=False)
        return
    try:
        Path(out).write_bytes(page)
    except OSError as error:
        raise UserError(f"writing {out} failed: {error.strerror or error}; name another file") from None


def _print(shelf: Listing) -> None:
    console = Console(highlight=False)
    glyphs = FINE if console.encoding.lower().startswith("utf") else COARSE
    with progress(f"reading {shelf.name}"):
        if not shelf.one:
            lines = list_lines(shelf.rows(), console.width)
        else:
            lines = picture_lines(shelf.draw(shelf.name), console.width, glyphs)
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", soft_wrap=True)
