"""What the gateway has done since it began, for its status page and its metrics. In this process; nothing is stored."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from unbroken.gateway.metrics import GatewayMetrics
from unbroken.gateway.recent import Recent, RecentRequest
from unbroken.gateway.status import UpstreamStatus
from unbroken.gateway.upstreams import Upstream

log = logging.getLogger("unbroken.gateway")

MOST_HELD = 10_000


@dataclass(slots=True)
class _Tally:
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    last_error_at: float | None = None


class Book:
    """`now` is wall time; `hold_timeout` tells when a held turn is no longer waited for."""

    def __init__(
        self,
        upstreams: Iterable[Upstream],
        hold_timeout: float,
        now: Callable[[], float],
        access_log: bool = False,
    ) -> None:
        self._upstreams = list(upstreams)
        self._tallies = {upstream.alias: _Tally() for upstream in self._upstreams}
        self._hold_timeout = hold_timeout
        self._held: OrderedDict[str, float] = OrderedDict()
        """Held turns of which calls wait to be handed out, and since when."""
        self._now = now
        self._access_log = access_log
        self.metrics = GatewayMetrics(self._tallies)
        self.recent = Recent()
        self.started = now()
        self.in_flight = 0

    def begin(self) -> None:
        self.in_flight += 1
        self.metrics.in_flight(1)

    def end(self, request: RecentRequest, failed: str = "") -> None:
        """`failed`: how, if it was the model who did."""
        self.in_flight -= 1
        self.metrics.in_flight(-1)
        self.metrics.request(request.alias, request.client_wire, request.upstream_wire, request.status, request.seconds)
        if request.first_token is not None:
            self.metrics.first_token(request.alias, request.first_token)
        self.recent.add(request)
        if self._access_log:
            log.info(
                "request key=%s client=%s alias=%s status=%d seconds=%.3f calls=%d handed=%s repairs=%s",
                request.key or "-",
                request.client_wire,
                request.alias or "-",
                request.status,
                request.seconds,
                len(request.calls),
                request.handed or "-",
                ",".join(request.repairs) or "-",
            )
        tally = self._tallies.get(request.alias)
        if tally is None:
            return
        tally.requests += 1
        if failed:
            self.metrics.upstream_error(request.alias, failed)
            tally.errors += 1
            tally.last_error = request.error
            tally.last_error_at = request.at

    def hold(self, turn: str, waiting: int) -> None:
        """So many calls of this turn wait to be handed out."""
        self._held.pop(turn, None)
        if waiting:
            self._held[turn] = self._now()
            while len(self._held) > MOST_HELD:
                self._held.popitem(last=False)

    def held(self) -> tuple[int, float | None]:
        """How many turns wait, and since when the oldest does."""
        over = self._now() - self._hold_timeout
        while self._held and next(iter(self._held.values())) < over:
            self._held.popitem(last=False)
        return len(self._held), next(iter(self._held.values()), None)

    def counts(self) -> tuple[bytes, str]:
        """The metrics as Prometheus reads them, and their content type. What waits has changed by itself since it was
        last counted."""
        self.metrics.held_open(self.held()[0])
        return self.metrics.render()

    def upstreams(self) -> tuple[UpstreamStatus, ...]:
        return tuple(self._status(upstream) for upstream in self._upstreams)

    def _status(self, upstream: Upstream) -> UpstreamStatus:
        tally = self._tallies[upstream.alias]
        return UpstreamStatus(
            upstream.alias,
            upstream.model.name,
            upstream.wire,
            upstream.serial,
            upstream.fallback,
            tally.requests,
            tally.errors,
            tally.last_error,
            tally.last_error_at,
        )
