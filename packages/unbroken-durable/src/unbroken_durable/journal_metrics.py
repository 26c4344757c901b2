"""The numbers of a journal and of a worker for Prometheus, and a small server for them. Needs the extra `metrics`.

The numbers of the journal are counted in the database when they are asked for, so every worker reports the same ones.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from unbroken.clock import current_clock
from unbroken.errors import UserError, needs_extra
from unbroken_durable.errors import JournalUnavailable
from unbroken_durable.journal import Journal
from unbroken_durable.records import STATES
from unbroken_durable.worker import Progress, Worker

HOST = "127.0.0.1"
_LOG = logging.getLogger("unbroken.durable.metrics")
_LOG.addHandler(logging.NullHandler())  # no traceback on the terminal for requests that are not HTTP


class JournalMetrics:
    """`await text()` is what Prometheus reads: these numbers, and everything else in the registry, which is that of
    `prometheus_client` itself if none is given. `close` takes them out of it."""

    def __init__(self, journal: Journal, worker: Worker | None = None, registry: Any = None) -> None:
        self._client, self._core = _import()
        self._journal = journal
        self._worker = worker
        self._registry = registry if registry is not None else self._client.REGISTRY
        self._counts: list[tuple[str, int, float, int, int, int]] = []
        self._now = 0.0
        self._ended: Counter[str] = Counter()
        self._registry.register(self)

    def note(self, progress: Progress) -> None:
        """For the worker's `on_progress`."""
        if progress.what in ("drove", "superseded", "error"):
            self._ended[progress.state or progress.what] += 1

    async def text(self) -> bytes:
        self._counts, self._now = await self._journal.count(), current_clock().now()
        return self._client.generate_latest(self._registry)

    def close(self) -> None:
        self._registry.unregister(self)

    def describe(self) -> list[Any]:
        """Called when it is registered: nothing is counted yet."""
        return []

    def collect(self) -> Iterator[Any]:
        gauge, counter = self._core.GaugeMetricFamily, self._core.CounterMetricFamily
        found = {state: (count, since) for state, count, since, *_ in self._counts}
        runs = gauge("unbroken_runs", "Runs in the journal, by state.", labels=["state"])
        oldest = gauge("unbroken_runs_oldest_seconds", "Since when the oldest run is in its state.", labels=["state"])
        for state in STATES:
            count, since = found.get(state, (0, self._now))
            runs.add_metric([state], count)
            if state in ("ready", "running", "waiting"):
                oldest.add_metric([state], max(self._now - since, 0.0))
        yield runs
        yield oldest
        yield counter("unbroken_drives", "Drives of the journal's runs.", value=sum(row[3] for row in self._counts))
        yield counter(
            "unbroken_supersessions", "Drivers that lost a run while alive.", value=sum(row[4] for row in self._counts)
        )
        yield counter(
            "unbroken_deaths",
            "Drivers that died, and whose runs were taken over.",
            value=sum(row[5] for row in self._counts),
        )
        if self._worker is not None:
            yield gauge("unbroken_worker_active", "Runs that this worker drives now.", value=len(self._worker.active))
            drives = counter("unbroken_worker_drives", "Drives of this worker, by how they ended.", labels=["outcome"])
            for outcome, count in sorted(self._ended.items()):
                drives.add_metric([outcome], count)
            yield drives


@asynccontextmanager
async def serving_metrics(metrics: JournalMetrics, port: int, host: str = HOST) -> AsyncGenerator[str]:
    """Serves `/metrics` and `/healthz`, and yields the address of the first."""

    async def show(request: web.Request) -> web.Response:
        try:
            text = await metrics.text()
        except JournalUnavailable as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(body=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.router.add_get("/metrics", show)
    app.router.add_get("/healthz", alive)
    runner = web.AppRunner(app, access_log=None, logger=_LOG, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UserError(
                f"serving metrics on port {port} failed: {error.strerror or error}; name another, or 0 for any"
            ) from None
        yield f"http://{host}:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


def _import() -> tuple[Any, Any]:
    try:
        return importlib.import_module("prometheus_client"), importlib.import_module("prometheus_client.core")
    except ImportError:
        raise needs_extra("a page of metrics", "the package prometheus-client", "metrics") from None
