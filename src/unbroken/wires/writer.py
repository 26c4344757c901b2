"""Writes one response for a client: the deltas of any wire in, the bytes of another out, calls in call order.

A call becomes ready when its own arguments are complete, so a later one may be ready first (an empty call is only sure
at the end). A client is handed calls in the order in which the model began them: one that is early waits here.
"""

from __future__ import annotations

from unbroken.deltas import CallOpened, CallReady, CallSpoiled, Delta, Ended
from unbroken.wires.wire import Wire


class ResponseWriter:
    def __init__(self, wire: Wire, model: str, id: str) -> None:
        self._encoder = wire.encoder(model, id)
        self._waiting: dict[int, CallReady | None] = {}
        """Calls that have begun and were not written, in the order of their beginning."""

    def feed(self, delta: Delta) -> bytes:
        match delta:
            case CallOpened(index, _, _):
                self._waiting.setdefault(index, None)
            case CallReady(call) if call.index in self._waiting:
                self._waiting[call.index] = delta
                return self._write_next()
            case CallSpoiled(call):
                self._waiting.pop(call.index, None)
                return self._write_next()
            case Ended(_):
                held = [ready for ready in self._waiting.values() if ready is not None]
                self._waiting.clear()
                return b"".join(self._encoder.feed(ready) for ready in held) + self._encoder.feed(delta)
            case _:
                pass
        return self._encoder.feed(delta)

    def body(self) -> bytes:
        """After the last delta: the same response as one whole body."""
        return self._encoder.body()

    def _write_next(self) -> bytes:
        written = b""
        while self._waiting:
            index, ready = next(iter(self._waiting.items()))
            if ready is None:
                break
            del self._waiting[index]
            written += self._encoder.feed(ready)
        return written
