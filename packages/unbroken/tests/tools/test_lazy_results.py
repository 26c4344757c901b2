"""Tools that return something to iterate over: it is read where the tool runs, within its time-out, and a failure there
is the tool's failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenes import accepted, only, texts

from unbroken import Agent, Event, Policy, Result, ScriptedModel, Tool, ToolOutput, tool
from unbroken.events import CallProgress
from unbroken.tools.toolbox import ITEMS
from unbroken_testing import Call, run_virtual

PATIENCE = 10.0


def call(*tools: Tool) -> tuple[Result, list[Event]]:
    """One call of each, in real time and real threads."""
    events: list[Event] = []
    model = ScriptedModel([Call(each.name) for each in tools], "Done.")
    result = asyncio.run(Agent(model, list(tools)).run("Go.", sinks=[events.append]))
    accepted(model, result)
    return result, events


def rows(notes: list[str], fails: bool = False) -> Generator[str]:
    try:
        yield "one"
        notes.append(threading.current_thread().name)
        if fails:
            raise OSError("the connection was lost")
        yield "two"
    finally:
        notes.append("closed")


def as_generator(notes: list[str], fails: bool) -> Any:
    return rows(notes, fails)


def as_map(notes: list[str], fails: bool) -> Any:
    return map(str, rows(notes, fails))


def as_output(notes: list[str], fails: bool) -> Any:
    return ToolOutput(rows(notes, fails), "for the program")


def nested(notes: list[str], fails: bool) -> Any:
    return {"rows": rows(notes, fails)}


@pytest.mark.parametrize("make", [as_generator, as_map, as_output, nested])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_a_lazy_value_is_read_in_a_thread_and_its_failure_is_the_calls(
    make: Callable[[list[str], bool], Any], is_async: bool, fails: bool
) -> None:
    notes: list[str] = []

    def look() -> Any:
        return make(notes, fails)

    async def look_async() -> Any:
        return make(notes, fails)

    result, _ = call(tool(name="look")(look_async if is_async else look))
    assert notes[0].startswith("unbroken-tool")
    assert notes[-1] == "closed"
    assert result.calls[0].error == fails
    whole = '{"rows":["one","two"]}' if make is nested else '["one","two"]'
    assert texts(result) == ["Error: the connection was lost" if fails else whole]
    if make is as_output and not fails:
        assert result.calls[0].result.data == "for the program"


def test_a_generator_function_is_a_tool_and_a_file_is_its_lines(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a\nb\n")

    @tool
    def count() -> Iterator[int]:
        """Count."""
        yield from range(3)

    @tool
    def open_notes() -> Any:
        """Open the notes."""
        return (tmp_path / "notes.txt").open()

    result, _ = call(count, open_notes)
    assert texts(result) == ["[0,1,2]", '["a\\n","b\\n"]']


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_lazy_value_that_hangs_times_out_without_blocking_the_loop(is_async: bool) -> None:
    release, closed = threading.Event(), threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
                release.wait(PATIENCE)
        finally:
            closed.set()

    async def endless_async() -> Any:
        return endless()

    async def quick() -> str:
        release.set()  # the loop runs, and lets the late one notice that nobody waits
        return "quick"

    slow = tool(name="slow", timeout=0.05, effect="read")(endless_async if is_async else lambda: endless())
    try:
        result, _ = call(slow, tool(quick))
    finally:
        release.set()
    assert texts(result) == ["Error: Execution timeout after 0.05s", "quick"]
    assert closed.wait(PATIENCE)


def test_an_endless_value_is_read_as_far_as_it_can_be_shown_and_closed() -> None:
    closed: list[bool] = []

    @tool
    def numbers() -> Iterator[int]:
        """Count for ever."""
        try:
            n = 0
            while True:
                yield n
                n += 1
        finally:
            closed.append(True)

    model = ScriptedModel(Call("numbers"), "Done.")
    result = asyncio.run(Agent(model, [numbers], policy=Policy(result_limit=10**6)).run("Go."))
    assert texts(result)[0].endswith(f',{ITEMS - 1},"[... only the first {ITEMS:,} were asked for ...]"]')
    assert closed == [True]


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_an_async_generator_reports_what_it_yields(fails: bool) -> None:
    closed: list[bool] = []

    @tool
    async def fetch() -> AsyncIterator[Any]:
        """Fetch page after page."""
        try:
            yield "page 1"
            await asyncio.sleep(1)
            yield {"page": 2}
            if fails:
                raise OSError("the server is gone")
        finally:
            closed.append(True)

    events: list[Event] = []
    result = run_virtual(Agent(ScriptedModel(Call("fetch"), "Done."), [fetch]).run("Go.", sinks=[events.append]))
    assert texts(result) == ["Error: the server is gone" if fails else '["page 1",{"page":2}]']
    assert [event.message for event in only(CallProgress, events)] == ["page 1", '{"page": 2}']
    assert (closed, result.seconds) == ([True], 1.0)


def test_an_async_generator_that_takes_too_long_is_closed_and_times_out() -> None:
    closed: list[bool] = []

    @tool(timeout=5)
    async def fetch() -> AsyncIterator[int]:
        """Fetch for ever."""
        try:
            while True:
                yield 1
                await asyncio.sleep(1)
        finally:
            closed.append(True)

    result = run_virtual(Agent(ScriptedModel(Call("fetch"), "Done."), [fetch]).run("Go."))
    assert (texts(result), closed, result.seconds) == (["Error: Execution timeout after 5s"], [True], 5.0)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_conversion_to_text_happens_in_a_thread_within_the_time_out(is_async: bool) -> None:
    release = threading.Event()

    class Slow:
        def __str__(self) -> str:
            release.wait(PATIENCE)
            return "slow"

    def look() -> Slow:
        return Slow()

    async def look_async() -> Slow:
        return Slow()

    slow = tool(name="look", timeout=0.05, effect="read")(look_async if is_async else look)
    try:
        result, _ = call(slow)
    finally:
        release.set()
    assert texts(result) == ["Error: Execution timeout after 0.05s"]


def test_a_value_that_cannot_be_converted_is_still_a_result() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("no")

    async def look() -> Odd:
        return Odd()

    result, _ = call(tool(look))
    assert texts(result) == ["(a result of the type `Odd` that cannot be shown: ValueError)"]
    assert not result.calls[0].error
