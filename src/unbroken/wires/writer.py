"""Writes one response for a client: the deltas of any wire in, the bytes of another out, calls in call order.

A call becomes ready when its own arguments are complete, so a later one may be ready first (an empty call is only sure
at the end). A client is handed calls in the order in which the model began them: one that is early waits here. A
response that failed ends with an error in the client's wire, never as if all were well.
"""

from __future__ import annotations

from unbroken.deltas import CallOpened, CallReady, CallSpoiled, CallWithdrawn, Delta, Ended, Restarted
from unbroken.wires import find_wire
from unbroken.wires.wire import Wire


class ResponseWriter:
    """`wire` is the client's; `id` names the response there."""

    def __init__(self, wire: Wire | str, model: str, id: str) -> None:
        self._encoder = (find_wire(wire) if isinstance(wire, str) else wire).encoder(model, id)
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
            case CallWithdrawn(index):
                self._waiting.pop(index, None)
                return self._write_next()
            case Restarted(_):
                self._waiting.clear()  # what had begun will not be finished, and must not hold back what comes now
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
