"""The durable runs that a gateway serves: `runs_app` for the journal and the keys of its settings."""

from __future__ import annotations

from unbroken_durable.web import RunsApp, runs_app
from unbroken_durable.web_keys import Guard
from unbroken_gateway.http.admission import KeyLimits
from unbroken_gateway.keys import KeyRing
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.stores import journal_url


def served_runs(settings: GatewaySettings, limits: KeyLimits | None = None, keys: KeyRing | None = None) -> RunsApp:
    """`limits` counts the requests of keys; by itself if there are none yet. `keys`: those of the settings, if they are
    open already."""
    return runs_app(
        journal_url(settings.journal),
        keys=keys or (KeyRing(settings.keys_file) if settings.keys else None),
        open_to_all=settings.open_to_all,
        limits=limits or KeyLimits(),
        keep_alive=settings.keep_alive,
    )


def guard_runs(runs: RunsApp, settings: GatewaySettings, keys: KeyRing | None, limits: KeyLimits) -> None:
    """Lets these keys use the runs from now on."""
    runs.use(Guard(keys, settings.open_to_all, limits))
