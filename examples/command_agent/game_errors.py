"""How a command that is sent to a game can fail. The texts are for the model."""

from __future__ import annotations

from unbroken import ToolFailed


class NotExecuted(ToolFailed):
    """The game refused the command, or there is no game."""


class OutcomeUnknown(ToolFailed):
    """The command was sent, and no answer came: it may have run."""

    def __init__(self, line: str, why: str) -> None:
        super().__init__(
            f"outcome unknown: {why} after `/{line}` was sent, and it may have taken effect; look before you repeat it"
        )
