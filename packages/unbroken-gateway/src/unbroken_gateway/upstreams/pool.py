"""Several deployments behind one alias: which of them is asked first, and which ones if it fails.

`HTTPModel` reports each of its requests to a `Deployment`, which knows from that how busy and how fast it is, and
whether it should be left alone for a while (`cooling`). A `Pool` orders its deployments for each request. The first one
is asked; the others are the fallbacks of `RetryingModel`, which asks the next one at once if a provider does not
answer. No request is refused because deployments are cooling: they are only asked last.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import exp, inf, log
from typing import TYPE_CHECKING, Protocol, cast

from aiohttp import ClientError

from unbroken.errors import ProviderError, RateLimited, TimedOut, Unauthorized, UnbrokenError, Unreachable
from unbroken.models.http import HTTPModel
from unbroken.models.model import Model
from unbroken.models.retrying import RetryingModel
from unbroken.models.sessions import current_session, open_session
from unbroken_gateway.settings import Choose
from unbroken_wires.decoding.verdict import judge_failure
from unbroken_wires.messages import Assistant, Json
from unbroken_wires.wires.json_access import as_dict, as_text

if TYPE_CHECKING:
    from unbroken_gateway.upstreams.upstream import Upstream

logger = logging.getLogger("unbroken.gateway")

FAILURES = 3
"""Failed answers in a row after which a deployment that can be reached is left alone for a while."""
_LONGEST_PROBE = 5.0
_NEW = 0.3
"""How much the newest measurement counts in the average of the seconds to the first byte."""
_FORGOTTEN = 30.0
"""Seconds after which an average without new measurements counts about a third: a slow deployment is tried again."""
TIMES = 100
"""How many times to the first byte are kept, for percentiles."""


class DeploymentListener(Protocol):
    """Counts what happens at a deployment, for metrics."""

    def asked(self) -> None: ...

    def answered(self, seconds: float) -> None: ...

    def failed(self, kind: str) -> None: ...

    def cooled(self) -> None:
        """It is left alone from now on."""
        ...

    def ended(self) -> None: ...


class Deployment:
    """One model of a pool, and what its requests have shown. It is used by several threads."""

    def __init__(
        self,
        name: str,
        model: RetryingModel[HTTPModel],
        weight: float,
        priority: int,
        cooldown: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.model = model
        self.weight = weight
        self.priority = priority
        self.requests = 0
        self.failures = 0
        self.busy = 0
        """Requests that are being answered."""
        self.reason = ""
        """Why it is cooling, in one line."""
        self.probe_failed = False
        """The last probe found that it is not back."""
        self.times: deque[float] = deque(maxlen=TIMES)
        """Seconds to the first byte of its last answers."""
        self.listener: DeploymentListener | None = None
        self.whole: Deployment | None = None
        """For a name that fits an alias with a `*`: the deployment of that alias, which counts all names together."""
        self._cooldown = cooldown
        self._now = now
        self._in_a_row = 0
        self._until = 0.0
        self._failed = 0.0
        """When it failed the last time."""
        self._back = -inf
        """When a probe found that it is back."""
        self._is_limited = False
        """It is cooling because of a limit, of which a probe would learn nothing."""
        self._seconds = 0.0
        self._measured = -inf
        self._lock = threading.Lock()
        model.model.observer, model.model.label = self, name

    def take_over(self, before: Deployment) -> None:
        """Continues the counts, the average and the cooling of the same deployment of an earlier configuration."""
        with before._lock:
            self.requests, self.failures, self.reason = before.requests, before.failures, before.reason
            self._in_a_row, self._until, self._is_limited = before._in_a_row, before._until, before._is_limited
            self._seconds, self._measured = before._seconds, before._measured
            self.times, self.probe_failed = before.times.copy(), before.probe_failed

    @property
    def cooling(self) -> float:
        """Seconds for which it is still left alone; 0 if it is not."""
        if self.whole is not None and self._is_back(self.whole):
            return 0.0
        return max(self._until - self._now(), 0.0)

    def _is_back(self, whole: Deployment) -> bool:
        """Has a probe of the alias with the `*`, which is for all names, found the deployment back since this one
        failed? A limit may be that of one model, so it is waited out."""
        return whole._back > self._failed and not self._is_limited

    @property
    def seconds(self) -> float | None:
        """The average time to the first byte of an answer; None before the first."""
        return None if self._measured == -inf else self._seconds

    @property
    def cost(self) -> float:
        """The wait that can be expected of it: its average, more if it is busy, less if that is long ago."""
        age = self._now() - self._measured
        return self._seconds * exp(-age / _FORGOTTEN) * (self.busy + 1) if age < inf else 0.0

    # The observer of its model

    def asked(self) -> None:
        with self._lock:
            self.requests += 1
            self.busy += 1
        if self.listener is not None:
            self.listener.asked()
        if self.whole is not None:
            self.whole.asked()

    def answered(self, seconds: float) -> None:
        with self._lock:
            first = self._measured == -inf
            self._seconds = seconds if first else self._seconds + _NEW * (seconds - self._seconds)
            self._measured = self._now()
            self.times.append(seconds)
        if self.listener is not None:
            self.listener.answered(seconds)
        if self.whole is not None:
            self.whole.answered(seconds)

    def succeeded(self) -> None:
        with self._lock:
            self._in_a_row = 0
        if self.whole is not None:
            self.whole.succeeded()

    def failed(self, error: ProviderError | None) -> None:
        wait = self._wait_after(error)
        if not wait:
            return
        if self.whole is not None:
            self.whole.failed(error)
        if self.listener is not None:
            self.listener.failed("broken" if error is None else judge_failure(error).kind)
        with self._lock:
            if self.whole is not None and self._is_back(self.whole):
                self._in_a_row, self._until = 0, 0.0
            self._failed = self._now()
            self.failures += 1
            self._in_a_row += 1
            if isinstance(error, RateLimited | Unauthorized | Unreachable | TimedOut) or self._in_a_row >= FAILURES:
                begins = not self.cooling
                self.reason = "its answers broke off" if error is None else str(error)
                self._until = max(self._until, self._now() + wait)
                self._is_limited = isinstance(error, RateLimited)
                self.probe_failed = self.probe_failed and not begins
                if begins and self.listener is not None:
                    self.listener.cooled()
                if begins and (self.whole is None or not self.whole.cooling):
                    logger.warning("deployment_cooling name=%s seconds=%.0f reason=%s", self.name, wait, self.reason)

    def ended(self) -> None:
        with self._lock:
            self.busy -= 1
        if self.listener is not None:
            self.listener.ended()
        if self.whole is not None:
            self.whole.ended()

    async def probe(self) -> None:
        """Ends the cooling if the server answers again. The request has no body, so it costs nothing; any answer but a
        failure of the server is a sign of life."""
        if not self.cooling or self._is_limited:
            return
        http = self.model.model
        session = current_session(asyncio.get_running_loop()) or await open_session()
        try:
            async with (
                asyncio.timeout(_LONGEST_PROBE),
                session.get(
                    http.endpoint.whole_url,
                    headers=await http.headers(),
                    allow_redirects=False,
                    proxy=http.proxy,
                    proxy_headers=http.proxy_headers,
                ) as answer,
            ):
                is_back = answer.status < 500 and answer.status not in (401, 403, 429)
        except (ClientError, OSError, UnbrokenError):  # a TimeoutError is an OSError
            is_back = False
        self.probe_failed = not is_back
        if is_back:
            with self._lock:
                self._in_a_row, self._until, self._back = 0, 0.0, self._now()
            logger.info("deployment_back name=%s", self.name)

    def _wait_after(self, error: ProviderError | None) -> float:
        """0 if the failure says nothing about the deployment: a request that any of them would refuse."""
        if error is None or isinstance(error, Unauthorized | Unreachable | TimedOut):
            return self._cooldown
        if isinstance(error, RateLimited):
            return self._cooldown if error.retry_after is None else error.retry_after
        return self._cooldown if error.status >= 500 else 0.0


@dataclass(frozen=True, slots=True)
class Pool:
    deployments: tuple[Deployment, ...]
    upstreams: Mapping[str, Upstream]
    """By the name of the deployment: the alias as if it had only this one."""
    fallback: tuple[Model, ...]
    """The models to ask after all deployments."""
    choose: Choose
    sticky: bool
    interval: float | None
    """Seconds between probes of deployments that failed."""

    async def probe(self) -> None:
        """Runs until it is cancelled."""
        while self.interval is not None:
            await asyncio.sleep(self.interval)
            await asyncio.gather(*(each.probe() for each in self.deployments))

    def pick(self, conversation: bytes, origin: str = "") -> Upstream:
        """The upstream for a request, with the other deployments as its fallbacks. `conversation` is the same for all
        requests of one conversation; `origin` is where its reasoning was written, and can be read."""
        ordered = self.order(conversation)
        wrote = (each for each in ordered if self.upstreams[each.name].origin == origin and not each.cooling)
        first = next(wrote, ordered[0])
        others = (each.model for each in ordered if each is not first)
        model = first.model.with_fallback(*others, *self.fallback)
        return replace(self.upstreams[first.name], model=model, pool=self)

    def at(self, name: str) -> Upstream | None:
        """The alias as if it had only the deployment with this name; None if there is none."""
        return self.upstreams.get(name)

    def order(self, conversation: bytes) -> list[Deployment]:
        """Those that are not cooling, by priority, and among equals by `choose`; then the others, the one that is ready
        first before the rest. `conversation` is empty for a request that belongs to none."""
        ranked = [(self._rank(each, conversation), each) for each in self.deployments]
        return [each for _, each in sorted(ranked, key=lambda one: one[0])]

    def _rank(self, each: Deployment, conversation: bytes) -> tuple[float, float, float, float]:
        cooling, sticky = each.cooling, self.sticky and bool(conversation)
        lot = _lot(conversation, each.name) if sticky else random.random()
        # The shortest of waits with these rates: a larger weight makes a shorter one likely, in proportion.
        drawn = -log(max(lot, 1e-300)) / each.weight
        if sticky or self.choose == "weighted":
            wanted = drawn
        elif self.choose == "least-busy":
            wanted = each.busy / each.weight
        else:
            wanted = each.cost / each.weight
        return cooling, each.priority, wanted, drawn


def prefer_author(upstream: Upstream, answers: Sequence[Assistant]) -> Upstream:
    """Reasoning is read only where it was written: of several deployments the one that wrote the last of these answers
    is asked, unless it cannot answer now."""
    pool = upstream.pool
    origin = next((each.native.source for each in reversed(answers) if each.native is not None), "")
    if pool is None or origin in ("", upstream.origin):
        return upstream
    picked = pool.pick(b"", origin)
    return picked if picked.origin == origin else upstream


def _lot(conversation: bytes, name: str) -> float:
    digest = blake2b(name.encode(), key=conversation[:64], digest_size=8).digest()
    return (int.from_bytes(digest) + 0.5) / 2.0**64


def conversation_of(scope: str, alias: str, body: Mapping[str, Json], messages_field: str) -> bytes:
    """The same for all requests of one conversation, whichever gateway gets them: made from the key that the client
    gives for its prompt cache, or from the beginning of the history."""
    digest = blake2b(digest_size=32)
    named = as_text(body.get("prompt_cache_key")) or as_text(body.get("conversation"))
    first = named or _beginning(body, messages_field)
    for part in (scope, alias, first):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest()


def _beginning(body: Mapping[str, Json], messages_field: str) -> str:
    """All that comes before the model's first answer does not change in a conversation."""
    said = body.get(messages_field)
    if not isinstance(said, list):
        return repr([body.get("system"), body.get("instructions"), said])
    first: list[Json] = []
    for message in cast("list[Json]", said):
        first.append(message)
        if as_text(as_dict(message).get("role")) not in ("system", "developer"):
            break
    return repr([body.get("system"), body.get("instructions"), body.get("systemInstruction"), first])
