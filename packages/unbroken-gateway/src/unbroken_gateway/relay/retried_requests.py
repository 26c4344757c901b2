"""Requests in serial mode that are retries: finds the answer of the first attempt, in flight or stored, and stores
answers for later retries. `turns.retries` says what makes a request a retry."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from unbroken.asgi import Refused
from unbroken_gateway.relay.exchange import Exchange
from unbroken_gateway.turns.retries import Answered, InFlight, SavedAnswer
from unbroken_gateway.turns.serial import ReleaseCall
from unbroken_gateway.turns.turn import Turn
from unbroken_gateway.turns.turn_store import TurnStore
from unbroken_wires.messages import ToolCall


class RetriedRequests:
    def __init__(self, turn_store: TurnStore, window: float, now: Callable[[], float]) -> None:
        """`window`: for so many seconds an answer is stored; 0: none is."""
        self.window = window
        self._turn_store = turn_store
        self._now = now
        self._in_flight = InFlight()
        self._first_attempts: Counter[str] = Counter()
        """Requests that are being answered, by their retry keys."""

    async def join(self, exchange: Exchange) -> Answered | None:
        """The answer of the first attempt, if that is being answered now and this is a retry of it."""
        if not await self._may_join(exchange):
            return None
        answered = await self._in_flight.wait(exchange.retry_key)
        if answered is not None:
            _check_same(answered.body, exchange)
        return answered

    @asynccontextmanager
    async def answering(self, exchange: Exchange) -> AsyncGenerator[Answered | None]:
        """Yields a recent answer to this request, if it is a retry. Retries wait for the end of the block, and get what
        `exchange.answered` is then."""
        key, first = exchange.retry_key, exchange.incoming.attempt.first
        async with self._in_flight.answering(key) as outcome:
            self._first_attempts[key] += first
            try:
                exchange.answered = await self._answered_before(exchange)
                yield exchange.answered
            finally:
                self._first_attempts[key] -= first
                if not self._first_attempts[key]:
                    del self._first_attempts[key]
                if not outcome.done():
                    outcome.set_result(exchange.answered)

    async def keep(self, exchange: Exchange, text: str, call: ToolCall | None, turn: Turn | None, lost: str) -> None:
        """Without an idempotency key, stores only answers with held calls, which would be lost otherwise."""
        digest = exchange.body_digest
        exchange.answered = Answered(text, call, turn, lost, digest)
        if self.window > 0 and (exchange.incoming.attempt.key or (turn is not None and turn.held)):
            called = turn if call is not None else None
            saved = SavedAnswer(called.key, digest, lost) if called else SavedAnswer("", digest, lost, text)
            await self._turn_store.keep_answered(exchange.retry_key, saved, self.window)

    async def _may_join(self, exchange: Exchange) -> bool:
        """May it share the answer of an equal request in flight? Not if its SDK marks it as a first attempt, and not a
        retry that could belong to several requests."""
        attempt, key = exchange.incoming.attempt, exchange.retry_key
        if attempt.key or not attempt.counted:
            return True
        if attempt.first or self._first_attempts[key] > 1:
            return False
        return self.window <= 0 or await self._turn_store.first_attempts(key) <= 1

    async def _answered_before(self, exchange: Exchange) -> Answered | None:
        """The recent answer to this request, if it is marked as a retry and its calls are still held."""
        attempt, key = exchange.incoming.attempt, exchange.retry_key
        if self.window <= 0 or not (attempt.key or attempt.counted):
            return None
        if not attempt.key:
            if not attempt.retry:
                await self._turn_store.note_first_attempt(key, self.window)
                return None
            if await self._turn_store.first_attempts(key) > 1:
                return None  # it could be a retry of any of them
        turn, saved = await self._turn_store.answered(key)
        if saved is None:
            return None
        _check_same(saved.body, exchange)
        if turn is None:
            return None if saved.turn else Answered(saved.text, lost=saved.lost, body=saved.body)
        if turn.held:
            hold = (await self._turn_store.holds([turn])).get(turn.key)
            if hold is None or self._now() > hold.until:
                return None
        return Answered(turn.text, ReleaseCall(turn, 0).call, turn, saved.lost, saved.body)


def _check_same(body: str, exchange: Exchange) -> None:
    if body != exchange.body_digest:
        raise Refused(
            422,
            "this idempotency key was just used with a different body: send the same body with it, or use a new key "
            "for each request",
        )
