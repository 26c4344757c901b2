"""Which call an id stands for. Ids come again: in another turn, in an answer that comes again, by mistake.

Each look is cheap however many calls have the same id: what cannot be meant any more is thrown away when it is met.
"""

from __future__ import annotations

from unbroken.viewer.lanes import CallLane


class KnownCalls:
    def __init__(self) -> None:
        self._by_turn: dict[tuple[str, int], list[CallLane]] = {}
        self._by_id: dict[str, list[CallLane]] = {}
        self._lost: dict[str, dict[int, CallLane]] = {}
        """Of answers that broke off: those that had started, and are not taken over."""
        self._are_lost: set[int] = set()

    def add(self, call: CallLane) -> None:
        """It has a new id."""
        self._by_turn.setdefault((call.id, call.turn), []).append(call)
        self._by_id.setdefault(call.id, []).append(call)

    def find(self, id: str, turn: int) -> CallLane | None:
        """The last one of this turn, else of any."""
        return self._last(self._by_turn.get((id, turn))) or self._last(self._by_id.get(id))

    def _last(self, calls: list[CallLane] | None) -> CallLane | None:
        while calls:
            if calls[-1].state != "withdrawn" and id(calls[-1]) not in self._are_lost:
                return calls[-1]
            calls.pop()
        return None

    def lose(self, call: CallLane) -> None:
        self._lost.setdefault(call.id, {})[id(call)] = call
        self._are_lost.add(id(call))

    @property
    def has_lost(self) -> bool:
        return bool(self._are_lost)

    def all_lost(self) -> list[CallLane]:
        return [call for calls in self._lost.values() for call in calls.values()]

    def find_again(self, call: CallLane) -> None:
        """It goes on after all."""
        self._lost.get(call.id, {}).pop(id(call), None)
        self._are_lost.discard(id(call))

    def forget_lost(self) -> None:
        """Of a turn that is over. Nothing finds them any more."""
        self._lost.clear()
