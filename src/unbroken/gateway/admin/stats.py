"""What the gateway has done since it started, for the status page and the metrics: counts, and the last requests.

In this process; nothing is stored, and never what was said: no message, no arguments, no result.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from threading import Lock

from unbroken.gateway.admin.prometheus_metrics import GatewayMetrics
from unbroken.gateway.keys import GatewayKey
from unbroken.gateway.upstreams.upstream import Upstream

log = logging.getLogger("unbroken.gateway")

MOST_HELD = 10_000
KEPT = 100
LONGEST = 200
"""Characters of a name or an error: a client, or a model, may have chosen it."""
MOST_CALLS = 20


@dataclass(frozen=True, slots=True)
class RecentRequest:
    at: float
    """When it came, in seconds since 1970."""
    client_wire: str
    alias: str
    status: int
    seconds: float
    key: str = ""
    """The name of the gateway key, never the key."""
    upstream_wire: str = ""
    """Empty where the model has none."""
    streamed: bool = False
    first_token: float | None = None
    """Seconds from the request to the first of the answer."""
    calls: tuple[str, ...] = ()
    """Names of the tools that the client was given calls of."""
    handed: str = ""
    """`2/3` where a call was released that had been held, or others are held behind it."""
    repairs: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    """What broke, for each time that the answer was asked for again."""
    error: str = ""
    """Without secrets."""
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    alias: str
    model: str
    wire: str
    serial: bool = False
    fallback: tuple[str, ...] = ()
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    """Without secrets."""
    last_error_at: float | None = None


@dataclass(slots=True)
class _Tally:
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    last_error_at: float | None = None

    def add(self, request: RecentRequest, failed: str) -> None:
        self.requests += 1
        if failed:
            self.errors += 1
            self.last_error = request.error
            self.last_error_at = request.at


class Stats:
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
        self._own_tallies: dict[tuple[str, str], _Tally] = {}
        """By caller and alias."""
        self._hold_timeout = hold_timeout
        self._lock = Lock()
        self._held: OrderedDict[str, float] = OrderedDict()
        """Held turns of which calls wait to be released, and since when."""
        self._now = now
        self._access_log = access_log
        self.metrics = GatewayMetrics(self._tallies)
        self.recent = Recent()
        self.started = now()
        self.in_flight = 0

    def begin(self) -> None:
        self.in_flight += 1
        self.metrics.in_flight(1)

    def end(self, request: RecentRequest, failed: str = "", scope: str = "") -> None:
        """`failed`: how, if it was the model who did. `scope`: whose request it was."""
        self.in_flight -= 1
        self.metrics.in_flight(-1)
        self.metrics.request(request.alias, request.client_wire, request.upstream_wire, request.status, request.seconds)
        if request.first_token is not None:
            self.metrics.first_token(request.alias, request.first_token)
        self.recent.add(request, scope)
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
        if failed:
            self.metrics.upstream_error(request.alias, failed)
        tally.add(request, failed)
        if scope:
            self._own_tallies.setdefault((scope, request.alias), _Tally()).add(request, failed)

    def hold(self, turn: str, waiting: int) -> None:
        """So many calls of this turn wait to be released."""
        with self._lock:
            self._held.pop(turn, None)
            if waiting:
                self._held[turn] = self._now()
                while len(self._held) > MOST_HELD:
                    self._held.popitem(last=False)

    def held(self) -> tuple[int, float | None]:
        """How many turns wait, and since when the oldest does."""
        over = self._now() - self._hold_timeout
        with self._lock:
            while self._held and next(iter(self._held.values())) < over:
                self._held.popitem(last=False)
            return len(self._held), next(iter(self._held.values()), None)

    def counts(self) -> tuple[bytes, str]:
        """The metrics as Prometheus reads them, and their content type. What waits has changed by itself since it was
        last counted."""
        self.metrics.held_open(self.held()[0])
        return self.metrics.render()

    def upstreams(self) -> tuple[UpstreamStatus, ...]:
        return tuple(
            _status(upstream, self._tallies[upstream.alias], upstream.fallback) for upstream in self._upstreams
        )

    def upstreams_of(self, key: GatewayKey) -> tuple[UpstreamStatus, ...]:
        """What one key may see: its models and its own requests. What they fall back to is another model."""
        return tuple(
            _status(upstream, self._own_tallies.get((key.id, upstream.alias), _Tally()))
            for upstream in self._upstreams
            if key.allows(upstream.alias)
        )


def _status(upstream: Upstream, tally: _Tally, fallback: tuple[str, ...] = ()) -> UpstreamStatus:
    return UpstreamStatus(
        upstream.alias,
        upstream.model.name,
        upstream.wire,
        upstream.serial,
        fallback,
        tally.requests,
        tally.errors,
        tally.last_error,
        tally.last_error_at,
    )


class Recent:
    """A ring: the newest push the oldest out."""

    def __init__(self, kept: int = KEPT) -> None:
        self._requests: deque[tuple[str, RecentRequest]] = deque(maxlen=kept)

    def add(self, request: RecentRequest, scope: str = "") -> None:
        """`scope`: whose it is. A key's name is not enough: another may have it by now."""
        if len(request.calls) > MOST_CALLS or any(
            len(said) > LONGEST for said in (request.alias, request.error, *request.calls)
        ):
            request = replace(
                request,
                alias=_cut(request.alias),
                error=_cut(request.error),
                calls=tuple(_cut(name) for name in request.calls[:MOST_CALLS]),
            )
        self._requests.append((scope, request))

    def latest(self, scope: str | None = None) -> tuple[RecentRequest, ...]:
        """The newest first: of everybody, or of one caller."""
        return tuple(request for whose, request in reversed(self._requests) if scope is None or whose == scope)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
