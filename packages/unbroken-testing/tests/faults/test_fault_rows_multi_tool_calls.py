"""Rows 1 to 7, 17, 36 and 37 of the fault list: which calls there are, their ids and their arguments. Each through a
complete run: what ran, which results were sent, and that a provider accepts every request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import wire_bytes
from scenes import PROVIDERS, SIZES, WIRES, Desk, accepted, in_pieces, on, play, results_in, run_bytes
from streams import calls_chunk, chat, chunk, piece, sse
from wire_bytes import block, function_call, tool_use

from unbroken import Agent, Schedule, ScriptedModel, connect
from unbroken.models.scripted import Line
from unbroken_testing import Call, Say, ScriptedServer
from unbroken_wires.wires import find_wire

STREAMED = [pytest.param(True, id="streamed"), pytest.param(False, id="whole")]


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_several_calls_in_one_response_all_run(wire: str, stream: bool) -> None:
    """Row 1, over real HTTP."""

    async def main() -> None:
        desk = Desk()
        calls = [Say("Two things."), Call("get_weather", city="Oslo"), Call("get_news", topic="tech"), Call("now")]
        async with ScriptedServer(calls, "Done.") as server:
            base_url = server.base_url(wire)
            async with connect(PROVIDERS[wire], base_url=base_url, wire=wire, api_key="k", stream=stream) as model:
                result = await Agent(model, desk.tools("get_weather", "get_news", "now")).run("Go.")
            assert desk.ran == [("get_weather", {"city": "Oslo"}), ("get_news", {"topic": "tech"}), ("now", {})]
            assert (result.text, len(server.bodies)) == ("Done.", 2)
            accepted(server, result)

    asyncio.run(main())


A, B = '{"n": 1}', '{"n": 2}'
AB = [("a", {"n": 1}), ("b", {"n": 2})]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(None, "1", "a", A), piece(None, "2", "b", B)), "row 2: no index, no type"),
        on(
            "openai-chat",
            sse(calls_chunk(piece(None, "1", "a", A), piece(None, "2", "b", B)), chunk({}, "tool_calls")),
            "row 2: no index, both in one delta",
        ),
        on(
            "openai-chat",
            chat(piece(None, "1", "a", '{"n": '), piece(None, arguments="1}"), piece(None, "2", "b", B)),
            "row 2: no index, in pieces",
        ),
        on(
            "openai-responses",
            wire_bytes.responses(
                *function_call(None, "1", "a", A, number=1), *function_call(None, "2", "b", B, number=2)
            ),
            "row 2: no output_index",
        ),
        on(
            "anthropic-messages",
            wire_bytes.messages(*tool_use(None, "1", "a", A), *tool_use(None, "2", "b", B)),
            "row 2: no index",
        ),
        on("openai-chat", chat(piece(0, "1", "a", A), piece(0, "2", "b", B)), "row 3: all at index 0"),
        on(
            "openai-chat",
            chat(
                piece(0, "1", "a", '{"n": '),
                piece(0, arguments="1}"),
                piece(0, "2", "b", '{"n"'),
                piece(0, arguments=": 2}"),
            ),
            "row 3: all at index 0, in pieces",
        ),
        on("openai-chat", chat(piece(0, None, "a", A), piece(0, None, "b", B)), "row 3: index 0 and no ids"),
        on(
            "openai-responses",
            wire_bytes.responses(*function_call(0, "1", "a", A, number=1), *function_call(0, "2", "b", B, number=2)),
            "row 3: all at output_index 0",
        ),
        on(
            "anthropic-messages",
            wire_bytes.messages(*tool_use(0, "1", "a", A), *tool_use(0, "2", "b", B)),
            "row 3: all at index 0",
        ),
        on("openai-chat", chat(piece(1, "1", "a", A), piece(2, "2", "b", B)), "row 4: first index is 1"),
        on("openai-chat", chat(piece(0, "1", "a", A), piece(2, "2", "b", B)), "row 4: indexes 0 and 2"),
        on("openai-chat", chat(piece("0", "1", "a", A), piece("1", "2", "b", B)), "row 4: indexes as text"),
        on("openai-chat", chat(piece(1, "2", "b", B), piece(0, "1", "a", A)), "row 4: the second comes first"),
        on(
            "openai-responses",
            wire_bytes.responses(*function_call(1, "1", "a", A), *function_call(3, "2", "b", B)),
            "row 4: output_index 1 and 3",
        ),
        on(
            "anthropic-messages",
            wire_bytes.messages(*tool_use(1, "1", "a", A), *tool_use(3, "2", "b", B)),
            "row 4: index 1 and 3",
        ),
        on(
            "openai-chat",
            chat(
                piece(0, "1", "a", '{"n"'),
                piece(0, "1", "a", ": 1}"),
                piece(1, "2", "b", '{"n"'),
                piece(1, "2", "b", ": 2}"),
            ),
            "row 5: id and name in every delta",
        ),
        on(
            "openai-chat",
            chat(
                piece(0, "1", "a", '{"n"'),
                piece(0, "", "", ": 1}"),
                piece(1, "2", "b", '{"n"'),
                piece(1, "", "", ": 2}"),
            ),
            "row 5: empty id and name later",
        ),
    ],
)
def test_two_calls_are_kept_apart_and_in_order(wire: str, body: bytes, size: int) -> None:
    """Rows 2 to 5."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", "b", size=size, schedule=Schedule.SEQUENTIAL)
    assert desk.ran == AB
    assert [call.name for call in result.calls] == ["a", "b"]
    assert len({call.id for call in result.calls}) == 2


@pytest.mark.parametrize("wire", WIRES)
def test_calls_without_ids_get_ids_that_are_unique_in_the_run(wire: str) -> None:
    """Row 6: no id at all."""
    desk = Desk()
    model = ScriptedModel([Call("a", id=""), Call("b", id="")], [Call("a", id="", n=2)], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a", "b")))
    assert [call.id for call in result.calls] == ["call_0_0", "call_0_1", "call_1_0"]
    assert (desk.ran, result.text) == ([("a", {}), ("b", {}), ("a", {"n": 2})], "Done.")
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_ids_that_restart_each_turn_are_made_unique(wire: str) -> None:
    """Row 6: ids that restart each turn."""
    desk = Desk()
    answers: list[Line] = [[Call("a", n=n, id="call_0"), Call("b", n=n, id="call_1")] for n in range(3)]
    model = ScriptedModel(*answers, "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a", "b")))
    assert len({call.id for call in result.calls}) == 6
    assert [call.id for call in result.calls][:2] == ["call_0", "call_1"]
    assert [arguments["n"] for _, arguments in desk.ran] == [0, 0, 1, 1, 2, 2]
    assert result.text == "Done."
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_one_id_for_several_calls_is_replaced_by_several(wire: str) -> None:
    """Row 6: one id for several calls."""
    desk = Desk()
    model = ScriptedModel([Call("a", n=1, id="x"), Call("b", n=2, id="x"), Call("a", n=3, id="x")], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a", "b")))
    assert desk.ran == [*AB, ("a", {"n": 3})]
    assert result.calls[0].id == "x"
    assert len({call.id for call in result.calls}) == 3
    assert [text for _, text in results_in(result.messages)] == ["a done", "b done", "a done"]
    assert result.text == "Done."
    accepted(model, result)


def gemini_call(**fields: Any) -> bytes:
    return wire_bytes.gemini({"functionCall": {"name": "a", **fields}})


TWICE = json.dumps(json.dumps({"n": 1}))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on(
            "openai-chat",
            sse(
                calls_chunk({"index": 0, "id": "1", "function": {"name": "a", "arguments": None}}),
                chunk({}, "tool_calls"),
            ),
            "null",
        ),
        on("openai-chat", chat(piece(0, "1", "a", "")), "empty text"),
        on("openai-chat", chat(piece(0, "1", "a")), "left out"),
        on("openai-chat", chat(piece(0, "1", "a", {})), "an empty object"),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", "")), "empty text"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a")), "no piece"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", "")), "an empty piece"),
        on("gemini", gemini_call(), "left out"),
        on("gemini", gemini_call(args=None), "null"),
        on("gemini", gemini_call(args={}), "an empty object"),
    ],
)
def test_missing_arguments_mean_an_empty_object(wire: str, body: bytes, size: int) -> None:
    """Row 7: `null`, nothing, an empty string."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {})]
    assert [call.error for call in result.calls] == [False]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", {"n": 1})), "an object"),
        on("openai-chat", chat(piece(0, "1", "a", TWICE)), "encoded twice"),
        on("openai-chat", chat(piece(0, "1", "a", TWICE[:4]), piece(0, arguments=TWICE[4:])), "twice, in pieces"),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", TWICE)), "encoded twice"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", given={"n": 1})), "an object"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", TWICE)), "encoded twice"),
        on("gemini", gemini_call(args={"n": 1}), "an object"),
        on("gemini", gemini_call(args='{"n": 1}'), "text in place of an object"),
    ],
)
def test_arguments_in_another_form_are_read(wire: str, body: bytes, size: int) -> None:
    """Row 7: as an object, as a string in a string."""
    desk = Desk()
    run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {"n": 1})]


SEARCH_CALL = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
PROVIDER_RUN = [
    on(
        "openai-responses",
        wire_bytes.responses(
            {"type": "response.output_item.added", "output_index": 0, "item": {**SEARCH_CALL, "status": "in_progress"}},
            {"type": "response.output_item.done", "output_index": 0, "item": SEARCH_CALL},
            *function_call(1, "1", "a", A),
        ),
    ),
    on(
        "anthropic-messages",
        wire_bytes.messages(
            *block(0, {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}, '{"q": "x"}'),
            *block(1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}),
            *tool_use(2, "toolu_1", "a", A),
        ),
    ),
    on(
        "gemini",
        wire_bytes.gemini(
            {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"functionCall": {"name": "a", "args": {"n": 1}}},
        ),
    ),
    on(
        "openai-chat",
        sse(
            chunk({"executed_tools": [{"index": 0, "type": "search", "arguments": '{"query": "x"}'}]}),
            calls_chunk(piece(0, "1", "a", A)),
            chunk({}, "tool_calls"),
        ),
    ),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("wire", "body"), PROVIDER_RUN)
def test_a_tool_that_the_provider_ran_is_not_run_again(wire: str, body: bytes, size: int) -> None:
    """Row 17: even if a tool of ours has its name."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", "web_search", "search", size=size)
    assert desk.ran == [("a", {"n": 1})]
    assert [call.name for call in result.calls] == ["a"]


HALVES = ['{"text": "\ud83d', '\ude00"}']


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", HALVES[0]), piece(0, arguments=HALVES[1]))),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", *HALVES))),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", *HALVES))),
        on("gemini", gemini_call(args={"text": "\ud83d\ude00"})),
    ],
)
def test_an_emoji_in_two_halves_is_joined(wire: str, body: bytes, size: int) -> None:
    """Row 36: in arguments."""
    desk = Desk()
    run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {"text": "😀"})]


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_half_a_surrogate_pair_in_a_result_does_not_break_the_request(wire: str, stream: bool) -> None:
    """Row 36: over real HTTP, in a result and in the text of the user."""

    async def main() -> None:
        desk = Desk()
        async with ScriptedServer(Call("a"), "Done.") as server:
            base_url = server.base_url(wire)
            async with connect(PROVIDERS[wire], base_url=base_url, wire=wire, api_key="k", stream=stream) as model:
                result = await Agent(model, [desk.tool("a", "half: \ud83d.")]).run("Go \ude00.")
            assert (desk.ran, result.text) == ([("a", {})], "Done.")
            assert "half: �." in json.dumps(server.bodies[1], ensure_ascii=False)
            assert "Go �." in json.dumps(server.bodies[1], ensure_ascii=False)
            accepted(server, result)

    asyncio.run(main())


BIG = 123456789012345678901234567890


def one_more(n: int) -> int:
    return n + 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", f'{{"n": {BIG}}}'))),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", f'{{"n": {BIG}}}'))),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", f'{{"n": {BIG}}}'))),
        on("gemini", gemini_call(args={"n": BIG})),
    ],
)
def test_numbers_beyond_64_bits_are_exact(wire: str, body: bytes, size: int) -> None:
    """Row 37: on the way in, and on the way back to the model."""
    desk = Desk()
    model = ScriptedModel(in_pieces(body, size), "Done.", wire=wire)
    result = play(Agent(model, [desk.tool("a", one_more)]))
    assert desk.ran == [("a", {"n": BIG})]
    sent = find_wire(wire).write_request(model.requests[1]).decode()
    assert str(BIG) in sent
    assert str(BIG + 1) in sent
    accepted(model, result)
