"""Errors of messages, decoding and wires, and the base of all others. `unbroken.errors` has every one."""

from __future__ import annotations

from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Message


class UnbrokenError(Exception):
    """The base class: `except UnbrokenError` catches every error of this library and nothing else."""

    messages: tuple[Message, ...] = ()
    """If a run ended with this error: its history, in which every call has a result."""
    verdicts: tuple[Verdict, ...] = ()
    """One verdict per attempt, if a model was asked more than once or its response broke."""


class UserError(UnbrokenError):
    file: str = ""
    """The file that has to be corrected, if it is the user's file of provider profiles."""


class UnknownWire(UserError):
    pass


class CannotEncode(UserError):
    pass


class InvalidRequest(UserError):
    pass


class InvalidStep(UserError):
    pass


class ProviderError(UnbrokenError):
    """`status` is the HTTP status (0 if there was no response), `retry_after` the seconds that the provider asked to
    wait."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Unauthorized(ProviderError):
    key_variable: str = ""
    """The environment variable that the provider's key is usually in, if the message names it."""


class ModelNotFound(ProviderError):
    pass


class RequestRefused(ProviderError):
    pass


class ContextTooLong(RequestRefused):
    pass


class RateLimited(ProviderError):
    pass


class Unavailable(ProviderError):
    pass


class Unreachable(ProviderError):
    pass


class TimedOut(ProviderError):
    total: bool = False
    """The time limit for the complete response has passed, so there is no time left for a retry."""


class StreamError(UnbrokenError):
    pass


class NotAResponse(StreamError):
    pass


class TooLarge(StreamError):
    """It has a verdict from the start: the answer is not asked for again, because it would be too large again."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.verdicts = (Verdict("too_large", message),)


class TooDeep(StreamError):
    pass
