"""The loop on virtual time: nothing waits, durations are exact, two runs agree, and a deadlock names the waiting
tasks."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from unbroken.clock import RealClock, current_clock
from unbroken_testing import Deadlock, VirtualLoop, run_virtual


def test_a_day_passes_at_once() -> None:
    async def main() -> tuple[float, float]:
        await asyncio.sleep(36 * 3600)
        return current_clock().elapsed(), current_clock().now()

    before = time.monotonic()
    assert run_virtual(main, start=1000.0) == (129600.0, 130600.0)
    assert time.monotonic() - before < 5


def test_both_a_coroutine_and_a_function_can_be_run() -> None:
    async def main() -> str:
        return "done"

    assert run_virtual(main) == run_virtual(main()) == "done"


def test_tenths_add_up_exactly() -> None:
    async def main() -> float:
        for _ in range(10):
            await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 1.0


def test_timers_of_one_instant_fire_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        loop, fired = asyncio.get_running_loop(), list[int]()
        handles = [loop.call_later(delay, fired.append, n) for n, delay in enumerate([0.3, 0.1 + 0.2] * 20)]
        for handle in handles[::7]:
            handle.cancel()
        await asyncio.sleep(1)
        return fired

    assert run_virtual(main) == [n for n in range(40) if n % 7]


def test_timers_due_within_a_nanosecond_fire_together() -> None:
    async def main() -> list[float]:
        loop, times = asyncio.get_running_loop(), list[float]()
        loop.call_at(1.0, lambda: times.append(loop.time()))
        loop.call_at(1.0 + 4e-10, lambda: times.append(loop.time()))
        await asyncio.sleep(2)
        return times

    assert run_virtual(main) == [1.0, 1.0]


def test_tasks_of_a_group_run_in_parallel() -> None:
    async def main() -> tuple[list[str], float]:
        ended: list[str] = []

        async def work(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("slow", 3.0), ("quick", 1.0), ("middle", 2.0)):
                group.create_task(work(name, seconds))
        return ended, current_clock().elapsed()

    assert run_virtual(main) == (["quick", "middle", "slow"], 3.0)


def test_a_timeout_expires_at_its_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return current_clock().elapsed()

    assert run_virtual(main) == 5.0


def test_the_clock_of_an_ordinary_loop_is_the_real_one() -> None:
    async def main() -> object:
        return current_clock()

    assert isinstance(asyncio.run(main()), RealClock)
    assert isinstance(current_clock(), RealClock)


def test_the_clock_of_a_virtual_loop_is_its_own() -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        return isinstance(loop, VirtualLoop) and current_clock() is loop.clock

    assert run_virtual(main)


def test_a_deadlock_names_the_waiting_tasks_and_their_lines() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.create_task(wait_for_ever(), name="the patient one")

    with pytest.raises(Deadlock) as caught:
        run_virtual(main)
    message = str(caught.value)
    assert message.startswith("at 2 s nothing can happen any more")
    assert "the patient one in" in message
    assert "wait_for_ever" in message
    assert __file__ in message


def test_a_deadlock_lets_tasks_clean_up() -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append("cleaned up")

    with pytest.raises(Deadlock):
        run_virtual(main)
    assert ended == ["cleaned up"]


def test_work_for_a_thread_is_done_at_once_in_the_loops_thread() -> None:
    async def main() -> tuple[int, float]:
        return await asyncio.to_thread(threading.get_ident), current_clock().elapsed()

    assert run_virtual(main) == (threading.get_ident(), 0.0)


def test_an_exception_of_thread_work_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        future = asyncio.get_running_loop().run_in_executor(None, fail)
        with pytest.raises(ValueError, match="no"):
            await future

    run_virtual(main)


def test_a_real_thread_wakes_the_loop() -> None:
    async def main() -> float:
        loop, heard, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def speak() -> None:
            go.wait()
            loop.call_soon_threadsafe(heard.set)

        thread = threading.Thread(target=speak)
        thread.start()
        loop.call_soon(go.set)
        await heard.wait()
        thread.join()
        return loop.time()

    assert run_virtual(main) == 0.0


def test_a_socket_works_and_sleeps_meanwhile_take_no_time() -> None:
    async def main() -> tuple[bytes, float]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.readline()
            await asyncio.sleep(3600)
            writer.write(b"you said " + asked)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port: int = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            said = await reader.read()
            writer.close()
            return said, current_clock().elapsed()

    said, seconds = run_virtual(main)
    assert said == b"you said hello\n"
    assert seconds >= 3600


def test_an_exception_of_the_program_is_raised() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main)


def test_two_runs_are_identical() -> None:
    async def main() -> list[tuple[float, int]]:
        log: list[tuple[float, int]] = []

        async def work(number: int) -> None:
            for _ in range(5):
                await asyncio.sleep((number * 7 % 5) / 10)
                log.append((current_clock().elapsed(), number))

        await asyncio.gather(*(work(number) for number in range(10)))
        return log

    first = run_virtual(main)
    assert first == run_virtual(main)
    assert len(first) == 50
