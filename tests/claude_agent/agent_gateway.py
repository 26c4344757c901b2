"""A real gateway process in front of the real Claude Agent SDK, which asks a scripted server of Anthropic's wire."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import ROOT

from unbroken.models.connect import connect
from unbroken_testing import ScriptedServer
from unbroken_wires.deltas import Ended
from unbroken_wires.messages import (
    Assistant,
    Message,
    Request,
    Sampling,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER, CLOCK = (ToolSpec("weather", "The weather in a city.", CITY), ToolSpec("clock", "The time in a city.", CITY))
WIRES = {"openai-chat": "compatible", "openai-responses": "openai", "anthropic-messages": "anthropic"}
"""The wires that clients use, and a provider that speaks each."""

CONFIG = """
[server]
port = 0

[[models]]
alias = "plain"
model = "python:claude_agent_upstream:model"

[[models]]
alias = "serial"
model = "python:claude_agent_upstream:model"
serial = true
"""


@dataclass
class Gateway:
    url: str
    process: subprocess.Popen[str]
    temporary: Path
    """Where the sessions have their folders."""

    async def ask(
        self,
        *messages: Message,
        wire: str = "openai-chat",
        alias: str = "plain",
        tools: Sequence[ToolSpec] = (WEATHER, CLOCK),
        stream: bool = True,
        **settings: Any,
    ) -> Assistant:
        """One request of a client; the exception that it raises if there is no complete answer."""
        base = self.url if wire == "anthropic-messages" else f"{self.url}/v1"
        model = connect(f"{WIRES[wire]}:{alias}", base_url=base, api_key="x", wire=wire, stream=stream, attempts=1)
        request = Request(messages, tuple(tools), stream=stream, sampling=Sampling(**settings))
        async for deltas in model.stream(request):
            for delta in deltas:
                if isinstance(delta, Ended):
                    assert delta.verdict.whole, delta.verdict
                    assert delta.message is not None
                    return delta.message
        raise AssertionError("an answer has an end")

    def cli_processes(self) -> list[int]:
        """The processes of the CLI that the gateway has started and that still run."""
        children: list[int] = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = re.sub(r"\(.*\)", "()", stat.read_text()).split()
            except OSError:
                continue
            if fields[3] == str(self.process.pid) and fields[2] != "Z":
                children.append(int(fields[0]))
        return children

    async def until(self, happened: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, "it did not happen in time"
            await asyncio.sleep(0.05)

    async def until_gone(self) -> None:
        """No process of the CLI is left, and no folder of a session."""
        await self.until(lambda: not self.cli_processes() and not list(self.temporary.iterdir()))

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(30)


@contextmanager
def gateway(folder: Path, server: ScriptedServer, **variables: str) -> Generator[Gateway]:
    """`CLAUDE_AGENT_…` and other variables of the gateway's process may be given."""
    (folder / "unbroken.toml").write_text(CONFIG)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "examples"),
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "sk-of-the-gateway",
        "CLAUDE_AGENT_MODEL": "claude-sonnet-4-5",
        "TMPDIR": str(temporary),
        **variables,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "unbroken", "serve", "--config", "unbroken.toml"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Gateway(_address(process), process, temporary)
    finally:
        if process.poll() is None:
            process.terminate()
        output = process.communicate(timeout=30)[0]
        (folder / "gateway.log").write_text(output)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError(f"the gateway did not start: {''.join(seen)}")


def results(answer: Assistant, give: Callable[[ToolCall], str] | None = None) -> tuple[Message, Message]:
    """The answer and the results of all its calls, as a client adds them to its history."""
    give = give or _result
    return answer, ToolMessage(tuple(ToolResult.of(call, give(call)) for call in answer.calls))


def _result(call: ToolCall) -> str:
    return f"{call.name} in {(call.arguments or {}).get('city')}"


async def finish(gateway: Gateway, *messages: Message, **how: Any) -> tuple[Assistant, list[tuple[ToolCall, ...]]]:
    """Asks until there is an answer without calls. Also returns the calls of each answer before."""
    history, rounds = list(messages), list[tuple[ToolCall, ...]]()
    while (answer := await gateway.ask(*history, **how)).calls:
        rounds.append(answer.calls)
        history += results(answer)
    return answer, rounds


def asked(server: ScriptedServer, number: int = -1) -> list[tuple[str, str]]:
    """What the SDK's model was asked: the role and the words of each message, calls and results included."""
    said: list[tuple[str, str]] = []
    for message in server.requests[number].messages:
        match message:
            case User():
                said.append(("user", message.text))
            case Assistant():
                calls = ", ".join(f"{call.name} {(call.arguments or {}).get('city')}" for call in message.calls)
                said.append(("assistant", " | ".join(filter(None, [message.text.strip(), calls]))))
            case ToolMessage():
                said.append(("results", ", ".join(result.text for result in message.results)))
            case _:
                pass
    return said
