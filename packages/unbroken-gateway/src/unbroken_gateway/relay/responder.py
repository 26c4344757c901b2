"""Answers one request of a client, from its body to the last byte of the answer.

The order: find the turns of its history (`turns.turn_store`), decide between releasing a held call and asking the model
(`turns.serial`), repair the history (`history_repair`), ask the model (`upstreams`), write the client's bytes
(`client_stream`), store what later requests need (`turns.turn_store`). The decisions are made there; this module
carries them out and counts. HTTP stays outside: the answer goes into an `Outlet`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from unbroken.errors import ChainBroken, InvalidRequest, UnbrokenError
from unbroken.models.connections import Sent
from unbroken.models.model import RESPONSE_LIMIT, Model, closing
from unbroken.models.relay import RelayRequest
from unbroken_gateway.admin.stats import Stats
from unbroken_gateway.http.client_response import whole_seconds
from unbroken_gateway.http.large_requests import LARGE_ANSWER, off_loop
from unbroken_gateway.http.routes import (
    ClientRequest,
    check_body,
    check_held,
    check_ids,
    check_supported,
    ends_in_result,
    most_tokens,
    new_id,
    read_request,
)
from unbroken_gateway.relay.client_stream import ClientStream
from unbroken_gateway.relay.exchange import (
    DROP_REFUSED,
    DROPPED,
    MOVE_TEXT,
    Exchange,
    Fetched,
    Outcome,
    Outlet,
    can_forward,
    changes_for,
    describe_edits,
    fetch,
    left_out_for_client,
    lost_from_answer,
    moves_text,
    name_of,
    prepare_request,
    send,
)
from unbroken_gateway.relay.keep_alive import KeepAlive
from unbroken_gateway.relay.lost_calls import TURN, LostCalls
from unbroken_gateway.relay.retried_requests import RetriedRequests
from unbroken_gateway.relay.stored_responses import StoredResponses
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.turns.call_ids import is_ours
from unbroken_gateway.turns.retries import Answered
from unbroken_gateway.turns.serial import (
    AskModel,
    ReleaseCall,
    choose_turns,
    decide,
    fold_turns,
    leave_contradicted,
    leave_unnamed,
    missing_turn,
)
from unbroken_gateway.turns.turn import Turn
from unbroken_gateway.turns.turn_store import TurnStore
from unbroken_gateway.upstreams.pool import prefer_author
from unbroken_wires.decoding.calls import too_many_calls
from unbroken_wires.decoding.decoder import look_at
from unbroken_wires.deltas import (
    AttemptFailed,
    CallReady,
    Delta,
    Ended,
    ReasoningDelta,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken_wires.messages import Assistant, Message, Request, ToolCall, Usage
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_access import as_text
from unbroken_wires.wires.wire import Plain

log = logging.getLogger("unbroken.gateway")

_CALL = 200
"""Approximate bytes of a call."""
REPAIRS, REASONING = "x-unbroken-repairs", "x-unbroken-reasoning"
EXPIRES = "x-unbroken-expires"
_MOST_NAMED, _LONGEST_NAME = 30, 100
"""Clients and proxies refuse an answer with a header of more than about 8 KB."""


class Responder:
    def __init__(
        self,
        settings: GatewaySettings,
        turn_store: TurnStore,
        stored: StoredResponses,
        stats: Stats,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._turn_store = turn_store
        self._stored = stored
        self._stats = stats
        self._metrics = stats.metrics
        self._now = now
        self._lost_calls = LostCalls(settings, turn_store, stats)
        self._hold_seconds = whole_seconds(settings.hold_timeout)
        self._retries = RetriedRequests(turn_store, settings.retry_window, now)

    def with_settings(self, settings: GatewaySettings, stored: StoredResponses) -> Responder:
        """The same with other settings. It knows the requests that this one is answering, for their retries."""
        other = copy(self)
        other._settings, other._stored = settings, stored
        other._lost_calls = LostCalls(settings, self._turn_store, self._stats)
        other._hold_seconds = whole_seconds(settings.hold_timeout)
        self._retries.window = settings.retry_window
        self._turn_store.use(settings.ttl, settings.hold_timeout)
        return other

    async def answer(self, incoming: ClientRequest, out: Outlet, outcome: Outcome) -> None:
        check_body(incoming.route, incoming.body)
        check_supported(incoming)
        if incoming.serial or outcome.is_watched or not can_forward(incoming):
            await self._answer(incoming, out, outcome)
        elif incoming.body.get("stream"):
            sent = await send(incoming)
            try:
                await self._answer(incoming, out, outcome, sent)
            finally:
                sent.drop()
        else:
            fetched = await fetch(incoming)
            data, wire, most = fetched.data, find_wire(incoming.wire), most_tokens(incoming.body)
            if len(data) < LARGE_ANSWER:
                plain = look_at(wire, data, most)
            else:
                plain = await asyncio.to_thread(look_at, wire, data, most)
            if plain is not None and len(plain.calls) > self._settings.max_calls:
                outcome.usage = plain.usage
                raise too_many_calls(self._settings.max_calls)
            http = incoming.upstream.http
            if plain is not None and http is not None and http.observer is not None:
                http.observer.succeeded()  # otherwise it is decoded, and that shows whether it is an answer
            if plain is not None and (plain.usage is not None or outcome.tally is None):
                await self._send_unchanged(incoming.upstream.counted_as, data, plain, out, outcome)
            else:
                await self._answer(incoming, out, outcome, fetched)

    async def _answer(
        self, incoming: ClientRequest, out: Outlet, outcome: Outcome, first: Fetched | Sent | None = None
    ) -> None:
        """`first`: the first attempt, if it was made already."""
        incoming = await self._stored.resolve(incoming)
        check_held(incoming)
        request = read_request(incoming.route, incoming.body)
        check_ids(request.messages, len(incoming.data))
        outcome.stream = request.stream
        said = request.messages
        parent, depth = as_text(incoming.body.get("previous_response_id")) if incoming.route.http.stores else "", 0
        if parent:
            request, parent, depth = await self._stored.continue_from(incoming, request, parent)
        serial = incoming.serial or request.parallel is False
        exchange = Exchange(incoming, request, said, parent, serial, out, outcome, new_id(incoming.wire), first, depth)
        if incoming.last_response is not None and incoming.body.get("generate") is False:
            await self._prepare(exchange)
            return
        if first is not None:  # a new conversation: it has no turns
            await self._ask(exchange, AskModel(request.messages))
            return
        returns = ends_in_result(incoming)
        # A client may return the result of a held call without repeating that it takes one call at a time.
        required = serial or (returns and _answers_one_of_ours(request.messages))
        found = await self._turn_store.find(incoming.scope, request.messages, exchange.context, required=required)
        turns = choose_turns(request.messages, found)
        if serial:
            turns = leave_contradicted(request.messages, turns, found, self._settings.on_tool_error)
        else:
            turns = leave_unnamed(request.messages, turns, found)
        if incoming.upstream.pool is not None:
            upstream = prefer_author(incoming.upstream, [turns[at].message for at in sorted(turns)])
            exchange.incoming = incoming = replace(incoming, upstream=upstream)
        folds = fold_turns(request.messages, turns)
        waiting = [fold.turn for fold in folds if fold.turn.held and fold.waiting]
        holds = await self._turn_store.holds(waiting, required=required)
        decision = decide(
            request.messages,
            turns,
            folds,
            holds,
            self._now(),
            ends_in_result=returns,
            on_tool_error=self._settings.on_tool_error,
            wire=incoming.wire,
            origin=incoming.upstream.origin,
        )
        exchange.doubts = found.doubts
        match decision:
            case ReleaseCall(turn):
                await self._turn_store.touch(turn, holds.get(turn.key))
                self._metrics.released(incoming.upstream.counted_as)
                self._hold(incoming, turn, decision.position)
                await self._release_call(exchange, decision)
            case AskModel():
                missing = missing_turn(request.messages, folds, turns, found, serial=serial, ends_in_result=returns)
                if missing is not None:
                    decision = replace(decision, lost=(*decision.lost, missing))
                await self._turn_store.close(decision.closed, holds)
                if outcome.trace is not None and folds:
                    outcome.trace.continued(folds[-1].turn.key)
                for turn in decision.closed:
                    self._stats.pending.release(turn.key)
                await self._ask(exchange, decision)

    def _hold(self, incoming: ClientRequest, turn: Turn, position: int) -> None:
        """Notes that the call at this position is released and those after it wait."""
        names = tuple(call.name for call in turn.message.calls[position:])
        if len(names) > 1:
            alias = incoming.upstream.counted_as
            self._stats.pending.hold(
                turn.key, len(names) - 1, alias, incoming.scope, incoming.key, incoming.client, names
            )
        else:
            self._stats.pending.release(turn.key)

    async def _send_unchanged(self, alias: str, data: bytes, plain: Plain, out: Outlet, outcome: Outcome) -> None:
        """Sends the model's own body, of which nothing has to be stored."""
        outcome.usage = plain.usage
        outcome.first_after = time.perf_counter() - outcome.began
        if plain.calls:
            outcome.calls = tuple([call["function"]["name"] for call in plain.calls])
        if plain.usage is not None:
            self._metrics.tokens(alias, plain.usage)
        await out.begin(False, {})
        await out.send(data)

    async def _prepare(self, exchange: Exchange) -> None:
        """A client on a WebSocket sends instructions, tools and input ahead (`generate: false`): it gets the id to
        continue from, and no model is asked."""
        client_stream = exchange.client_stream(raw=False, settings=self._settings, now=self._now)
        await exchange.begin({})
        await exchange.send(client_stream.feed(UsageReported(Usage())))
        last = client_stream.end(Ended(Verdict("whole")))
        await self._stored.keep(exchange, None, b"", last)
        await exchange.send(last)

    # Held calls

    async def _release_call(self, exchange: Exchange, next: ReleaseCall) -> None:
        turn, total = next.turn, len(next.turn.message.calls)
        exchange.outcome.handed = f"{next.position + 1}/{total}"
        log.info("serial_hold session=%s calls=%d handed=%d", turn.key[-8:], total, next.position + 1)
        if exchange.outcome.trace is not None:
            exchange.outcome.trace.released(turn.key, exchange.outcome.handed)
        headers = {TURN: f"handed {exchange.outcome.handed}"}
        if next.position + 1 < total:
            headers[EXPIRES] = self._hold_seconds
        await self._send_without_model(exchange, "", next.call, headers)

    async def _repeat(self, exchange: Exchange, answered: Answered) -> None:
        """The same answer, for a retry of the request."""
        if (turn := answered.turn) is not None and turn.held:
            await self._turn_store.touch(turn, (await self._turn_store.holds([turn])).get(turn.key))
            total = len(turn.message.calls)
            exchange.outcome.handed = f"1/{total}"
            log.info("serial_hold session=%s calls=%d handed=%d", turn.key[-8:], total, 1)
        told = [answered.lost, f"handed {exchange.outcome.handed}" if exchange.outcome.handed else ""]
        headers = {TURN: ", ".join(filter(None, told))} if any(told) else {}
        if answered.turn is not None and answered.turn.held:
            headers[EXPIRES] = self._hold_seconds
        await self._send_without_model(exchange, answered.text, answered.call, headers)

    async def _send_without_model(
        self, exchange: Exchange, text: str, call: ToolCall | None, headers: Mapping[str, str]
    ) -> None:
        """An answer that needs no model."""
        if call is not None:
            exchange.outcome.calls = (call.name,)
        client_stream = exchange.client_stream(raw=False, settings=self._settings, now=self._now)
        await exchange.begin(headers)
        if text:
            await exchange.send(client_stream.feed(TextDelta(text)))
        await exchange.send(client_stream.feed(UsageReported(Usage())))
        last = client_stream.end(Ended(Verdict("whole")), call)
        await self._stored.keep(exchange, Assistant(text, () if call is None else (call,)), b"", last)
        await exchange.send(last)

    # The model

    async def _ask(self, exchange: Exchange, decision: AskModel) -> None:
        if not exchange.serial:
            await self._ask_model(exchange, decision)
            return
        if (answered := await self._retries.join(exchange)) is not None:
            await self._repeat(exchange, answered)
            return
        async with self._retries.answering(exchange) as answered:
            if answered is not None:
                await self._repeat(exchange, answered)
            else:
                await self._ask_model(exchange, decision)

    async def _ask_model(self, exchange: Exchange, decision: AskModel) -> None:
        incoming, outcome = exchange.incoming, exchange.outcome
        request, edits = prepare_request(
            incoming,
            exchange.request,
            decision,
            serial=exchange.serial,
            continued=exchange.request.messages is not exchange.said,
            pieces=outcome.tally is not None,
        )
        outcome.repairs = tuple(dict.fromkeys(map(name_of, edits)))
        headers = await self._lost_calls.report(exchange, decision.lost)
        if exchange.serial and request.stream and request.tools:  # whether calls are held is not known yet
            headers[EXPIRES] = self._hold_seconds
        model = exchange.model if outcome.tally is None else outcome.tally.model(exchange.model)
        moved = bool(edits)
        if incoming.upstream.guards is not None:
            guarding = incoming.upstream.guards.begin(incoming, headers, self._metrics.guardrail)
            outcome.guardrails = guarding.noted
            said = request.messages
            request, model = await guarding.prepare(request), guarding.model(model)
            moved = moved or request.messages is not said
        if edits:
            if self._settings.strict:
                raise InvalidRequest(f"the history is broken, and this gateway is strict: {describe_edits(edits)}")
            for name, times in Counter(map(name_of, edits)).items():
                self._metrics.repaired(name, times)
            headers[REPAIRS] = ", ".join(outcome.repairs)
        # A request that was forwarded already is one that needed no change (`can_forward`).
        changes = changes_for(incoming.upstream, request) if exchange.first is None else None
        if changes is not None and (left_out := left_out_for_client(exchange, changes, moved)):
            headers[DROPPED] = _as_list(left_out)
        if changes is not None and moves_text(incoming, request.messages):
            outcome.repairs = (*outcome.repairs, MOVE_TEXT)
            self._metrics.repaired(MOVE_TEXT)
            headers[REPAIRS] = ", ".join(outcome.repairs)
        if changes is not None and changes.lost_reasoning:
            headers[REASONING] = f"lost; {changes.lost_reasoning}"
        elif doubts := [reason for reason in exchange.doubts.values() if reason in ("ambiguous", "unmatched")]:
            headers[REASONING] = f"not restored; {doubts[-1]}"
        client_stream = exchange.client_stream(
            raw=isinstance(request, RelayRequest) and bool(request.raw_wire), settings=self._settings, now=self._now
        )
        if outcome.recording is not None:
            model = await outcome.recording.model(incoming, request, exchange.serial, model, headers)
        if outcome.trace is not None:
            outcome.trace.asks(incoming.upstream, request)
        ended = await self._stream_answer(exchange, model, request, client_stream, headers)
        if outcome.trace is not None:
            outcome.trace.ended(ended)
        if ended.message is not None and len(ended.message.calls) > self._settings.max_calls:
            ended = Ended(_as_verdict(too_many_calls(self._settings.max_calls)))
        last = await self._conclude(exchange, client_stream, ended, headers)
        if not exchange.begun and ended.verdict.failed:
            raise ChainBroken(ended.verdict.reason, (ended.verdict,))
        await exchange.begin(headers)
        if DROP_REFUSED in outcome.repairs:
            self._metrics.repaired(DROP_REFUSED)
        await exchange.send(last)

    async def _stream_answer(
        self,
        exchange: Exchange,
        model: Model,
        request: Request,
        client_stream: ClientStream,
        headers: Mapping[str, str],
    ) -> Ended:
        """Sends the answer as it arrives, all but its end, which is returned."""
        ended = Ended(Verdict("unfinished", "the model stopped without an end"))

        async def keep_alive() -> None:
            data = client_stream.keep_alive()
            await exchange.begin(headers)
            await exchange.send(data)

        streams = exchange.request.stream
        every = (self._settings.keep_alive or 0) if streams else 0
        try:
            async with closing(model.stream(request)) as batches:
                with KeepAlive(every, keep_alive, RESPONSE_LIMIT.get() if streams else None) as alive:
                    async for deltas in batches:
                        if isinstance(last := deltas[-1], Ended):
                            ended, deltas = last, deltas[:-1]
                        for delta in deltas:
                            self._count(exchange, delta)
                            if isinstance(delta, AttemptFailed):
                                alive.restart()
                        alive.answering = alive.answering or not isinstance(last, AttemptFailed)
                        if alive.saying:
                            await alive.settle()
                        if data := b"".join([client_stream.feed(delta) for delta in deltas]):
                            await exchange.begin(headers)
                            await exchange.send(data)
                            alive.sent()
                        if isinstance(last, Ended):
                            break
                    await alive.settle()
        except UnbrokenError as error:
            if not exchange.begun:
                raise
            ended = Ended(_as_verdict(error))
        return ended

    def _count(self, exchange: Exchange, delta: Delta) -> None:
        outcome, alias = exchange.outcome, exchange.incoming.upstream.counted_as
        if isinstance(delta, AttemptFailed):
            outcome.restarts.append(delta.verdict.kind)
            if outcome.trace is not None:
                outcome.trace.attempt_failed(delta.verdict)
            outcome.note_failed(delta.verdict.model)
            self._metrics.restarted(alias, delta.verdict.kind)
            if delta.elsewhere:
                self._metrics.fallback(alias)
        elif isinstance(delta, UsageReported):
            outcome.usage = delta.usage
            if outcome.trace is not None:
                outcome.trace.reported(delta.usage)
        elif outcome.first_after is None and isinstance(delta, (TextDelta, ReasoningDelta, CallReady)):
            outcome.first_after = time.perf_counter() - outcome.began
            if outcome.trace is not None:
                outcome.trace.first()

    async def _conclude(
        self, exchange: Exchange, client_stream: ClientStream, ended: Ended, headers: dict[str, str]
    ) -> bytes:
        """Sends the end of the answer after everything that has to be stored is stored."""
        incoming, outcome = exchange.incoming, exchange.outcome
        alias = incoming.upstream.counted_as
        if outcome.usage is not None:
            self._metrics.tokens(alias, outcome.usage)
        message = ended.message or Assistant(client_stream.text)
        if ended.verdict.failed:
            outcome.error, outcome.error_kind = ended.verdict.reason, ended.verdict.kind
            return client_stream.end(ended)
        calls = tuple(call for call in message.calls if not call.problem)
        outcome.calls = tuple(call.name for call in calls)
        for call in message.calls:
            if call.problem:
                self._metrics.repaired("drop-spoiled")
                log.warning("a call of %s was not passed on: %s", call.name, call.problem[:200])
        holds = exchange.serial and len(calls) > 1
        handed = exchange.handed(calls[0]) if exchange.serial and calls else None
        last = await off_loop(len(client_stream.head), lambda: client_stream.end(ended, handed))
        if message.native is not None and (lost := lost_from_answer(exchange, message, client_stream)):
            self._report_lost(exchange, lost, headers)
        turn = await off_loop(_CALL * len(calls), lambda: exchange.turn(message, calls, holds, client_stream))
        if turn is not None:
            required = exchange.serial and bool(calls)  # no call is released if the others cannot be held
            if await self._turn_store.keep(incoming.scope, *turn, exchange.context, required=required):
                self._metrics.kept("held" if holds else "turn")
        if exchange.serial:
            stored = turn[0] if turn is not None else None
            await self._retries.keep(exchange, client_stream.text, handed, stored, headers.get(TURN, ""))
        if holds and turn is not None:
            outcome.calls, outcome.handed = outcome.calls[:1], f"1/{len(calls)}"
            headers[TURN] = ", ".join((*filter(None, [headers.get(TURN)]), f"handed {outcome.handed}"))
            self._metrics.held(alias, len(calls) - 1)
            headers[EXPIRES] = self._hold_seconds
            self._hold(incoming, turn[0], 0)
            if outcome.trace is not None:
                outcome.trace.held(turn[0].key, len(calls))
            log.info("serial_hold session=%s calls=%d handed=%d", turn[0].key[-8:], len(calls), 1)
        if incoming.route.http.stores:
            given = (handed,) if handed is not None else tuple(map(exchange.handed, calls))
            await self._stored.keep(exchange, Assistant(client_stream.text, given), client_stream.head, last)
        return last

    def _report_lost(self, exchange: Exchange, lost: Sequence[str], headers: dict[str, str]) -> None:
        """In the header of the answer; of a stream, which has begun, in the log alone."""
        if not exchange.begun:
            headers[DROPPED] = ", ".join((*filter(None, [headers.get(DROPPED)]), _as_list(lost)))
        log.info("not passed on to a client of %s: %s", exchange.incoming.wire, _as_list(lost))


def _as_list(names: Sequence[str]) -> str:
    """For a header. The names may be the client's own: any number, of any length."""
    named = [name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..." for name in names[:_MOST_NAMED]]
    more = len(names) - len(named)
    return ", ".join([*named, f"and {more} more"] if more else named)


def _answers_one_of_ours(messages: Sequence[Message]) -> bool:
    """Does the last turn have a call id that a gateway made? Then other calls of that turn may be held."""
    last = next((said for said in reversed(messages) if isinstance(said, Assistant)), None)
    return last is not None and any(is_ours(call.id) for call in last.calls)


def _as_verdict(error: UnbrokenError) -> Verdict:
    """How an answer failed after it had begun: the error for its stream."""
    kind = error.verdicts[-1].kind if error.verdicts and error.verdicts[-1].failed else "error"
    return Verdict(kind, str(error))
