"""Tools beyond plain functions: the groups of tools (`namespace`) and tools for free text (`custom`) of Codex, on
models of every wire, with all calls at once and one at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_client import SOME_PAIRS, Client, Reply, serving, settings_for, stage
from gateway_upstreams import Told, events, telling

from unbroken_testing import Call, Say
from unbroken_wires.messages import Message, ToolSpec, User
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.json_access import fit_name
from unbroken_wires.wires.jsontext import dumps, loads

pytestmark = pytest.mark.anyio

Object = dict[str, Any]

CITY: Object = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
PATCH = '*** Begin Patch\n+a "quoted" line\n*** End Patch'
TOOLS: list[Object] = [
    {"type": "function", "name": "get_weather", "description": "One's own.", "parameters": CITY, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR},
    {
        "type": "namespace",
        "name": "mcp__weather",
        "description": "Weather of an MCP server.",
        "tools": [
            {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": CITY, "strict": False},
            {"type": "function", "name": "get_time", "description": "Time.", "parameters": CITY, "strict": False},
            {"type": "custom", "name": "note", "description": "Takes a note."},
        ],
    },
]
ITEMS: list[Object] = [
    {"type": "function_call", "namespace": "mcp__weather", "name": "get_weather", "arguments": '{"city": "Rome"}'},
    {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH},
    {"type": "function_call", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
    {"type": "custom_tool_call", "namespace": "mcp__weather", "name": "note", "input": "warm"},
]
"""What the client has to receive."""
CALLS = [
    Call("mcp__weather__get_weather", city="Rome"),
    Call("apply_patch", input=PATCH),
    Call("get_weather", city="Oslo"),
    Call("mcp__weather__note", input="warm"),
]
"""What a model of a wire without such tools writes."""
FIELDS = ("type", "namespace", "name", "arguments", "input")


def written_by_openai() -> bytes:
    """The same calls from a server of the Responses API."""
    told: list[Object] = [{"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}]
    output: list[Object] = []
    for n, item in enumerate(ITEMS):
        kind = "fc" if item["type"] == "function_call" else "ctc"
        whole = {"id": f"{kind}_{n}", "call_id": f"call_q7Zp2mX91aK{n}", **item, "status": "completed"}
        text = "arguments" if "arguments" in item else "input"
        stream = "function_call_arguments" if text == "arguments" else "custom_tool_call_input"
        about = {"item_id": whole["id"], "output_index": n}
        told += [
            {"type": "response.output_item.added", "output_index": n, "item": {**whole, text: ""}},
            {"type": f"response.{stream}.delta", **about, "delta": item[text]},
            {"type": f"response.{stream}.done", **about, text: item[text]},
            {"type": "response.output_item.done", "output_index": n, "item": whole},
        ]
        output.append(whole)
    ended = {"id": "resp_1", "object": "response", "status": "completed", "output": output}
    return events(*told, {"type": "response.completed", "response": ended}, named=True)


def answered_by_openai() -> bytes:
    part: Object = {"type": "output_text", "text": "Done.", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    done = {"id": "resp_2", "object": "response", "status": "completed", "output": [message]}
    return events(
        {"type": "response.created", "response": {"id": "resp_2", "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": done},
        named=True,
    )


@asynccontextmanager
async def codex(upstream: str, *, serial: bool, stream: bool = True) -> AsyncGenerator[tuple[Client, list[Object]]]:
    """A client with the tools of Codex, and the bodies that the model is sent."""
    tools = find_wire("openai-responses").decode_request({"input": "", "tools": TOOLS}).tools
    sent: list[Object] = []
    if upstream == "openai-responses":
        async with telling(Told(written_by_openai()), Told(answered_by_openai())) as server:
            async with serving(settings_for(server.settings(upstream, serial=serial))) as url:
                yield Client(url, "openai-responses", stream, parallel=None, tools=tools), sent
            sent += [asked.body for asked in server.asked]
        return
    async with stage(upstream, [Say("Let me see."), *CALLS], "Done.", serial=serial) as scene:
        yield scene.client("openai-responses", stream, parallel=None, tools=tools), sent
        sent += [loads(dumps(body)) for body in scene.upstream.bodies]


def calls_in(reply: Reply) -> list[Object]:
    """The items of calls that a client of the Responses API received."""
    if reply.data[:1] == b"{":
        output = reply.body["output"]
    else:
        lines = [loads(line[6:]) for line in reply.data.splitlines() if line.startswith(b"data: ")]
        output = next(line["response"]["output"] for line in lines if line["type"] == "response.completed")
    items = [item for item in output if item["type"].endswith("_call")]
    return [{key: item[key] for key in FIELDS if key in item} for item in items]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("upstream", WIRES)
async def test_codex_gets_each_call_as_its_tool_was_declared(upstream: str, serial: bool, stream: bool) -> None:
    if upstream == "openai-responses" and not stream:
        pytest.skip("the server of this test streams")
    async with codex(upstream, serial=serial, stream=stream) as (client, _):
        replies = await client.converse()
    received = [item for reply in replies for item in calls_in(reply)]
    assert received == ITEMS
    assert [len(calls_in(reply)) for reply in replies] == ([1, 1, 1, 1, 0] if serial else [4, 0])
    assert replies[-1].response.text == "Done."
    assert not any("lost" in reply.headers.get("x-unbroken-turn", "") for reply in replies)


@pytest.mark.parametrize("serial", [True, False])
async def test_the_same_wire_gets_its_own_tools_and_items_back(serial: bool) -> None:
    async with codex("openai-responses", serial=serial) as (client, sent):
        await client.converse()
    assert [body["tools"] for body in sent] == [TOOLS, TOOLS]
    items = [item for item in sent[1]["input"] if item["type"].endswith("_call")]
    assert [{key: item[key] for key in FIELDS if key in item} for item in items] == ITEMS
    outputs = [item["type"] for item in sent[1]["input"] if item["type"].endswith("_output")]
    assert outputs == [f"{item['type']}_output" for item in ITEMS]


@pytest.mark.parametrize("serial", [True, False])
async def test_another_wire_is_offered_functions_and_gets_their_calls_back(serial: bool) -> None:
    async with codex("openai-chat", serial=serial) as (client, sent):
        await client.converse()
    functions = {tool["function"]["name"]: tool["function"] for tool in sent[0]["tools"]}
    names = ["get_weather", "apply_patch", "mcp__weather__get_weather", "mcp__weather__get_time", "mcp__weather__note"]
    assert list(functions) == names
    assert functions["apply_patch"]["parameters"]["required"] == ["input"]
    assert GRAMMAR["definition"] in functions["apply_patch"]["description"]
    calls = [call for message in sent[1]["messages"] for call in message.get("tool_calls", ())]
    assert [call["type"] for call in calls] == ["function"] * 4
    assert [(call["function"]["name"], loads(call["function"]["arguments"].encode())) for call in calls] == [
        ("mcp__weather__get_weather", {"city": "Rome"}),
        ("apply_patch", {"input": PATCH}),
        ("get_weather", {"city": "Oslo"}),
        ("mcp__weather__note", {"input": "warm"}),
    ]


@pytest.mark.parametrize("upstream", [wire for wire in WIRES if wire != "openai-chat"])
@pytest.mark.parametrize("serial", [True, False])
async def test_a_chat_client_gets_the_calls_of_its_free_text_tools_as_such(upstream: str, serial: bool) -> None:
    custom = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}}
    tools = find_wire("openai-chat").decode_request({"messages": [], "tools": [custom]}).tools
    answer = [Call("apply_patch", input=PATCH), Call("apply_patch", input="second")]
    async with stage(upstream, answer, "Done.", serial=serial) as scene:
        client = scene.client("openai-chat", parallel=None, tools=tools)
        replies = await client.converse()
    calls = [call for reply in replies for call in reply.body["choices"][0]["message"].get("tool_calls", ())]
    assert [call["type"] for call in calls] == ["custom", "custom"]
    assert [call["custom"] for call in calls] == [
        {"name": "apply_patch", "input": PATCH},
        {"name": "apply_patch", "input": "second"},
    ]
    assert replies[-1].response.text == "Done."


async def test_two_tools_that_would_get_one_name_are_refused() -> None:
    named = {"type": "function", "name": "mcp__weather__get_time", "parameters": CITY}
    tools = find_wire("openai-responses").decode_request({"input": "", "tools": [*TOOLS, named]}).tools
    async with stage("openai-chat", "Hello.") as scene:
        client = scene.client("openai-responses", parallel=None, tools=tools)
        reply = await client.ask(User.of("Hi"))
    assert reply.status == 400
    assert "mcp__weather__get_time" in reply.body["error"]["message"]


class Undaunted(Client):
    """A client that sends a tool's name although providers of its wire refuse it."""

    def body(self, messages: list[Message] | None = None) -> Object:
        name, rule = self.tools[0].name, find_wire(self.wire).name_rule
        return loads(dumps(super().body(messages)).replace(fit_name(name, rule).encode(), name.encode()))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize(("wire", "upstream"), SOME_PAIRS)
async def test_a_client_gets_calls_with_the_name_that_it_declared(
    wire: str, upstream: str, serial: bool, stream: bool
) -> None:
    for name in ("a.b", "天気_é", "x" * 200):
        sent_name = fit_name(name, find_wire(upstream).name_rule)
        calls = [Call(sent_name, city=city) for city in ("Rome", "Oslo", "Kyiv")]
        async with stage(upstream, calls, "Done.", serial=serial) as scene:
            tools = (ToolSpec(name, "Weather.", CITY),)
            client = Undaunted(scene.url, wire, stream, None, tools=tools)
            replies = await client.converse()
        received = [call.name for reply in replies for call in reply.response.calls]
        assert received == [name] * 3
        assert name == sent_name or not any(sent_name.encode() in reply.data for reply in replies)
        assert replies[-1].response.text == "Done."
        assert not any("lost" in reply.headers.get("x-unbroken-turn", "") for reply in replies)
