"""The command line: `python -m command_agent serve` for the page, `python -m command_agent say "…"` for one wish."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from command_agent.chat import StreamEvent, stream_chat
from command_agent.in_game import chat_in, in_game, serve_games
from command_agent.server import Game, serving
from command_agent.tools import Here
from command_agent.upstream import MAX_TOOL_FALLBACK_ATTEMPTS, FaultLog, open_model
from command_agent.watching import Watch
from command_agent.world import World
from unbroken import Conversation, Model, UserError
from unbroken.logs import LEVELS, VARIABLE, chosen_level, set_up_logs

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

ModelName = Annotated[str, typer.Option("--model", help="A real model, such as deepseek:deepseek-chat.")]
BaseUrl = Annotated[str, typer.Option("--base-url", help="The address of the model, if not its provider's.")]
Faults = Annotated[str, typer.Option("--faults", help="Break the streams: the name of a fault, or all.")]
Reworded = Annotated[bool, typer.Option("--reworded", help="With --faults: a retry produces different text.")]
Whole = Annotated[bool, typer.Option("--whole", help="Send each answer at once, not sentence by sentence.")]
LogLevelName = Annotated[
    str, typer.Option("--log-level", metavar="|".join(LEVELS), help=f"Log to standard error; also {VARIABLE}.")
]
RawLog = Annotated[
    str,
    typer.Option(
        "--raw-log", metavar="FILE", help="Log the raw requests to the model and its responses, without secrets."
    ),
]
Fallbacks = Annotated[
    int, typer.Option("--fallbacks", min=0, max=20, help="How often an answer that broke is requested again.")
]
Record = Annotated[
    str, typer.Option("--record", metavar="DIR", help="Record each wish in this folder; see `unbroken view DIR`.")
]
WorldAt = Annotated[
    str,
    typer.Option(
        "--world",
        metavar="ws://HOST:PORT|rcon://HOST:PORT",
        help="Minecraft in place of the block world: games of the Bedrock edition connect to this address, or a server "
        "of the Java edition is there (its password in RCON_PASSWORD).",
    ),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects.")]
Pace = Annotated[float, typer.Option("--pace", min=0, max=10, help="The speed of the script: 0 means at once.")]


@app.command()
def serve(
    model: ModelName = "",
    base_url: BaseUrl = "",
    faults: Faults = "",
    reworded: Reworded = False,
    whole: Whole = False,
    pace: Pace = 1.0,
    fallbacks: Fallbacks = MAX_TOOL_FALLBACK_ATTEMPTS,
    world: WorldAt = "",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any free port.")] = 8700,
    log_level: LogLevelName = "",
    log_json: LogJson = False,
    raw_log: RawLog = "",
    record: Record = "",
) -> None:
    """Serve a page for wishes that shows the world; with --world, players wish in the chat of their game."""
    asked: dict[str, Any] = {"base_url": base_url, "faults": faults, "reworded": reworded, "pace": pace}
    asked |= {"raw_log": raw_log, "fallbacks": fallbacks}

    async def main() -> int:
        set_up_logs(log_json, chosen_level(log_level, "warning") or "warning")
        log, watch = FaultLog(), Watch(record)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        if world:
            async with open_model(model, **asked) as granting:
                await serve_games(world, granting, stop, watch=watch, sentences=not whole)
            return 0
        async with (
            open_model(model, **asked, log=log) as granting,
            serving(
                game := Game(
                    granting,
                    _shown_as(granting, faults),
                    sentences=not whole,
                    lag=0.05 * pace,
                    faults=log,
                    watch=watch,
                ),
                port,
            ) as address,
        ):
            typer.echo(f"{address}  model: {game.model_name}; Ctrl-C stops it")
            await stop.wait()
        return 0

    _run(main())


def _shown_as(model: Model, faults: str) -> str:
    return f"a script that plays {model.name} with faults ({faults})" if faults else model.name


@app.command()
def say(
    wish: Annotated[str, typer.Argument(help="Your wish, for example: give me three diamonds")],
    model: ModelName = "",
    base_url: BaseUrl = "",
    faults: Faults = "",
    reworded: Reworded = False,
    whole: Whole = False,
    pace: Pace = 0.3,
    fallbacks: Fallbacks = MAX_TOOL_FALLBACK_ATTEMPTS,
    world: WorldAt = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
    log_level: LogLevelName = "",
    log_json: LogJson = False,
    raw_log: RawLog = "",
    record: Record = "",
) -> None:
    """Grant one wish, in a new world, or in a game."""
    asked: dict[str, Any] = {"base_url": base_url, "faults": faults, "reworded": reworded, "pace": pace}
    asked |= {"raw_log": raw_log, "fallbacks": fallbacks}

    async def main() -> int:
        set_up_logs(log_json, chosen_level(log_level, "error") or "error")
        if not wish.strip():
            raise UserError("the wish is empty: write what you wish")
        failed = True
        show = _show_json if as_json else _Printer(sys.stdout.isatty())
        async with open_model(model, **asked) as granting, _place_to_wish(world, granting, Watch(record)) as chat:
            events = stream_chat(wish, chat, stream_sentence_mode=not whole)
            async with aclosing(events):
                async for event in events:
                    show(event)
                    failed = not event.metadata.get("is_complete", False)
        return FAILED if failed else 0

    _run(main())


@asynccontextmanager
async def _place_to_wish(world: str, model: Model, watch: Watch) -> AsyncGenerator[Conversation[Any, Any]]:
    """A new block world, or a game."""
    if world:
        async with in_game(world) as here:
            yield chat_in(here, model, watch)
        return
    blocks = World()
    blocks.join("player1")
    yield Conversation(watch.agent_for("player1", model), deps=Here(blocks, "player1"))


def clean(text: str) -> str:
    """Removes characters that move a terminal's cursor or change the writing direction."""
    return _CONTROL.sub("", text)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_json(event: StreamEvent) -> None:
    typer.echo(json.dumps(event.to_json(), ensure_ascii=False))


class _Printer:
    """On a terminal it prints everything as it arrives; in a pipe the text at the end of each turn, and commands on
    standard error."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._side = Console(stderr=not terminal, highlight=False, soft_wrap=True)
        self._text = ""

    def __call__(self, event: StreamEvent) -> None:
        metadata = event.metadata
        match event.event_type:
            case "content" if event.content:
                words = clean(event.content)
                self._text += words
                if self._terminal:
                    self._print(words)
            case "content":
                self._end_text()
                if metadata["is_complete"] and metadata["tool_fallback_used"]:
                    broken = metadata["broken"]
                    retries = "a retry" if len(broken) == 1 else f"{len(broken)} retries"
                    self._note(f"answered after {retries} ({', '.join(broken)})")
                if not metadata["is_complete"] and metadata["stop_reason"] != "failed":
                    self._note(f"not completed: {metadata['stop_reason']}")
            case "tool_call":
                self._end_text()
                arguments: dict[str, Any] = metadata["arguments"] or {}
                given = " ".join(f"{name}={_as_text(value)}" for name, value in arguments.items())
                self._note(f"→ {event.content} {given}".rstrip())
            case "tool_return":
                self._note(f"← {event.content}")
            case "retried":
                self._note(f"… {event.content}; retrying")
            case "replaced" if metadata["of"] == "content":
                self._text = ""
                self._note("(the text above is replaced)")
            case "error":
                self._end_text()
                words = escape(clean(event.content))
                Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/] {words}")
            case _:
                pass

    def _print(self, text: str) -> None:
        typer.echo(text, nl=False)
        sys.stdout.flush()

    def _end_text(self) -> None:
        if self._text:
            typer.echo("" if self._terminal else self._text.strip())
        self._text = ""

    def _note(self, text: str) -> None:
        if self._terminal and self._text and not self._text.endswith("\n"):
            typer.echo("")
            self._text += "\n"
        self._side.print(f"  [dim]{escape(clean(' '.join(text.splitlines())))}[/]")


def _run(main: Coroutine[object, object, int]) -> None:
    try:
        code = asyncio.run(main)
    except UserError as error:
        typer.echo(f"error: {clean(str(error))}", err=True)
        code = MISUSED
    except BrokenPipeError:
        raise  # the reader has gone; typer ends quietly
    except OSError as error:
        _drop_output()
        typer.echo(f"error: standard output cannot be written to: {error.strerror or error}", err=True)
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


def _drop_output() -> None:
    """Drops the buffer: otherwise it would be written at the end of the program, fail again, and print a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="command_agent")
