"""An error of ours as what a client of any wire is told: status, words, what kind, and when to come back. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import ceil

from unbroken.decoding.verdict import judge_failure
from unbroken.errors import (
    ContextTooLong,
    MissingKey,
    ProviderError,
    StreamError,
    TimedOut,
    UnbrokenError,
    Unreachable,
    UserError,
)
from unbroken.gateway.edge import Refused
from unbroken.gateway.stores import StoreUnavailable

_ADDRESS = re.compile(r"(?: at| \(|:)?\s*https?://")


@dataclass(frozen=True, slots=True)
class Failure:
    status: int
    words: str
    kind: str = ""
    """As `wires.refusals` has it."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    upstream: str = ""
    """What kind it is, if it is the model's: not the client's, and not ours."""


def failure_of(error: BaseException) -> Failure:
    match error:
        case Refused():
            return Failure(error.status, str(error), error.kind, error.headers)
        case ContextTooLong():
            return Failure(400, str(error), "too_long", upstream="too_long")
        case ProviderError():
            wait = error.retry_after
            headers = {} if wait is None else {"retry-after": whole_seconds(wait)}
            return Failure(_status(error), str(error), headers=headers, upstream=judge_failure(error).kind)
        case StreamError():
            kind = error.verdicts[-1].kind if error.verdicts else ""
            return Failure(502, str(error), kind, upstream=kind or "broken")
        case StoreUnavailable():  # where it is, is nobody's concern; the log has said it
            return Failure(503, "what was said before cannot be read now: try again")
        case MissingKey():  # of the provider, and nobody who asks can do anything about it
            return Failure(502, str(error), upstream="refused")
        case UserError():
            return Failure(400, str(error))
        case UnbrokenError():
            return Failure(502, str(error), upstream="broken")
        case _:
            return Failure(500, "the gateway failed, its log says why")


def discreet(error: BaseException, failure: Failure) -> Failure:
    """The same for who has no business to know where a provider is, or how it is reached; the log says it all."""
    found = _ADDRESS.search(failure.words)
    if found is None or not isinstance(error, Unreachable | TimedOut | StreamError):
        return failure
    return replace(failure, words=f"{failure.words[: found.start()]}; the gateway's log says more")


def whole_seconds(wait: float) -> str:
    """Not fewer than asked for: clients read whole ones only."""
    return str(max(0, ceil(wait)))


def _status(error: ProviderError) -> int:
    """The provider's own, which a client of its wire knows what to do with; one of ours where there was none."""
    if isinstance(error, TimedOut):
        return 504
    return error.status if 400 <= error.status < 600 else 502
