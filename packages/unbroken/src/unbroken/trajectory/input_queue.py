"""Delivers the inputs of a recorded run in the order of their lines, each at its place among the events of the run.

Strategy. A task that replays a tool, an answer or an approver takes its next input, and waits until three things are
true: all inputs before it were taken, the run has emitted as many events as before its line, and its time has come. It
continues at once, before the run does anything else. An input that came in the same step of the loop as the one before
it does not wait for its time: on a loop that was busy, the run acted on both together.

The run may emit fewer events than were recorded: a resumed run is replayed as one, and lines may be missing. Then the
next input that somebody waits for is delivered as soon as nothing else happens. A `VirtualLoop` knows when that is; on
another loop it is `PATIENCE` later. On a loop of your own, which is no `ReplayLoop`, things of one instant may change
places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from unbroken.clock import VirtualLoop
from unbroken.replay_loop import ReplayLoop
from unbroken.trajectory.recorded_inputs import Input

_NEAR = 1e-9
AFTER = 60.0
"""Seconds that a run has after its last input to end what it no longer waits for."""
PATIENCE = 0.25
"""Seconds of real time after which an input is delivered although fewer events came before it than in the recording."""


class InputQueue:
    """`ordered` is false if the tools run: then each input is delivered at its time, whatever came before it."""

    def __init__(self, inputs: Iterable[Input], ordered: bool, speed: float) -> None:
        self._inputs = sorted(inputs, key=lambda each: each.place)
        for place, each in enumerate(self._inputs):
            each.place = place
        self._ordered = ordered
        self._speed = speed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._first: ReplayLoop | None = None
        """The same loop, if it can run something before everything that is ready."""
        self._began = 0.0
        self._next = 0
        self._events = 0
        """How many events the run has emitted."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """The tasks that wait, by the places of their inputs."""
        self._waking: asyncio.Future[None] | None = None
        """The task that got the last input and has not continued yet: nobody overtakes it."""
        self._timer: asyncio.TimerHandle | None = None
        self.over = False

    @property
    def left(self) -> int:
        return len(self._inputs) - self._next

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        if self._ordered and isinstance(self._loop, ReplayLoop):
            self._first = self._loop
            self._first.enters_first = True
        if self._ordered and isinstance(self._loop, VirtualLoop):
            self._loop.when_idle = self._unblock

    def end(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._first is not None:
            self._first.enters_first = False
        if isinstance(self._loop, VirtualLoop):
            self._loop.when_idle = None

    def emitted(self) -> None:
        """The run has emitted an event: inputs that waited for it may follow."""
        self._events += 1
        self._deliver()

    async def take(self, each: Input) -> None:
        """Returns at the place of this input."""
        assert self._loop is not None
        if not self._ordered or each.place < self._next:  # or it was passed over
            await self._wait_until(self._due(each))
            self._next = max(self._next, each.place + 1)
            return
        self._waiting[each.place] = future = self._loop.create_future()
        if self._first is not None:
            self._first.call_entered(self._deliver)  # tools that the run has started begin before this input arrives
        else:
            self._deliver()
        try:
            await future
        finally:
            self._waiting.pop(each.place, None)
            if future is self._waking:
                self._waking = None
                self._deliver()

    async def take_despite_cancel(self, each: Input) -> None:
        """The tool was cancelled and did more before it ended: that is replayed, too."""
        while True:
            try:
                await self.take(each)
                return
            except asyncio.CancelledError:
                if self.over:
                    raise
                if each.place < self._next:  # it was delivered just before the cancellation
                    return

    async def until_its_end(self) -> None:
        """Until nothing more can come."""
        last = max((each.at for each in self._inputs), default=0.0)
        await self._wait_until(self._began + last / self._speed + AFTER)

    def skip(self, each: Input) -> None:
        """Marks the input as taken; nobody waits for it."""
        if each.place == self._next:
            self._next += 1
            self._deliver()

    async def _wait_until(self, due: float) -> None:
        assert self._loop is not None
        # Nothing to wait for, but other tasks must run between two pieces of a stream.
        await asyncio.sleep(max(due - self._loop.time(), 0.0))

    def _due(self, each: Input) -> float:
        return round(self._began + each.at / self._speed, 9)

    def _is_due(self, each: Input) -> bool:
        assert self._loop is not None
        same_step = each.same_step and each.place == self._next
        return same_step or self._due(each) - self._loop.time() < _NEAR

    def _deliver(self) -> None:
        """The task that waits for the next input continues with it. One at a time: the next input follows when this
        task has continued."""
        if self._waking is not None or not self._waiting:
            return
        future = self._waiting.get(self._next)
        each = self._inputs[self._next if future is not None else min(self._waiting)]
        if future is None or not self._is_due(each) or self._events < each.events_before:
            self._look_again(each)
        elif not future.done():  # otherwise its task was cancelled just now, and takes it when it continues, or never
            self._next += 1
            self._waking = future
            if self._first is not None:
                self._first.wake_first(future)
            else:
                future.set_result(None)

    def _look_again(self, each: Input) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_due(each):
            # A task that waits for a timer of that instant continues when all of them have fired.
            call_at = self._loop.call_last_at if isinstance(self._loop, VirtualLoop) else self._loop.call_at
            self._timer = call_at(self._due(each), self._deliver)
        elif not isinstance(self._loop, VirtualLoop):
            self._timer = self._loop.call_later(PATIENCE, self._unblock)

    def _unblock(self) -> bool:
        """Nothing else will happen now. The first task that waits gets its input: those before it are skipped, and
        events that are missing count as emitted."""
        if not self._waiting:
            return False
        each = self._inputs[min(self._waiting)]
        if not self._is_due(each):
            self._look_again(each)
            return False
        self._next, self._events = each.place, max(self._events, each.events_before)
        self._deliver()
        return True
