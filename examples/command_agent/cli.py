"""The command line: `python -m command_agent serve` for the page, `python -m command_agent say "…"` for one wish."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from command_agent.chat import StreamEvent, stream_chat
from command_agent.server import Game, serving
from command_agent.tools import Here, agent_for
from command_agent.upstream import open_model
from command_agent.world import World
from unbroken import Conversation, Model, UserError
from unbroken.logs import LEVELS, VARIABLE, chosen_level, set_up_logs

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

ModelName = Annotated[str, typer.Option("--model", help="A real one, as in deepseek:deepseek-chat; else a script.")]
BaseUrl = Annotated[str, typer.Option("--base-url", help="Where the model is, if not at its provider.")]
Faults = Annotated[str, typer.Option("--faults", help="Let the stream break: the name of a fault, or all.")]
Reworded = Annotated[bool, typer.Option("--reworded", help="With --faults: a second answer is in other words.")]
Whole = Annotated[bool, typer.Option("--whole", help="Each answer at once, not sentence by sentence.")]
LogLevelName = Annotated[
    str, typer.Option("--log-level", metavar="|".join(LEVELS), help=f"Log lines on standard error; or {VARIABLE}.")
]
Pace = Annotated[float, typer.Option("--pace", min=0, max=10, help="The script's own speed: 0 is at once.")]


@app.command()
def serve(
    model: ModelName = "",
    base_url: BaseUrl = "",
    faults: Faults = "",
    reworded: Reworded = False,
    whole: Whole = False,
    pace: Pace = 1.0,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 is any that is free.")] = 8700,
    log_level: LogLevelName = "",
) -> None:
    """A page to wish on, and to watch the world."""

    async def main() -> int:
        set_up_logs(level=chosen_level(log_level, "warning") or "warning")
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with (
            open_model(model, base_url=base_url, faults=faults, reworded=reworded, pace=pace) as granting,
            serving(
                game := Game(granting, _shown_as(granting, faults), sentences=not whole, lag=0.05 * pace), port
            ) as address,
        ):
            typer.echo(f"{address}  model: {game.model_name}; Ctrl-C stops it")
            await stop.wait()
        return 0

    _run(main())


def _shown_as(model: Model, faults: str) -> str:
    return f"a script that plays {model.name} over a bad line ({faults})" if faults else model.name


@app.command()
def say(
    wish: Annotated[str, typer.Argument(help="What you wish, as in: give me three diamonds")],
    model: ModelName = "",
    base_url: BaseUrl = "",
    faults: Faults = "",
    reworded: Reworded = False,
    whole: Whole = False,
    pace: Pace = 0.3,
    as_json: Annotated[bool, typer.Option("--json", help="Every event as a line of JSON.")] = False,
    log_level: LogLevelName = "",
) -> None:
    """One wish, in a new world."""

    async def main() -> int:
        set_up_logs(level=chosen_level(log_level, "error") or "error")
        if not wish.strip():
            raise UserError("a wish has a text: say what you wish")
        world, failed = World(), True
        world.join("player1")
        show = _show_json if as_json else _Shown(sys.stdout.isatty())
        async with open_model(model, base_url=base_url, faults=faults, reworded=reworded, pace=pace) as granting:
            chat = Conversation(agent_for("player1", granting), deps=Here(world, "player1"))
            events = stream_chat(wish, chat, stream_sentence_mode=not whole)
            async with aclosing(events):
                async for event in events:
                    show(event)
                    failed = not event.metadata.get("is_complete", False)
        return FAILED if failed else 0

    _run(main())


def clean(text: str) -> str:
    """Without the characters that move a terminal's cursor, or turn the direction of writing."""
    return _CONTROL.sub("", text)


def _in_words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_json(event: StreamEvent) -> None:
    typer.echo(json.dumps(event.to_json(), ensure_ascii=False))


class _Shown:
    """On a terminal all of it as it comes; in a pipe the words that count, at the end of each turn, and commands on
    standard error."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._aside = Console(stderr=not terminal, highlight=False, soft_wrap=True)
        self._words = ""

    def __call__(self, event: StreamEvent) -> None:
        told = event.metadata
        match event.event_type:
            case "content" if event.content:
                words = clean(event.content)
                self._words += words
                if self._terminal:
                    self._say(words)
            case "content":
                self._end_of_words()
                if told["tool_fallback_used"]:
                    self._note(f"answered after a restart ({', '.join(told['broken'])})")
                if told["stop_reason"] not in ("answered", "failed"):
                    self._note(f"not granted to the end: {told['stop_reason']}")
            case "tool_call":
                self._end_of_words()
                arguments: dict[str, Any] = told["arguments"] or {}
                given = " ".join(f"{name}={_in_words(value)}" for name, value in arguments.items())
                self._note(f"→ {event.content} {given}".rstrip())
            case "tool_return":
                self._note(f"← {event.content}")
            case "retried":
                self._note(f"… {event.content}; asking again")
            case "replaced" if told["of"] == "content":
                self._words = ""
                self._note("(said again, in other words)")
            case "error":
                self._end_of_words()
                words = escape(clean(event.content))
                Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/] {words}")
            case _:
                pass

    def _say(self, text: str) -> None:
        typer.echo(text, nl=False)
        sys.stdout.flush()

    def _end_of_words(self) -> None:
        if self._words:
            typer.echo("" if self._terminal else self._words.strip())
        self._words = ""

    def _note(self, text: str) -> None:
        if self._terminal and self._words and not self._words.endswith("\n"):
            typer.echo("")
            self._words += "\n"
        self._aside.print(f"  [dim]{escape(clean(' '.join(text.splitlines())))}[/]")


def _run(main: Coroutine[object, object, int]) -> None:
    try:
        code = asyncio.run(main)
    except UserError as error:
        typer.echo(f"error: {clean(str(error))}", err=True)
        code = MISUSED
    except BrokenPipeError:
        raise  # whoever read has gone; typer ends it quietly
    except OSError as error:
        _drop_output()
        typer.echo(f"error: standard output cannot be written to: {error.strerror or error}", err=True)
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


def _drop_output() -> None:
    """What is still kept would be written at the end of the program, fail again, and print a traceback there."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="command_agent")
