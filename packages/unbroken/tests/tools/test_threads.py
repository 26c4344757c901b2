"""Synchronous tools in their own threads: they run in parallel, a late one frees its slot, and nothing waits for one
that hangs. Real threads and real time; the tests use barriers and events, not the clock."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from scenes import accepted, only, texts

from unbroken import (
    Agent,
    CallContext,
    CallStarted,
    Event,
    Request,
    Result,
    RunFinished,
    ScriptedModel,
    Tool,
    ToolMessage,
    tool,
)
from unbroken.events import CallProgress, ToolLate
from unbroken.tools.threads import DEEPEST, SIZE, THREADS, Job, Threads
from unbroken_testing import Call

PATIENCE = 10.0


@contextmanager
def hanging() -> Generator[threading.Event]:
    """Releases the hanging ones, whatever happens."""
    release = threading.Event()
    try:
        yield release
    finally:
        release.set()


@pytest.mark.parametrize("count", [16, SIZE])
def test_up_to_a_limit_synchronous_tools_run_at_once(count: int) -> None:
    together = threading.Barrier(count, timeout=PATIENCE)

    @tool(effect="read")
    def meet(n: int) -> int:
        """Wait for all the others."""
        together.wait()
        return n

    model = ScriptedModel([Call("meet", n=n) for n in range(count)], "Done.")
    result = asyncio.run(Agent(model, [meet]).run("Go."))
    assert texts(result) == [str(n) for n in range(count)]
    accepted(model, result)


def test_more_than_there_are_threads_run_one_after_another() -> None:
    lock, most, now = threading.Lock(), 0, 0

    @tool(effect="read")
    def work(n: int) -> int:
        """Count who is in here."""
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return n

    result = asyncio.run(Agent(ScriptedModel([Call("work", n=n) for n in range(150)], "Done."), [work]).run("Go."))
    assert texts(result) == [str(n) for n in range(150)]
    assert 1 <= most <= SIZE


def test_a_late_tool_is_named_and_its_slot_is_freed_when_it_ends() -> None:
    with hanging() as release:
        begun, ended = threading.Event(), threading.Event()

        @tool(timeout=0.02)
        def hangs() -> str:
            """Hang until released."""
            begun.set()
            release.wait(PATIENCE)
            ended.set()
            return "late"

        before = THREADS.late
        events: list[Event] = []

        def heard(event: Event) -> None:
            events.append(event)
            if isinstance(event, CallStarted):  # the time-out comes after the thread has begun, on any machine
                asyncio.get_running_loop().call_later(0.01, begun.wait, PATIENCE)

        result = asyncio.run(Agent(ScriptedModel(Call("hangs"), "Done."), [hangs]).run("Go.", sinks=[heard]))
        assert texts(result) == ["Error: Execution timeout after 0.02s"]
        (late,) = only(ToolLate, events)
        assert (late.name, late.seconds, late.threads) == ("hangs", 0.02, before + 1)
        assert THREADS.late == before + 1
        release.set()
        ended.wait(PATIENCE)
    wait_until_late_is(THREADS, before)


def test_an_async_tool_that_hangs_leaves_no_thread() -> None:
    @tool(timeout=0.01)
    async def hangs() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    events: list[Event] = []
    result = asyncio.run(Agent(ScriptedModel(Call("hangs"), "Done."), [hangs]).run("Go.", sinks=[events.append]))
    assert texts(result) == ["Error: Execution timeout after 0.01s"]
    assert only(ToolLate, events) == []


def test_a_late_tool_reports_nothing_after_the_end_of_the_run() -> None:
    async def main() -> list[Event]:
        with hanging() as release:
            loop, reported, begun = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

            @tool(timeout=0.02)
            def hangs(context: CallContext[None]) -> str:
                """Hang until released, then report."""
                begun.set()
                release.wait(PATIENCE)
                context.report("late")
                loop.call_soon_threadsafe(reported.set)
                return "late"

            events: list[Event] = []

            def heard(event: Event) -> None:
                events.append(event)
                if isinstance(event, CallStarted):
                    loop.call_later(0.01, begun.wait, PATIENCE)

            await Agent(ScriptedModel(Call("hangs"), "Done."), [hangs]).run("Go.", sinks=[heard])
            release.set()
            await reported.wait()
            return events

    events = asyncio.run(main())
    assert only(CallProgress, events) == []
    assert isinstance(events[-1], RunFinished)


def test_a_tool_has_the_context_of_its_caller() -> None:
    who = contextvars.ContextVar("who", default="nobody")

    @tool
    def ask() -> str:
        """Who is it?"""
        return who.get()

    who.set("somebody")
    assert texts(asyncio.run(Agent(ScriptedModel(Call("ask"), "Done."), [ask]).run("Go."))) == ["somebody"]


# The threads themselves


def wait_until_late_is(threads: Threads, count: int) -> None:
    for _ in range(1000):
        if threads.late == count:
            return
        threading.Event().wait(0.005)
    assert threads.late == count


def test_after_a_crowd_hanging_jobs_do_not_delay_later_ones() -> None:
    """More jobs than threads, then as many hanging ones as there are threads: the next one needs a new thread."""
    threads = Threads(size=2)
    with hanging() as release:
        gate = threading.Event()
        crowd = [threads.submit(gate.wait, PATIENCE) for _ in range(8)]
        gate.set()
        assert all(future.result(PATIENCE) for future in crowd)
        begun = threading.Barrier(3, timeout=PATIENCE)

        def hang() -> None:
            begun.wait()
            release.wait(PATIENCE)

        jobs = [Job(hang, threads) for _ in range(2)]
        for job in jobs:
            threads.submit(job)
        begun.wait()
        assert [threads.give_up(job) for job in jobs] == [1, 2]
        assert threads.submit(lambda: "ran").result(PATIENCE / 4) == "ran"
    wait_until_late_is(threads, 0)


def test_waiting_jobs_run_as_soon_as_a_hanging_one_is_abandoned() -> None:
    threads = Threads(size=1)
    with hanging() as release:
        begun = threading.Event()

        def hang() -> None:
            begun.set()
            release.wait(PATIENCE)

        job = Job(hang, threads)
        threads.submit(job)
        begun.wait(PATIENCE)
        waiting = threads.submit(lambda: "ran")
        assert not waiting.done()
        threads.give_up(job)
        assert waiting.result(PATIENCE / 4) == "ran"
        threads.give_up(job)
        assert threads.late == 1
    wait_until_late_is(threads, 0)


def test_a_job_that_was_cancelled_before_it_had_a_thread_never_runs() -> None:
    threads = Threads(size=1)
    with hanging() as release:
        begun, ran = threading.Event(), threading.Event()

        def hang() -> None:
            begun.set()
            release.wait(PATIENCE)

        first = threads.submit(hang)
        begun.wait(PATIENCE)
        second = threads.submit(ran.set)
        assert second.cancel()
        release.set()
        first.result(PATIENCE)
        assert threads.submit(lambda: "next").result(PATIENCE) == "next"
        assert not ran.is_set()


def test_abandoning_a_finished_job_changes_nothing() -> None:
    threads = Threads(size=1)
    job = Job(lambda: "done", threads)
    assert threads.submit(job).result(PATIENCE) == ("done", None)
    assert threads.give_up(job) == 0


# Nested runs


def nesting(level: int, calls: int) -> Tool:
    """A synchronous tool that runs an agent with such a tool, down to level 0."""

    @tool(effect="read", timeout=None, dedupe=False)
    def down(n: int) -> str:
        """Go one level down."""
        if level == 0:
            return "bottom"
        model = ScriptedModel([Call("down", n=n) for n in range(calls)], f"level {level}")
        inner = Agent(model, [nesting(level - 1, 2)])
        return inner.run_sync("Go.").text if n % 2 else asyncio.run(inner.run("Go.")).text

    return down


@pytest.mark.parametrize("count", [SIZE, SIZE + 16])
def test_more_nested_runs_than_there_are_threads_make_progress(count: int) -> None:
    """Three levels; each call at the top holds a thread while it waits for those below."""
    agent = Agent(ScriptedModel([Call("down", n=n) for n in range(count)], "Done."), [nesting(3, 1)])
    found: list[Result] = []
    work = threading.Thread(target=lambda: found.append(agent.run_sync("Go.")), daemon=True)
    work.start()
    work.join(60)
    assert found, "the nested runs wait for each other"
    assert texts(found[0]) == ["level 3"] * count
    assert not THREADS.crowded


def test_endless_nesting_is_an_error_and_not_a_thread_for_each_level() -> None:
    def last_result(request: Request) -> str:
        message = request.messages[-1]
        assert isinstance(message, ToolMessage)
        return message.results[0].text

    @tool(timeout=None)
    def deeper() -> str:
        """Go deeper."""
        return Agent(ScriptedModel(Call("deeper"), last_result), [deeper]).run_sync("Go.").text

    assert f"more than {DEEPEST} deep" in deeper()
