"""What `run` and `chat` begin with: the screen that fits, logging, the model, the agent, and its loop."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from unbroken.agent import Agent
from unbroken.cli.desk import Desk
from unbroken.cli.live import LiveScreen
from unbroken.cli.options import NamingRecorder, Setup, build_agent, build_model, build_tools
from unbroken.cli.plain import JsonScreen, PlainScreen
from unbroken.cli.screen import Screen, is_terminal
from unbroken.cli.timeline import Watch
from unbroken.messages import ToolCall
from unbroken.tools.approval import Allow, OnApproval
from unbroken.tools.toolbox import Source

LOG = logging.getLogger("unbroken")


@dataclass(frozen=True, slots=True)
class Session:
    desk: Desk
    agent: Agent
    tools: list[Source]
    screen: Screen
    console: Console
    watch: Watch | None = None
    recorder: NamingRecorder | None = None

    def tell_recorded(self) -> None:
        """Where the last run was recorded, if it was."""
        if self.recorder is not None and self.recorder.last:
            self.screen.close()
            self.console.print(Text(f"recorded in {self.recorder.last}", "dim"), soft_wrap=True)


@contextmanager
def open_session(setup: Setup, watched: bool = False) -> Generator[Session]:
    console = Console(highlight=False)
    live = not setup.json and is_terminal(sys.stdout) and not console.is_dumb_terminal
    if live:
        screen: Screen = LiveScreen(console, asks=is_terminal(sys.stdin))
    else:
        console = Console(highlight=False, stderr=True)  # standard output has the answer, or JSON, and nothing else
        screen = (JsonScreen if setup.json else PlainScreen)(sys.stdout, sys.stderr)
    desk = Desk(screen)
    # What tools print is not the answer; on a terminal it may stand between the lines.
    with logged(setup.debug, console if live else None), nullcontext() if live else redirect_stdout(sys.stderr):
        model = build_model(setup)
        watch = Watch() if watched else None
        tools = build_tools(setup)
        recorder = NamingRecorder(setup.record) if setup.record else None
        agent = build_agent(setup, watch.over(model) if watch else model, tools, _on_approval(setup, desk), recorder)
        with desk.open(agent):
            try:
                yield Session(desk, agent, tools, screen, console, watch, None if setup.json else recorder)
            finally:
                screen.close()


def _on_approval(setup: Setup, desk: Desk) -> OnApproval | None:
    if setup.yes:
        return _allow
    return desk.approve if desk.screen.asks else None


def _allow(call: ToolCall) -> Allow:
    return Allow()


@contextmanager
def logged(debug: bool, console: Console | None = None) -> Generator[None]:
    """Without --debug nothing of it is seen: what matters is told by the screen."""
    handler: logging.Handler = logging.NullHandler()
    if debug:
        LOG.setLevel(logging.DEBUG)
        handler = RichHandler(console=console, show_path=False) if console else logging.StreamHandler(sys.stderr)
        if console is None:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
