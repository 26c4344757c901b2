"""Code that waits in a container while the gateway releases calls one at a time: the container goes back with them,
whatever the client kept. Other wires have no place for it, and their clients are told."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_client import Reply, run, stage

from unbroken_testing import Call, ProviderCall
from unbroken_wires.messages import User

Object = dict[str, Any]
WIRE = "anthropic-messages"
CODE = {"code": "print(1)"}
WAITS = ProviderCall("code_execution", CODE, id="srvtoolu_1", part="call")
RAN = ProviderCall("code_execution", result="1", id="srvtoolu_1", part="result")
TWO = [WAITS, Call("get_weather", city="Oslo", id="toolu_1"), Call("get_weather", city="Rome", id="toolu_2")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", [WIRE, "openai-chat"])
def test_the_container_goes_back_when_the_calls_of_a_turn_are_released_one_by_one(client: str, stream: bool) -> None:
    async def play() -> tuple[list[Reply], Object]:
        async with stage(WIRE, TWO, [RAN, "Both."], serial=True) as on:
            return await on.client(client, stream).converse(), on.upstream.bodies[1]

    replies, body = run(play)
    assert replies[-1].response.message.text == "Both."
    assert body["container"] == "container_scripted-0"
    assert [block["type"] for block in body["messages"][1]["content"]] == ["server_tool_use", "tool_use", "tool_use"]


def test_a_client_of_another_wire_is_told_that_it_has_no_place_for_the_container() -> None:
    async def play() -> Reply:
        async with stage(WIRE, [ProviderCall("code_execution", CODE, "1"), "It is 1."]) as on:
            return await on.client("openai-chat").ask(User.of("Count."))

    assert "answer.container" in run(play).headers["x-unbroken-dropped"]


def test_a_container_that_a_client_names_stays_as_it_is() -> None:
    async def play() -> Object:
        async with stage(WIRE, "Hi.") as on:
            client = on.client(WIRE)
            client.messages = [User.of("Hi")]
            await client.post({**client.body(), "container": {"id": "container_own", "skills": []}})
            return on.upstream.bodies[0]

    assert run(play)["container"] == {"id": "container_own", "skills": []}
