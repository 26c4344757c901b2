"""The Celery app of the tests. `CHECKS` in the environment: broker, journal, ledger, seconds and limits, as JSON."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import json
import os

from celery import Celery
from celery.signals import worker_ready
from ledger import Ledger
from servers import READY
from worker_agents import agents

from unbroken_durable.celery import register_runs

VISIBLE = 3
"""Seconds after which a task that was not acknowledged is given to another worker."""


def make_app(broker: str) -> Celery:
    app = Celery("checks", broker=broker)
    app.conf.update(
        broker_transport_options={"visibility_timeout": VISIBLE, "unacked_restore_limit": 100},
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )
    return app


if "CHECKS" in os.environ:
    broker, journal, ledger_path, seconds, limits = json.loads(os.environ["CHECKS"])
    app = make_app(broker)
    ledger = Ledger(ledger_path)
    old = (ledger.folder / "old").exists()  # a version that does not have the agent yet
    register_runs(app, lambda: {} if old else agents(ledger, seconds=seconds), journal, **limits)


@worker_ready.connect
def tell(**_: object) -> None:
    print(READY, flush=True)  # noqa: T201 - the test waits for it
