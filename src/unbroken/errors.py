"""Every error that Unbroken raises; the type says whose fault it is.

    UnbrokenError
    ├── UserError                 the caller asked for something that cannot be
    │   ├── UnknownWire           no wire of that name
    │   ├── CannotEncode          a request that its wire cannot carry
    │   ├── InvalidRequest        a client's request that is not one of its wire
    │   └── InvalidStep           a message that would break the chain of calls
    └── StreamError               what came from the provider cannot be read
        ├── NotAResponse          an empty body, HTML, noise: nothing of the wire is in it
        ├── TooLarge              an event or a body beyond its limit
        └── TooDeep               JSON nested beyond any honest depth

A response that is readable but broken (cut, without its end, with an error inside) is not an exception: it is a
`Verdict` beside whatever was received. A tool's failure is a `ToolResult`.
"""

from __future__ import annotations


class UnbrokenError(Exception):
    """The root: `except UnbrokenError` catches all of ours and nothing else."""


class UserError(UnbrokenError):
    pass


class UnknownWire(UserError):
    pass


class CannotEncode(UserError):
    pass


class InvalidRequest(UserError):
    pass


class InvalidStep(UserError):
    pass


class StreamError(UnbrokenError):
    pass


class NotAResponse(StreamError):
    pass


class TooLarge(StreamError):
    pass


class TooDeep(StreamError):
    pass
