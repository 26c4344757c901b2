"""The example of the serial calls, step by step, over HTTP: every client wire with every upstream wire."""

from __future__ import annotations

import pytest
from gateway_client import (
    CITIES,
    IDS,
    PAIRS,
    QUESTION,
    SAYS_ONE_CALL,
    THREE_CALLS,
    Client,
    plain,
    run,
    serving,
    settings_for,
    upstream_settings,
)

from unbroken_testing import ScriptedServer
from unbroken_wires.messages import Assistant, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_access import fit

SERIAL_TURN = [
    User.of(QUESTION),
    Assistant("Let me look.", tuple(ToolCall("", "get_weather", {"city": city}) for city in CITIES)),
    ToolMessage(tuple(ToolResult("", (Text(f"Sunny in {city}."),)) for city in CITIES)),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_three_calls_are_released_one_at_a_time_and_sent_back_as_one_turn(
    client_wire: str, upstream_wire: str, stream: bool
) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "It is sunny everywhere.") as upstream:
            # Some wires cannot express one call at a time: there the alias sets it.
            alias = upstream_settings(upstream, upstream_wire, serial=client_wire not in SAYS_ONE_CALL)
            async with serving(settings_for(alias)) as url:
                client = Client(url, client_wire, stream)
                first, second, third, last = await client.converse()

                assert first.response.text == "Let me look."
                assert first.calls == [("get_weather", {"city": "Beijing"})]
                assert second.calls == [("get_weather", {"city": "Shanghai"})]
                assert third.calls == [("get_weather", {"city": "Guangzhou"})]
                assert (second.response.text, third.response.text) == ("", "")
                assert last.response.text == "It is sunny everywhere."
                assert last.response.calls == ()
                assert [reply.headers.get("x-unbroken-turn") for reply in (first, second, third, last)] == [
                    # a stream has begun before the calls are known
                    None if stream else "handed 1/3",
                    "handed 2/3",
                    "handed 3/3",
                    None,
                ]
                assert [reply.response.verdict.kind for reply in (first, second, third, last)] == ["whole"] * 4

            assert len(upstream.requests) == 2  # the model was asked twice, and not for the calls that were held
            asked = upstream.requests[1]
            assert [plain(message) for message in asked.messages] == SERIAL_TURN
            # What the client said itself is passed on; an alias that requires it asks its model for all calls.
            passed_on = client_wire in SAYS_ONE_CALL and upstream_wire in SAYS_ONE_CALL
            assert [request.parallel for request in upstream.requests] == [False if passed_on else None] * 2

    run(story)


@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_the_model_gets_its_own_ids_back(client_wire: str, upstream_wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            alias = upstream_settings(upstream, upstream_wire, serial=client_wire not in SAYS_ONE_CALL)
            async with serving(settings_for(alias)) as url:
                client = Client(url, client_wire)
                replies = await client.converse()
            rule = find_wire(client_wire).id_rule
            handed = [call.id for reply in replies for call in reply.response.calls]
            assert handed == [fit(id, rule) if rule else id for id in IDS]
            assistant, results = upstream.requests[1].messages[1:]
            assert isinstance(assistant, Assistant)
            assert isinstance(results, ToolMessage)
            assert [call.id for call in assistant.calls] == list(IDS)
            assert [result.call_id for result in results.results] == list(IDS)

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", sorted({client for client, _ in PAIRS}))
def test_usage_is_reported_once_and_the_sum_is_right(wire: str, stream: bool) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            alias = upstream_settings(upstream, "openai-chat", serial=wire not in SAYS_ONE_CALL)
            async with serving(settings_for(alias)) as url:
                client = Client(url, wire, stream)
                replies = await client.converse()
        spent = [reply.response.usage for reply in replies[:3]]
        assert [(usage.input_tokens, usage.output_tokens) if usage else None for usage in spent] == [
            (100, 20),
            (0, 0),
            (0, 0),
        ]

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_a_client_that_takes_several_calls_gets_them_at_once(
    client_wire: str, upstream_wire: str, stream: bool
) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire))) as url:
                client = Client(url, client_wire, stream, parallel=None)
                replies = await client.converse()
            assert [len(reply.response.calls) for reply in replies] == [3, 0]
            assert replies[0].response.text == "Let me look."
            assert [plain(message) for message in upstream.requests[1].messages] == SERIAL_TURN
            assert "x-unbroken-repairs" not in replies[1].headers

    run(story)
