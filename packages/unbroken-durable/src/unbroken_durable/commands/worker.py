"""`unbroken worker`: drives the runs of a journal until it is stopped. `unbroken_durable.worker` does the work; this
module shows it and takes the signals."""

from __future__ import annotations

import asyncio
import json as json_text
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from unbroken.logs import chosen_level, set_up_logs
from unbroken_cli.exits import print_line
from unbroken_cli.options import LogLevelName
from unbroken_cli.progress_line import ProgressLine, progress
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean, clean_line, counted, one_line, seconds
from unbroken_durable import Journal, Progress, Worker
from unbroken_durable.commands.journals import (
    AgentsName,
    JournalUrl,
    check_keys,
    ending_durable,
    in_journal,
    load_agents,
)
from unbroken_durable.deaths import DEATHS
from unbroken_durable.worker import CONCURRENCY

_GRACE = 2.0
"""Seconds that cancelled calls have after the second signal."""

STYLES = {"answered": "green", "waiting": "yellow", "failed": "red", "error": "red", "superseded": "magenta"}
"""How the end of a drive is shown."""


def worker_command(
    journal: JournalUrl = "",
    agents: AgentsName = "",
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many runs it drives at the same time.")
    ] = CONCURRENCY,
    per_tenant: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many runs of a tenant may be active in the whole journal; give it to every worker.",
            show_default="no limit",
        ),
    ] = None,
    deaths: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="A run so many of whose drivers have died in a row is driven alone; after as many again it fails. "
            "Give it to every worker.",
        ),
    ] = DEATHS,
    once: Annotated[bool, typer.Option("--once", help="Drive what can be driven now, then exit.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="Serve metrics for Prometheus here; 0 takes any free port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="HOST", help="The address for the metrics.")] = "127.0.0.1",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    log_level: LogLevelName = "",
) -> None:
    """Drive durable runs: those that are ready, that got their answers, or whose driver died.

    Any number of workers may share a journal, on one machine (SQLite) or many (PostgreSQL). Runs of all tenants get the
    same share. SIGTERM or Ctrl-C: no new run is taken, running tool calls finish, then it exits; a second one cancels
    them and exits at once.

    Exit codes: 0 stopped; 2 wrong use; 3 the database cannot be reached; 130 or 143 it was stopped at once.
    """
    set_up_logs(json, chosen_level(log_level, "warning") or "warning")
    with ending_durable():
        found = load_agents(agents)
        show = _shown(json)

        async def work(opened: Journal) -> int:
            await check_keys(found)
            worker = Worker(found, opened, concurrency=concurrency, per_tenant=per_tenant, on_progress=show.progress)
            async with _metrics(opened, worker, show, metrics_port, metrics_host) as address:
                show.begin(opened.url, [*found], address)
                with show.live():
                    return await _until_stopped(worker, once)

        with redirect_stdout(sys.stderr):  # what tools print is no progress
            code = in_journal(journal, work, create=True, prints=True, deaths=deaths)
    raise typer.Exit(code)


@asynccontextmanager
async def _metrics(journal: Journal, worker: Worker, show: _Plain, port: int | None, host: str) -> AsyncGenerator[str]:
    if port is None:
        yield ""
        return
    from unbroken_durable.journal_metrics import JournalMetrics, serving_metrics  # noqa: PLC0415 - an optional extra

    metrics = JournalMetrics(journal, worker)
    show.also = metrics.note
    try:
        async with serving_metrics(metrics, port, host) as address:
            yield address
    finally:
        metrics.close()


async def _until_stopped(worker: Worker, once: bool) -> int:
    """Returns the exit code."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(worker.run_until_idle() if once else worker.run())
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        if len(signals) > 1:
            task.cancel()
            loop.call_later(_GRACE, os._exit, 128 + number)  # a tool may ignore its cancellation
            return
        worker.stop()
        if active := len(worker.active):
            print_line(f"stopping: {counted(active, 'run')} to leave; send the signal again to cancel running calls")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await asyncio.wait([task])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    if task.cancelled():
        return 128 + signals[-1]
    task.result()
    return 0


class _Plain:
    """One line for each step, in a pipe."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self.also: Callable[[Progress], None] | None = None

    def begin(self, journal: str, agents: list[str], metrics: str) -> None:
        self._line(f"journal: {journal}")
        self._line(f"agents: {', '.join(agents)}")
        if metrics:
            self._line(f"metrics: {metrics}")

    def live(self) -> AbstractContextManager[None]:
        """Shows what happens between two steps, where that can be seen."""
        return nullcontext()

    def progress(self, progress: Progress) -> None:
        if self.also is not None:
            self.also(progress)
        self._show(progress)

    def _show(self, progress: Progress) -> None:
        self._line(f"{progress.state or progress.what}: {clean_line(_described(progress))}")

    def _line(self, text: str) -> None:
        self._out.write(f"{clean(text)}\n")
        self._out.flush()


class _Json(_Plain):
    def begin(self, journal: str, agents: list[str], metrics: str) -> None:
        self._object({"what": "began", "journal": journal, "agents": agents, "metrics": metrics or None})

    def _show(self, progress: Progress) -> None:
        self._object({name: value for name, value in asdict(progress).items() if value not in ("", None)})

    def _object(self, content: dict[str, Any]) -> None:
        self._out.write(f"{json_text.dumps({'time': time.time(), **content}, ensure_ascii=False)}\n")
        self._out.flush()


class _Pretty(_Plain):
    def __init__(self, out: IO[str]) -> None:
        super().__init__(out)
        self._console = Console(file=out, highlight=False)
        self._driven: dict[str, float] = {}
        """The runs that are being driven, and since when."""
        self._moving: ProgressLine | None = None

    def begin(self, journal: str, agents: list[str], metrics: str) -> None:
        super().begin(journal, agents, metrics)
        self._line("Ctrl-C stops it")

    @contextmanager
    def live(self) -> Generator[None]:
        """A line at the bottom: how many runs are being driven, and for how long."""
        with progress("waiting for runs") as self._moving:
            self._console = self._moving.console or self._console
            yield

    def _move(self, progress: Progress) -> None:
        if progress.what == "driving":
            self._driven[progress.run_id] = time.monotonic()
        elif progress.run_id:
            self._driven.pop(progress.run_id, None)
        if self._moving is not None:
            runs = counted(len(self._driven), "run")
            self._moving.words = f"driving {runs}" if self._driven else "waiting for runs"
            self._moving.began = min(self._driven.values(), default=time.monotonic())

    def _show(self, progress: Progress) -> None:
        self._move(progress)
        what = progress.state or progress.what.replace("_", " ")
        line = Text().append(f"{time.strftime('%H:%M:%S')}  ", "dim")
        line.append(f"{what:<10}", STYLES.get(what, "dim"))
        line.append(f" {clean_line(_described(progress))}")
        self._console.print(line, soft_wrap=True)


def _shown(json: bool) -> _Plain:
    if json:
        return _Json(sys.stdout)
    return (_Pretty if is_terminal(sys.stdout) else _Plain)(sys.stdout)


def _described(progress: Progress) -> str:
    """`order-7 (support, acme) 1.93 s: why`"""
    if progress.what == "unknown_agent":
        return f"runs are ready for the agent `{progress.agent}`, which this worker does not have"
    if progress.what == "unavailable":
        return one_line(progress.words)
    whose = ", ".join(filter(None, (progress.agent, progress.tenant)))
    took = "" if progress.what == "driving" else f" {seconds(progress.seconds)}"
    why = f": {one_line(progress.words)}" if progress.words else ""
    return f"{progress.run_id} ({whose}){took}{why}"
