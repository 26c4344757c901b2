"""Builds a run from options, for every command that asks a model: the screen, logging, the model, the tools, the agent
and its thread."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from unbroken.agent import Agent, Limits
from unbroken.agent.recorded_agent import agent_of
from unbroken.errors import UserError
from unbroken.logs import PlainLines, chosen_level, stderr_handler
from unbroken.middleware import Middleware, RunStart
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.models.retrying import ATTEMPTS
from unbroken.tools.approval import Allow, Approval, Deny, OnApproval, Question
from unbroken.tools.mcp import MCPServer
from unbroken.tools.schedule import Schedule
from unbroken.tools.todo import todo_write
from unbroken.tools.toolbox import Source, Toolbox
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import Recording
from unbroken.trajectory.run_recorder import RunRecorder
from unbroken_cli.agent_thread import AgentThread, Screen
from unbroken_cli.approval_prompt import NOBODY_ASKED
from unbroken_cli.exits import print_line
from unbroken_cli.live import LiveScreen
from unbroken_cli.options import SCHEDULES, Setup
from unbroken_cli.plain import JsonScreen, PlainScreen
from unbroken_cli.progress_line import progress
from unbroken_cli.streams import is_terminal
from unbroken_cli.timeline import Watch
from unbroken_wires.messages import ToolCall

LOG = logging.getLogger("unbroken")


@dataclass(frozen=True, slots=True)
class Session:
    thread: AgentThread
    agent: Agent
    tools: list[Source]
    screen: Screen
    console: Console
    watch: Watch | None = None
    recorder: NamingRecorder | None = None
    hints: bool = True
    piped: bool = False
    """Whether standard output is not a terminal."""

    def running(self) -> AbstractContextManager[object]:
        """A progress line, if standard error is a terminal on which nothing else moves."""
        return progress("running") if self.piped else nullcontext()

    def print_recorded(self) -> None:
        """Prints where the last run was recorded, if it was."""
        if self.recorder is not None and self.recorder.last:
            self.screen.close()
            self.console.print(Text(f"recorded in {self.recorder.last}", "dim"), soft_wrap=True)

    def print_order_hint(self) -> None:
        """Prints which tools cost time because they declare no effect, if any did."""
        if self.hints and self.agent.order_hint.text:
            self.screen.close()
            self.console.print(Text(f"hint: {self.agent.order_hint.text}", "dim"), soft_wrap=True)


def open_screen(setup: Setup, can_ask: bool = True) -> tuple[Screen, Console, bool]:
    """The screen to use, a console for lines that are not part of the answer, and whether both are the terminal.
    With `can_ask=False` it never asks for an approval."""
    console = Console(highlight=False)
    if not setup.json and is_terminal(sys.stdout) and not console.is_dumb_terminal:
        return LiveScreen(console, can_ask=can_ask and is_terminal(sys.stdin)), console, True
    screen = (JsonScreen if setup.json else PlainScreen)(sys.stdout, sys.stderr)
    return screen, Console(highlight=False, stderr=True), False  # standard output contains only the answer or JSON


@contextmanager
def open_session(setup: Setup, watched: bool = False, recording: Recording | None = None) -> Generator[Session]:
    """`recording` is the run to resume, if any. The agent then has the settings that were recorded."""
    piped = not is_terminal(sys.stdout)
    screen, console, live = open_screen(setup)
    thread = AgentThread(screen)
    # What tools print is not the answer; on a terminal it may appear between the lines.
    with (
        logged(setup, console if live else None),
        nullcontext() if live else redirect_stdout(sys.stderr),
        ExitStack() as opened,
    ):
        model = opened.enter_context(opened_model(setup))
        watch = Watch() if watched else None
        with progress("loading the tools"):
            tools = build_tools(setup)
        recorder = build_recorder(setup)
        on_approval = allow if setup.yes else thread.approve if screen.can_ask else None
        if recording is None:
            agent = build_agent(setup, model, tools, on_approval, recorder, [watch] if watch else [])
        else:
            agent = agent_of(recording, tools, model, on_approval)
        with progress("starting the tools' servers"):
            opened.enter_context(thread.open(agent))
        try:
            shown = None if setup.json else recorder
            yield Session(thread, agent, tools, screen, console, watch, shown, not setup.json, piped)
        finally:
            screen.close()


def allow(call: ToolCall) -> Approval:
    """The approver for `--yes`. A page that a server wants opened needs a person."""
    if isinstance(call, Question) and call.kind == "url":
        return Deny(NOBODY_ASKED)
    return Allow()


@contextmanager
def logged(setup: Setup, console: Console | None = None) -> Generator[None]:
    """Sets up logging for a command. Without --log-level, UNBROKEN_LOG or --debug nothing is logged: the screen reports
    what matters."""
    level = chosen_level(setup.log_level, "debug" if setup.debug else None)
    if level is None:
        yield
        return
    handler = stderr_handler() if console is None else RichHandler(console=console, show_path=False, show_time=False)
    if console is not None:
        handler.setFormatter(PlainLines("%(message)s"))
    before = LOG.level
    LOG.setLevel(level.upper())
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(before)


DEMO = "demo"
"""The name of a script in place of a model, which needs no key."""
LOCAL = "local"
"""The name of a small model in a process of ours, which needs no key; `local:FILE.gguf` is another one."""
SMALL = (
    "SmolLM2-135M is a very small model: it writes plausible sentences, many of them wrong, and does not choose tools "
    "by itself. It shows that everything works; for real use, name another model"
)

HELPFUL = "You are a helpful assistant."
"""The instructions of a local model if you give none: without any, SmolLM2 answers some questions in French."""


def is_local(setup: Setup) -> bool:
    """Whether the model runs in a process of ours. A server in the user's own profile `local` does not."""
    name, _, file = setup.model.strip().partition(":")
    if name != LOCAL:
        return False
    from unbroken.models.providers import is_own_profile  # noqa: PLC0415 - start-up time

    return not file or not is_own_profile(LOCAL)


@contextmanager
def opened_model(setup: Setup) -> Generator[Model]:
    """The model of the options. A local one is loaded here, and ends with the block."""
    if not is_local(setup):
        yield build_model(setup)
        return
    from unbroken.models.local import find_model_file, local_model  # noqa: PLC0415 - start-up time

    with ExitStack() as opened:
        path = find_model_file(setup.model.strip().partition(":")[2] or None)
        with progress(f"loading {path.stem}"):
            model = opened.enter_context(local_model(path))
        if path.stem.startswith("SmolLM2-135M"):
            print_line(SMALL)
        yield model


def build_model(setup: Setup) -> Model:
    if not setup.model.strip():
        raise UserError(
            "no model was given; use --model PROVIDER:MODEL, as in openai:gpt-5, or set UNBROKEN_MODEL; "
            "--model demo and --model local need no key"
        )
    if setup.model.strip() == DEMO:
        from unbroken.models.demo_model import DemoModel  # noqa: PLC0415 - start-up time

        return DemoModel()
    attempts = ATTEMPTS if setup.attempts is None else setup.attempts
    if attempts < 1:
        raise UserError(f"--attempts {attempts}: give a number from 1; it includes the first attempt")
    return connect(
        setup.model.strip(),
        base_url=setup.base_url or None,
        api_key=_key(setup.api_key_env),
        wire=setup.wire or None,
        stream=not setup.no_stream,
        attempts=attempts,
        fallback=setup.fallback or (),
        raw_log=setup.raw_log or None,
    )


def build_tools(setup: Setup) -> list[Source]:
    own = [todo_write] if setup.todo else []
    return [*map(_tools, setup.tools or ()), *map(_server, setup.mcp or ()), *own]


class NamingRecorder(Recorder):
    """A recorder that remembers the file of the last run."""

    last = ""

    def start(self, run: RunStart) -> RunRecorder:
        self.last = ""
        recorder = super().start(run)
        self.last = recorder.path
        return recorder


def build_recorder(setup: Setup) -> NamingRecorder | None:
    if setup.record_failure not in ("stop", "continue"):
        raise UserError(f"--record-failure {setup.record_failure}: give stop or continue")
    if setup.record_failure == "continue" and not setup.record:
        raise UserError("--record-failure continue: nothing is recorded; name a folder with --record DIR")
    return NamingRecorder(setup.record, on_failure=setup.record_failure) if setup.record else None


def read_limits(rounds: int | None, calls: int | None, seconds: float | None) -> Limits:
    """The limits of these options."""
    for option, limit in (("--rounds", rounds), ("--calls", calls), ("--seconds", seconds)):
        if limit is not None and not limit >= 0:  # NaN is not
            raise UserError(f"{option} {limit:g}: a limit is 0 or more; leave it out for none")
    limits = Limits(calls=calls, seconds=seconds)
    return limits if rounds is None else replace(limits, rounds=rounds)


def build_agent(
    setup: Setup,
    model: Model,
    tools: list[Source],
    on_approval: OnApproval | None,
    recorder: Recorder | None = None,
    middleware: Sequence[Middleware] = (),
) -> Agent:
    return Agent(
        model,
        tools,
        _instructions(setup.instructions) or (HELPFUL if is_local(setup) else ""),
        schedule=_schedule(setup.schedule),
        limits=read_limits(setup.rounds, setup.calls, setup.seconds),
        several_calls=not setup.one_call,
        on_approval=on_approval,
        record=recorder,
        middleware=middleware,
    )


def _key(variable: str) -> str | None:
    if not variable:
        return None
    if key := os.environ.get(variable, "").strip():
        return key
    raise UserError(f"--api-key-env {variable}: that variable is not set; export it, or name the one that has the key")


def _tools(name: str) -> Toolbox:
    if name.endswith(".py") or os.sep in name or Path(name).exists():
        return Toolbox.from_file(name)
    here = os.getcwd()
    sys.path.insert(0, here)  # a module in the current folder is found, as with `python -m`
    try:
        return Toolbox(importlib.import_module(name))
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        words = f": {error}" if str(error) else ""
        raise UserError(
            f"--tools {name}: importing this module failed: {type(error).__name__}{words}; "
            "give the path of a .py file, or the name of a module that can be imported"
        ) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _server(place: str) -> MCPServer:
    if place.startswith(("http://", "https://")):
        return MCPServer(url=place)
    return MCPServer(place)


def _instructions(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--instructions {given}: the file cannot be read: {reason}") from None


def _schedule(name: str) -> Schedule:
    if name.lower() not in SCHEDULES:
        raise UserError(f"--schedule {name}: there is no such schedule; there are: {', '.join(SCHEDULES)}")
    return Schedule(name.lower())
