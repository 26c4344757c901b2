"""What every request to a model or a provider goes through: its key and limits, its body, the thread for large bodies,
errors in the client's wire, and statistics.

`model_requests` and `forwarded_requests` give it the work that is different for each kind of request.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from unbroken.asgi import CancelOnDisconnect, ClientGone, Receive, Refused, Response, Scope, connection_of
from unbroken.asgi import read_body as receive_body
from unbroken.errors import UnbrokenError, UserError, needs_extra
from unbroken.models.model import RESPONSE_HEAD, RESPONSE_LIMIT, ResponseLimit
from unbroken_gateway.admin.stats import Stats
from unbroken_gateway.http.admission import UNLIMITED, Admission, KeyLimits
from unbroken_gateway.http.client_response import ClientResponse, Failure, failure_from, whole_seconds, without_address
from unbroken_gateway.http.compressed import decompressed
from unbroken_gateway.http.large_requests import LargeRequests, MemoryBudget, StoreOnMainLoop, is_large
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.references import ProviderIds, Reference
from unbroken_gateway.relay.responder import Responder
from unbroken_gateway.relay.stored_responses import StoredResponses
from unbroken_gateway.request_state import GONE, Handlers, RequestState, log_failed
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.spending.switch import MeteringSwitch
from unbroken_gateway.stores import Store
from unbroken_gateway.turns.pending import ExpiryWatch
from unbroken_gateway.turns.response_store import ResponseStore
from unbroken_gateway.turns.turn_store import TurnStore
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.jsontext import dumps

if TYPE_CHECKING:
    from unbroken_gateway.telemetry import GatewayTelemetry

log = logging.getLogger("unbroken.gateway")


def open_telemetry(settings: GatewaySettings) -> GatewayTelemetry | None:
    named = any(os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT") for kind in ("", "TRACES_", "METRICS_"))
    if not settings.telemetry and (not named or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"):
        return None
    try:
        from unbroken_gateway.telemetry import GatewayTelemetry  # noqa: PLC0415 - an optional extra, start-up time

        return GatewayTelemetry(settings)
    except ImportError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        missing = needs_extra("telemetry of the gateway", "the package opentelemetry-sdk", "otel")
    except UserError as error:
        missing = error
    if settings.telemetry:
        raise missing
    log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing is exported: %s", missing)
    return None


class RequestHandling:
    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        admission: Admission,
        limits: KeyLimits,
        stats: Stats,
        now: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.admission = admission
        self.stats = stats
        self.now = now
        self.large_memory = MemoryBudget(settings.large_bodies)
        self._store = store
        self._limits = limits
        self.handlers = self._make_handlers(store)
        self._large = LargeRequests()
        self._large_handlers: Handlers | None = None
        self.meter = MeteringSwitch(store, stats.metrics, now)
        self.turn_store = TurnStore(store, settings.ttl, settings.hold_timeout, now)
        self.expiry = ExpiryWatch(stats.pending, self.turn_store, settings.hold_timeout, stats.metrics.expired)
        self._watching: asyncio.Task[None] | None = None
        self._telemetry = open_telemetry(settings)

    def start(self) -> None:
        """Starts what runs beside the requests."""
        self._watching = asyncio.create_task(self.expiry.run())

    async def aclose(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self._large.aclose()
        await self.meter.aclose()
        if self._telemetry is not None:
            await self._telemetry.aclose()

    def with_settings(self, settings: GatewaySettings, admission: Admission) -> RequestHandling:
        """The same with other settings, for new requests. It shares what is known of the requests in flight."""
        other = copy(self)
        other.settings, other.admission = settings, admission
        other.handlers = self._with_settings(self.handlers, settings)
        if self._large_handlers is not None:
            other._large_handlers = self._with_settings(self._large_handlers, settings)
        return other

    async def handle(
        self,
        state: RequestState,
        scope: Scope,
        receive: Receive,
        outlet: ClientResponse,
        answer: Callable[[RequestState, bytes], Coroutine[Any, Any, None]],
        wire: str = "",
        admit: Callable[[GatewayKey | None], None] | None = None,
    ) -> None:
        """`wire`: the wire of errors, if not the client's. `admit` may refuse before the body is read."""
        failure: Failure | None = None
        cause: BaseException | None = None
        if self._telemetry is not None:
            outlet.head.attempts = self._telemetry.begin(scope, state)
        self.stats.begin()
        try:
            key = state.key = self.admission.admit(state.headers, scope)
            RESPONSE_LIMIT.set(ResponseLimit(self.settings.max_response, self.settings.max_calls))
            RESPONSE_HEAD.set(outlet.head)
            with (
                self._limits.admit(key) if key is not None else UNLIMITED as refused,
                self.large_memory.share() as share,
            ):
                if refused is not None:
                    raise Refused(429, refused.words, {"retry-after": whole_seconds(refused.retry_after)})
                if admit is not None:
                    admit(key)
                settings = self.settings
                data = await receive_body(
                    state.headers,
                    receive,
                    settings.max_body,
                    settings.body_timeout,
                    share.received,
                    connection_of(scope),
                )
                if encoding := state.headers.get("content-encoding"):
                    data = await decompressed(encoding, data, settings.max_body, share.received)
                with CancelOnDisconnect(scope, receive):
                    if is_large(data):
                        state.share = share
                        await self._answer_large(state, outlet, lambda: answer(state, data))
                    else:
                        await answer(state, data)
            if state.outcome.error_kind:
                log_failed(state, state.outcome.error)
        except ClientGone as error:
            cause, failure = error, Failure(GONE, "the client went away")
        except asyncio.CancelledError as error:  # `stop_timeout` is over
            cause, failure = error, Failure(503, "the gateway was stopped")
            await outlet.fail(wire or state.client_wire, failure)
            raise
        except Exception as error:  # noqa: BLE001 - the client always gets an answer, and the log the details
            cause, failure = error, self.failure(error, state)
            await outlet.fail(wire or state.client_wire, failure)
        finally:
            if state.outcome.recording is not None:
                state.outcome.recording.end(cause, failure.words if failure is not None else "")
            if (metering := self.meter.metering) is not None and state.alias:
                gone = failure is not None and isinstance(cause, ClientGone | asyncio.CancelledError)
                answered = outlet.status == 200 or (failure is not None and failure.status == GONE)
                metering.charge(state.key, state.alias, state.outcome, outlet.head, answered, gone)
            if state.outcome.trace is not None:
                state.outcome.trace.end(outlet.status, failure)
            failed = state.outcome.error_kind or (failure.upstream if failure is not None else "")
            self.stats.end(state.summary(outlet.status, failure, outlet.head.upstream), failed, state.scope)

    def failure(self, error: Exception, state: RequestState | None = None) -> Failure:
        failure = failure_from(error)
        if not isinstance(error, UnbrokenError | Refused):
            log.error("answering a request failed", exc_info=error)
        elif failure.upstream:
            log_failed(state, failure.words)
        return failure if self.admission.keys is None else without_address(error, failure)

    async def refuse(self, response: Response, wire: str, failure: Failure) -> None:
        if response.status:
            return  # a page that broke off; no error can follow
        body = dumps(find_wire(wire).error_body(failure.status, failure.words, failure.kind))
        await response.complete(failure.status, body, failure.headers)

    def check_values(self, state: RequestState, data: bytes) -> Callable[[int], None] | None:
        """Returns the check that a large JSON body must pass while it is parsed."""
        if state.handlers is self.handlers:
            return None
        most, size = self.settings.max_values, len(data)

        def check(values: int) -> None:
            if values > most:
                raise Refused(
                    413,
                    f"the body holds more than the {most:,} values that are allowed (`max_values`): send fewer "
                    f"messages",
                )
            state.share.holds(size, values)

        check(0)
        return check

    async def check_ids(self, state: RequestState, key: GatewayKey | None, references: Sequence[Reference]) -> None:
        if key is not None and not self.settings.shared_ids:
            await state.handlers.ids.check(key.id, references)

    async def _answer_large(
        self, state: RequestState, outlet: ClientResponse, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        home = asyncio.get_running_loop()
        if self._large_handlers is None:
            self._large_handlers = self._make_handlers(StoreOnMainLoop(self._store, home))
        state.handlers = self._large_handlers
        outlet.send_from_elsewhere(home)
        await self._large.run(work)

    @staticmethod
    def _with_settings(handlers: Handlers, settings: GatewaySettings) -> Handlers:
        stored = handlers.stored.with_ttl(settings.ttl)
        responder = handlers.responder.with_settings(settings, stored)
        return Handlers(responder, handlers.ids.with_ttl(settings.ttl), stored)

    def _make_handlers(self, store: Store) -> Handlers:
        turn_store = TurnStore(store, self.settings.ttl, self.settings.hold_timeout, self.now)
        stored = StoredResponses(ResponseStore(store, self.settings.ttl))
        return Handlers(
            Responder(self.settings, turn_store, stored, self.stats, self.now),
            ProviderIds(store, self.settings.ttl),
            stored,
        )
