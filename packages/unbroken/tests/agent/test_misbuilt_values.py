"""What code around a tool call builds wrongly: results that are none, arguments that JSON cannot say. The call has one
result, the error names what was wrong, and the conversation can be saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenes import Desk, play

from unbroken import (
    Agent,
    CallContext,
    Conversation,
    Edit,
    Result,
    ScriptedModel,
    ToolCall,
    ToolResult,
    UserError,
    Wait,
    tool,
)
from unbroken.errors import MiddlewareFailed
from unbroken.middleware import Middleware
from unbroken.tools.caller import Caller
from unbroken_testing import Call, run_virtual
from unbroken_wires.messages import Media, Native, Text

RESULTS: dict[str, tuple[Callable[[ToolCall], Any], str]] = {
    "nothing": (lambda call: None, "NoneType, and no ToolResult"),
    "a text": (lambda call: "seen", "str, and no ToolResult"),
    "text as content": (lambda call: ToolResult(call.id, "seen"), "`content` is str"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "texts as content": (lambda call: built(call, content=("seen",)), "str in its content"),
    "a number as text": (lambda call: built(call, content=(Text(5),)), "Text whose `text` is no text"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "bytes as data": (lambda call: built(call, content=(Media("image/png", b"1"),)), "Media whose `data` is no text"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "a word as error": (lambda call: built(call, error="yes"), "`error` is str"),
    "a number as name": (lambda call: built(call, name=5), "`name` is int"),
    "an unknown outcome": (lambda call: built(call, ended_as="well"), "`ended_as` is 'well'"),
    "a mark of its own": (lambda call: built(call, cache="1d"), "`cache` is '1d'"),
    "no native form": (lambda call: built(call, native=5), "`native` is int"),
    "a native form with a set": (lambda call: built(call, native=Native("w", {1})), "`native` cannot be written"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
}
DEEP: dict[str, Any] = {}
inner = DEEP
for _ in range(50_000):
    inner["in"] = inner = {}
ARGUMENTS = {
    "no dict": ([1], "list, and no dict"),
    "nothing": (None, "NoneType, and no dict"),
    "a set": ({"note": {1}}, "set"),
    "nan": ({"note": math.nan}, "float"),
    "half a character": ({"note": "\ud83d"}, "surrogate"),
    "too deep": ({"note": DEEP}, "recursion"),
}


def built(call: ToolCall, **fields: Any) -> ToolResult:
    return replace(ToolResult.of(call, "seen"), **fields)


class Returning(Middleware):
    def __init__(self, build: Callable[[ToolCall], Any]) -> None:
        self._build = build

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        await call_next(call, context)
        return self._build(call)


class PassesOn(Middleware):
    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        return await call_next(replace(call, arguments=self._arguments), context)


def one_saved_result(agent: Agent[Any, Any], folder: Path) -> ToolResult:
    async def main() -> Result[Any]:
        chat = Conversation(agent)
        result = await chat.say("Go.")
        chat.save(folder / "chat.json")
        assert len(Conversation.load(agent, folder / "chat.json").messages) == len(result.messages)
        return result

    result = run_virtual(main())
    assert result.text == "Done."
    (call,) = result.calls
    return call.result


@pytest.mark.parametrize("what", RESULTS)
def test_a_misbuilt_result_of_middleware_is_an_error_that_names_it(what: str, tmp_path: Path) -> None:
    build, problem = RESULTS[what]
    agent = Agent(ScriptedModel(Call("look"), "Done."), Desk().tools("look"), middleware=[Returning(build)])
    result = one_saved_result(agent, tmp_path)
    assert result.text == "Error: the program around the tool failed (MiddlewareFailed); the details are not shown here"
    assert isinstance(result.exception, MiddlewareFailed)
    assert "the middleware `Returning` failed in `call_tool`: it returned" in str(result.exception)
    assert problem in str(result.exception)
    assert "Repair it, or leave it out of `middleware=`" in str(result.exception)


@pytest.mark.parametrize("what", RESULTS)
def test_a_tool_that_returns_a_misbuilt_result_has_one(what: str, tmp_path: Path) -> None:
    build, _ = RESULTS[what]

    @tool
    def look(context: CallContext[Any]) -> Any:
        ran.append(context.call_id)
        return build(ToolCall(context.call_id, "look", {}))

    ran: list[str] = []
    one_saved_result(Agent(ScriptedModel(Call("look"), "Done."), [look]), tmp_path)
    assert len(ran) == 1


@pytest.mark.parametrize("what", ARGUMENTS)
def test_arguments_that_are_not_json_do_not_run(what: str, tmp_path: Path) -> None:
    arguments, problem = ARGUMENTS[what]
    desk = Desk()
    agent = Agent(ScriptedModel(Call("look"), "Done."), desk.tools("look"), middleware=[PassesOn(arguments)])
    result = one_saved_result(agent, tmp_path)
    assert (result.outcome, desk.ran) == ("not_executed", [])
    assert isinstance(result.exception, MiddlewareFailed)
    assert "the middleware `PassesOn` failed in `call_tool`: the arguments that it passed on" in str(result.exception)
    assert problem in str(result.exception)


EDITS = [what for what, (arguments, _) in ARGUMENTS.items() if isinstance(arguments, dict)]


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_with_such_arguments_denies_the_call(what: str, tmp_path: Path) -> None:
    arguments, problem = ARGUMENTS[what]
    desk = Desk()
    model = ScriptedModel(Call("look"), "Done.")
    agent = Agent(model, [desk.tool("look", approve=True)], on_approval=lambda call: Edit(arguments))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    result = one_saved_result(agent, tmp_path)
    assert (result.outcome, desk.ran) == ("not_executed", [])
    assert isinstance(result.exception, UserError)
    assert problem in str(result.exception)


@pytest.mark.parametrize("what", EDITS)
def test_an_answer_with_such_arguments_is_refused_before_the_run_resumes(what: str) -> None:
    arguments, problem = ARGUMENTS[what]
    agent = Agent(
        ScriptedModel(Call("look"), "Done."), [Desk().tool("look", approve=True)], on_approval=lambda call: Wait()
    )
    waiting = play(agent)
    (call,) = waiting.pending
    with pytest.raises(UserError, match=rf"resume: the arguments of Edit\(…\) for call .* are not JSON: .*{problem}"):
        run_virtual(agent.resume(waiting, {call.id: Edit(arguments)}))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"resume: the answer for call .* is a ToolResult whose `content` is str"):
        run_virtual(agent.resume(waiting, {call.id: built(ToolCall(call.id, "look", {}), content="seen")}))
