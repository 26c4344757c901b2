"""Structured answers by the provider's own structured output, over real HTTP: the server refuses what the provider
would refuse, and a model that does not have it is asked for a call instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import pytest
from pydantic import BaseModel, Field
from scenes import can_go_on
from typing_extensions import TypedDict

from unbroken import Agent, Conversation, Limits, Output, Policy, Request, connect, tool
from unbroken.agent.output import ANSWER
from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.agent.recorded_state import ended_result
from unbroken.errors import AnswerInvalid, ProviderError, RequestRefused, UserError
from unbroken.models.http import HTTPModel
from unbroken.models.retrying import RetryingModel
from unbroken.models.structured_output import why_not_native
from unbroken.tools.results import Retry
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Break, Call, Fail, Say, ScriptedServer, TestModel, run_virtual
from unbroken_wires.messages import OutputSchema, ToolMessage


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


ROME = City(name="Rome", people=3)
SAID = '{"name": "Rome", "people": 3}'


@tool(effect="read")
async def look(city: str) -> str:
    """Looks at a city."""
    return f"{city} is there"


# One model for each family: whether it gets a schema without tools, and beside them.
FAMILIES = [
    ("openai-responses:gpt-5", True, True),
    ("openai-responses:gpt-4", False, False),
    ("xai:grok-4", True, True),
    ("xai:grok-3", True, False),
    ("mistral:mistral-large-latest", True, False),
    ("deepseek:deepseek-chat", False, False),
    ("compatible:anything", False, False),
    ("anthropic:claude-sonnet-4-5", True, True),
    ("anthropic:claude-3-7-sonnet-latest", False, False),
    ("gemini:gemini-3-pro-preview", True, True),
    ("gemini:gemini-2.5-pro", True, False),
    ("cohere:command-a-03-2025", True, False),
    ("ollama:qwen3", True, False),
    ("bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0", True, True),
    ("bedrock:anthropic.claude-opus-4-7-v1:0", False, False),
    ("bedrock:amazon.nova-pro-v1:0", False, False),
]
NATIVE = [name for name, alone, _ in FAMILIES if alone]
FIELDS = ("response_format", "text", "output_config", "format", "outputConfig")


def server_of(model: str, *script: Any, **options: Any) -> ScriptedServer:
    return ScriptedServer(*script, provider=model.partition(":")[0], **options)


def model_of(name: str, server: ScriptedServer, **settings: Any) -> HTTPModel:
    wire = {"wire": "ollama"} if name.startswith("ollama") else {}
    wires = {
        "anthropic": "anthropic-messages",
        "gemini": "gemini",
        "cohere": "cohere-v2",
        "bedrock": "bedrock-converse",
    }
    spoken = wires.get(name.partition(":")[0], wire.get("wire", "openai-chat"))
    return connect(name, base_url=server.base_url(spoken), api_key="k", **wire, **settings).model


def is_native(body: dict[str, Any]) -> bool:
    return any(field in body for field in FIELDS) or "responseJsonSchema" in body.get("generationConfig", {})


def told_by(request: Request, said: str = SAID, called: dict[str, Any] | None = None) -> Any:
    names = [each.name for each in request.tools]
    if "look" in names and not any(isinstance(message, ToolMessage) for message in request.messages):
        return Call("look", city="Rome")
    return Call(ANSWER, called or ROME.model_dump()) if ANSWER in names else Say(said)


@pytest.mark.parametrize("tools", [[], [look]], ids=["alone", "with a tool"])
@pytest.mark.parametrize(("name", "alone", "beside"), FAMILIES)
def test_each_family_of_models_is_asked_in_the_way_that_it_accepts(
    name: str, alone: bool, beside: bool, tools: list[Any]
) -> None:
    async def main() -> None:
        async with server_of(name, told_by, loop_last=True) as server:
            result = await Agent(model_of(name, server), tools).run("Which city?", output=City)
            assert (result.output, result.stop_reason) == (ROME, "answered")
            assert json.loads(result.text) == ROME.model_dump()
            assert result.warnings == ()
            native = beside if tools else alone
            assert [is_native(body) for body in server.bodies] == [native] * (1 + len(tools))
            assert [ANSWER in json.dumps(body) for body in server.bodies] == [not native] * (1 + len(tools))
            can_go_on(result.messages)

    asyncio.run(main())


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(min_length=1)


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    colors: list[Color] = []


@dataclass
class Point:
    x: float
    y: float = 0.0


class Box(TypedDict):
    width: int
    label: NotRequired[str]


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


KINDS = [
    pytest.param(int, {"value": 7}, 7, id="int"),
    pytest.param(bool, {"value": True}, True, id="bool"),
    pytest.param(list[str], {"value": ["a", "b"]}, ["a", "b"], id="list of texts"),
    pytest.param(Literal["yes", "no"], {"value": "no"}, "no", id="literal"),
    pytest.param(Color, {"value": "blue"}, Color.BLUE, id="enum"),
    pytest.param(Cat | Dog, {"value": {"kind": "dog", "name": "Rex"}}, Dog(kind="dog", name="Rex"), id="union"),
    pytest.param(int | None, {"value": None}, None, id="optional"),
    pytest.param(Point, {"x": 1.5, "y": 0.0}, Point(1.5), id="dataclass"),
    pytest.param(Box, {"width": 2}, {"width": 2}, id="typed dict"),
    pytest.param(
        Home, {"pet": {"kind": "cat", "lives": 7}, "colors": ["red"]},
        Home(pet=Cat(kind="cat", lives=7), colors=[Color.RED]), id="nested model",
    ),
    pytest.param(dict[str, int], {"a": 1}, {"a": 1}, id="dict"),
    pytest.param(tuple[int, str], {"value": [1, "a"]}, (1, "a"), id="tuple"),
    pytest.param(Tree, {"value": {"name": "a", "children": []}}, Tree(name="a"), id="recursive model"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "said", "output"), KINDS)
@pytest.mark.parametrize("name", NATIVE)
def test_every_type_is_written_so_that_the_provider_accepts_it(
    name: str, kind: Any, said: dict[str, Any], output: Any
) -> None:
    """By a call, where the provider's structured output cannot express the type."""

    def answer(request: Request) -> Any:
        return told_by(request, json.dumps(said), said)

    async def main() -> None:
        async with server_of(name, answer) as server:
            result = await Agent(model_of(name, server)).run("?", output=kind)
            assert result.output == output

    asyncio.run(main())


@pytest.mark.parametrize("name", NATIVE)
def test_an_answer_that_does_not_match_is_corrected_once(name: str) -> None:
    async def main() -> None:
        async with server_of(name, '{"name": "Rome", "people": -1}', SAID) as server:
            result = await Agent(model_of(name, server)).run("?", output=City)
            assert (result.output, result.requests) == (ROME, 2)
            assert "`people`" in json.dumps(server.bodies[1])
            assert is_native(server.bodies[1])
        async with server_of(name, '{"name": "Rome"}', "Rome.") as server:
            with pytest.raises(AnswerInvalid, match="the answer is not JSON") as caught:
                await Agent(model_of(name, server)).run("?", output=City)
            can_go_on(caught.value.messages)

    asyncio.run(main())


@pytest.mark.parametrize("name", [name for name, _, beside in FAMILIES if beside])
def test_at_a_limit_the_model_cannot_call_tools_and_has_to_answer(name: str) -> None:
    async def main() -> None:
        async with server_of(name, Call("look", city="Rome"), SAID) as server:
            result = await Agent(model_of(name, server), [look], limits=Limits(rounds=1)).run("?", output=City)
            assert (result.output, result.stop_reason) == (ROME, "round_limit")
            assert is_native(server.bodies[1])
            assert result.warnings == ()

    asyncio.run(main())


def test_a_check_of_the_output_may_ask_for_another_one() -> None:
    async def main() -> None:
        async with server_of("openai-responses:gpt-5", '{"name": "rome", "people": 3}', SAID) as server:
            agent = Agent(model_of("openai-responses:gpt-5", server), output=City)

            @agent.check_output
            def is_a_name(city: City) -> City:
                if city.name.islower():
                    raise Retry("write names with a capital letter")
                return City(name=city.name.upper(), people=city.people)

            result = await agent.run("?")
            assert result.output == City(name="ROME", people=3)
            assert json.loads(result.text) == {"name": "ROME", "people": 3}

    asyncio.run(main())


def test_a_provider_that_refuses_the_schema_is_reported_with_the_way_out() -> None:
    refused = Fail(ProviderError("Unknown parameter: text.format", status=400))

    async def main() -> None:
        async with ScriptedServer(refused, Call(ANSWER, ROME.model_dump())) as server:
            agent = Agent(model_of("openai-responses:gpt-5", server))
            with pytest.raises(RequestRefused, match=r'output=Output\(…, via="tool"\)'):
                await agent.run("?", output=City)
            assert (await agent.run("?", output=Output(City, via="tool"))).output == ROME

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("anthropic:claude-3-7-sonnet-latest", City, "known since Claude 4.1"),
        ("cohere:command-a-03-2025", City, "no schema in a request with tools"),
        ("anthropic:claude-sonnet-4-5", Tree, "cannot express this type"),
    ],
)
def test_structured_output_that_a_model_does_not_have_cannot_be_forced(name: str, kind: Any, why: str) -> None:
    async def main() -> None:
        async with server_of(name) as server:
            with pytest.raises(UserError, match=why):
                await Agent(model_of(name, server), [look]).run("?", output=Output(kind, via="native"))
            assert server.bodies == []

    asyncio.run(main())


def test_a_server_that_is_not_known_can_be_asked_for_structured_output() -> None:
    async def main() -> None:
        async with ScriptedServer(SAID) as server:
            result = await Agent(model_of("compatible:m", server)).run("?", output=Output(City, via="native"))
            assert result.output == ROME
            format = server.bodies[0]["response_format"]["json_schema"]
            assert (format["name"], format["strict"]) == ("City", True)

    asyncio.run(main())


def test_a_fallback_with_another_way_to_answer_takes_over() -> None:
    async def main() -> None:
        async with (
            server_of("openai-responses:gpt-5", Fail(ProviderError("down", status=500)), loop_last=True) as first,
            server_of("anthropic:claude-3-7", Call(ANSWER, ROME.model_dump())) as second,
        ):
            model = RetryingModel(
                model_of("openai-responses:gpt-5", first),
                fallback=[model_of("anthropic:claude-3-7-sonnet-latest", second)],
                attempts=2,
                first_wait=0.01,
            )
            assert (await Agent(model, output=City).run("?")).output == ROME
        assert is_native(first.bodies[0])
        assert not is_native(second.bodies[0])

    asyncio.run(main())


def test_a_history_with_calls_of_the_answer_tool_goes_on_with_it() -> None:
    """Providers refuse a history with calls of a tool that is not offered."""

    async def main() -> None:
        by_call = Call(ANSWER, ROME.model_dump())
        async with server_of("anthropic:claude-sonnet-4-5", by_call, by_call) as server:
            model = model_of("anthropic:claude-sonnet-4-5", server)
            chat = Conversation(Agent(model))
            await chat.say("?", output=Output(City, via="tool"))
            assert (await chat.say("Again?", output=City)).output == ROME
            assert not is_native(server.bodies[1])

    asyncio.run(main())


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([SAID], id="at once"),
        pytest.param([Call("look", city="Rome"), SAID], id="after a call"),
        pytest.param(['{"name": "Rome", "people": -1}', SAID], id="corrected"),
        pytest.param([[Say('{"name": "Ro'), Break()], SAID], id="broken"),
        pytest.param(["no JSON", "still none"], id="invalid"),
    ],
)
@pytest.mark.parametrize("via", ["auto", "native"])
def test_a_recorded_run_replays_with_and_without_its_code(script: list[Any], via: Any, tmp_path: Path) -> None:
    output, path = Output(City, via=via), tmp_path / "run.jsonl"

    async def main(agent_made: Callable[[HTTPModel], Agent[Any, Any]]) -> tuple[str, Any]:
        async with server_of("openai-responses:gpt-5", *script) as server:
            model: Any = RetryingModel(model_of("openai-responses:gpt-5", server), attempts=2, first_wait=0.01)
            try:
                result = await agent_made(model).run("?", run_id="run")
            except AnswerInvalid as error:
                return str(error), None
            return result.text, result.output

    agents: list[Agent[Any, Any]] = []

    def recording(model: Any) -> Agent[Any, Any]:
        agents.append(Agent(model, [look], output=output, record=tmp_path))
        return agents[0]

    text, value = asyncio.run(main(recording))
    path = next(tmp_path.glob("*.jsonl"))
    recorded = read_recording(path)
    if value is None:
        for replay in (
            lambda: agents[0].replay(path),
            lambda: agent_of(recorded).replay(recorded, output=output_of(recorded)),
        ):
            with pytest.raises(AnswerInvalid):
                replay()
        return
    again = agents[0].replay(path)
    assert (again.text, again.output) == (text, value)
    rebuilt = agent_of(recorded).replay(recorded, output=output_of(recorded))
    assert json.loads(rebuilt.text) == json.loads(text)
    assert ended_result(recorded, output).output == value


@pytest.mark.parametrize("via", ["auto", "native"])
def test_a_run_whose_process_died_is_resumed_with_structured_output(via: Any, tmp_path: Path) -> None:
    name, output = "openai-responses:gpt-5", Output(City, via=via)

    async def main() -> None:
        async with server_of(name, Call("look", city="Rome"), SAID, SAID) as server:
            agent = Agent(model_of(name, server), [look], output=output, record=tmp_path)
            await agent.run("?")
            path = next(tmp_path.glob("*.jsonl"))
            lines = path.read_bytes().splitlines(keepends=True)
            second = [n for n, line in enumerate(lines) if b'"line":"request"' in line][1]
            path.write_bytes(b"".join(lines[: second + 1]))
            result = await agent.resume(path)
            assert (result.output, [call.name for call in result.calls]) == (ROME, ["look"])
            assert is_native(server.bodies[2])

    asyncio.run(main())


@pytest.mark.parametrize("via", ["auto", "native", "tool"])
@pytest.mark.parametrize(("kind", "said", "output"), KINDS)
def test_the_model_for_tests_gives_an_answer_of_every_type(kind: Any, said: Any, output: Any, via: Any) -> None:
    model = TestModel()
    result = run_virtual(Agent(model, [look]).run("?", output=Output(kind, via=via)))
    assert Output(kind).read_text(result.text) == result.output
    assert [call.name for call in result.calls] == ["look"] + [ANSWER] * (via != "native")


def test_a_choice_of_the_answer_tool_means_nothing_without_it() -> None:
    model = TestModel()
    agent = Agent(model, policy=Policy(choice=ANSWER), output=Output(int, via="native"))
    assert run_virtual(agent.run("?")).output == 0
    assert model.requests[0].choice is None


def test_how_an_answer_is_given_is_one_of_three_ways() -> None:
    with pytest.raises(UserError, match=r"Output\(via='json'\)"):
        Output(City, via="json")  # pyright: ignore[reportArgumentType]


def test_a_model_is_judged_by_its_rules() -> None:
    schema = OutputSchema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    assert why_not_native("gemini", "gemini", "gemini-2.5-pro", schema, beside_tools=False) == ""
    assert "tools" in why_not_native("gemini", "gemini", "gemini-2.5-pro", schema, beside_tools=True)
    assert why_not_native("gemini", "gemini", "gemini-3-pro-preview", schema, beside_tools=True) == ""
