"""Every error that Unbroken raises; the type says whose fault it is.

    UnbrokenError
    ├── UserError                 the caller asked for something that cannot be
    │   ├── UnknownWire           no wire of that name
    │   ├── UnknownProvider       no provider of that name
    │   ├── MissingKey            a provider wants a key and there is none
    │   ├── CannotEncode          a request that its wire cannot carry
    │   ├── InvalidRequest        a client's request that is not one of its wire
    │   ├── InvalidStep           a message that would break the chain of calls
    │   ├── InvalidTool           a function that cannot become a tool, two tools of one name, a file without tools
    │   └── RunTaken              somebody else resumed the run: it is active, has moved on, or has ended
    ├── ProviderError             the provider did not answer, or answered with an error
    │   ├── Unauthorized          401, 403: the key is wrong, or may not do this
    │   ├── ModelNotFound         404: no such model, or no such address
    │   ├── RequestRefused        400, 422 and the like: this request will never do
    │   │   └── ContextTooLong    the history is longer than the model can read
    │   ├── RateLimited           429
    │   ├── Unavailable           5xx, 408, 409, 425, 529: another try may do
    │   ├── Unreachable           no connection
    │   └── TimedOut              no connection, no first byte or no end in time
    ├── StreamError               what came from the provider cannot be read
    │   ├── NotAResponse          an empty body, HTML, noise: nothing of the wire is in it
    │   ├── TooLarge              an event or a body beyond its limit
    │   ├── TooDeep               JSON nested beyond any honest depth
    │   └── ChainBroken           the answer broke off, or stayed empty: `verdicts` say how
    ├── RecordingFailed           a run must be recorded and cannot be: a disk is full, a folder is gone
    └── AnswerInvalid             the model's answer does not fit the type that was asked for, also when told so

A response that is readable but broken (cut, without its end, with an error inside) is a `Verdict` beside whatever was
received; the loop makes `ChainBroken` of it when it cannot go on. A tool's failure is a `ToolResult`. An error that
ends a run carries the history up to there in `messages`: valid, ready to go on with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unbroken.deltas import Verdict
    from unbroken.messages import Message


class UnbrokenError(Exception):
    """The root: `except UnbrokenError` catches all of ours and nothing else."""

    messages: tuple[Message, ...] = ()
    """If a run ended with this error: its history, every call answered."""
    verdicts: tuple[Verdict, ...] = ()
    """What each try came to, where a model was asked more than once, or its answer broke."""


class UserError(UnbrokenError):
    pass


class UnknownWire(UserError):
    pass


class UnknownProvider(UserError):
    pass


class MissingKey(UserError):
    pass


class CannotEncode(UserError):
    pass


class InvalidRequest(UserError):
    pass


class InvalidStep(UserError):
    pass


class InvalidTool(UserError):
    pass


class RunTaken(UserError):
    """One run has one writer. `run` is the id of the run that somebody else resumed first."""

    def __init__(self, message: str, run: str = "") -> None:
        super().__init__(message)
        self.run = run


class ProviderError(UnbrokenError):
    """`status` is the HTTP status (0 if there was no answer), `retry_after` the seconds that the provider asked for."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Unauthorized(ProviderError):
    pass


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
    """The time for all of it is up: there is none left for another try."""


class StreamError(UnbrokenError):
    pass


class NotAResponse(StreamError):
    pass


class TooLarge(StreamError):
    pass


class TooDeep(StreamError):
    pass


class ChainBroken(StreamError):
    def __init__(self, message: str, verdicts: tuple[Verdict, ...] = ()) -> None:
        super().__init__(message)
        self.verdicts = verdicts


class RecordingFailed(UnbrokenError):
    """A tool that may change something did not start, because its start could not be recorded."""


class AnswerInvalid(UnbrokenError):
    pass
