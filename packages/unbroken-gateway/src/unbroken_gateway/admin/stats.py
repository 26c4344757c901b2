"""What the gateway has done since it started, for the status page and the metrics: counts, and the last requests.

Held in this process only. Content is never kept: no messages, arguments or results.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import random

from unbroken_gateway.admin.gateway_metrics import GatewayMetrics
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.turns.pending import PendingTurns
from unbroken_gateway.upstreams.upstream import Upstream

log = logging.getLogger("unbroken.gateway")

KEPT = 100
LONGEST = 200
"""Maximum characters of a name or an error, since a client or a model may have chosen it."""
MOST_CALLS = 20
TIMES = 100
"""How many times of a model's last answers are kept, for percentiles."""


@dataclass(frozen=True, slots=True)
class RecentRequest:
    at: float
    """When it arrived, in seconds since 1970."""
    client_wire: str
    alias: str
    status: int
    seconds: float
    key: str = ""
    """The name of the gateway key, never the key."""
    client: str = ""
    """The program that sent it, as it calls itself."""
    upstream_wire: str = ""
    """Empty if the model has none."""
    upstream: str = ""
    """The model that answered, or its deployment."""
    streamed: bool = False
    first_token: float | None = None
    """Seconds from the request to the first token."""
    calls: tuple[str, ...] = ()
    """Names of the tools in the calls that the client received."""
    handed: str = ""
    """`2/3` if a held call was released, or if further calls are held."""
    repairs: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    """What broke, for each retry of the answer."""
    guardrails: tuple[str, ...] = ()
    """What guardrails did: `cards changed`."""
    error: str = ""
    """Without secrets."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int | None = None
    """In nano-dollars. None if it is not known, or not counted."""
    is_estimated: bool = False
    """Some of the cost is an estimate."""
    id: str = ""
    """Its id, as in the header `x-unbroken-request-id` and in the log."""
    recording: str = ""
    """The file that it was recorded in; `/recordings/#NAME` shows it to operators."""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    name: str
    model: str
    weight: float
    priority: int
    busy: int
    """Requests that are being answered."""
    requests: int
    failures: int
    first_byte: float | None
    """The average seconds to the first byte."""
    cooling: float
    """Seconds for which it is asked last."""
    reason: str
    """Why it cooled the last time, without secrets."""
    probe_failed: bool = False
    """It is cooling, and the last probe found that it is not back."""
    times: tuple[float, ...] = ()
    """Seconds to the first byte of its last answers, the oldest first."""


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
    deployments: tuple[DeploymentStatus, ...] = ()
    times: tuple[float, ...] = ()
    """Seconds of the last answers of the model, the oldest first."""
    last_error_id: str = ""
    """The id of the request that failed."""


@dataclass(slots=True)
class Counts:
    """All requests that have ended, by their status."""

    answered: int = 0
    refused: int = 0
    """The client made a mistake, or left (4xx)."""
    failed: int = 0
    """5xx."""
    cost: int = 0
    """In nano-dollars, of those whose cost is known."""

    def add(self, status: int, cost: int | None = None) -> None:
        self.cost += cost or 0
        if status < 400:
            self.answered += 1
        elif status < 500:
            self.refused += 1
        else:
            self.failed += 1

    @property
    def all(self) -> int:
        return self.answered + self.refused + self.failed


@dataclass(slots=True)
class _Tally:
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    last_error_at: float | None = None
    last_error_id: str = ""
    times: deque[float] = field(default_factory=lambda: deque[float](maxlen=TIMES))

    def add(self, request: RecentRequest, failed: str) -> None:
        self.requests += 1
        if failed:
            self.errors += 1
            self.last_error = request.error
            self.last_error_at = request.at
            self.last_error_id = request.id
        elif request.status < 400 and (not request.handed or request.handed.startswith("1/")):
            self.times.append(request.seconds)  # for a later call of a held turn the model was not asked


class Stats:
    """`now` is wall time; after `hold_timeout` a held turn no longer counts as waiting."""

    def __init__(
        self,
        upstreams: Iterable[Upstream],
        hold_timeout: float,
        now: Callable[[], float],
    ) -> None:
        self._upstreams = list(upstreams)
        self._tallies = {upstream.alias: _Tally() for upstream in self._upstreams}
        self._own_tallies: dict[tuple[str, str], _Tally] = {}
        """By caller and alias."""
        self.pending = PendingTurns(hold_timeout, now)
        self._counts = Counts()
        self._own_counts: dict[str, Counts] = {}
        """By caller."""
        self._now = now
        self._logged_share: float | None = None
        """The part of the successful requests that is logged; None: no requests are logged."""
        self.metrics = GatewayMetrics(self._tallies)
        self._listen()
        self.recent = Recent()
        self.started = now()
        self.in_flight = 0
        self.is_stopping = False

    def log_requests(self, access_log: bool, share: float) -> None:
        """Whether requests are logged, and which part of the successful ones."""
        self._logged_share = share if access_log else None

    def use(self, upstreams: Iterable[Upstream], hold_timeout: float) -> None:
        """From now on, these are the models. What was counted stays, also of models that are gone."""
        self._upstreams = list(upstreams)
        for upstream in self._upstreams:
            self._tallies.setdefault(upstream.alias, _Tally())
        self.metrics.know(self._tallies)
        self._listen()
        self.pending.hold_timeout = hold_timeout

    def _listen(self) -> None:
        for upstream in self._upstreams:
            for each in upstream.pool.deployments if upstream.pool is not None else ():
                each.listener = self.metrics.deployment(upstream.alias, each.name)

    def begin(self) -> None:
        self.in_flight += 1
        self.metrics.in_flight(1)

    def end(self, request: RecentRequest, failed: str = "", scope: str = "") -> None:
        """`failed`: the kind of error, if the model failed. `scope`: the caller."""
        self.in_flight -= 1
        self.metrics.in_flight(-1)
        self.metrics.request(request.alias, request.client_wire, request.upstream_wire, request.status, request.seconds)
        if request.first_token is not None:
            self.metrics.first_token(request.alias, request.first_token)
        self.recent.add(request, scope)
        self._counts.add(request.status, request.cost)
        if scope:
            self._own_counts.setdefault(scope, Counts()).add(request.status, request.cost)
        if (share := self._logged_share) is not None and (request.status >= 400 or share >= 1 or random() < share):
            log_request(request)
        tally = self._tallies.get(request.alias)
        if tally is None:
            return
        if failed:
            self.metrics.upstream_error(request.alias, failed)
        tally.add(request, failed)
        if scope:
            self._own_tallies.setdefault((scope, request.alias), _Tally()).add(request, failed)

    def counted(self, scope: str | None = None) -> Counts:
        """All requests that have ended: of all callers, or of one."""
        return self._counts if scope is None else self._own_counts.get(scope, Counts())

    def counts(self) -> tuple[bytes, str]:
        """The metrics as Prometheus reads them, and their content type. Held turns are counted anew: they expire by
        themselves."""
        self.metrics.held_open(len(self.pending.listed()))
        return self.metrics.render()

    def upstreams(self) -> tuple[UpstreamStatus, ...]:
        return tuple(
            _status(upstream, self._tallies[upstream.alias], upstream.own_fallback, _deployments(upstream))
            for upstream in self._upstreams
        )

    def upstreams_of(self, key: GatewayKey) -> tuple[UpstreamStatus, ...]:
        """What one key may see: its models and its own requests, without the fallbacks, which are other models."""
        return tuple(
            _status(upstream, self._own_tallies.get((key.id, upstream.alias), _Tally()))
            for upstream in self._upstreams
            if key.allows(upstream.alias)
        )


def _deployments(upstream: Upstream) -> tuple[DeploymentStatus, ...]:
    return tuple(
        DeploymentStatus(
            each.name,
            each.model.name,
            each.weight,
            each.priority,
            each.busy,
            each.requests,
            each.failures,
            each.seconds,
            each.cooling,
            each.reason,
            each.probe_failed and each.cooling > 0,
            tuple(each.times),
        )
        for each in (upstream.pool.deployments if upstream.pool is not None else ())
    )


def _status(
    upstream: Upstream,
    tally: _Tally,
    fallback: tuple[str, ...] = (),
    deployments: tuple[DeploymentStatus, ...] = (),
) -> UpstreamStatus:
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
        deployments,
        tuple(tally.times),
        tally.last_error_id,
    )


def log_request(request: RecentRequest) -> None:
    """The line of the access log."""
    log.info(
        "request key=%s client=%s alias=%s status=%d seconds=%.3f calls=%d handed=%s repairs=%s upstream=%s input=%d "
        "output=%d first=%s failed=%s",
        request.key or "-",
        request.client_wire,
        request.alias or "-",
        request.status,
        request.seconds,
        len(request.calls),
        request.handed or "-",
        ",".join(request.repairs) or "-",
        request.upstream or "-",
        request.input_tokens,
        request.output_tokens,
        "-" if request.first_token is None else round(request.first_token, 3),
        ",".join(request.restarts) or "-",
    )


class Recent:
    """A ring buffer of the newest requests."""

    def __init__(self, kept: int = KEPT) -> None:
        self._requests: deque[tuple[str, RecentRequest]] = deque(maxlen=kept)

    def add(self, request: RecentRequest, scope: str = "") -> None:
        """`scope`: the caller. A key's name is not enough, since a newer key may have it by now."""
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
        """The newest first: of all callers, or of one."""
        return tuple(request for whose, request in reversed(self._requests) if scope is None or whose == scope)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
