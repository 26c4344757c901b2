"""A chat server for `useChat`: agents with scripted models behind real HTTP. `python server.py COMMAND…` serves while
the command runs, which gets the address as its last argument."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing

from ag_ui.core import RunAgentInput
from aiohttp import web

from unbroken import (
    Agent,
    Assistant,
    CallContext,
    Request,
    Result,
    RetryingModel,
    ScriptedModel,
    System,
    ToolMessage,
    User,
    Wait,
    client_tool,
    tool,
)
from unbroken.agent import RunStream
from unbroken.agent.ag_ui import ag_ui_events
from unbroken.agent.ui_history import answers_from_ui_messages, from_ui_messages
from unbroken.agent.ui_messages import UI_MESSAGE_HEADERS, ui_messages
from unbroken.errors import Unavailable
from unbroken.models.scripted import Answer, Break, Call, Cut, Fail, Pause, Say, Think
from unbroken.tools.todo import todo_write
from unbroken_wires.messages import Message


@tool(effect="read")
async def get_weather(city: str, context: CallContext[None]) -> dict[str, str | int]:
    """The weather of a city."""
    context.report("asking the station", 0.5)
    return {"city": city, "celsius": 18}


@tool
async def fall_over() -> str:
    """Always fails."""
    raise OSError("the floor is wet")


@tool(approve=True)
async def delete(path: str) -> str:
    """Deletes a file."""
    return f"{path} is gone"


locate = client_tool("locate", "Where the browser is.", {"type": "object", "properties": {"precise": {}}})


def in_words(message: Message) -> str:
    match message:
        case System():
            return "system"
        case User():
            return f"user: {message.text}"
        case Assistant():
            return f"assistant: {message.text}" + "".join(
                f" {call.name}({json.dumps(call.arguments)})" for call in message.calls
            )
        case ToolMessage():
            return f"tools: {'; '.join(result.text for result in message.results)}"


def retell(request: Request) -> Answer:
    return "\n".join(in_words(message) for message in request.messages)


def say_first(*steps: str | Say | Think | Call | Cut | Fail | Pause) -> ScriptedModel:
    """The first request of a chat gets these steps, every later one the history as text."""

    def answer(request: Request) -> Answer:
        asked = [message for message in request.messages if not isinstance(message, System)]
        return list(steps) if len(asked) == 1 else retell(request)

    return ScriptedModel(answer)


def break_first(first: Answer, second: Answer) -> RetryingModel[ScriptedModel]:
    """The first answer breaks off, and its retry is the second one; then the history as text."""
    answers = iter([first, second])
    return RetryingModel(ScriptedModel(lambda request: next(answers, None) or retell(request)))


AGENTS = {
    "tools": Agent(
        say_first(
            Think("Rome, then."),
            "Let me look. ",
            Call("get_weather", city="Rome"),
            Call("fall_over"),
            Call("nothing_like_it"),
            Call("todo_write", todos=[{"content": "look", "status": "completed"}]),
        ),
        [get_weather, fall_over, todo_write],
        guidance=False,
    ),
    "approval": Agent(say_first(Call("delete", path="a.txt")), [delete], on_approval=lambda _: Wait(), guidance=False),
    "client": Agent(say_first(Call("locate", precise=True)), [locate], guidance=False),
    "cut": Agent(say_first(Cut("get_weather", '{"city": "Ro')), [get_weather], guidance=False),
    "failure": Agent(say_first("It beg", Fail(Unavailable("the secret host is down")))),
    "broken": Agent(
        break_first(
            [
                Think("Hm."),
                "Let me look. ",
                Call("get_weather", city="Rome"),
                Call("get_weather", city="Oslo"),
                Break(),
            ],
            [
                Think("So."),
                "I will see. ",
                Call("get_weather", city="Rome", id="again"),
                Call("fall_over", id="call_r0c1"),
            ],
        ),
        [get_weather, fall_over],
        guidance=False,
    ),
    "endless": Agent(say_first("On and on ", Pause(600), "and on.")),
}
WAITING: dict[str, Result] = {}
ENDED: list[str] = []


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    agent, messages, chat = AGENTS[request.match_info["agent"]], body["messages"], body["id"]
    waiting = WAITING.pop(chat, None)
    answers = answers_from_ui_messages(messages, waiting.pending) if waiting else {}
    if waiting and answers:
        stream = agent.stream_resume(waiting, answers)
    else:
        stream = agent.stream(history=from_ui_messages(messages))
    response = web.StreamResponse(headers=UI_MESSAGE_HEADERS)
    await response.prepare(request)
    try:
        async with aclosing(ui_messages(stream, approvals="plain" not in request.query)) as lines:
            async for line in lines:
                await response.write(line.encode())
    finally:
        ENDED.append(chat)
    keep_if_waiting(chat, stream, agent)
    return response


def keep_if_waiting(chat: str, stream: RunStream, agent: Agent) -> None:
    if agent is AGENTS["approval"] and stream.result.pending:
        WAITING[chat] = stream.result


async def ag_ui(request: web.Request) -> web.StreamResponse:
    asked = RunAgentInput.model_validate(await request.json())
    stream = AGENTS[request.match_info["agent"]].stream(str(asked.messages[-1].content))
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    async with aclosing(ag_ui_events(stream, thread_id=asked.thread_id, messages=asked.messages)) as lines:
        async for line in lines:
            await response.write(line.encode())
    return response


async def ended(request: web.Request) -> web.Response:
    """Ids of the chats whose runs are over."""
    return web.json_response(ENDED)


async def main(command: list[str]) -> int:
    app = web.Application()
    app.add_routes([web.post("/chat/{agent}", chat), web.post("/ag-ui/{agent}", ag_ui), web.get("/ended", ended)])
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        process = await asyncio.create_subprocess_exec(*command, f"http://127.0.0.1:{runner.addresses[0][1]}")
        return await process.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
