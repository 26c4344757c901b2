"""Bugs in the user's own code: in tools, approvers, middleware, validators. Each is in the log with its traceback, the
result or the error has the exception, the model reads a sentence that gives nothing away, and the run continues."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator, model_validator
from scenes import Desk, accepted, can_go_on, play, play_aloud, texts

from unbroken import (
    Agent,
    Allow,
    CallContext,
    Conversation,
    Event,
    Limits,
    RunFailed,
    RunFinished,
    ScriptedModel,
    ToolCall,
    ToolFailed,
    ToolResult,
    UserError,
    client_tool,
    tool,
)
from unbroken.errors import AnswerInvalid, MiddlewareFailed, UnbrokenError
from unbroken.guardrails import check_calls, check_output
from unbroken.middleware import Middleware, NextRequest, RunStart
from unbroken.tools.caller import Caller
from unbroken.tools.results import Retry
from unbroken_testing import Call, run_virtual

SECRET = "postgresql://shop:hunter2@db:5432/orders"


class Unprintable(Exception):
    """Its text ends the program."""

    def __str__(self) -> str:
        raise SystemExit(9)


def kind_of(error: BaseException) -> str:
    return type(error).__name__


def traced(caplog: pytest.LogCaptureFixture, level: int, function: str) -> bool:
    """Is there one record of this level with a traceback that has this function? No record has the password."""
    assert "hunter2" not in caplog.text
    found = [
        each for each in caplog.records if "Traceback" in each.getMessage() and f"in {function}" in each.getMessage()
    ]
    return [each.levelno for each in found] == [level]


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "unbroken")


# Tools


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_exception_of_a_tool_is_in_its_result_and_its_traceback_in_the_log(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble() -> str:
        raise ValueError(f"no connection to {SECRET}") from OSError("the cable")

    async def stumble_later() -> str:
        return stumble()

    model = ScriptedModel(Call("look"), "Done.")
    result = play(Agent(model, [tool(name="look")(stumble_later if is_async else stumble)]))
    error = result.calls[0].result.exception
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, OSError)
    assert texts(result) == ["Error: no connection to postgresql://shop:***@db:5432/orders"]
    assert traced(caplog, logging.INFO, "stumble")
    assert "OSError: the cable" in caplog.text
    accepted(model, result)


@pytest.mark.parametrize("hook", ["key", "approve"])
def test_so_is_that_of_its_key_and_of_its_need_for_an_approval(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    def stumble(arguments: dict[str, Any]) -> Any:
        raise LookupError("no key")

    look = tool(name="look", key=stumble if hook == "key" else None, approve=stumble if hook == "approve" else False)
    result = play(Agent(ScriptedModel(Call("look"), "Done."), [look(lambda: "seen")]))
    assert isinstance(result.calls[0].result.exception, LookupError)
    assert traced(caplog, logging.INFO, "stumble")


@pytest.mark.parametrize("kind", [ToolFailed, Retry])
def test_what_a_tool_raises_for_the_model_is_no_bug(kind: type[ToolFailed], caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def look() -> str:
        raise kind("try the other door")

    result = play(Agent(ScriptedModel(Call("look"), "Done."), [look]))
    assert isinstance(result.calls[0].result.exception, kind)
    assert "Traceback" not in caplog.text


def test_an_exception_keeps_no_variables_alive_and_is_not_in_the_history() -> None:
    class Large:
        pass

    alive: list[weakref.ref[Large]] = []

    class Unpicklable(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("not this one")

    @tool
    def look() -> str:
        large = Large()
        alive.append(weakref.ref(large))
        try:
            raise KeyError(1)
        except KeyError as error:
            raise Unpicklable("no") from error

    async def main() -> None:
        chat = Conversation(Agent(ScriptedModel(Call("look"), "Done."), [look]))
        result = await chat.say("Go.")
        gc.collect()
        assert alive[0]() is None
        assert isinstance(result.calls[0].result.exception, Unpicklable)
        assert isinstance(result.calls[0].result.exception.__cause__, KeyError)
        assert pickle.loads(pickle.dumps(chat.messages)) == result.messages

    run_virtual(main())


# Approvers


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("error", [KeyError("hunter2"), SystemExit(3), Unprintable()], ids=kind_of)
def test_an_approver_that_fails_denies_and_its_bug_is_seen(
    error: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(call: ToolCall) -> Allow:
        raise error

    async def stumble_later(call: ToolCall) -> Allow:
        return stumble(call)

    desk = Desk()
    model = ScriptedModel(Call("pay"), "Done.")
    approver = stumble_later if is_async else stumble
    result, events = play_aloud(Agent(model, [desk.tool("pay", approve=True)], on_approval=approver))
    assert desk.names == []
    assert result.calls[0].result.exception is error
    words = f"the program around the tool failed ({type(error).__name__}); the details are not shown here"
    assert texts(result) == [f"Error: not executed: denied: the approval failed: {words}"]
    assert "hunter2" not in repr((model.bodies, events))
    (record,) = [each for each in caplog.records if "in stumble" in each.getMessage()]
    assert record.levelno == logging.WARNING


def test_what_an_approver_returned_by_mistake_is_not_shown_to_the_model(caplog: pytest.LogCaptureFixture) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise SystemExit(4)

    def approve(call: ToolCall) -> Any:
        return Hostile()

    result = play(Agent(ScriptedModel(Call("pay"), "Done."), [Desk().tool("pay", approve=True)], on_approval=approve))
    assert "on_approval returned Hostile, and not Allow(), Deny()" in texts(result)[0]
    assert "is denied: on_approval returned Hostile" in caplog.text


# Middleware around tool calls


@pytest.mark.parametrize("error", [KeyError("hunter2"), SystemExit(3), Unprintable()], ids=kind_of)
def test_middleware_that_fails_around_a_call_is_seen(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            raise error

    model = ScriptedModel(Call("look"), "Done.")
    result = play(Agent(model, Desk().tools("look"), middleware=[Broken()]))
    assert result.calls[0].result.exception is error
    words = f"the program around the tool failed ({type(error).__name__}); the details are not shown here"
    assert texts(result) == [f"Error: {words}"]
    (record,) = [each for each in caplog.records if "in call_tool" in each.getMessage()]
    assert (record.levelno, result.text) == (logging.WARNING, "Done.")
    accepted(model, result)


def test_the_bug_of_a_check_of_calls_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    def stumble(call: ToolCall) -> None:
        raise KeyError("owner")

    result = play(Agent(ScriptedModel(Call("look"), "Done."), Desk().tools("look"), middleware=[check_calls(stumble)]))
    error = result.calls[0].result.exception
    assert isinstance(error, UserError)
    assert isinstance(error.__cause__, KeyError)
    assert traced(caplog, logging.WARNING, "stumble")


# Middleware: start, end, before_request


class Broken(Middleware):
    def __init__(self, method: str, error: BaseException, log: list[str]) -> None:
        self._method, self._error, self._log = method, error, log

    def _do(self, method: str) -> None:
        self._log.append(method)
        if method == self._method:
            raise self._error

    def start(self, run: RunStart) -> Middleware:
        self._do("start")
        return self

    def end(self) -> None:
        self._do("end")

    async def before_request(self, request: NextRequest) -> None:
        self._do("before_request")


@pytest.mark.parametrize("error", [KeyError("owner"), SystemExit(3), Unprintable()], ids=kind_of)
@pytest.mark.parametrize("method", ["start", "before_request"])
def test_a_middleware_that_fails_is_named_with_its_method_and_the_others_end(
    method: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    other = Broken("", error, log)
    model = ScriptedModel("Never.")
    with pytest.raises(UserError, match=f"the middleware `Broken` failed in `{method}`: ") as caught:
        play(Agent(model, middleware=[other, Broken(method, error, [])]))
    assert type(caught.value).__name__ == "MiddlewareFailed"
    assert caught.value.__cause__ is error
    assert (log[0], log[-1], model.requests) == ("start", "end", [])
    assert traced(caplog, logging.WARNING, method) or isinstance(error, Unprintable)


@pytest.mark.parametrize("method", ["approver", "on_tools", "check_input", "check_output", "check_client_call"])
def test_so_is_one_that_fails_in_any_other_method_that_the_run_waits_for(method: str) -> None:
    def stumble(*given: Any, **options: Any) -> Any:
        raise KeyError("owner")

    here = client_tool("here", "Where are we?", {"type": "object"})
    answers = ([Call("here")], "Done.") if method == "check_client_call" else ("Done.",)
    broken: Middleware = type("Broken", (Middleware,), {method: stumble})()
    words = f"the middleware `Broken` failed in `{method}`: KeyError: 'owner'. Repair it, or leave it out"
    with pytest.raises(MiddlewareFailed, match=words) as caught:
        play(Agent(ScriptedModel(*answers), [here], middleware=[broken]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_the_library_that_middleware_raises_stays_as_it_is() -> None:
    class Mine(UnbrokenError):
        pass

    for method in ("start", "before_request"):
        with pytest.raises(Mine, match="on purpose"):
            play(Agent(ScriptedModel("Never."), middleware=[Broken(method, Mine("on purpose"), [])]))


@pytest.mark.parametrize("error", [KeyError("owner"), SystemExit(3), UserError("no"), Unprintable()], ids=kind_of)
def test_a_middleware_that_fails_at_the_end_is_logged_and_the_answer_is_kept(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel("Done."), middleware=[Broken("end", error, []), Broken("", error, log)])
        stream = agent.stream("Go.")
        events = [event async for event in stream]
        assert isinstance(events[-1], RunFinished)
        assert stream.result.text == "Done."

    run_virtual(main())
    assert log == ["start", "before_request", "end"]
    assert "The middleware Broken failed in end" in caplog.text
    assert traced(caplog, logging.WARNING, "end")


def test_a_middleware_that_fails_at_the_end_does_not_hide_why_the_run_failed() -> None:
    with pytest.raises(AnswerInvalid):
        play(Agent(ScriptedModel("No.", "No."), output=int, middleware=[Broken("end", KeyError("owner"), [])]))


def test_middleware_that_fails_at_the_time_limit_does_not_let_the_run_continue() -> None:
    class Breaks(Middleware):
        def on_time_limit(self) -> None:
            raise KeyError("owner")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        slow = Desk().tool("slow", seconds=99.0, timeout=None)
        agent = Agent(ScriptedModel(Call("slow"), "So far."), [slow], limits=Limits(seconds=2.0), middleware=[Breaks()])
        result = await agent.run("Go.")
        assert (result.stop_reason, result.text) == ("time_limit", "So far.")
        assert result.seconds < 3.0

    run_virtual(main())


# Validators of a typed answer


class Trip(BaseModel):
    city: str

    @model_validator(mode="before")
    @classmethod
    def stumble(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"city": data["town"]}


class Exits(BaseModel):
    city: str

    @field_validator("city")
    @classmethod
    def stumble(cls, value: str) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize("as_call", [False, True], ids=["text", "call"])
@pytest.mark.parametrize(("kind", "error"), [(Trip, KeyError), (Exits, SystemExit)])
def test_the_bug_of_a_validator_is_not_taken_for_a_missing_field(
    kind: type[BaseModel], error: type[BaseException], as_call: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answer: Any = Call("final_answer", city="Rome") if as_call else '{"city": "Rome"}'
    model = ScriptedModel(answer, answer)
    with pytest.raises(AnswerInvalid, match=f"a validator of its type failed \\({error.__name__}\\)") as caught:
        play(Agent(model, output=kind))
    assert isinstance(caught.value.__cause__, error)
    assert "is missing" not in repr((model.bodies, caught.value))
    assert [each.levelname for each in caplog.records if "in stumble" in each.getMessage()] == ["WARNING"] * 2
    can_go_on(caught.value.messages)


def test_an_answer_without_its_value_is_still_told_so() -> None:
    model = ScriptedModel(Call("final_answer", other=1), Call("final_answer", value=3))
    assert play(Agent(model, output=int)).output == 3
    assert "`value` is missing" in repr(model.bodies[1])


@pytest.mark.parametrize("as_call", [False, True], ids=["text", "call"])
def test_what_pydantic_found_is_the_cause_of_an_answer_that_is_refused(as_call: bool) -> None:
    answer: Any = Call("final_answer", value="three") if as_call else '"three"'
    with pytest.raises(AnswerInvalid) as caught:
        play(Agent(ScriptedModel(answer, answer), output=int))
    assert isinstance(caught.value.__cause__, ValidationError)


# Code that ends the program


def leave(*given: Any, **named: Any) -> Any:
    raise SystemExit(3)


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "instructions": lambda: {"instructions": leave},
    "tools": lambda: {"tools": leave},
    "limits": lambda: {"limits": leave},
    "trim": lambda: {"trim": leave},
    "check": lambda: {"middleware": [check_output(leave)]},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_function_of_the_agent_that_ends_the_program_fails_its_run(option: str) -> None:
    async def main() -> None:
        with pytest.raises(UserError, match="failed: it tried to end the program"):
            await Agent(ScriptedModel("Done."), **OPTIONS[option]()).run("Go.")

    asyncio.run(main())


@pytest.mark.parametrize("method", ["on_tools", "check_input", "check_output", "ask_model"])
def test_middleware_that_ends_the_program_fails_its_run(method: str) -> None:
    leaving = type("Leaving", (Middleware,), {method: leave})()
    events: list[Event] = []
    agent = Agent(ScriptedModel("Done."), middleware=[leaving], sinks=[events.append])
    who = "model `scripted:demo` failed" if method == "ask_model" else f"the middleware `Leaving` failed in `{method}`"
    with pytest.raises(UnbrokenError, match=f"{who}: it tried to end the program"):
        asyncio.run(agent.run("Go."))
    assert isinstance(events[-1], RunFailed)


def test_a_sink_that_ends_the_program_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    def sink(event: Event) -> None:
        raise SystemExit(3)

    assert play(Agent(ScriptedModel("Done."), sinks=[sink])).text == "Done."
    assert "A sink failed on RunStarted" in caplog.text


def test_an_exception_whose_text_ends_the_program_is_named_by_its_type() -> None:
    @tool
    async def look() -> str:
        raise Unprintable

    @tool
    async def several() -> str:
        raise ExceptionGroup("both", [Unprintable(), Unprintable()])

    result = play(Agent(ScriptedModel([Call("look"), Call("several")], "Done."), [look, several]))
    assert texts(result) == ["Error: Unprintable", "Error: both (2 sub-exceptions): Unprintable"]


def test_an_interrupt_in_an_approver_is_still_the_users() -> None:
    async def interrupt(call: ToolCall) -> Allow:
        raise KeyboardInterrupt

    agent = Agent(ScriptedModel(Call("pay"), "Done."), [Desk().tool("pay", approve=True)], on_approval=interrupt)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(agent.run("Go."))


# Tools that block the event loop


def blocking(seconds: float, awaits: bool, **promises: Any) -> Any:
    @tool(**promises)
    async def blocks() -> str:
        """Virtual time passes, and the event loop gets no turn meanwhile."""
        asyncio.get_running_loop().clock.advance(seconds)  # type: ignore[attr-defined] - the virtual loop has it
        if awaits:
            await asyncio.sleep(9.0)
        return "done"

    return blocks


@pytest.mark.parametrize(("awaits", "text"), [(False, "done"), (True, "Error: Execution timeout after 5s")])
def test_a_tool_that_blocks_the_event_loop_past_its_time_out_is_reported(
    awaits: bool, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be stopped. If it ended meanwhile, its result is known, and counts."""
    agent = Agent(ScriptedModel(Call("blocks"), "Done."), [blocking(60.0, awaits, timeout=5.0)])
    result = play(agent)
    assert texts(result) == [text]
    (record,) = [each for each in caplog.records if "blocks the event loop" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("Tool blocks (id=call_r0c0) could not be stopped at its time-out of 5s")
    assert "went on for 55.0s" in record.getMessage()


@pytest.mark.parametrize("timeout", [5.0, None])
def test_a_tool_that_ends_in_time_or_has_none_is_not_reported(
    timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    play(Agent(ScriptedModel(Call("blocks"), "Done."), [blocking(4.0, False, timeout=timeout)]))
    assert "blocks the event loop" not in caplog.text
