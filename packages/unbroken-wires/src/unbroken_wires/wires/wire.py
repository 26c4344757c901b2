"""What a wire is: `Wire` lists its parts, the protocols here are what some of the parts have to provide.

A wire reads and writes JSON. It never decides whether a call is complete, which call a fragment belongs to, or whether
a response is complete: it reports to a `Receiver` (the assembler, one layer up) what it finds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from unbroken_wires.deltas import CallReady, Delta, Ended, Meaning, ReasoningDelta, TextDelta, UsageReported
from unbroken_wires.errors import CannotEncode, InvalidRequest, UserError
from unbroken_wires.messages import Assistant, Json, Request, ServerCall, ToolCall, Usage
from unbroken_wires.wires.framing import SSE, Framing
from unbroken_wires.wires.http_api import HttpApi, status_of
from unbroken_wires.wires.json_access import MISSHAPEN, TOOL_NAME, IdRule, Object
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.raw_history import RawHistory, Relay

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.history_losses import Citation
    from unbroken_wires.wires.rules import Rule
    from unbroken_wires.wires.server_tools import ServerTools


class Receiver(Protocol):
    """Called by a `ResponseDecoder`, in the order of the bytes."""

    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...

    def piece(self, index: Json, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A loose fragment of a call: any of the fields may be missing, repeated or wrong."""
        ...

    def more(self, index: Json, arguments: str) -> bool:
        """Some more arguments of the open call at this index. False, and nothing is done, if it is not so simple."""
        ...

    def entry(self, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A complete call in a list of calls, apart from all others in it."""
        ...

    def again(self, index: Json, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A second fragment with a name, and with the same index and id, in one list of fragments."""
        ...

    def loose(self, position: int, arguments: Json) -> None:
        """A fragment that has neither index, id nor name, at this position in a list of several."""
        ...

    def open(self, key: Json, id: str, name: str, kind: str = "function") -> None:
        """A call begins, on a wire that also marks where it ends. `key` is the wire's own handle until `close`."""
        ...

    def arguments(self, key: Json, text: str) -> None: ...

    def close(self, key: Json, whole: str | dict[str, Json] | None = None) -> None:
        """The wire's own end of a call. `whole` replaces what came in fragments: the text, or the object itself."""
        ...

    def withdraw(self, key: Json) -> None:
        """What was opened under `key` is not a call for the client: the provider ran it itself."""
        ...

    def left_out(self, name: str) -> None:
        """The provider reports that it has ignored this field of the request."""
        ...

    def refused(self) -> None:
        """The provider marks the text of the answer as a refusal, whatever its finish reason is."""
        ...

    def other(self) -> None:
        """Output that has no field of ours: an image, a sound. The response is not empty."""
        ...

    def server_call(self, call: ServerCall) -> None:
        """A call of a tool that the provider runs, as it goes into the response."""
        ...

    def server_call_opened(self, call: ServerCall) -> None: ...

    def server_call_ended(self, call: ServerCall, error: str = "") -> None: ...

    def usage(self, usage: Usage) -> None: ...

    def finish(self, reason: str, meaning: Meaning = "done") -> None:
        """A finish reason as the provider spells it (empty if it gave none), and what it means on any wire."""
        ...

    def ended(self, last: bool = False) -> None:
        """A terminal sign without a reason (`[DONE]`, the end of a body). `last`: nothing may follow it."""
        ...

    def error(self, error: Json) -> None: ...


class ResponseDecoder(Protocol):
    """Reads events of one response. `recognised` turns true at the first event that is of this wire.

    One that has `again(data: bytes) -> bool` is first asked whether it takes an event without its being parsed. One
    whose `native` changes something, or leaves out what has not ended yet, also has `kept() -> object`: all that it
    keeps of the response so far, in lists, tuples and dicts, to be measured.
    """

    recognised: bool

    def feed(self, event: dict[str, Json], data: bytes) -> None:
        """One parsed event and the bytes it was parsed from (for numbers that must be exact)."""
        ...

    def native(self) -> Json:
        """The assistant message in the wire's request form, if our own fields do not cover it; None if they do."""
        ...


class ResponseEncoder(Protocol):
    """Writes one response for a client of this wire from the deltas of any other: streamed events, or one body."""

    def feed(self, delta: Delta) -> bytes: ...

    def follow(self, data: bytes) -> None:
        """Complete events of this wire that the client has received unchanged. Everything written from now on continues
        the same response, and a call that the client has in part is continued from there; if that is impossible, the
        response ends as one that was cut. Cheap enough to be called for every read."""
        ...

    def cite(self, citations: Sequence[Citation]) -> bytes | None: ...

    def keep_alive(self, relays: bool) -> bytes:
        """A sign of life for a client of the stream, between two events. `relays`: the client receives the events of
        another server, which are followed."""
        ...

    def body(self) -> bytes:
        """After the last delta: the same response as one non-streaming body. Not after `follow`."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """A tool that the provider runs, in a script: `ProviderCall("web_search", {"query": "…"}, "what it found")`.

    `tool` is the name that `ServerCall.tool` has. With `error` it fails. A provider may pause its turn between a call
    and its result: `part="call"` is only the first, `part="result"` only the second.
    """

    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])
    result: Json = ""
    error: str = ""
    id: str = ""
    part: Literal["both", "call", "result"] = "both"
    name: str = ""
    """Of a tool of an MCP server."""


class DeltaEncoder(ABC):
    """What all encoders share: each kind of delta has its method."""

    _usage: Usage | None = None

    def cite(self, citations: Sequence[Citation]) -> bytes | None:
        """The pages that the answer cites, before its end. None: they have no place here, or it has passed."""
        return None

    def provider_call(self, call: ProviderCall) -> bytes:
        """See `ProviderWriter`."""
        raise UserError(
            f"ProviderCall({call.tool!r}): providers of this wire do not run it in a script: use another wire"
        )

    def keep_alive(self, relays: bool) -> bytes:
        return b": keep-alive\n\n"  # a comment, which clients skip

    def write(self, delta: Delta) -> bytes:
        match delta:
            case TextDelta(text):
                return self._text(text)
            case ReasoningDelta(text):
                return self._reasoning(text)
            case CallReady(call):
                return self._call(call)
            case UsageReported(usage):
                self._usage = usage
                return b""
            case Ended(verdict) if verdict.failed:
                return self.fail(status_of(verdict.kind), verdict.reason, verdict.kind)
            case Ended(verdict):
                return self.end(verdict.meaning_for_client)
            case _:
                return b""

    @abstractmethod
    def _text(self, text: str) -> bytes: ...

    @abstractmethod
    def _reasoning(self, text: str) -> bytes: ...

    @abstractmethod
    def _call(self, call: ToolCall) -> bytes: ...

    @abstractmethod
    def fail(self, status: int, message: str, kind: str = "") -> bytes: ...

    @abstractmethod
    def end(self, told: Meaning) -> bytes: ...


class ProviderWriter(ResponseEncoder, Protocol):
    """An encoder that also writes what only a provider sends: a call in fragments, perhaps cut, and errors of any
    status. Scripted models and servers use it. Text, reasoning and usage go through `feed`."""

    call_prefix: str
    """How the ids of calls begin at the providers of this wire."""

    def begin(self) -> bytes:
        """What comes before the first text or call."""
        ...

    def open_call(self, id: str, name: str) -> bytes:
        """Without an id if `id` is empty."""
        ...

    def grow_call(self, text: str) -> bytes: ...

    def close_call(self, complete: bool) -> bytes: ...

    def provider_call(self, call: ProviderCall) -> bytes:
        """A tool that the provider runs, and what came of it. `UserError` if its providers run none."""
        ...

    def end(self, told: Meaning) -> bytes: ...

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        """An error inside of a stream that has begun."""
        ...


class MakeEncoder(Protocol):
    """`created` is when the response was made, in seconds since 1970, and `now` tells when it ends; `include_usage` is
    whether the client of a stream wants to know what it cost; `request` is the body that it answers. Each only where
    the wire has it."""

    def __call__(
        self,
        model: str,
        id: str,
        *,
        created: int = 0,
        include_usage: bool = True,
        request: Mapping[str, Json] | None = None,
        now: Callable[[], float] | None = None,
    ) -> ResponseEncoder: ...


@dataclass(slots=True)
class Plain:
    """The content of a non-streaming body that is exactly as documented. Calls are read on demand."""

    text: str
    calls: Sequence[dict[str, Json]]
    """As the wire has them, each with its `id`."""
    usage: Usage | None
    finish: str
    read: Callable[[Sequence[dict[str, Json]]], tuple[ToolCall, ...]]

    def message(self) -> Assistant:
        return Assistant(self.text, self.read(self.calls) if self.calls else ())


ReplaceReasoning: TypeAlias = Callable[[Object, Request], tuple[Object, str]]


def _always(native: Json) -> bool:
    return True


class ErrorBody(Protocol):
    """`kind` is one of `Verdict`, or a code that the wire has a field for."""

    def __call__(self, status: int, message: str, kind: str = "") -> Object: ...


class ErrorEvent(Protocol):
    def __call__(self, status: int, message: str, kind: str = "") -> bytes: ...


class KeepFirstCall(Protocol):
    def __call__(self, body: Object, new_id: str = "") -> Object: ...


def on_demand(module: str, name: str) -> Callable[[], Any]:
    """A part of a wire that is imported with its first use, because few programs need it: start-up time."""

    @cache
    def load() -> Any:
        return getattr(import_module(module), name)

    return load


def _no_rules() -> tuple[Rule, ...]:
    return ()


def _no_crossing() -> Crossing | None:
    return None


def _no_server_tools() -> ServerTools | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A provider's protocol: everything that the rest of the library needs to know about it."""

    name: str
    http: HttpApi

    # Requests
    encode_request: Callable[[Request], dict[str, Json]]
    decode_request: Callable[[dict[str, Json]], Request]
    id_rule: IdRule | None
    """What the ids of calls have to look like; None: any text will do."""
    history: RawHistory
    """Takes raw messages of this wire apart, for repair."""

    # Responses
    decoder: Callable[[Receiver], ResponseDecoder]
    encoder: MakeEncoder
    """Made with the model's name and an id for the response."""
    provider_writer: Callable[[Request, str], ProviderWriter]
    """Made with the request that it answers and an id for the response."""
    error_body: ErrorBody
    error_event: ErrorEvent
    keep_first_call: KeepFirstCall
    """A non-streaming body with only its first call, for a client that takes one call at a time."""
    relay: Relay
    recognises: Callable[[Object], bool]
    """Is it an event or a body of this wire?"""
    marks: tuple[bytes, ...]
    """One of these is near the beginning of a response, where it is too short to have an event."""

    for_tests: Callable[[], ForTests]
    """The strict checker, and what faults need to know. Loaded on demand: no other program needs it."""

    name_rule: IdRule = TOOL_NAME
    """What providers accept as the name of a tool. Other names are shortened on the way out (`fit`), and the decoder
    turns them back."""
    rules: Callable[[], tuple[Rule, ...]] = _no_rules
    """What its providers refuse, by model. Loaded with the first request."""
    crossing: Callable[[], Crossing | None] = _no_crossing
    """How it spells settings that not every wire has; None: the settings of other wires are left out. Loaded with the
    first request that crosses wires."""

    framing: Framing = SSE
    """How a stream is cut into events."""
    imitates: str = ""
    """The wire whose messages look like these, except for details that only these have."""
    done_ends: bool = False
    """Is `[DONE]` the end of a stream? On other wires some servers send it as well, and it means nothing."""
    sign_is_last: bool = False
    """Is the terminal event the last one? On other wires usage may follow it."""
    calls_leak: bool = False
    """Do servers of this wire let calls through that a model wrote as text? Then the text is searched for them."""
    takes_back: Callable[[Json], bool] = _always
    """Does the provider take this native message of an assistant back? It refuses what it has not signed itself."""
    mend_refused: Callable[[Object, str], tuple[Object, list[str]] | None] | None = None
    """Takes a body and the provider's words about it; returns it without what has expired or cannot be verified, and
    the names of that. None if something else was refused."""
    drop_moved_thinking: Callable[[dict[str, Json], Request], None] | None = None
    """Changes a body so that its provider drops thinking that is not valid any more. Encoders do so by themselves."""
    drops_moved_thinking: Callable[[Mapping[str, Json]], bool] | None = None
    """Does a body ask for that?"""
    lost_reasoning: Mapping[str, ReplaceReasoning] = field(default_factory=dict[str, ReplaceReasoning])
    """Ways to ask a provider that demands its own reasoning back when that is gone. Each takes the body and returns it
    changed, with what was done in words."""
    native_has_text: bool = True
    """Does the native message contain the text too? Then it is void once a call was recovered from that text."""
    server_tools: Callable[[], ServerTools | None] = _no_server_tools
    """How it requests tools that the provider runs. Without it there are none."""
    plain: Callable[[dict[str, Json]], Plain | None] | None = None
    """Reads a non-streaming body that is exactly as documented, faster than the decoder; None for any other."""

    def __post_init__(self) -> None:
        # The one place for all wires where other exceptions become our own errors.
        object.__setattr__(self, "encode_request", _guard_encoding(self.name, self.encode_request))
        object.__setattr__(self, "decode_request", _guard_decoding(self.name, self.decode_request))

    def write_request(self, request: Request) -> bytes:
        """The body as it goes out: JSON that every parser takes, whatever stood in the messages."""
        return dumps(self.encode_request(request))


def _guard_encoding(name: str, encode: Callable[[Request], dict[str, Json]]) -> Callable[[Request], dict[str, Json]]:
    def encode_request(request: Request) -> dict[str, Json]:
        try:
            return encode(request)
        except MISSHAPEN as error:
            what = f"{type(error).__name__}: {error}"
            raise CannotEncode(
                f"writing a request for {name} failed, a value in it is of no known kind: {what}"
            ) from error

    return encode_request


def _guard_decoding(name: str, decode: Callable[[dict[str, Json]], Request]) -> Callable[[dict[str, Json]], Request]:
    def decode_request(body: dict[str, Json]) -> Request:
        if not isinstance(body, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - it is a client's JSON
            raise InvalidRequest(f"reading a request of {name} failed: its body is not a JSON object")
        try:
            return decode(body)
        except MISSHAPEN as error:
            raise InvalidRequest(f"reading a request of {name} failed: {error}") from error

    return decode_request
