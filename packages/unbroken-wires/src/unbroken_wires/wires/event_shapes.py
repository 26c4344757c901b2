"""Where calls, text and the end are in the events of a wire, so that the faults of `unbroken_testing` can change them.

An event is what a provider writer wrote, parsed; a non-streaming body is one event. What is not JSON (`[DONE]`) is
bytes. Each wire has a subclass in its `*_faults` module; a fault happens on the wires whose events allow it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypeAlias

from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import Object

Event: TypeAlias = Object | bytes
Events: TypeAlias = Iterator[Event]
Mode: TypeAlias = Literal["streamed", "unstreamed"]
PartOfCall: TypeAlias = Literal["", "first", "later"]

BOTH: tuple[Mode, ...] = ("streamed", "unstreamed")


@dataclass(frozen=True, slots=True)
class TooLong:
    """How one provider reports that the context is too long: the status, the message, other fields of the error."""

    status: int
    message: str
    fields: Mapping[str, str | int] = field(default_factory=dict[str, str | int])


@dataclass(frozen=True, slots=True)
class ForTests:
    """What only tests need to know about a wire."""

    check_shape: Callable[[Object], list[str]]
    """Why no server could read this request: nothing is asked, or a field has a wrong type."""
    check_request: Callable[[Object], list[str]]
    """For what else the strictest server would refuse it."""
    events: EventShapes
    """Where things are in the events of a response, for faults."""
    bound: Callable[[Object, str, str], Bound] | None = None
    """The thinking in a request for a model, sent with a key, if the provider binds it to what is before it."""


class Bound(Protocol):
    @property
    def problem(self) -> str:
        """Why the request is refused; empty if it is not."""
        ...

    def sign(self, data: bytes) -> bytes:
        """A piece of the answer, as this provider signs it."""
        ...


class EventShapes:
    named = False
    """Each event has an `event:` line with its type."""
    in_fragments = True
    """The arguments of a call arrive in several events."""
    loose_fragments = False
    """A fragment belongs to its call by index or id alone; no event begins or ends a call."""
    text_arguments: tuple[Mode, ...] = BOTH
    """Where arguments are the text of JSON; elsewhere they are an object."""
    done_reason = ""
    """The finish reason of a response without calls, if one with calls has another."""
    calls_have_status = False
    """A call that was cut is marked so, and the end of the response repeats it."""
    merges_calls = False
    """Can one event have several calls? Then there is `all_calls_at_once`."""
    interleaves = False
    """Can the fragments of several calls alternate? Then there is `part_of_call`."""
    provider_runs = True
    """Do providers run tools of their own? Then there is `provider_run`."""
    usage_apart = False
    """Can usage follow the end, in an event of its own? Then there is `usage_last`."""
    index = "index"
    """The field that numbers a call, item or block."""
    too_long: ClassVar[Mapping[str, TooLong]] = {}
    """By provider, the one whose wire it is first."""

    def numbered(self, event: Event) -> list[Object]:
        """The objects in an event that have the index."""
        return [event] if isinstance(event, dict) else []

    def fragments(self, event: Event) -> list[Object]:
        """The calls, or fragments of calls, where they are loose."""
        raise NotImplementedError

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        """Every object in an event that holds the arguments of a call, with the key in it."""
        raise NotImplementedError

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        """The object that holds a fragment of text, or of arguments as text, with the key in it."""
        raise NotImplementedError

    def is_finish(self, event: Event) -> bool:
        """Does the event report how the response ended?"""
        raise NotImplementedError

    def is_after_finish(self, event: Event) -> bool:
        return False

    def set_finish(self, event: Event, reason: str | None) -> None:
        """Where the event has a finish reason, this one instead."""
        raise NotImplementedError

    def provider_run(self, events: Events, stream: bool) -> Events:
        """The same response with a tool that the provider ran itself."""
        raise NotImplementedError

    def all_calls_at_once(self, events: Events) -> Events:
        """All calls complete, in one event before the end."""
        raise NotImplementedError

    def part_of_call(self, event: Event) -> PartOfCall:
        """Is the event the first of a call, or a later one?"""
        raise NotImplementedError

    def usage_last(self, events: Events) -> Events:
        """Usage in an event of its own, after the end."""
        raise NotImplementedError

    def object_arguments(self, events: Events) -> Events:
        """Arguments as an object, where the wire has text for them."""
        for event in events:
            for holder, key in self.arguments_in(event):
                if isinstance(holder[key], str):
                    if holder[key]:
                        holder[key] = json.loads(holder[key])
                    else:
                        del holder[key]
            yield event

    def error_event(self, error: Object, message: str) -> bytes:
        """An error inside of a stream, with the name of its event."""
        return b"event: error\ndata: " + dumps(error) + b"\n\n"


def dumps(value: Json) -> bytes:
    """Unlike `jsontext.dumps`, it also writes half a surrogate pair, as some providers do."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
