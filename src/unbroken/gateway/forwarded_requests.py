"""Requests that no model here answers: those that are passed through to a provider as they are, and those for stored
responses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from unbroken.asgi import Receive, Refused, Response, Scope, read_headers
from unbroken.gateway.http.client_response import ClientResponse
from unbroken.gateway.http.routes import error_wire
from unbroken.gateway.keys import GatewayKey
from unbroken.gateway.relay.passthrough import Permit, choose, failed_by, pass_through, permit
from unbroken.gateway.relay.references import Claiming, read_rule
from unbroken.gateway.request_handling import RequestHandling
from unbroken.gateway.request_state import RequestState
from unbroken.gateway.upstreams.upstream import Upstream
from unbroken.wires import find_wire
from unbroken.wires.http_api import StoredPath

PASSED = "passed"
"""Stands for the client's wire if nothing of the request could be read."""


class ForwardedRequests:
    def __init__(self, handling: RequestHandling, upstreams: Mapping[str, Upstream]) -> None:
        self._handling = handling
        self._upstreams = upstreams
        self._passes = tuple(map(read_rule, handling.settings.passes))

    async def pass_through(self, scope: Scope, receive: Receive, response: Response) -> None:
        """Forwards other paths that are listed to a provider of OpenAI's wires."""
        permits: list[Permit] = []

        def admit(key: GatewayKey | None) -> None:
            permits.append(permit(scope, key, self._passes))

        async def answer(state: RequestState, data: bytes) -> None:
            check = self._handling.check_values(state, data)
            passage = choose(permits[0], state.headers, data, self._upstreams.values(), state.key, check)
            state.alias, state.upstream_wire = passage.alias, passage.model.wire
            claiming = None
            if state.key is not None:
                owned = (*permits[0].references, *passage.references)
                await self._handling.check_ids(state, state.key, owned)
                claiming = Claiming(state.handlers.ids, state.key.id, lambda: passage.data, owned).read
            await pass_through(permits[0], passage, state.headers, response, claiming)
            state.outcome.error_kind = failed_by(response.status)
            if state.outcome.error_kind:
                state.outcome.error = f"provider `{passage.model.endpoint.provider}` answered {response.status}"

        state = RequestState(PASSED, read_headers(scope), self._handling.now(), self._handling.handlers)
        await self._handling.handle(
            state, scope, receive, ClientResponse(response), answer, error_wire(scope["path"]), admit
        )

    async def open_stored(
        self, wire: str, stored: StoredPath, scope: Scope, receive: Receive, response: Response
    ) -> None:
        """Reads or deletes a stored response. One that is not stored here is the provider's, if a rule passes it on."""
        with suppress(Refused):
            key = self._handling.admission.admit(read_headers(scope), scope)
            permit(scope, key, self._passes)
            if not await self._handling.handlers.stored.has(stored, key.id if key is not None else ""):
                await self.pass_through(scope, receive, response)
                return

        async def answer(state: RequestState, data: bytes) -> None:
            await state.handlers.stored.answer(find_wire(wire).http, stored, scope, state.scope, response)

        state = RequestState(wire, read_headers(scope), self._handling.now(), self._handling.handlers)
        await self._handling.handle(state, scope, receive, ClientResponse(response), answer)
