"""Plays the reference solution of a task through an `Agent`, over real HTTP, and compares what came out of it with what
the benchmark's own executor made of the same calls."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from unbroken import (
    Agent,
    CallContext,
    CallStarted,
    Conversation,
    Event,
    Middleware,
    Model,
    Request,
    Schedule,
    ToolCall,
    ToolResult,
    connect,
)
from unbroken.tools.caller import Caller
from unbroken.tools.tool import Tool
from unbroken_testing import Answer, Call, ScriptedServer

Declared = Literal["right", "wrong"]
"""`wrong` declares every tool a read without a key, so that all calls of a message may run at once: the control, which
shows that the comparison notices a wrong order."""
MODELS = (
    ("openai:gpt-5", "openai-chat"),
    ("openai:gpt-5", "openai-responses"),
    ("anthropic:claude-sonnet-4-5", "anthropic-messages"),
    ("gemini:gemini-2.5-flash", "gemini"),
)
"""Tasks take turns with them: the first task is played on the first, the second on the second."""
LONGEST_PAUSE = 0.003
"""Seconds. Each call waits for a random part of it before it runs, so that an order that is not kept shows."""


@dataclass(frozen=True, slots=True)
class Step:
    """One prompt, and the calls that answer it, all in one message."""

    prompt: str
    calls: tuple[tuple[str, dict[str, Any]], ...]


class World(Protocol):
    """The objects of a benchmark that the calls of one task change."""

    def tools(self, declared: Declared) -> list[Tool]:
        """The benchmark's functions on these objects."""
        ...

    def difference(self, results: Sequence[str]) -> str:
        """What differs from the benchmark's own run of the task, in the state or in a result. Empty: nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    steps: tuple[Step, ...]
    open: Callable[[], World]
    """A world as it is before the first call. The benchmark's own run is made once, and kept."""


@dataclass(slots=True)
class Counts:
    """What the runs of one schedule did."""

    runs: int = 0
    same: int = 0
    calls: int = 0
    early: int = 0
    """Calls that started before their message was complete."""
    beside: int = 0
    """Calls that started while another one ran."""
    differences: dict[str, str] = field(default_factory=dict[str, str])


class Watched(Middleware):
    """Delays each call, and counts those that run beside another one."""

    def __init__(self, counts: Counts, seed: str) -> None:
        self._counts = counts
        self._random = random.Random(seed)
        self._running = 0

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        self._counts.calls += 1
        self._counts.beside += self._running > 0
        self._running += 1
        try:
            await asyncio.sleep(self._random.uniform(0, LONGEST_PAUSE))
            return await call_next(call, context)
        finally:
            self._running -= 1

    def on_event(self, event: Event) -> None:
        if isinstance(event, CallStarted):
            self._counts.early += event.early


class Player:
    """A server, and connections to it on each wire, for all runs. `async with`."""

    def __init__(self) -> None:
        self._answers: deque[Answer] = deque()
        self._models: list[Model] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Player:
        server = await self._stack.enter_async_context(ScriptedServer(self._next))
        for name, wire in MODELS:
            model = connect(name, base_url=server.base_url(wire), wire=wire, api_key="any")
            self._stack.push_async_callback(model.aclose)
            self._models.append(model)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _next(self, request: Request) -> Answer:
        return self._answers.popleft()

    async def play(self, at: int, task: Task, schedule: Schedule, declared: Declared, counts: Counts) -> None:
        """Play one task, and count it. Two tasks cannot be played at once: the server has one script."""
        world = task.open()
        watched = Watched(counts, task.id)
        agent = Agent(
            self._models[at % len(MODELS)],
            world.tools(declared),
            schedule=schedule,
            middleware=[watched],
            guidance=False,
        )
        chat, results = Conversation(agent), list[str]()
        for step in task.steps:
            self._answers.clear()
            if step.calls:
                self._answers.append([Call(name, arguments) for name, arguments in step.calls])
            self._answers.append("Done.")
            result = await chat.say(step.prompt)
            results.extend(record.result.text for record in result.calls)
        counts.runs += 1
        difference = world.difference(results)
        if difference:
            counts.differences[task.id] = difference
        else:
            counts.same += 1
