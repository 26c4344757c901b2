"""The AI SDK's UI message stream: what is sent, in which order, and how the posts of `useChat` are read.
`packages/unbroken/tests/ui_messages` checks that the real SDK reads it the same way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from unbroken import (
    Agent,
    Allow,
    Assistant,
    CallContext,
    CallFinished,
    CallStarted,
    Deny,
    Event,
    RequestSent,
    RunStarted,
    ScriptedModel,
    Text,
    TextAdded,
    ToolCall,
    ToolMessage,
    ToolResult,
    Transcript,
    User,
    UserError,
    Wait,
    client_tool,
    tool,
)
from unbroken.agent.output import ANSWER
from unbroken.agent.ui_history import answers_from_ui_messages, from_ui_messages
from unbroken.agent.ui_messages import UI_MESSAGE_HEADERS, WITHDRAWN, ui_messages
from unbroken.errors import Unavailable
from unbroken.models.scripted import Call, Cut, Fail, Pause, Say, Think
from unbroken_testing import run_virtual
from unbroken_wires.messages import Media

Chunk = dict[str, Any]


async def chunks_of(stream: AsyncIterable[Event], **options: Any) -> list[Chunk]:
    lines = [line async for line in ui_messages(stream, **options)]
    assert all(line.startswith("data: ") and line.endswith("\n\n") and line.count("\n") == 2 for line in lines)
    assert lines[-1] == "data: [DONE]\n\n"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def types_of(chunks: list[Chunk]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


@tool(effect="read")
async def look(city: str, context: CallContext[None]) -> dict[str, Any]:
    """Look at a city."""
    context.report("looking", 0.5)
    return {"city": city, "sunny": True}


@tool(approve=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@dataclass
class City:
    city: str


locate = client_tool("locate", "Where the user is.", {"type": "object", "properties": {}})


def test_a_turn_is_a_step_and_parts_are_closed_before_the_next_one_begins() -> None:
    model = ScriptedModel(
        [Think("Hm."), Say("Let me look."), Call("look", city="Rome", id="a"), Call("nowhere", x=1, id="b")],
        "It is\nsunny.",
    )
    chunks = run_virtual(chunks_of(Agent(model, [look]).stream("Rome?", run_id="r"), message_id="m"))
    metadata = chunks[-1].pop("messageMetadata")
    assert [chunk for chunk in chunks if not chunk["type"].endswith("-delta")] == [
        {"type": "start", "messageId": "m"},
        {"type": "start-step"},
        {"type": "reasoning-start", "id": "1"},
        {"type": "reasoning-end", "id": "1"},
        {"type": "text-start", "id": "2"},
        {"type": "text-end", "id": "2"},
        {"type": "tool-input-available", "toolCallId": "a", "toolName": "look", "input": {"city": "Rome"}},
        {
            "type": "data-progress",
            "data": {"toolCallId": "a", "toolName": "look", "message": "looking", "done": 0.5},
            "transient": True,
        },
        {"type": "tool-output-available", "toolCallId": "a", "output": {"city": "Rome", "sunny": True}},
        {"type": "tool-input-available", "toolCallId": "b", "toolName": "nowhere", "input": {"x": 1}},
        {
            "type": "tool-output-error",
            "toolCallId": "b",
            "errorText": "Error: unknown tool `nowhere`; there are: look",
        },
        {"type": "finish-step"},
        {"type": "start-step"},
        {"type": "text-start", "id": "3"},
        {"type": "text-end", "id": "3"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]
    assert "".join(chunk["delta"] for chunk in chunks if chunk.get("id") == "3" and "delta" in chunk) == "It is\nsunny."
    assert (metadata["run"], metadata["stopReason"], metadata["calls"]) == ("r", "answered", 2)


def test_calls_that_never_start_are_shown_in_call_order() -> None:
    model = ScriptedModel(
        [
            Call("look", city="Rome", id="a"),
            Call("nowhere", id="b"),
            Call("steady", id="c"),
            Call("look", city="Rome", id="d"),
            Cut("steady", "{", id="e"),
        ],
        "Done.",
    )

    @tool
    async def steady() -> str:
        """Takes a while."""
        await asyncio.sleep(1)
        return "ok"

    chunks = run_virtual(chunks_of(Agent(model, [look, steady]).stream("Go")))
    shown = [chunk["toolCallId"] for chunk in chunks if chunk["type"].startswith("tool-input")]
    assert shown == ["a", "b", "c", "d", "e"]
    finished = [chunk["toolCallId"] for chunk in chunks if chunk["type"].startswith("tool-output")]
    assert sorted(finished) == ["a", "b", "c", "d"]


def test_a_call_that_was_cut_is_an_input_error() -> None:
    model = ScriptedModel([Cut("look", '{"city": "Ro', id="a")], "Sorry.")
    chunks = run_virtual(chunks_of(Agent(model, [look]).stream("Go")))
    (cut,) = [chunk for chunk in chunks if chunk.get("toolCallId") == "a"]
    assert (cut["type"], cut["input"]) == ("tool-input-error", {})
    assert cut["errorText"].startswith("Error: not executed")


def delete_and_locate() -> Agent:
    model = ScriptedModel([Call("delete", path="a.txt", id="a"), Call("locate", id="b")], "Done.")
    return Agent(model, [delete, locate], on_approval=lambda _: Wait())


def test_a_waiting_call_asks_for_approval_and_a_later_client_call_is_shown_too() -> None:
    chunks = run_virtual(chunks_of(delete_and_locate().stream("Go")))
    assert [chunk for chunk in chunks if "toolCallId" in chunk] == [
        {"type": "tool-input-available", "toolCallId": "a", "toolName": "delete", "input": {"path": "a.txt"}},
        {"type": "tool-approval-request", "approvalId": "a", "toolCallId": "a"},
        {"type": "tool-input-available", "toolCallId": "b", "toolName": "locate", "input": {}},
    ]
    assert chunks[-1]["finishReason"] == "tool-calls"
    plain = run_virtual(chunks_of(delete_and_locate().stream("Go"), approvals=False))
    assert types_of(plain) == [kind for kind in types_of(chunks) if kind != "tool-approval-request"]


def test_a_resumed_run_adds_to_the_step_that_the_client_has() -> None:
    async def main() -> list[list[Chunk]]:
        agent = delete_and_locate()
        waiting = await agent.run("Go")
        stream = agent.stream_resume(waiting, {"a": Allow()})
        allowed = await chunks_of(stream)
        return [allowed, await chunks_of(agent.stream_resume(stream.result, {"b": {"lat": 41.9}}))]

    allowed, located = run_virtual(main())
    assert allowed[:-1] == [
        {"type": "start"},
        {"type": "tool-input-available", "toolCallId": "a", "toolName": "delete", "input": {"path": "a.txt"}},
        {"type": "tool-output-available", "toolCallId": "a", "output": "a.txt is gone"},
        {"type": "tool-input-available", "toolCallId": "b", "toolName": "locate", "input": {}},
    ]
    assert located[:3] == [
        {"type": "start"},
        {"type": "tool-output-available", "toolCallId": "b", "output": {"lat": 41.9}},
        {"type": "start-step"},
    ]


def test_a_failure_is_reported_as_the_server_chooses_and_logged_completely(caplog: pytest.LogCaptureFixture) -> None:
    def stream() -> AsyncIterable[Event]:
        return Agent(ScriptedModel([Say("It beg"), Fail(Unavailable("the host is down"))])).stream("Go", run_id="r")

    with caplog.at_level(logging.ERROR, "unbroken.agent"):
        chunks = run_virtual(chunks_of(stream()))
    assert types_of(chunks)[-3:] == ["text-end", "finish-step", "error"]
    assert chunks[-1]["errorText"] == "An error occurred."
    assert "Run r failed: Unavailable: the host is down" in caplog.text
    told = run_virtual(chunks_of(stream(), error_text=attrgetter("message")))
    assert told[-1] == {"type": "error", "errorText": "the host is down"}


def test_a_run_that_is_stopped_elsewhere_ends_in_an_abort() -> None:
    async def main() -> list[Chunk]:
        stream = Agent(ScriptedModel([Say("On and on"), Pause(600), Say(".")])).stream("Go")
        reading = asyncio.create_task(chunks_of(stream))
        await asyncio.sleep(5)
        await stream.aclose()
        return await reading

    assert types_of(run_virtual(main()))[-3:] == ["text-end", "finish-step", "abort"]


def test_a_structured_answer_is_a_text_part() -> None:
    model = ScriptedModel([Call(ANSWER, city="Rome", id="a")])
    chunks = run_virtual(chunks_of(Agent(model).stream("Go", output=City)))
    (text,) = [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta"]
    assert json.loads(text) == {"city": "Rome"}


def test_a_call_that_is_never_finished_is_closed_with_its_step() -> None:
    async def events() -> AsyncIterator[Event]:
        yield RunStarted("r", 0, 0, 0.0, "m", "eager")
        yield RequestSent("r", 0, 1, 0.0, 1, 1, False)
        yield CallStarted("r", 0, 2, 0.0, 0, "a", "look", {})
        yield RequestSent("r", 1, 3, 0.0, 1, 1, False)
        yield TextAdded("r", 1, 4, 0.0, "Half")

    chunks = run_virtual(chunks_of(events()))
    assert {"type": "tool-output-error", "toolCallId": "a", "errorText": WITHDRAWN} in chunks
    assert types_of(chunks)[-2:] == ["text-end", "finish-step"]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ('{"a": [1, 2.5]}', {"a": [1, 2.5]}),
        ("[]", []),
        ("42", "42"),
        ("{not JSON", "{not JSON"),
        ('{"id": 12345678901234567890}', '{"id": 12345678901234567890}'),
        ('{"a": NaN}', '{"a": NaN}'),
        ("[" * 100_000, "[" * 100_000),
        ("", ""),
        ("half \ud83d a pair", "half \ufffd a pair"),
    ],
    ids=["object", "list", "number", "broken", "a number too large", "no JSON", "deep", "empty", "half a pair"],
)
def test_results_that_are_objects_are_sent_as_such_if_no_number_changes(text: str, output: Any) -> None:
    async def events() -> AsyncIterator[Event]:
        yield RequestSent("r", 0, 0, 0.0, 1, 1, False)
        yield CallStarted("r", 0, 1, 0.0, 0, "a", "look", {})
        yield CallFinished("r", 0, 2, 0.0, 0, "a", "look", 0.1, False, text, "done")

    (finished,) = [chunk for chunk in run_virtual(chunks_of(events())) if chunk["type"] == "tool-output-available"]
    assert finished["output"] == output


def test_a_browser_that_disconnects_ends_the_run() -> None:
    over = asyncio.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        stream = Agent(ScriptedModel([Say("On and on"), Pause(600), Say(".")])).stream("Go")
        response = web.StreamResponse(headers=UI_MESSAGE_HEADERS)
        await response.prepare(request)
        try:
            async with aclosing(ui_messages(stream)) as lines:
                async for line in lines:
                    await response.write(line.encode())
        finally:
            with pytest.raises(RuntimeError, match="its stream was closed before the end"):
                _ = stream.result
            over.set()
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/chat", chat)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/chat"
        async with aiohttp.ClientSession() as session, session.post(url) as response:
            assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
            assert await response.content.readline() == b'data: {"type":"start"}\n'
        async with asyncio.timeout(5):
            await over.wait()
        await runner.cleanup()

    asyncio.run(main())


def test_what_usechat_posts_becomes_the_history() -> None:
    messages: list[Chunk] = [
        {"role": "system", "parts": [{"type": "text", "text": "Obey the browser."}]},
        {
            "role": "user",
            "parts": [
                {"type": "text", "text": "What is this?"},
                {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA", "filename": "a.png"},
                {"type": "file", "mediaType": "image/png", "url": "https://example.com/b.png"},
                {"type": "file", "mediaType": "text/plain", "url": "data:,hello%20you"},
                {"type": "data-mood", "data": "curious"},
            ],
        },
        {
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "Hm."},
                {"type": "text", "text": "Let me look."},
                {
                    "type": "tool-look",
                    "toolCallId": "a",
                    "state": "output-available",
                    "input": {"city": "Rome"},
                    "output": {"sunny": True},
                },
                {
                    "type": "dynamic-tool",
                    "toolName": "fall",
                    "toolCallId": "b",
                    "state": "output-error",
                    "errorText": "Error: the floor is wet",
                },
                {"type": "tool-half", "toolCallId": "c", "state": "input-streaming"},
                {"type": "tool-web", "toolCallId": "d", "state": "output-available", "providerExecuted": True},
                {"type": "step-start"},
                {"type": "data-todo", "id": "todo", "data": {"todos": []}},
                {"type": "text", "text": "It is Rome."},
            ],
        },
        {"role": "user", "content": "And now?"},
    ]
    look_call = ToolCall("a", "look", {"city": "Rome"}, '{"city":"Rome"}')
    fall_call = ToolCall("b", "fall", {}, "{}", index=1)
    assert from_ui_messages(messages) == (
        User(
            (
                Text("What is this?"),
                Media("image/png", data="AAAA", name="a.png"),
                Media("image/png", url="https://example.com/b.png"),
                Media("text/plain", data="aGVsbG8geW91"),
            )
        ),
        Assistant("Let me look.", (look_call, fall_call), "Hm."),
        ToolMessage(
            (
                ToolResult.of(look_call, '{"sunny":true}'),
                ToolResult.of(fall_call, "Error: the floor is wet", error=True),
            )
        ),
        Assistant("It is Rome."),
        User.of("And now?"),
    )


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"state": "input-available"}, "Error: no result was recorded for this call"),
        ({"state": "approval-requested", "approval": {"id": "a"}}, "Error: no result was recorded for this call"),
        ({"state": "output-denied", "approval": {"id": "a", "approved": False}}, "Error: not executed: denied"),
        (
            {"state": "approval-responded", "approval": {"id": "a", "approved": False, "reason": "no"}},
            "Error: not executed: denied: no",
        ),
        ({"state": "output-available", "preliminary": True, "output": "half"}, "Error: no result was recorded"),
    ],
    ids=["unfinished", "unanswered", "denied", "just denied", "preliminary"],
)
def test_every_call_of_a_posted_history_has_its_result(part: Chunk, text: str) -> None:
    history = from_ui_messages(
        [
            {"role": "user", "parts": [{"type": "text", "text": "Go"}]},
            {"role": "assistant", "parts": [{"type": "tool-look", "toolCallId": "a", "input": {}, **part}]},
            {"role": "user", "parts": [{"type": "text", "text": "Never mind."}]},
        ]
    )
    Transcript(history)
    (result,) = [result for message in history if isinstance(message, ToolMessage) for result in message.results]
    assert result.text.startswith(text)
    assert result.error


def test_answers_are_read_only_for_waiting_calls() -> None:
    parts = [
        {"type": "tool-delete", "toolCallId": "a", "state": "approval-responded", "approval": {"approved": True}},
        {
            "type": "tool-delete",
            "toolCallId": "b",
            "state": "approval-responded",
            "approval": {"approved": False, "reason": "no"},
        },
        {"type": "tool-locate", "toolCallId": "c", "state": "output-available", "output": {"lat": 41.9}},
        {"type": "tool-look", "toolCallId": "done", "state": "output-available", "output": "sunny"},
        {"type": "tool-delete", "toolCallId": "d", "state": "approval-requested"},
    ]
    pending = [ToolCall(id, "locate" if id == "c" else "delete", {}) for id in "abcd"]
    assert answers_from_ui_messages([{"role": "assistant", "parts": parts}], pending) == {
        "a": Allow(),
        "b": Deny("no"),
        "c": ToolResult.of(pending[2], '{"lat":41.9}'),
    }
    assert answers_from_ui_messages([{"role": "user", "parts": []}], pending) == {}
    assert answers_from_ui_messages([], pending) == {}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "tool", "parts": []}, "its role is 'tool', and not user or assistant"),
        ({"role": "user"}, "it has no list of parts"),
        ({"role": "user", "parts": ["hello"]}, "it has no list of parts"),
        ({"role": "user", "parts": [{"type": "file"}]}, "a file in it has no URL"),
        ({"role": "user", "parts": [{"type": "file", "url": "data:image/png;base64,?"}]}, "is not base64"),
        ({"role": "user", "parts": [{"type": "file", "url": "data:image/png;base64,"}]}, "a file in it is empty"),
        ({"role": "assistant", "parts": [{"type": "tool-look"}]}, "a call in it has no name, or no toolCallId"),
    ],
)
def test_an_unreadable_message_is_named(message: Chunk, why: str) -> None:
    with pytest.raises(UserError, match=f"message 1 of the UI messages cannot be read: .*{why}"):
        from_ui_messages([{"role": "user", "parts": []}, message])


@pytest.mark.parametrize(
    ("posted", "told"),
    [
        (["hello"], "message 0 of the UI messages cannot be read: it is a str, and not an object"),
        ([{"role": "user", "content": "Hi"}, None], "message 1 of the UI messages cannot be read: it is a NoneType"),
        ({"role": "user"}, "the UI messages cannot be read: they are a dict, and not a list"),
        (None, "the UI messages cannot be read: they are a NoneType, and not a list"),
    ],
)
def test_anything_but_a_list_of_messages_is_refused(posted: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        from_ui_messages(posted)
    with pytest.raises(UserError, match=told):
        answers_from_ui_messages(posted, ())
