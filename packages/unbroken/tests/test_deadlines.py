"""Time limits in shared queues: they cancel what waits too long, once, in order, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from unbroken.clock import TimeLimit, deadline, run


def test_work_in_time_is_not_affected_and_late_work_is_cancelled() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        for seconds in (1.0, 29.0, 31.0):
            try:
                with TimeLimit(30):
                    await asyncio.sleep(seconds)
                said.append("done")
            except TimeoutError:
                said.append(f"ended at {asyncio.get_running_loop().time():g}")
        return said

    assert run(main()) == ["done", "done", "ended at 60"]


def test_limits_of_one_duration_expire_each_at_its_own_time() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        ended: list[float] = []

        async def wait(start: float) -> None:
            await asyncio.sleep(start)
            with pytest.raises(TimeoutError), TimeLimit(10):
                await asyncio.sleep(100)
            ended.append(loop.time())

        async with asyncio.TaskGroup() as group:
            for start in (0.0, 3.0, 3.0, 7.5):
                group.create_task(wait(start))
        return ended

    assert run(main()) == [10.0, 13.0, 13.0, 17.5]


def test_a_cancelled_limit_does_not_delay_those_after_it() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        said: list[str] = []
        first = deadline(loop, 5, lambda: said.append("first"))
        deadline(loop, 5, lambda: said.append("second"))
        first.cancel()
        deadline(loop, 2, lambda: said.append("shorter"))
        await asyncio.sleep(5)
        return said

    assert run(main()) == ["shorter", "second"]


@pytest.mark.parametrize("when", [1, 10], ids=["before", "while the time is up"])
def test_an_outside_cancellation_is_not_a_time_out(when: float) -> None:
    async def main() -> str:
        async def work() -> None:
            with TimeLimit(10):
                await asyncio.sleep(100)

        task = asyncio.create_task(work())
        asyncio.get_running_loop().call_at(when, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        except TimeoutError:
            return "timed out"
        return "done"

    assert run(main()) == "cancelled"


def test_a_limit_that_begins_later_counts_from_then() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        limit = TimeLimit(None)
        loop.call_at(4, limit.begin, 3)
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(100)
        assert limit.expired
        return loop.time()

    assert run(main()) == 7


def test_a_limit_that_begins_after_its_end_does_nothing() -> None:
    async def main() -> bool:
        limit = TimeLimit(None)
        with limit:
            await asyncio.sleep(1)
        limit.begin(1)
        await asyncio.sleep(10)
        return limit.expired

    assert run(main()) is False


def test_nested_limits_cancel_the_expired_one() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        try:
            with TimeLimit(5):
                try:
                    with TimeLimit(8):
                        await asyncio.sleep(100)
                except TimeoutError:
                    said.append("inner")
        except TimeoutError:
            said.append("outer")
        return said

    assert run(main()) == ["outer"]


def test_ever_new_durations_work_too() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        ended: list[int] = []
        for number in range(200):
            deadline(loop, 1 + number / 1000, lambda number=number: ended.append(number))
        await asyncio.sleep(2)
        assert ended == sorted(ended)
        return len(ended)

    assert run(main()) == 200


def test_a_queue_does_not_keep_cancelled_deadlines() -> None:
    """A busy queue is cleared at its head by the next call."""

    class Held:
        alive = 0

        def __init__(self) -> None:
            Held.alive += 1

        def __del__(self) -> None:
            Held.alive -= 1

        def expire(self) -> None:
            raise AssertionError("it was taken back")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            deadline(loop, 30, Held().expire).cancel()
        assert Held.alive == 0

    asyncio.run(main())


def test_a_queue_does_not_keep_its_loop_alive() -> None:
    def lived() -> weakref.ref[asyncio.AbstractEventLoop]:
        async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
            with TimeLimit(30):
                await asyncio.sleep(0)
            return weakref.ref(asyncio.get_running_loop())

        return asyncio.run(main())

    loop = lived()
    gc.collect()
    assert loop() is None
