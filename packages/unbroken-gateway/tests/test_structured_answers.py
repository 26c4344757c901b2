"""An agent with a type for its answer, whose model is the gateway: it works for each pair of the client's wire and the
model's wire, by structured output and by a call, over real HTTP. The model refuses what its provider would refuse."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from gateway_client import PAIRS, PROVIDERS, SOME_PAIRS, serving, settings_for, upstream_settings
from pydantic import BaseModel

from unbroken import Agent, Output, Request, connect, tool
from unbroken.agent.output import ANSWER, Via
from unbroken.models.structured_output import IN_WORDS
from unbroken_testing import Call, ScriptedServer
from unbroken_wires.messages import ToolMessage


class Report(BaseModel):
    city: str
    celsius: int | None = None
    sky: Literal["clear", "cloudy"]


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: clear, 24"


ANSWERED: dict[str, Any] = {"city": "Rome", "celsius": 24, "sky": "clear"}
SAID = '{"city": "Rome", "celsius": 24, "sky": "clear"}'
NEVER_BESIDE_TOOLS = ("cohere-v2",)
"""Wires on which a request has a schema or tools, but not both."""


def answer(request: Request) -> Any:
    """Looks at the weather once, if it can, and then answers in the way that it was asked for."""
    names = [tool.name for tool in request.tools]
    if "get_weather" in names and not any(isinstance(message, ToolMessage) for message in request.messages):
        return Call("get_weather", city="Rome")
    return Call(ANSWER, ANSWERED) if ANSWER in names else SAID


async def ask(client: str, upstream: str, via: Via, tools: list[Any]) -> tuple[Any, ScriptedServer]:
    async with (
        ScriptedServer(answer, loop_last=True) as server,
        serving(settings_for(upstream_settings(server, upstream))) as url,
    ):
        base = f"{url}/v1" if client.startswith("openai") else url
        model = connect(f"{PROVIDERS[client]}:m", base_url=base, wire=client, api_key="k")
        result = await Agent(model, tools).run("How is Rome?", output=Output(Report, via=via))
    return result, server


@pytest.mark.parametrize("tools", [[], [get_weather]], ids=["alone", "with a tool"])
@pytest.mark.parametrize(("client", "upstream"), SOME_PAIRS)
def test_an_agent_gets_its_type_through_the_gateway(client: str, upstream: str, tools: list[Any]) -> None:
    async def main() -> None:
        for via in ("auto", "tool"):
            result, _ = await ask(client, upstream, via, tools)
            assert result.output == Report(**ANSWERED), via
            assert result.requests == 1 + len(tools)

    asyncio.run(main())


@pytest.mark.parametrize(("client", "upstream"), SOME_PAIRS)
def test_the_schema_of_the_answer_reaches_the_model_through_the_gateway(client: str, upstream: str) -> None:
    async def main() -> None:
        result, server = await ask(client, upstream, "native", [])
        assert (result.output, result.requests) == (Report(**ANSWERED), 1)
        sent = json.dumps(server.bodies[-1])
        assert "celsius" in sent
        assert ANSWER not in sent
        assert IN_WORDS.partition("\n")[0] not in sent

    asyncio.run(main())


@pytest.mark.parametrize("client", [client for client, _ in PAIRS[:: len(PROVIDERS)] if client != "cohere-v2"])
@pytest.mark.parametrize("upstream", NEVER_BESIDE_TOOLS)
def test_a_model_that_takes_no_schema_beside_tools_gets_it_in_words(client: str, upstream: str) -> None:
    async def main() -> None:
        result, server = await ask(client, upstream, "native", [get_weather])
        assert (result.output, result.requests) == (Report(**ANSWERED), 2)
        sent = json.dumps(server.bodies[-1])
        assert IN_WORDS.partition("\n")[0] in sent
        assert "response_format" not in sent

    asyncio.run(main())
