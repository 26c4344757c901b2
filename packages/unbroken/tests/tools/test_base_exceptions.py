"""Tools that raise base exceptions: it is their failure, the other calls get results, and the run continues. Only an
interrupt on the event loop comes from the user, and ends the run with a valid history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, play, results_in, texts, under_every_schedule

from unbroken import Agent, Conversation, Schedule, ScriptedModel, tool
from unbroken_testing import Call, run_virtual


class Odd(BaseException):
    """As test frameworks raise it."""


RAISED = [
    (SystemExit(3), "it tried to end the program (exit code 3)"),
    (GeneratorExit(), "GeneratorExit"),
    (asyncio.CancelledError(), "CancelledError"),
    (Odd("odd"), "odd"),
    (StopAsyncIteration(), "StopAsyncIteration"),
    (ExceptionGroup("several", [ValueError("one of them")]), "several (1 sub-exception): one of them"),
    (BaseExceptionGroup("several", [KeyboardInterrupt()]), "several (1 sub-exception): KeyboardInterrupt"),
]
IDS = [type(error).__name__ for error, _ in RAISED]


def raising(error: BaseException, is_async: bool, **promises: Any) -> Any:
    def bad() -> str:
        raise error

    async def bad_async() -> str:
        raise error

    return tool(name="bad", **promises)(bad_async if is_async else bad)


@under_every_schedule
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("error", "words"), RAISED, ids=IDS)
def test_it_only_fails_its_own_call(error: BaseException, words: str, is_async: bool, schedule: Schedule) -> None:
    desk = Desk()
    model = ScriptedModel([Call("look", n=1), Call("bad"), Call("look", n=2)], "Done.")
    result = play(Agent(model, [raising(error, is_async), desk.tool("look", seconds=1.0)], schedule=schedule))
    first, failed, last = texts(result)
    assert (first, last, result.text) == ("ok", "ok", "Done.")
    assert failed.startswith("Error: ")
    assert words in failed
    accepted(model, result)


@under_every_schedule
def test_an_interrupt_raised_in_a_thread_is_a_failure_of_the_call(schedule: Schedule) -> None:
    model = ScriptedModel([Call("bad"), Call("look")], "Done.")
    agent = Agent(model, [raising(KeyboardInterrupt(), is_async=False), *Desk().tools("look")], schedule=schedule)
    assert texts(asyncio.run(agent.run("Go."))) == ["Error: KeyboardInterrupt", "look done"]


@under_every_schedule
def test_an_interrupt_on_the_loop_ends_the_run_with_every_call_answered(schedule: Schedule) -> None:
    chat = Conversation(
        Agent(
            ScriptedModel([Call("look"), Call("bad"), Call("look", n=2)], "Done."),
            [raising(KeyboardInterrupt(), is_async=True), Desk().tool("look", seconds=1.0)],
            schedule=schedule,
        )
    )
    with pytest.raises(KeyboardInterrupt):
        run_virtual(chat.say("Go."))
    assert len(results_in(chat.messages)) == 3
    can_go_on(chat.messages)
    assert run_virtual(chat.say("And now?")).text == "Done."


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_base_exception_is_not_retried(is_async: bool) -> None:
    ran: list[int] = []

    def bad() -> str:
        ran.append(1)
        raise Odd("odd")

    async def bad_async() -> str:
        return bad()

    look = tool(name="bad", effect="read", retries=3)(bad_async if is_async else bad)
    play(Agent(ScriptedModel(Call("bad"), "Done."), [look]))
    assert ran == [1]
