"""From a call to its result: what tools may raise, return, know and repeat. A failing tool yields a result, and never
affects its siblings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, only, play, play_aloud, texts

from unbroken import (
    Agent,
    Allow,
    CallContext,
    CallStarted,
    Conversation,
    Event,
    Policy,
    Result,
    ScriptedModel,
    Tool,
    ToolCall,
    ToolFailed,
    ToolResult,
    Wait,
    tool,
)
from unbroken.clock import current_clock
from unbroken.errors import InvalidTool
from unbroken.events import CallProgress
from unbroken.middleware import Middleware
from unbroken.tools.caller import Caller
from unbroken.trajectory.recorder import Recorder
from unbroken_testing import Call, run_virtual
from unbroken_wires.messages import Media


class Panic(BaseException):
    """As code below Python raises it: not an `Exception`."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


RAISED = [
    pytest.param(SystemExit(3), "it tried to end the program (exit code 3)", id="SystemExit"),
    pytest.param(Panic("index out of bounds"), "index out of bounds", id="a panic"),
    pytest.param(BaseExceptionGroup("two", [Panic(), Panic()]), "two (2 sub-exceptions): Panic", id="two panics"),
    pytest.param(ExceptionGroup("one", [ValueError()]), "one (1 sub-exception): ValueError", id="ExceptionGroup"),
    pytest.param(Wordless(), "Wordless", id="no words"),
    pytest.param(ToolFailed("the door is shut"), "the door is shut", id="ToolFailed"),
    pytest.param(KeyError("city"), "KeyError: 'city'", id="KeyError"),
    pytest.param(TimeoutError(), "TimeoutError", id="TimeoutError"),
    pytest.param(ValueError("tab\there \U0001f600 \ud83d"), "tab\there \U0001f600 \ud83d", id="odd characters"),
]


def raising(error: BaseException, is_async: bool, **promises: Any) -> Tool:
    async def later() -> str:
        """Raise."""
        raise error

    def now() -> str:
        """Raise."""
        raise error

    return tool(name="raises", **promises)(later if is_async else now)


both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


@both
@pytest.mark.parametrize(("error", "told"), RAISED)
def test_any_exception_is_its_result_and_the_others_run(error: BaseException, told: str, is_async: bool) -> None:
    desk = Desk()
    model = ScriptedModel([Call("raises"), Call("other")], "Done.")
    result = asyncio.run(Agent(model, [raising(error, is_async), *desk.tools("other")]).run("Go."))
    assert texts(result) == [f"Error: {told}", "other done"]
    assert (result.text, [call.error for call in result.calls]) == ("Done.", [True, False])
    accepted(model, result)


@both
def test_a_tool_that_raises_stop_iteration_has_failed(is_async: bool) -> None:
    result = asyncio.run(
        Agent(ScriptedModel(Call("raises"), "Done."), [raising(StopIteration(1), is_async)]).run("Go.")
    )
    assert "StopIteration" in texts(result)[0] or texts(result) == ["Error: 1"]
    assert result.calls[0].error


@both
def test_a_tool_that_raises_cancelled_error_has_failed(is_async: bool) -> None:
    agent = Agent(ScriptedModel(Call("raises"), "Done."), [raising(asyncio.CancelledError("gone"), is_async)])
    result = asyncio.run(agent.run("Go."))
    assert (texts(result)[0].startswith("Error: "), "gone" in texts(result)[0], result.text) == (True, True, "Done.")


def test_an_interrupt_inside_an_async_tool_ends_the_program_and_not_only_the_call() -> None:
    chat = Conversation(
        Agent(ScriptedModel([Call("raises"), Call("slow")]), [raising(KeyboardInterrupt(), True), slow])
    )
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(chat.say("Go."))
    can_go_on(chat.messages)


@tool(timeout=None)
async def slow() -> str:
    """Take for ever."""
    await asyncio.Event().wait()
    return "never"


def test_a_tool_that_cancels_its_own_task_has_failed_and_the_run_continues() -> None:
    @tool
    async def ends_itself() -> str:
        """Cancel the task it runs in."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1.0)
        return "never"

    model = ScriptedModel([Call("ends_itself"), Call("other")], "Done.")
    result = play(Agent(model, [ends_itself, *Desk().tools("other")]))
    assert texts(result) == ["Error: the tool cancelled its own task", "other done"]


GIVEN: list[Any] = [
    pytest.param(None, "(the tool returned nothing)", id="None"),
    pytest.param("", "(the tool returned nothing)", id="nothing"),
    pytest.param({"a": [1, None]}, '{"a":[1,null]}', id="JSON"),
    pytest.param("日本 \U0001f600", "日本 \U0001f600", id="unicode"),
    pytest.param(ToolResult("other", (), error=False), "", id="a result of another call"),
]


@pytest.mark.parametrize(("value", "told"), GIVEN)
def test_any_return_value_becomes_text_for_the_model(value: Any, told: str) -> None:
    model = ScriptedModel(Call("gives"), "Done.")
    result = play(Agent(model, [Desk().tool("gives", value)]))
    assert texts(result) == [told]
    assert result.calls[0].result.call_id == result.calls[0].id


def test_a_synchronous_tool_may_return_an_awaitable() -> None:
    @tool
    def starts() -> Awaitable[str]:
        """Give a coroutine."""

        async def work() -> str:
            await asyncio.sleep(0)
            return "worked"

        return work()

    assert texts(asyncio.run(Agent(ScriptedModel(Call("starts"), "Done."), [starts]).run("Go."))) == ["worked"]


def test_a_huge_text_is_cut_in_the_middle_with_a_note() -> None:
    model = ScriptedModel(Call("gives"), "Done.")
    result = play(Agent(model, [Desk().tool("gives", "a" * 600 + "b" * 600)], policy=Policy(result_limit=1000)))
    (text,) = texts(result)
    assert text.startswith("a" * 500)
    assert text.endswith("b" * 500)
    assert "[... 200 characters left out here ...]" in text


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages", "gemini"])
def test_an_image_is_shown_to_the_model(wire: str) -> None:
    picture = Media(mime="image/png", data="AAAA")
    model = ScriptedModel([Call("gives"), Call("other")], "Done.", wire=wire)
    result = play(Agent(model, [Desk().tool("gives", ["A picture:", picture]), *Desk().tools("other")]))
    assert picture in result.calls[0].result.content
    assert "AAAA" in str(model.bodies[1])
    accepted(model, result)


# Time-outs, retries, cache


def test_only_its_own_time_out_is_a_time_out() -> None:
    model = ScriptedModel([Call("hangs"), Call("other")], "Done.")
    tools = [Desk().tool("hangs", seconds=99.0, timeout=2.5), Desk().tool("other", seconds=1.0)]
    result = play(Agent(model, tools))
    assert texts(result) == ["Error: Execution timeout after 2.5s", "ok"]
    assert [call.seconds for call in result.calls] == [2.5, 1.0]


def test_a_tool_that_ignores_its_time_out_once_may_still_answer() -> None:
    @tool(timeout=1.0)
    async def stubborn() -> str:
        """Do not give up at once."""
        try:
            await asyncio.sleep(99.0)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
        return "after all"

    result = play(Agent(ScriptedModel(Call("stubborn"), "Done."), [stubborn]))
    assert (texts(result), result.seconds) == (["after all"], 2.0)


def flaky(failures: int, calls: list[int], **promises: Any) -> Tool:
    @tool(effect="read", **promises)
    async def fetch(context: CallContext[Any], n: int = 0) -> str:
        """Fetch."""
        calls.append(context.attempt)
        if len(calls) <= failures:
            raise ConnectionError("gone")
        return f"fetched {n}"

    return fetch


@pytest.mark.parametrize(
    ("failures", "told", "attempts"),
    [(0, "fetched 0", [0]), (2, "fetched 0", [0, 1, 2]), (3, "Error: gone", [0, 1, 2])],
)
def test_a_failed_read_is_retried(failures: int, told: str, attempts: list[int]) -> None:
    calls: list[int] = []
    result = play(Agent(ScriptedModel(Call("fetch"), "Done."), [flaky(failures, calls, retries=2)]))
    assert (texts(result), calls) == ([told], attempts)


def test_a_time_out_is_not_retried() -> None:
    desk = Desk()
    result = play(
        Agent(
            ScriptedModel(Call("hangs"), "Done."),
            [desk.tool("hangs", seconds=9.0, timeout=1.0, effect="read", retries=3)],
        )
    )
    assert (len(desk.executions), result.seconds) == (1, 1.0)


@pytest.mark.parametrize("promises", [{"retries": 1}, {"cache": 1.0}], ids=["retries", "cache"])
def test_a_write_is_neither_retried_nor_cached(promises: dict[str, Any]) -> None:
    with pytest.raises(InvalidTool, match="only a read may be"):
        tool(name="write", **promises)(lambda: "written")


@pytest.mark.parametrize("promises", [{"retries": -1}, {"cache": -1.0}], ids=["retries", "cache"])
def test_negative_settings_are_refused(promises: dict[str, Any]) -> None:
    with pytest.raises(InvalidTool, match=f"{next(iter(promises))} must be 0 "):
        tool(name="read", effect="read", **promises)(lambda: "read")


def test_a_good_result_answers_the_same_call_until_it_expires() -> None:
    desk = Desk()

    def when(n: int) -> str:
        return f"{n} at {current_clock().elapsed():g}"

    answers = [answer for n in (1, 1, 2, 1) for answer in (Call("fetch", n=n), "Done.")]
    agent = Agent(ScriptedModel(*answers), [desk.tool("fetch", when, effect="read", cache=10.0)])

    async def main() -> list[str]:
        given = texts(await agent.run("a"))
        await asyncio.sleep(9.0)
        given += texts(await agent.run("b"))
        given += texts(await agent.run("c"))
        await asyncio.sleep(1.0)
        return given + texts(await agent.run("d"))

    assert run_virtual(main()) == ["1 at 0", "1 at 0", "2 at 9", "1 at 10"]
    assert [arguments["n"] for _, arguments in desk.ran] == [1, 2, 1]


def test_an_error_is_not_cached() -> None:
    calls: list[int] = []
    agent = Agent(ScriptedModel(Call("fetch"), Call("fetch"), Call("fetch"), "Done."), [flaky(1, calls, cache=99.0)])
    assert texts(play(agent))[:2] == ["Error: gone", "fetched 0"]
    assert len(calls) == 2


def test_a_result_cached_for_one_person_is_not_given_to_another() -> None:
    """A tool that takes the context may depend on the user: `deps`, and the store of the conversation."""

    @tool(effect="read", cache=99.0)
    async def my_orders(context: CallContext[str]) -> str:
        """The orders of the current user."""
        return f"orders of {context.deps}"

    agent = Agent(ScriptedModel(*[Call("my_orders"), "Done."] * 4), [my_orders])
    ann, bob = Conversation(agent), Conversation(agent)

    async def main() -> list[str]:
        results = [await chat.say("Go.", deps=who) for chat, who in ((ann, "Ann"), (bob, "Bob"), (ann, "Ann"))]
        return [result.calls[0].result.text for result in results]

    assert run_virtual(main()) == ["orders of Ann", "orders of Bob", "orders of Ann"]


def test_results_of_a_context_tool_are_cached_within_one_run() -> None:
    calls: list[int] = []
    agent = Agent(ScriptedModel(Call("fetch"), Call("fetch"), "Done."), [flaky(0, calls, cache=99.0)])
    assert texts(play(agent)) == ["fetched 0", "fetched 0"]
    assert calls == [0]


# The context of a tool


def test_a_tool_finds_deps_key_and_position() -> None:
    found: list[CallContext[Any]] = []

    @tool
    async def look(context: CallContext[Any], n: int) -> str:
        """Look."""
        found.append(context)
        return "seen"

    deps = {"user": "me"}
    agent = Agent(ScriptedModel([Call("look", n=1), Call("look", n=1)], Call("look", n=1), "Done."), [look])
    play(agent, deps=deps, run_id="r")
    assert [(context.run, context.turn, context.name) for context in found] == [
        ("r", turn, "look") for turn in (0, 0, 1)
    ]
    assert all(context.deps is deps for context in found)
    assert len({context.key for context in found}) == 3
    again = [context.key for context in found]
    found.clear()
    play(Agent(ScriptedModel([Call("look", n=1), Call("look", n=1)], Call("look", n=1), "Done."), [look]), run_id="r")
    assert [context.key for context in found] == again


@both
def test_a_tool_reports_its_progress(is_async: bool) -> None:
    async def later(context: CallContext[Any]) -> str:
        """Work."""
        context.report("half", 0.5)
        return "done"

    def now(context: CallContext[Any]) -> str:
        """Work."""
        context.report("half", 0.5)
        return "done"

    events: list[Any] = []
    agent = Agent(ScriptedModel(Call("work"), "Done."), [tool(name="work")(later if is_async else now)])
    asyncio.run(agent.run("Go.", sinks=[events.append]))
    (progress,) = only(CallProgress, events)
    assert (progress.name, progress.message, progress.done) == ("work", "half", 0.5)


# Custom callers


def test_a_wrapper_surrounds_every_call() -> None:
    seen: list[str] = []

    class Noting(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            seen.append(f"before {call.name}")
            result = await call_next(call, context)
            seen.append(f"after {call.name}: {result.text}")
            return result

    model = ScriptedModel([Call("look"), Call("nothing")], "Done.")
    result = play(Agent(model, Desk().tools("look"), middleware=[Noting()]))
    assert seen == ["before look", "after look: look done"]
    assert texts(result)[1].startswith("Error: unknown tool `nothing`")


@pytest.mark.parametrize("error", [ValueError("the disk is full"), KeyError("x")])
def test_a_wrapper_that_raises_is_a_failure_of_the_call(error: Exception) -> None:
    class Raising(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            raise error

    result, _ = play_aloud(Agent(ScriptedModel(Call("look"), "Done."), Desk().tools("look"), middleware=[Raising()]))
    assert texts(result)[0].startswith("Error: ")
    assert result.text == "Done."


def test_a_wrapper_may_answer_without_the_tool() -> None:
    class Played(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            return ToolResult.of(call, "from the recording")

    desk = Desk()
    result = play(Agent(ScriptedModel(Call("look"), "Done."), desk.tools("look"), middleware=[Played()]))
    assert (texts(result), desk.ran) == (["from the recording"], [])


def test_a_cached_result_is_reported_as_not_executed(tmp_path: Path) -> None:
    """No start, no execution in the metrics; and a replay gives the same events, though its cache is empty."""
    desk, first, second = Desk(), tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    tools = [desk.tool("fetch", effect="read", cache=99.0)]
    agent = Agent(ScriptedModel(Call("fetch"), Call("fetch"), "Done."), tools, record=first)
    result, events = play_aloud(agent)
    assert [call.outcome for call in result.calls] == ["done", "cached"]
    assert (len(only(CallStarted, events)), len(desk.executions)) == (1, 1)
    metrics = result.metrics
    assert (metrics.tool_calls, metrics.tool_executions, metrics.duplicates_shared) == (2, 1, 1)
    Agent(ScriptedModel(), tools).replay(first, sinks=[Recorder(second)])
    assert second.read_bytes() == first.read_bytes()


def test_a_call_that_middleware_changes_does_not_get_the_cached_result_of_the_original() -> None:
    class Changes(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            if context.turn == 1:
                call, context.arguments = replace(call, arguments={"n": 2}), {"n": 2}
            return await call_next(call, context)

    desk = Desk()
    model = ScriptedModel(Call("fetch", n=1), Call("fetch", n=1), "Done.")
    _, events = play_aloud(Agent(model, [desk.tool("fetch", effect="read", cache=99.0)], middleware=[Changes()]))
    assert [arguments for _, arguments in desk.ran] == [{"n": 1}, {"n": 2}]
    assert len(only(CallStarted, events)) == 2


def test_a_resumed_run_knows_the_results_of_its_earlier_rounds() -> None:
    desk = Desk()
    model = ScriptedModel([Call("fetch", n=1)], [Call("asks")], [Call("fetch", n=1)], "Done.")
    tools = [desk.tool("fetch"), desk.tool("asks", approve=True)]
    agent = Agent(model, tools, policy=Policy(share_rounds=True), on_approval=lambda call: Wait())

    async def main() -> Result:
        waiting = await agent.run("Go.")
        return await agent.resume(waiting, {waiting.pending[0].id: Allow()})

    result = run_virtual(main())
    assert [name for name, _ in desk.ran] == ["fetch", "asks"]
    assert [bool(call.result.duplicate_of) for call in result.calls] == [False, False, True]


@pytest.mark.parametrize("shares", [True, False])
def test_a_call_that_shared_the_result_of_an_earlier_round_is_replayed_without_a_start(
    shares: bool, tmp_path: Path
) -> None:
    """Also by an agent that would run it again: the recording decides."""
    desk, path = Desk(), tmp_path / "a.jsonl"
    model = ScriptedModel([Call("act", n=1)], [Call("act", n=1)], "Done.")
    _, before = play_aloud(Agent(model, desk.tools("act"), policy=Policy(share_rounds=True), record=path))
    after: list[Event] = []
    Agent(ScriptedModel(), desk.tools("act"), policy=Policy(share_rounds=shares)).replay(path, sinks=[after.append])
    assert (after, len(desk.executions), len(only(CallStarted, after))) == (before, 1, 1)
