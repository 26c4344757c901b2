"""What the gateway has done since it started, for the status page and the metrics: counts, and the last requests.

Held in this process only. Content is never kept: no messages, arguments or results.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from unbroken.gateway.keys import GatewayKey
from unbroken.gateway.turns.pending import PendingTurns
from unbroken.gateway.upstreams.upstream import Upstream
from unbroken.messages import Usage

# The Prometheus metrics of a gateway. This part only counts; the callers decide what and when. A name that a client
# chose is never a label: a thousand made-up model names would create a thousand series. So the aliases are given in
# advance, all other names share one label, and no metric grows beyond `MOST` series.


MOST = 2000
UNKNOWN = "unknown"
COUNTS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""With this variable, prometheus-client counts in files, so that all workers can be added up. It reads the variable
when it is imported."""

FIRST_TOKEN = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

Labels: TypeAlias = tuple[str | int, ...]
M = TypeVar("M", Counter, Histogram)


class GatewayMetrics:
    """Each gateway has a registry of its own: two in one process do not count for each other."""

    def __init__(self, aliases: Iterable[str] = ()) -> None:
        self._registry = CollectorRegistry()
        self._aliases = frozenset(aliases)
        if not _with_workers():
            ProcessCollector(registry=self._registry)
        self._requests = self._counts("requests", "Requests answered.", "alias", "client", "upstream", "status")
        self._tokens = self._counts("tokens", "Tokens, as the models report them.", "alias", "kind")
        self._held = self._counts("held_turns", "Turns with held calls.", "alias")
        self._held_calls = self._counts("held_calls", "Calls held until the one before had its result.", "alias")
        self._released = self._counts("released_calls", "Held calls that were sent without asking the model.", "alias")
        self._lost = self._counts("lost_turns", "Turns whose held calls were never sent.", "alias", "reason")
        self._expired = self._counts("expired_turns", "Held turns whose client did not return in time.", "alias")
        self._repairs = self._counts("repairs", "Repairs of histories, by name.", "kind")
        self._fallbacks = self._counts("fallbacks", "Answers that came from a fallback.", "alias")
        self._restarts = self._counts("restarts", "Retries of broken answers, by what broke.", "alias", "kind")
        self._errors = self._counts("upstream_errors", "Errors of models, by type.", "alias", "kind")
        self._turn_store = self._counts("kept", "What was put into the store.", "kind")
        self._seconds = self._times("request_seconds", "From the request to the end of its answer.", WHOLE)
        self._first = self._times("time_to_first_token_seconds", "From the request to the first token.", FIRST_TOKEN)
        self._in_flight = self._level("requests_in_flight", "Requests in flight.")
        self._reloads = self._counts("config_reloads", "Times that the configuration was read again.", "result")
        self._reload_done = self._level("config_reload_done", "0 if the last reload was refused.", "livemin")
        self._reload_done.set(1)
        # Each call of a turn may be released by a different worker, so no worker knows the total.
        held = "Turns whose held calls wait for results."
        self._held_open = self._level("held_turns_open", held) if not _with_workers() else None

    def know(self, aliases: Iterable[str]) -> None:
        """These aliases may be labels too."""
        self._aliases |= frozenset(aliases)

    def reloaded(self, done: bool) -> None:
        """The configuration was read again, and used or refused."""
        self._reloads["done" if done else "refused",].inc()
        self._reload_done.set(done)

    def request(self, alias: str, client_wire: str, upstream_wire: str, status: int, seconds: float) -> None:
        self._requests[alias, client_wire, upstream_wire, status].inc()
        self._seconds[alias,].observe(seconds)

    def first_token(self, alias: str, seconds: float) -> None:
        self._first[alias,].observe(seconds)

    def tokens(self, alias: str, usage: Usage) -> None:
        """Cached, cache-written and reasoning tokens are also part of input or output, so the kinds must not be added
        up."""
        tokens = self._tokens
        if usage.input_tokens > 0:
            tokens[alias, "input"].inc(usage.input_tokens)
        if usage.output_tokens > 0:
            tokens[alias, "output"].inc(usage.output_tokens)
        if usage.cached_tokens > 0:
            tokens[alias, "cached"].inc(usage.cached_tokens)
        if usage.cache_write_tokens > 0:
            tokens[alias, "cache_write"].inc(usage.cache_write_tokens)
        if usage.reasoning_tokens > 0:
            tokens[alias, "reasoning"].inc(usage.reasoning_tokens)

    def lost(self, alias: str, reason: str) -> None:
        """Held calls of a turn are not released."""
        self._lost[alias, reason].inc()

    def expired(self, alias: str) -> None:
        """The time of a held turn was over before its client returned a result."""
        self._expired[alias,].inc()

    def held(self, alias: str, calls: int) -> None:
        """A turn was held, with this number of calls that were not released at once."""
        self._held[alias,].inc()
        self._held_calls[alias,].inc(calls)

    def released(self, alias: str) -> None:
        self._released[alias,].inc()

    def held_open(self, turns: int) -> None:
        if self._held_open is not None:
            self._held_open.set(turns)

    def repaired(self, kind: str, times: int = 1) -> None:
        self._repairs[kind,].inc(times)

    def fallback(self, alias: str) -> None:
        self._fallbacks[alias,].inc()

    def restarted(self, alias: str, kind: str) -> None:
        self._restarts[alias, kind].inc()

    def upstream_error(self, alias: str, kind: str) -> None:
        self._errors[alias, kind].inc()

    def in_flight(self, change: int) -> None:
        self._in_flight.inc(change)

    def kept(self, kind: str) -> None:
        self._turn_store[kind,].inc()

    def render(self) -> tuple[bytes, str]:
        """The body and its content type. With several workers, the sum of all of them."""
        registry = self._registry
        if _with_workers():
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(_WithoutCreated(registry)), CONTENT_TYPE_LATEST

    def _counts(self, name: str, help: str, *labels: str) -> _Series[Counter]:
        return _Series(Counter(f"unbroken_{name}", help, labels, registry=self._registry), self._known(labels))

    def _times(self, name: str, help: str, buckets: tuple[float, ...]) -> _Series[Histogram]:
        histogram = Histogram(f"unbroken_{name}", help, ("alias",), registry=self._registry, buckets=buckets)
        return _Series(histogram, self._known(("alias",)))

    def _level(self, name: str, help: str, over_workers: Literal["livesum", "livemin"] = "livesum") -> Gauge:
        return Gauge(f"unbroken_{name}", help, registry=self._registry, multiprocess_mode=over_workers)

    def _known(self, labels: tuple[str, ...]) -> Callable[[Labels], Labels]:
        if "alias" not in labels:
            return lambda values: values
        assert labels[0] == "alias"
        return lambda values: values if values[0] in self._aliases else (UNKNOWN, *values[1:])


class _Series(dict[Labels, M]):
    """The series of one metric by their labels. Cached, because the lookup in prometheus-client costs more than
    counting."""

    def __init__(self, metric: M, known: Callable[[Labels], Labels]) -> None:
        super().__init__()
        self._metric = metric
        self._known = known

    def __missing__(self, labels: Labels) -> M:
        known = self._known(labels)
        if len(self) >= MOST:
            known = tuple(UNKNOWN for _ in labels)
        if known in self:
            return self[known]
        series = self[known] = self._metric.labels(*known)
        return series


class _WithoutCreated:
    """Leaves out the `_created` series that prometheus-client adds to each metric."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Family]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            if family.samples:
                yield family


def _with_workers() -> bool:
    return COUNTS_DIR in os.environ


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
    error: str = ""
    """Without secrets."""
    input_tokens: int = 0
    output_tokens: int = 0
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


@dataclass(slots=True)
class Counts:
    """All requests that have ended, by their status."""

    answered: int = 0
    refused: int = 0
    """The client made a mistake, or left (4xx)."""
    failed: int = 0
    """5xx."""

    def add(self, status: int) -> None:
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
    times: deque[float] = field(default_factory=lambda: deque[float](maxlen=TIMES))

    def add(self, request: RecentRequest, failed: str) -> None:
        self.requests += 1
        if failed:
            self.errors += 1
            self.last_error = request.error
            self.last_error_at = request.at
        elif request.status < 400 and (not request.handed or request.handed.startswith("1/")):
            self.times.append(request.seconds)  # for a later call of a held turn the model was not asked


class Stats:
    """`now` is wall time; after `hold_timeout` a held turn no longer counts as waiting."""

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
        self.pending = PendingTurns(hold_timeout, now)
        self._counts = Counts()
        self._own_counts: dict[str, Counts] = {}
        """By caller."""
        self._now = now
        self._access_log = access_log
        self.metrics = GatewayMetrics(self._tallies)
        self.recent = Recent()
        self.started = now()
        self.in_flight = 0

    def use(self, upstreams: Iterable[Upstream], hold_timeout: float, access_log: bool) -> None:
        """From now on, these are the models. What was counted stays, also of models that are gone."""
        self._upstreams = list(upstreams)
        for upstream in self._upstreams:
            self._tallies.setdefault(upstream.alias, _Tally())
        self.metrics.know(self._tallies)
        self.pending.hold_timeout = hold_timeout
        self._access_log = access_log

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
        self._counts.add(request.status)
        if scope:
            self._own_counts.setdefault(scope, Counts()).add(request.status)
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
            _status(upstream, self._tallies[upstream.alias], upstream.fallback, _deployments(upstream))
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
