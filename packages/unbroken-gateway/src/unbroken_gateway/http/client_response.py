"""An answer as HTTP: a stream as it arrives, or one body with its length; errors in the client's wire."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

from unbroken.asgi import JSON, Refused, Response
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
from unbroken.models.model import ResponseHead
from unbroken_gateway.http.large_requests import send_on_main_loop
from unbroken_gateway.relay.references import Claiming
from unbroken_gateway.stores import EntryTooLarge, StoreUnavailable
from unbroken_gateway.stores.marked import StoreEmptied
from unbroken_wires.decoding.verdict import judge_failure
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.framing import SSE, Framing
from unbroken_wires.wires.jsontext import dumps

# Turns an exception into the error that a client receives: status, message, kind and `Retry-After`. Pure.


_ADDRESS = re.compile(r"(?: at| \(|:)?\s*https?://")


@dataclass(frozen=True, slots=True)
class Failure:
    status: int
    words: str
    kind: str = ""
    """The kind, as in `Wire.error_body`."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    upstream: str = ""
    """The kind of error, if the model caused it; empty if the client or the gateway did."""


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
        case StoreEmptied():
            return Failure(503, str(error), headers={"retry-after": whole_seconds(error.retry_after)})
        case StoreUnavailable():  # clients must not see its address; the log has it
            words = "the gateway's store does not answer, and without it calls could be lost: try again"
            return Failure(503, words, headers={"retry-after": whole_seconds(error.retry_after)})
        case MissingKey():  # the provider's error: no client can do anything about it
            return Failure(502, str(error), upstream="refused")
        case UserError():
            return Failure(400, str(error))
        case UnbrokenError():
            return Failure(502, str(error), upstream="broken")
        case _:
            return Failure(500, "the gateway failed; its log has the reason")


def without_address(error: BaseException, failure: Failure) -> Failure:
    """Removes the provider's address, which clients with keys need not know; the log has it."""
    found = _ADDRESS.search(failure.words)
    if found is None or not isinstance(error, Unreachable | TimedOut | StreamError):
        return failure
    return replace(failure, words=f"{failure.words[: found.start()]}; the gateway's log says more")


def whole_seconds(wait: float) -> str:
    """Rounded up: clients read whole seconds only."""
    return str(max(0, ceil(wait)))


def _status(error: ProviderError) -> int:
    """The provider's own status, which a client of its wire can handle; ours if there was none."""
    if isinstance(error, TimedOut):
        return 504
    return error.status if 400 <= error.status < 600 else 502


def content_type_of(framing: Framing) -> bytes:
    kind = framing.content_type
    return (f"{kind}; charset=utf-8" if kind.startswith("text/") else kind).encode()


UPSTREAM = "x-unbroken-upstream"
FAILED = "x-unbroken-failed"
"""The header that names the kinds of the attempts that failed before this answer."""
_REQUEST_IDS = ("x-request-id", "request-id", "x-amzn-requestid")


def passed_on(head: ResponseHead) -> dict[str, str]:
    """The headers of a provider's response that its client may want: the request's id there, which its support asks
    for, and what is left of its limits."""
    if not head.upstream:
        return {}
    passed = {UPSTREAM: head.upstream}
    for name, value in head.headers.items():
        name = name.lower()
        if name in _REQUEST_IDS or "ratelimit-" in name:
            passed[name] = value
    return passed


class ClientResponse:
    """Sends an answer over HTTP: a stream as it arrives, or one body with its length."""

    def __init__(self, response: Response, framing: Framing = SSE, as_array: bool = False) -> None:
        self._response = response
        self._framing = framing
        self._stream = False
        self._frames = _ArrayFrames() if as_array else None
        self._headers: Mapping[str, str] = {}
        self._body = b""
        self.head = ResponseHead()
        """Of the provider's response."""
        self.claiming: Claiming | None = None
        """Set if the provider's ids in the answer are to belong to this key."""

    @property
    def status(self) -> int:
        return self._response.status

    def send_from_elsewhere(self, home: asyncio.AbstractEventLoop) -> None:
        self._response.reroute(partial(send_on_main_loop, home))

    async def begin(self, stream: bool, headers: Mapping[str, str]) -> None:
        self._stream = stream
        self._headers = headers = {**headers, **passed_on(self.head)}
        if stream:
            content_type = JSON if self._frames is not None else content_type_of(self._framing)
            await self._response.begin(200, content_type, headers, None)

    async def send(self, data: bytes) -> None:
        if not self._stream:
            self._body += data
            return
        if self.claiming is not None:
            await self.claiming.feed(data)
        if self._frames is not None:
            data = self._frames.feed(data) or b"\n"  # a sign of life has no data, and white space is none either
        await self._response.send(data)

    async def end(self) -> None:
        if self._stream:
            await self._response.send(self._frames.end() if self._frames is not None else b"", more=False)
        else:
            if self.claiming is not None:
                await self.claiming.read(self._body)
            await self._response.complete(200, self._body, self._headers)

    async def fail(self, wire: str, failure: Failure) -> None:
        """Sends an HTTP error if nothing was sent yet, otherwise an error event of the client's wire."""
        if not self._response.status:
            body = dumps(find_wire(wire).error_body(failure.status, failure.words, failure.kind))
            await self._response.complete(failure.status, body, {**passed_on(self.head), **failure.headers})
        elif self._stream:
            await self.send(find_wire(wire).error_event(failure.status, failure.words, failure.kind))
            await self.end()


class _ArrayFrames:
    """Turns server-sent events into a JSON array. Feed it complete events."""

    def __init__(self) -> None:
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        framed = b""
        for line in data.splitlines():
            if line.startswith(b"data:"):
                framed += (b",\n" if self._begun else b"[") + line[5:].strip()
                self._begun = True
        return framed

    def end(self) -> bytes:
        return b"]" if self._begun else b"[]"
