"""Opens the metering of a gateway when something first needs it, so that others do not load it. A reload keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.stores import Store
from unbroken_gateway.upstreams.upstream import Upstream

if TYPE_CHECKING:
    from unbroken_gateway.admin.gateway_metrics import GatewayMetrics
    from unbroken_gateway.spending.metering import Metering


class MeteringSwitch:
    def __init__(self, store: Store, metrics: GatewayMetrics, now: Callable[[], float]) -> None:
        self._store = store
        self._metrics = metrics
        self._now = now
        self._settings = GatewaySettings(())
        self._upstreams: Mapping[str, Upstream] = {}
        self.metering: Metering | None = None
        """None while nothing needs it."""

    def use(self, settings: GatewaySettings, upstreams: Mapping[str, Upstream]) -> None:
        """Uses these settings from now on."""
        self._settings, self._upstreams = settings, upstreams
        if self.metering is not None:
            self.metering.use(settings, upstreams)
        elif settings.spend or settings.budgets or settings.teams:
            self.metering = self._open()

    def of(self, key: GatewayKey | None) -> Metering | None:
        """The metering for a request of this key."""
        if key is None or (key.requests_per_minute is None and key.tokens_per_minute is None and not key.budgets):
            return self.metering
        if self.metering is None:
            self.metering = self._open()
        if key.budgets:
            self.metering.count_for_keys()
        return self.metering

    async def aclose(self) -> None:
        if self.metering is not None:
            await self.metering.aclose()

    def _open(self) -> Metering:
        from unbroken_gateway.spending.metering import Metering  # noqa: PLC0415 - start-up time

        return Metering(self._settings, self._upstreams, self._store, self._metrics, self._now)
