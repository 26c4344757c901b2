"""Turns an exception into the error that a client receives: status, message, kind and `Retry-After`. Pure."""

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
from unbroken.gateway.http.asgi import Refused
from unbroken.gateway.stores import EntryTooLarge, StoreUnavailable

_ADDRESS = re.compile(r"(?: at| \(|:)?\s*https?://")


@dataclass(frozen=True, slots=True)
class Failure:
    status: int
    words: str
    kind: str = ""
    """As `Wire.error_body` has it."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    upstream: str = ""
    """What kind it is, if it is the model's: not the client's, and not ours."""


def failure_from(error: BaseException) -> Failure:
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
        case EntryTooLarge():
            return Failure(
                502, "the model's answer is too large to be held: the gateway's `entry_bytes` sets the limit"
            )
        case StoreUnavailable():  # its address is not for clients; the log has it
            words = "the gateway's store does not answer, and without it calls could be lost: try again"
            return Failure(503, words, headers={"retry-after": whole_seconds(error.retry_after)})
        case MissingKey():  # the provider's: no client can do anything about it
            return Failure(502, str(error), upstream="refused")
        case UserError():
            return Failure(400, str(error))
        case UnbrokenError():
            return Failure(502, str(error), upstream="broken")
        case _:
            return Failure(500, "the gateway failed, its log says why")


def without_address(error: BaseException, failure: Failure) -> Failure:
    """Without the provider's address, which clients with keys need not know; the log has it."""
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
