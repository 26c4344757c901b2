"""Where a run is shown: what the three kinds of screens have in common, and whether somebody is there."""

from __future__ import annotations

from typing import IO, Protocol

from unbroken.events import Event
from unbroken.messages import ToolCall
from unbroken.tools.approval import Approval


class Screen(Protocol):
    @property
    def asks(self) -> bool:
        """Is somebody there who can be asked?"""
        ...

    def show(self, event: Event) -> None: ...

    def ask(self, call: ToolCall) -> Approval:
        """May this call run?"""
        ...

    def line(self, text: str) -> None:
        """A line for the person that is no part of an answer."""
        ...

    def close(self) -> None:
        """Leave things so that others can print."""
        ...


def is_terminal(stream: IO[str] | None) -> bool:
    """There is none where the shell closed it."""
    return stream is not None and stream.isatty()
