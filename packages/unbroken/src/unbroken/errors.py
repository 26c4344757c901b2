"""Every error that Unbroken raises. The type shows whose fault it is.

    UnbrokenError
    ├── UserError                 the caller asked for something that is not possible
    │   ├── UnknownWire           there is no wire with that name
    │   ├── UnknownProvider       there is no provider with that name
    │   ├── MissingKey            the provider needs a key and none was given
    │   ├── CannotEncode          the wire has no way to send this request
    │   ├── InvalidRequest        a client sent a request that its wire does not allow
    │   ├── InvalidStep           a message that would break the chain of calls and results
    │   ├── InvalidTool           a function that cannot become a tool, two tools with one name, a file without tools
    │   ├── MiddlewareFailed      a method of your middleware raised, or returned what it may not
    │   └── RunTaken              somebody else resumed the run: it is active, has moved on, or has ended
    ├── ProviderError             the provider did not answer, or answered with an error
    │   ├── Unauthorized          401, 403: the key is wrong, or lacks a permission
    │   ├── ModelNotFound         404: the model or the address does not exist
    │   ├── RequestRefused        400, 422 and similar: a retry of this request cannot succeed
    │   │   └── ContextTooLong    the history is longer than the model's context
    │   ├── RateLimited           429
    │   ├── Unavailable           5xx, 408, 409, 425, 529: a retry may succeed
    │   ├── Unreachable           no connection
    │   └── TimedOut              no connection, no first byte or no end of the response in time
    ├── StreamError               the provider sent something unreadable
    │   ├── NotAResponse          an empty body, HTML or noise instead of a response of the wire
    │   ├── TooLarge              an event or a body beyond its size limit
    │   ├── TooDeep               JSON nested deeper than any real response
    │   └── ChainBroken           the response broke off or was empty; see `verdicts`
    ├── Vetoed                    a check ended the run; it becomes the answer, with the stop reason `vetoed`
    │   └── PromptVetoed          it was a check of the prompt
    ├── RecordingFailed           the run must be recorded and cannot be: the disk is full, the folder is gone
    └── AnswerInvalid             the model refused to answer, or its answer does not match the requested type, even
                                  after a correction

A response that is readable but broken (cut off, without an end, with an error inside) yields a `Verdict` next to what
was received. If the agent loop cannot continue after it, it raises `ChainBroken`. A failing tool yields a `ToolResult`.
An error that ends a run carries the history so far in `messages`: it is valid, and you can continue from it.
"""

from __future__ import annotations

import re

from unbroken_wires.deltas import Verdict
from unbroken_wires.errors import (
    CannotEncode,
    ContextTooLong,
    InvalidRequest,
    InvalidStep,
    ModelNotFound,
    NotAResponse,
    ProviderError,
    RateLimited,
    RequestRefused,
    StreamError,
    TimedOut,
    TooDeep,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnbrokenError,
    UnknownWire,
    Unreachable,
    UserError,
)


def needs_extra(what: str, package: str, extra: str) -> UserError:
    """The error of a part that needs an optional package, with the command that installs it."""
    return UserError(f"{what} needs {package}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """With a checkout's own packages nothing of Unbroken is looked for on an index."""
    extended = f"'unbroken[{extra}]'"
    return f"pip install {extended} (in a checkout: pip install ./packages/* {extended})"


class UnknownProvider(UserError):
    pass


class MissingKey(UserError):
    pass


class InvalidTool(UserError):
    pass


class MiddlewareFailed(UserError):
    """It names the class and the method; its cause is what they raised."""


def middleware_failed(name: str, method: str, problem: str) -> MiddlewareFailed:
    return MiddlewareFailed(
        f"the middleware `{name}` failed in `{method}`: {problem}. Repair it, or leave it out of `middleware=`"
    )


class RunTaken(UserError):
    """One run has one writer. `run` is the id of the run that somebody else resumed first."""

    def __init__(self, message: str, run: str = "") -> None:
        super().__init__(message)
        self.run = run


class ChainBroken(StreamError):
    def __init__(self, message: str, verdicts: tuple[Verdict, ...] = ()) -> None:
        super().__init__(message)
        self.verdicts = verdicts


class Vetoed(UnbrokenError):
    """Ends a run with its text as the answer. A check raises it through `Veto`."""


class PromptVetoed(Vetoed):
    """The prompt was refused: it does not stay in the history."""


class RecordingFailed(UnbrokenError):
    """A tool that may change something did not start, because its start could not be recorded."""


class AnswerInvalid(UnbrokenError):
    pass


PASSWORD = re.compile(r"(?P<before>://[^/@\s:]*:)(?P<password>[^/\s]+)(?=@)")
"""The credentials of an address, up to its last `@`."""


def without_passwords(text: str) -> str:
    """The text of an error with `postgres://user:secret@host` masked."""
    return PASSWORD.sub(r"\g<before>***", text) if "://" in text else text


def named(name: str) -> type[UnbrokenError] | None:
    """The error class with this name, of any package of Unbroken that is loaded: recordings hold names."""
    kinds: list[type[UnbrokenError]] = [UnbrokenError]
    for kind in kinds:
        if kind.__name__ == name and kind.__module__.partition(".")[0].startswith("unbroken"):
            return kind
        kinds += kind.__subclasses__()
    return None


__all__ = [
    "PASSWORD",
    "AnswerInvalid",
    "CannotEncode",
    "ChainBroken",
    "ContextTooLong",
    "InvalidRequest",
    "InvalidStep",
    "InvalidTool",
    "MiddlewareFailed",
    "MissingKey",
    "ModelNotFound",
    "NotAResponse",
    "PromptVetoed",
    "ProviderError",
    "RateLimited",
    "RecordingFailed",
    "RequestRefused",
    "RunTaken",
    "StreamError",
    "TimedOut",
    "TooDeep",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnbrokenError",
    "UnknownProvider",
    "UnknownWire",
    "Unreachable",
    "UserError",
    "Vetoed",
    "install_command",
    "named",
    "needs_extra",
    "without_passwords",
]
