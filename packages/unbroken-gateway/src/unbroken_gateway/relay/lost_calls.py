"""Reports held calls that are not released: to the log, the metrics, and the client, in a header or as an error."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from unbroken.asgi import Refused
from unbroken.errors import InvalidRequest
from unbroken_gateway.admin.stats import Stats
from unbroken_gateway.http.client_response import whole_seconds
from unbroken_gateway.http.routes import ends_in_result
from unbroken_gateway.relay.exchange import Exchange
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.turns.serial import Lost
from unbroken_gateway.turns.turn_store import TurnStore

log = logging.getLogger("unbroken.gateway")

TURN = "x-unbroken-turn"


class LostCalls:
    def __init__(self, settings: GatewaySettings, turn_store: TurnStore, stats: Stats) -> None:
        self._settings = settings
        self._turn_store = turn_store
        self._stats = stats

    async def report(self, exchange: Exchange, lost: Sequence[Lost]) -> dict[str, str]:
        """Returns the header for the client; raises if the settings say that such a request is refused."""
        if not lost:
            return {}
        settings, alias = self._settings, exchange.incoming.upstream.counted_as
        for one in lost:
            session = one.turn.key[-8:] if one.turn is not None else "-"
            level = logging.INFO if one.reason in ("failed", "interrupted", "unknown") else logging.WARNING
            log.log(level, "serial_lost session=%s calls=%d reason=%s", session, one.calls, one.reason)
            self._stats.metrics.lost(alias, one.reason)
            if one.reason == "expired" and one.turn is not None:
                self._stats.pending.release(one.turn.key)
                if await self._turn_store.report_expired(one.turn.key):
                    self._stats.metrics.expired(alias)
        last = lost[-1]
        known = f"; {last.calls} calls" if last.calls else ""
        header = {TURN: f"lost; {last.reason}{known}"}
        if last.reason == "expired" and settings.on_expired == "error" and ends_in_result(exchange.incoming):
            raise Refused(400, _too_late(last, settings.hold_timeout), header)
        if settings.strict and last.reason not in ("failed", "interrupted"):
            raise InvalidRequest(
                f"the calls that were held for this history are lost, and this gateway is strict: "
                f"{last.reason}{known}; start the turn again without its calls and results"
            )
        return header


def _too_late(lost: Lost, hold_timeout: float) -> str:
    others = "1 other call" if lost.calls == 1 else f"{lost.calls} other calls"
    return (
        f"this result came too late: the gateway waits {whole_seconds(hold_timeout)} s for it (`hold_timeout`), and "
        f"gave up {others} of that turn. No model was asked. Send the conversation up to that turn again, or continue "
        f"with a message of the user"
    )
