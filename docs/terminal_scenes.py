"""The commands of docs/terminal/*.svg, with the files that they use and the answers of their models."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from terminal_pictures import COLUMNS, Pen, Screen

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import a_long_run  # noqa: E402 - from the folder above
import pseudo_terminal  # noqa: E402

from unbroken_testing import Call, Say, serve  # noqa: E402

TRIP = '''import asyncio

from unbroken import tool


@tool(effect="read")
async def weather(city: str) -> str:
    """The weather in a city."""
    await asyncio.sleep(0.4)
    return {"Rome": "sunny, 24 degrees", "Oslo": "snow, -3 degrees"}[city]


@tool(effect="read")
async def flights(city: str) -> str:
    """Flights to a city."""
    await asyncio.sleep(0.9)
    return f"{city}: 9:40, 120 euros"


@tool
async def book(city: str) -> str:
    """Book a flight."""
    await asyncio.sleep(0.3)
    return f"booked: {city}"
'''
FILES = '''from unbroken import tool


@tool(approve=True)
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"{path} is deleted"
'''
NOTES = '''from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def read_notes(day: str) -> str:
    """The notes of a day."""
    return f"{day}: buy milk, call Ada"


server.run()
'''
"""A server of the package `mcp`."""
WEATHER = [
    [Say("Let me look.", over=0.2), Call("weather", city="Rome", over=0.2), Call("weather", city="Oslo", over=0.2)],
    Say("Go to **Rome**: it is sunny there, and Oslo has snow.", over=0.4),
]


@dataclass(frozen=True)
class Scene:
    title: str
    commands: Sequence[Command]
    script: Sequence[Any] = ()
    files: tuple[tuple[str, str], ...] = (("trip.py", TRIP),)


@dataclass(frozen=True)
class Command:
    """A command as it is shown. It ends by itself, or is ended when it has printed `until`."""

    line: str
    typed: tuple[tuple[str, str], ...] = ()
    """What is waited for, and then typed."""
    until: str = ""
    kill: bool = False
    """With `kill -9`; else with Ctrl-C."""
    then: Callable[[str], None] | None = None
    """What happens meanwhile: it gets what was printed so far."""


def ask_as_claude_code(printed: str) -> None:
    """Two requests as Claude Code sends them, to the gateway whose address was printed."""
    address = re.search(r"http://127\.0\.0\.1:\d+", printed)
    assert address is not None
    body = b'{"model": "demo", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello."}]}'
    for _ in range(2):
        request = Request(f"{address[0]}/v1/messages", body, {"User-Agent": "claude-cli/2.0"})
        with urlopen(request) as answer:
            answer.read()


SCENES = {
    "first-agent": Scene(
        "unbroken run with a file of tools: two calls at once, and the answer",
        [Command('unbroken run "Rome or Oslo?" --model openai:gpt-5 --tools trip.py')],
        WEATHER,
    ),
    "in-parallel": Scene(
        "unbroken run --timeline: four reads overlap, and each starts while the model still writes",
        [Command('unbroken run "Rome or Oslo?" --model openai:gpt-5 --tools trip.py --timeline')],
        [
            [Call(name, city=city, over=0.25) for city in ("Rome", "Oslo") for name in ("weather", "flights")],
            Say("Rome: sunny, and the flight costs the same.", over=0.3),
        ],
    ),
    "resume": Scene(
        "A run is killed while it books; unbroken resume continues it without repeating what was done",
        [
            Command(
                'unbroken run "Book the sunnier city." --model openai:gpt-5 --tools trip.py --record runs',
                until="book(",
                kill=True,
            ),
            Command("unbroken resume runs/*.jsonl --model openai:gpt-5 --tools trip.py"),
        ],
        [*WEATHER[:1], [Call("book", city="Rome", over=0.1)], Say("I cannot tell whether Rome is booked.", over=0.2)],
    ),
    "approve": Scene(
        "unbroken run asks before it runs a call: one is approved, one is denied with a reason",
        [
            Command(
                'unbroken run "Clean up." --model openai:gpt-5 --tools files.py',
                typed=(("deny it:", "y\r"), ("deny it:", "that one is mine\r")),
            )
        ],
        [
            [Call("delete_file", path="tmp/build.log"), Call("delete_file", path="thesis.md")],
            Say("I deleted the log and kept your thesis.", over=0.2),
        ],
        (("files.py", FILES),),
    ),
    "serve": Scene(
        "unbroken serve: what the gateway serves, and how clients reach it",
        [Command("unbroken serve", until="stops it")],
    ),
    "claude-code": Scene(
        "unbroken serve --access-log: a line for each request of Claude Code",
        [Command("unbroken serve --access-log", until="status=200", then=ask_as_claude_code)],
    ),
    "view": Scene(
        "unbroken view --plain: a recorded run, drawn in the terminal",
        [Command("unbroken view --plain runs/reykjavik.jsonl")],
    ),
    "replay": Scene(
        "unbroken replay: the run again, without a model and without its tools",
        [Command("unbroken replay runs/reykjavik.jsonl")],
    ),
    "limits": Scene(
        "unbroken run --rounds 1: the run ends at its limit, with an answer",
        [Command('unbroken run "Plan my journey." --model openai:gpt-5 --tools trip.py --rounds 1')],
        [*WEATHER[:1], Say("I only got as far as the weather: Rome is sunny.", over=0.3)],
    ),
    "local-model": Scene(
        "unbroken run with a model on this machine",
        [
            Command(
                'unbroken run "How is Rome?" --tools trip.py \\\n'
                "    --model compatible:qwen3 --base-url http://127.0.0.1:8080/v1"
            )
        ],
        [[Call("weather", city="Rome", over=0.3)], Say("It is sunny in Rome.", over=0.3)],
    ),
    "mcp": Scene(
        "unbroken run --mcp: the tools of an MCP server",
        [Command('unbroken run "What do I have to do today?" --model openai:gpt-5 --mcp "python notes.py"')],
        [[Call("read_notes", day="Wednesday", over=0.3)], Say("Buy milk, and call Ada.", over=0.3)],
        (("notes.py", NOTES),),
    ),
}


def play(scene: Scene) -> Screen:
    """Runs its commands one after another, in a folder of their own."""
    screen = Screen()
    with tempfile.TemporaryDirectory() as folder, serve(*scene.script) as server:
        for name, content in scene.files:
            (Path(folder) / name).write_text(content, "utf-8")
        (Path(folder) / "runs").mkdir()
        if "reykjavik" in scene.commands[0].line:
            a_long_run.play(Path(folder) / "runs" / "reykjavik.jsonl")
        for command in scene.commands:
            screen.pen = Pen(32, bold=True)
            screen.write("$ ")
            screen.pen = Pen()
            screen.write(command.line.replace("\n", "\r\n") + "\r\n")
            printed = _run(command, folder, server.base_url())
            for found, shown in (
                (server.base_url(), "http://127.0.0.1:8080/v1"),
                (r"127\.0\.0\.1:\d+", "127.0.0.1:8400"),
                (rf"{re.escape(folder)}/?", ""),
                (r"\d{8}-\d{6}-\w{12}", "20261118-093000-4f1c2d3e4a5b"),
                (r"\[[0-9a-f]{16}\]", "[82facee73dad7759]"),
            ):
                printed = re.sub(found, shown, printed)
            screen.write(printed)
            if screen.column:
                screen.write("\r\n")
    return screen


def _run(command: Command, folder: str, address: str) -> str:
    words = shlex.split(command.line.replace("http://127.0.0.1:8080/v1", address))
    words = [str(path) for word in words for path in (sorted(Path(folder).glob(word)) if "*" in word else [word])]
    words = [f"{sys.executable} notes.py" if word == "python notes.py" else word for word in words]
    if words[1] == "serve":
        words += ["--port", "0"]
    variables = {"OPENAI_API_KEY": "of-the-pictures", "OPENAI_BASE_URL": address}
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    environment = {**kept, **variables, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    program = [sys.executable, "-m", "unbroken", *words[1:]]
    with pseudo_terminal.started(program, folder, environment, COLUMNS, 40) as terminal:
        for wanted, typed in command.typed:
            terminal.wait_for(wanted)
            terminal.type(typed)
        if command.then is not None:
            terminal.wait_for("stops it")
            command.then(terminal.printed)
        if command.until:
            terminal.wait_for(command.until)
            terminal.stop(kill=command.kill)
        printed = terminal.read_to_end()
    return f"{printed}\r\nKilled\r\n" if command.kill else printed
