"""`unbroken runs serve`: durable runs over HTTP, with a page. `unbroken_durable.web` answers; this starts it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from yarl import URL

from unbroken.errors import UserError
from unbroken.logs import chosen_level, set_up_logs
from unbroken_cli.exits import print_line
from unbroken_cli.options import LogLevelName
from unbroken_durable import Journal
from unbroken_durable.commands.journals import JournalUrl, ending_durable, in_journal
from unbroken_gateway.commands.serve import missing_extra
from unbroken_gateway.keys import KeyRing
from unbroken_gateway.setting_types import is_loopback
from unbroken_gateway.settings import GatewaySettings

PORT = 8401
STOP_TIMEOUT = 5.0
"""Seconds for requests in flight when the server stops. Streams end at once: their clients connect again."""


def serve_runs_command(
    journal: JournalUrl = "",
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes any free one.")] = PORT,
    keys_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Require a key of this file (`unbroken keys create`); each sees the runs of its tenant.",
            show_default="no keys",
        ),
    ] = "",
    open_to_all: Annotated[
        bool,
        typer.Option("--open-to-all", help="Allow listening on other addresses than this machine's own without keys."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Log lines as JSON.")] = False,
    log_level: LogLevelName = "",
) -> None:
    """Serve runs over HTTP: start, list, answer and cancel them, and watch them live; with a page at /.

    Nothing is driven here: `unbroken worker` does that. Ctrl-C stops it.

    Exit codes: 0 stopped; 2 wrong use, or the port is taken; 3 the database cannot be reached.
    """
    with ending_durable():
        if not (is_loopback(host) or keys_file or open_to_all):
            raise UserError(
                f"--host {host} lets everybody who reaches this machine see and answer your runs: give --keys-file, or "
                f"confirm that it is intended with --open-to-all"
            )
        ring = KeyRing(keys_file) if keys_file else None
        shown = in_journal(journal, _name, create=True)
        with missing_extra("the page of durable runs"):
            from unbroken_gateway.durable_runs import served_runs  # noqa: PLC0415 - start-up time
            from unbroken_gateway.http.uvicorn_server import serve  # noqa: PLC0415 - an optional extra
        settings = GatewaySettings(
            (),
            host=host,
            port=port,
            store="",
            keys=bool(keys_file),
            keys_file=keys_file,
            open_to_all=open_to_all,
            journal=journal,
            stop_timeout=STOP_TIMEOUT,
        )
        logs = partial(set_up_logs, json, chosen_level(log_level, "warning") or "warning")
        serve(settings, partial(_show, shown, ring, keys_file), app=served_runs, logs=logs)


async def _name(journal: Journal) -> str:
    """Without its password. A mistyped address is reported at the start."""
    return journal.url


def _show(journal: str, ring: KeyRing | None, keys_file: str, at: str) -> None:
    typer.echo(f"journal: {journal}")
    typer.echo(f"page: {str(URL(at)).rstrip('/')}/")
    typer.echo(f"keys: {f'required, {len(ring)} in {keys_file}' if ring is not None else 'not required'}")
    typer.echo("Ctrl-C stops it")
    if ring is not None and not len(ring):
        print_line(f"there is no key yet: create one with `unbroken keys create NAME --file {keys_file}`")
