"""Instructions, tools, limits and histories that functions choose; options of one run; overrides for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from unbroken import Agent, Allow, CallContext, Limits, ScriptedModel, Wait, tool
from unbroken.agent.recorded_agent import agent_of
from unbroken.errors import UserError
from unbroken.tools.context import RunContext
from unbroken.tools.search import ToolSearch
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, TestModel, run_virtual
from unbroken_testing.unscripted import example
from unbroken_wires.messages import Message, System


@dataclass
class User:
    name: str
    admin: bool = False


@tool(effect="read")
async def look(what: str) -> str:
    """Looks at something."""
    return f"{what} is there"


@tool
async def delete(context: CallContext[User], what: str) -> str:
    """Deletes something."""
    return f"{context.deps.name} deleted {what}"


def systems(model: ScriptedModel) -> list[str]:
    return [request.messages[0].text for request in model.requests if isinstance(request.messages[0], System)]


def test_instructions_are_written_before_each_request_with_the_context_of_the_run(tmp_path: Path) -> None:
    async def write(context: RunContext[User]) -> str:
        await asyncio.sleep(0.1)
        return f"For {context.deps.name}. Turn {context.turn}, {len(context.messages)} messages: {context.prompt}"

    model = ScriptedModel(Call("look", what="it"), "Done.")
    agent: Agent[User, Any] = Agent(model, [look], write, guidance=False, deps=User("Ada"), record=tmp_path)
    result = run_virtual(agent.run("Go."))
    assert systems(model) == [
        "For Ada. Turn 0, 1 messages: Go.",
        "For Ada. Turn 1, 3 messages: Go.",
    ]
    (file,) = tmp_path.iterdir()
    assert agent.replay(file).messages == agent_of(read_recording(file)).replay(file).messages == result.messages


def test_guidance_follows_written_instructions_in_their_language() -> None:
    model = ScriptedModel("好。")
    run_virtual(Agent(model, [look], lambda context: "你是助手。").run("你好"))
    assert systems(model)[0].startswith("你是助手。\n\n")


def test_tools_are_chosen_by_the_context_of_the_run() -> None:
    async def choose(context: RunContext[User]) -> Sequence[Any]:
        await asyncio.sleep(0.1)
        return [look, delete] if context.deps.admin else [look]

    model = ScriptedModel("One.", "Two.")
    agent: Agent[User, Any] = Agent(model, choose)
    run_virtual(agent.run("Go.", deps=User("Ada", admin=True)))
    run_virtual(agent.run("Go.", deps=User("Bob")))
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["look", "delete"], ["look"]]


def test_limits_and_history_are_chosen_too() -> None:
    async def limits(context: RunContext[User]) -> Limits:
        return Limits(rounds=5 if context.deps.admin else 0)

    async def last_two(context: RunContext[User], messages: tuple[Message, ...]) -> Sequence[Message]:
        return messages[-2:] if context.turn else messages

    model = ScriptedModel(Call("look", what="a"), Call("look", what="b"), "Done.")
    agent: Agent[User, Any] = Agent(model, [look], limits=limits, trim=last_two)
    assert run_virtual(agent.run("Go.", deps=User("Ada", admin=True))).stop_reason == "answered"
    assert [len(request.messages) for request in model.requests] == [2, 4, 4]  # with instructions and prompt
    model = ScriptedModel("Nothing.")
    result = run_virtual(Agent(model, [look], limits=limits).run("Go.", deps=User("Bob")))
    assert result.stop_reason == "round_limit"


def test_a_chosen_limit_of_cost_needs_a_price() -> None:
    agent = Agent(ScriptedModel("Hi."), limits=lambda context: Limits(cost=1.0))
    with pytest.raises(UserError, match="the price of `scripted:demo` is not known"):
        run_virtual(agent.run("Go."))


@pytest.mark.parametrize("part", ["instructions", "tools", "limits", "trim"])
def test_a_function_that_fails_is_named(part: str) -> None:
    def broken(context: RunContext[Any], *more: Any) -> Any:
        raise KeyError("oops")

    def of_context(context: RunContext[Any]) -> Any:
        return broken(context)

    options: dict[str, Any] = {part: broken if part == "trim" else of_context}
    with pytest.raises(UserError, match=rf"the function given as {part}= failed: KeyError: 'oops'"):
        run_virtual(Agent(ScriptedModel("Hi."), **options).run("Go."))


def test_a_function_that_returns_something_else_is_named() -> None:
    def wrong(context: RunContext[Any]) -> Any:
        return 5

    with pytest.raises(UserError, match="instructions= returned 5, and not a text"):
        run_virtual(Agent(ScriptedModel("Hi."), instructions=wrong).run("Go."))
    with pytest.raises(UserError, match="limits= returned 5, and not Limits"):
        run_virtual(Agent(ScriptedModel("Hi."), limits=wrong).run("Go."))


def test_one_run_has_another_model_instructions_and_tools() -> None:
    usual, other = ScriptedModel("Usual."), ScriptedModel(Call("look", what="it"), "Other.")
    agent = Agent(usual, instructions="Usual.", guidance=False)
    result = run_virtual(agent.run("Go.", model=other, instructions="Other.", tools=[look]))
    assert (result.text, systems(other)) == ("Other.", ["Other.", "Other."])
    assert run_virtual(agent.run("Go.")).text == "Usual."
    assert (systems(usual), usual.requests[0].tools) == (["Usual."], ())


def test_a_waiting_run_with_its_own_tools_is_resumed_with_them() -> None:
    @tool(approve=True)
    async def ask() -> str:
        """Asks."""
        return "asked"

    agent = Agent(ScriptedModel("Never."), on_approval=None)
    model = ScriptedModel(Call("ask", id="c"), "Done.")

    async def main() -> str:
        waiting = Agent(model, [ask], on_approval=lambda call: Wait())
        result = await waiting.run("Go.")
        return (await agent.resume(result, {"c": Allow()}, model=model, tools=[ask])).text

    assert run_virtual(main()) == "Done."


def test_overrides_win_over_what_the_code_says_and_end_with_their_block() -> None:
    agent: Agent[User, Any] = Agent(ScriptedModel("Real.", "Real."), [look], "Usual.", guidance=False)

    async def application() -> str:
        return (await agent.run("Go.", instructions="Own.", deps=User("Ada"))).text

    fake = TestModel(text="Fake.")
    with agent.override(model=fake, instructions="Test.", deps=User("Bob")):
        assert run_virtual(application()) == "Fake."
        with agent.override(tools=[]):
            assert agent.run_sync("Go.").text == "Fake."
    assert fake.requests[0].messages[0] == System.of("Test.")
    assert [len(request.tools) for request in fake.requests] == [1, 1, 0]
    assert run_virtual(application()) == "Real."
    with pytest.raises(UserError, match="modle"), agent.override(modle=fake):  # type: ignore[call-arg]
        pass


class Place(BaseModel):
    city: str = Field(min_length=3)
    people: int = Field(gt=10, multiple_of=7)
    kind: Literal["town", "village"]
    near: list[Place] = Field(default_factory=list[Any])


@tool(effect="read")
async def by_id(id: int, after: str) -> str:
    """Look something up."""
    return f"{id} {after}"


def test_the_test_model_calls_every_tool_once_and_gives_an_answer_that_fits() -> None:
    agent: Agent[User, Any] = Agent(TestModel(), [look, delete], deps=User("Ada"))
    result = run_virtual(agent.run("Go."))
    assert [(call.name, call.arguments, call.error) for call in result.calls] == [
        ("look", {"what": "a"}, False),
        ("delete", {"what": "a"}, False),
    ]
    assert result.text == "look: a is there; delete: Ada deleted a"
    typed = run_virtual(Agent(TestModel(call=["look"]), [look, delete], output=Place).run("Go."))
    assert (typed.output, [call.name for call in typed.calls]) == (
        Place(city="aaa", people=14, kind="town"),
        ["look", "final_answer"],
    )
    ids = run_virtual(Agent(TestModel(), [by_id]).run("Go."))
    assert ids.calls[0].arguments == {"id": 0, "after": "a"}  # names that a scripted call has for itself
    assert run_virtual(Agent(TestModel(text="Hi."), several_calls=False, tools=[look, delete]).run("Go.")).text == "Hi."


def test_examples_fit_many_schemas() -> None:
    for schema, expected in (
        ({"type": "number", "exclusiveMinimum": 1}, 1.5),
        ({"type": "integer", "maximum": -5}, -5),
        ({"type": "integer", "exclusiveMaximum": -5}, -6),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"const": 4}}}, 4),
        ({"allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}]}, {"a": None}),
        ({"type": ["string", "null"]}, "a"),
        ({"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1}, 0.75),
        ({"type": "integer", "minimum": 1.5}, 2),
        ({"allOf": [{"type": "integer"}, {"$ref": "#/$defs/A"}], "$defs": {"A": {"minimum": 5}}}, 5),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "uniqueItems": True}, [0, 1]),
        ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}}, {"key0": 0}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, None),
    ):
        assert example(schema) == expected


class Tree(BaseModel):
    value: int
    left: Tree | None
    right: Tree | None
    others: list[Tree]


def test_an_example_of_a_type_that_is_nested_in_itself_is_small() -> None:
    @tool
    async def plant(tree: Tree) -> str:
        """Plants a tree."""
        return tree.model_dump_json()

    result = run_virtual(Agent(TestModel(), [plant]).run("Go."))
    assert result.text == 'plant: {"value":0,"left":null,"right":null,"others":[]}'


def test_a_function_may_return_one_source_or_a_search_and_nothing_is_named() -> None:
    def offered(chosen: object) -> list[str]:
        model = ScriptedModel("Hi.")

        def choose(context: RunContext[Any]) -> Any:
            return chosen

        run_virtual(Agent(model, choose).run("Go."))
        return [spec.name for spec in model.requests[0].tools]

    assert offered(look) == ["look"]
    assert offered([ToolSearch(look, delete)]) == offered(ToolSearch(look, delete)) == ["search_tools"]
    with pytest.raises(UserError, match="tools= returned None; return a list of tools, which may be empty"):
        offered(None)
