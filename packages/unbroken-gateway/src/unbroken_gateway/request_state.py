"""A request that is being answered: what is known of it so far, and what answers it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.asgi import REQUEST_ID
from unbroken_gateway.admin.stats import RecentRequest
from unbroken_gateway.http.client_names import client_name
from unbroken_gateway.http.client_response import Failure
from unbroken_gateway.http.large_requests import MemoryBudget, MemoryShare
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.exchange import Outcome
from unbroken_gateway.relay.references import ProviderIds
from unbroken_gateway.relay.responder import Responder
from unbroken_gateway.relay.stored_responses import StoredResponses

log = logging.getLogger("unbroken.gateway")

GONE = 499
"""The status that is counted if the client disconnects."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """What answers requests: one for the server's loop, one for the thread of large requests."""

    responder: Responder
    ids: ProviderIds
    stored: StoredResponses


_NO_SHARE = MemoryBudget(0).share()


@dataclass(slots=True)
class RequestState:
    """What is known so far of a request that is being answered."""

    client_wire: str
    headers: Mapping[str, str]
    at: float
    handlers: Handlers
    share: MemoryShare = _NO_SHARE
    """Its share of the memory for large bodies."""
    outcome: Outcome = field(default_factory=lambda: Outcome(time.perf_counter()))
    key: GatewayKey | None = None
    alias: str = ""
    upstream_wire: str = ""
    client: str = ""
    """The program that sent it, for people; empty if that was not read yet."""

    @property
    def key_name(self) -> str:
        return self.key.name if self.key is not None else ""

    @property
    def scope(self) -> str:
        return self.key.id if self.key is not None else ""

    def summary(self, status: int, failure: Failure | None, upstream: str = "") -> RecentRequest:
        """`upstream`: the model that answered, or its deployment."""
        outcome = self.outcome
        return RecentRequest(
            at=self.at,
            client_wire=self.client_wire,
            alias=self.alias,
            status=failure.status if failure is not None else status or GONE,
            seconds=time.perf_counter() - outcome.began,
            key=self.key_name,
            client=self.client or client_name(self.headers),
            upstream_wire=self.upstream_wire,
            upstream=upstream,
            streamed=outcome.stream,
            first_token=outcome.first_after,
            calls=outcome.calls,
            handed=outcome.handed,
            repairs=outcome.repairs,
            restarts=tuple(outcome.restarts),
            guardrails=tuple(outcome.guardrails),
            error=failure.words if failure is not None else outcome.error,
            input_tokens=outcome.usage.input_tokens if outcome.usage is not None else 0,
            output_tokens=outcome.usage.output_tokens if outcome.usage is not None else 0,
            cost=outcome.cost,
            is_estimated=outcome.is_estimated,
            id=REQUEST_ID.get(),
            recording=outcome.recording.name if outcome.recording is not None else "",
        )


def log_failed(state: RequestState | None, words: str) -> None:
    alias, key = (state.alias, state.key_name) if state is not None else ("", "")
    log.warning("a model failed alias=%s key=%s: %s", alias or "-", key or "-", words)
