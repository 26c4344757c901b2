"""What a wire is: a provider's protocol as four corners, and what its decoder tells while it reads.

Only shapes stand here. A wire reads and writes JSON and never decides whether a call is complete, which call a piece
belongs to, or whether a response is whole: it tells a `Receiver` (the assembler, one layer up) what it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from unbroken.deltas import Delta
from unbroken.errors import CannotEncode, InvalidRequest
from unbroken.messages import Assistant, Json, Request, ServerCall, ToolCall, Usage
from unbroken.verdicts import Meaning
from unbroken.wires.jsontext import dumps


class Receiver(Protocol):
    """Told by a `ResponseDecoder`, in the order of the bytes."""

    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...

    def piece(self, index: Json, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A loose piece of a call as openai-chat sends it: any of the fields may be missing, repeated or wrong."""
        ...

    def more(self, index: Json, arguments: str) -> bool:
        """Some more arguments of the open call at this index. False, and nothing is done, if it is not so simple."""
        ...

    def entry(self, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A call that stands whole in a list of calls, apart from all others there."""
        ...

    def again(self, index: Json, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A second piece with a name, and with the same index and id, in one list of pieces."""
        ...

    def loose(self, position: int, arguments: Json) -> None:
        """A piece that has neither index, id nor name, at this position in a list of several."""
        ...

    def open(self, key: Json, id: str, name: str, kind: str = "function") -> None:
        """A call begins, on a wire that also says where it ends. `key` is the wire's own handle until `close`."""
        ...

    def arguments(self, key: Json, text: str) -> None: ...

    def close(self, key: Json, whole: str | dict[str, Json] | None = None) -> None:
        """The wire's own end of a call. `whole` replaces what came in pieces: the text, or the object itself."""
        ...

    def withdraw(self, key: Json) -> None:
        """What was opened under `key` is no call of the client's: the provider ran it itself."""
        ...

    def other(self) -> None:
        """Something was said that has no field of ours: an image, a sound. The response is not empty."""
        ...

    def server_call(self, call: ServerCall) -> None: ...

    def usage(self, usage: Usage) -> None: ...

    def finish(self, reason: str, meaning: Meaning = "done") -> None:
        """A finish reason as the provider spells it (empty if it gave none), and what it means on any wire."""
        ...

    def ended(self, last: bool = False) -> None:
        """A terminal sign that carries no reason (`[DONE]`, a whole body). `last`: nothing may follow it."""
        ...

    def error(self, error: Json) -> None: ...


class ResponseDecoder(Protocol):
    """Reads events of one response. `recognised` turns true at the first event that is of this wire.

    One that has `again(data: bytes) -> bool` is first asked whether it takes an event without its being parsed.
    """

    recognised: bool

    def feed(self, event: dict[str, Json], data: bytes) -> None:
        """One parsed event and the bytes it was parsed from (for numbers that must be exact)."""
        ...

    def native(self) -> Json:
        """The assistant message in the wire's request form, as far as our own fields do not say it; None if they do."""
        ...


class ResponseEncoder(Protocol):
    """Writes one response for a client of this wire from the deltas of any other: streamed events, or one body."""

    def feed(self, delta: Delta) -> bytes: ...

    def follow(self, data: bytes) -> None:
        """Whole events of this wire that were passed on to the client as they came: what is written from now on goes
        on from there, in the same response, and a call of which only a part has passed is written from that part on.
        One that does not go on so makes the end that of a cut answer. Cheap: it may be told of every read."""
        ...

    def body(self) -> bytes:
        """After the last delta: the same response as one whole body. Not after `follow`."""
        ...


class MakeEncoder(Protocol):
    """`created` is when the response was made, in seconds since 1970, and `include_usage` whether the client of a
    stream wants to know what it cost; both only where the wire has it."""

    def __call__(self, model: str, id: str, *, created: int = 0, include_usage: bool = True) -> ResponseEncoder: ...


@dataclass(slots=True)
class Plain:
    """What is in a whole body that leaves nothing to doubt. The calls are read when somebody asks for them."""

    text: str
    calls: Sequence[dict[str, Json]]
    """As the wire has them, each with its `id`."""
    usage: Usage | None
    finish: str
    read: Callable[[Sequence[dict[str, Json]]], tuple[ToolCall, ...]]

    def message(self) -> Assistant:
        return Assistant(self.text, self.read(self.calls) if self.calls else ())


@dataclass(frozen=True, slots=True)
class Wire:
    name: str
    decoder: Callable[[Receiver], ResponseDecoder]
    encoder: MakeEncoder
    """Made with the model's name and an id for the response."""
    encode_request: Callable[[Request], dict[str, Json]]
    decode_request: Callable[[dict[str, Json]], Request]
    done_ends: bool = False
    """Is `[DONE]` a terminal sign of this wire? On others it is an ornament of some server."""
    sign_is_last: bool = False
    """Does nothing worth waiting for follow its terminal sign? On others usage may."""
    native_has_text: bool = True
    """Does the native message hold the text too? Then it is void once a call was recovered from that text."""
    plain: Callable[[dict[str, Json]], Plain | None] | None = None
    """Reads a whole body that is exactly as documented, much quicker than the decoder; None for any other."""

    def __post_init__(self) -> None:
        # Frozen, and still the place to say it once for all wires: nothing but our own errors leaves these corners.
        object.__setattr__(self, "encode_request", _guard_encoding(self.name, self.encode_request))
        object.__setattr__(self, "decode_request", _guard_decoding(self.name, self.decode_request))

    def write_request(self, request: Request) -> bytes:
        """The body as it goes out: JSON that every parser takes, whatever stood in the messages."""
        return dumps(self.encode_request(request))


MISSHAPEN = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
"""What comes of a value that is not of the type it should be."""


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
