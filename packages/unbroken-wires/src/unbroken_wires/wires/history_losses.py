"""What the messages and tools of a request say that the wire of the model has no place for.

`crossing` does the same for settings. Each wire lists in its `Crossing` what only its own messages can say, named as
its clients call it, without numbers: `messages.name`. Reasoning is never listed: no model accepts that of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from unbroken_wires.messages import Assistant, Json, Media, Message, Request, ToolMessage, ToolSpec, User
from unbroken_wires.wires.content_parts import image_detail, is_foreign, is_passage
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts

Feature: TypeAlias = Literal["failed_result", "text_arguments", "image_detail", "file_name"]
"""What messages can say on several wires, but not on all: a result that is an error, arguments that are a text and need
not be a JSON object, how closely to look at an image, the name of a file."""


@dataclass(frozen=True, slots=True)
class Citation:
    """What a part of an answer's text is taken from. `start` and `end` are places in the text."""

    url: str
    """Empty if it is not a page: a document, a file."""
    title: str
    start: int
    end: int


def _nothing(value: Json) -> Iterable[str]:
    return ()


def _no_citations(value: Json) -> Iterable[Citation]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCrossing:
    """What the messages and tools of a wire can say. Names are those of reports."""

    features: Mapping[Feature, str] = field(default_factory=dict[Feature, str])
    """The names of the features that this wire has."""
    in_body: Callable[[Object], Iterable[str]] = _nothing
    """Of a client's body: what none of our messages has a field for."""
    in_answer: Callable[[Json], Iterable[str]] = _nothing
    """Of the native value of a model's message: tools that the provider ran, citations, unknown fields."""
    shown: frozenset[str] = frozenset()
    """Those of them that reach a client of another wire in the answer itself, as reasoning."""
    citations: Callable[[Json], Iterable[Citation]] = _no_citations
    """Of the native value of a model's message: what it cites."""
    cited: str = ""
    """The name under which `in_answer` reports them."""
    in_part: Callable[[Object], Iterable[str]] = _nothing
    """Of the native value of an attachment: all that is beyond the file itself."""
    tools: str = ""
    """Where a tool's description is; empty if tools have no fields of their own."""
    tool_group: str = ""
    """The object in a tool that describes it."""
    tool_fields: frozenset[str] = frozenset()
    """The fields of a tool that every wire has."""
    block_kind: Callable[[Object], Literal["text", "call", ""]] | None = None
    """The kind of a block in the native value of a model's message. None on wires where text never follows a call."""


def lost_from_history(request: Request, client: HistoryCrossing, model: HistoryCrossing) -> list[str]:
    """What a model of another wire is not sent of a client's messages and tools."""
    lost = [*_of_messages(request, client, model), *_of_tools(request.tools, request.wire, client)]
    return list(dict.fromkeys(lost))


def _of_messages(request: Request, client: HistoryCrossing, model: HistoryCrossing) -> Iterator[str]:
    only: dict[Feature, str] = {
        feature: name for feature, name in client.features.items() if feature not in model.features
    }
    wire = request.wire
    for message in request.messages:
        if isinstance(message, Assistant):
            if message.native is not None and message.native.wire == wire:
                yield from client.in_answer(message.native.value)
            if "text_arguments" in only:
                for call in message.calls:
                    if call.kind == "function" and call.arguments is None and call.raw.strip():
                        yield only["text_arguments"]
        elif isinstance(message, User):
            yield from _of_parts(message.parts, wire, client, only)
        elif isinstance(message, ToolMessage):
            for result in message.results:
                if result.error and "failed_result" in only:
                    yield only["failed_result"]
                yield from _of_parts(result.content, wire, client, only)


def _of_parts(
    parts: Sequence[object], wire: str, client: HistoryCrossing, only: Mapping[Feature, str]
) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, Media) or is_foreign(part):  # the latter is replaced by a note, which is reported
            continue
        if part.native is not None and part.native.wire == wire:
            yield from client.in_part(as_dict(part.native.value))
        if "image_detail" in only and image_detail(part):
            yield only["image_detail"]
        if "file_name" in only and part.name and not is_passage(part):
            yield only["file_name"]


def _of_tools(tools: Sequence[ToolSpec], wire: str, client: HistoryCrossing) -> Iterator[str]:
    if not client.tools:
        return
    for tool in tools:
        if tool.kind != "function" or tool.native is None or tool.native.wire != wire:
            continue
        said = as_dict(tool.native.value)
        said = as_dict(said.get(client.tool_group)) if client.tool_group else said
        for key, value in said.items():
            if key not in client.tool_fields and value not in (None, [], {}):
                yield f"{client.tools}.{key}"


def lost_from_answers(messages: Iterable[Message], wire: str, find: Callable[[str], HistoryCrossing]) -> list[str]:
    """The same for a history of our own: what a model of `wire` is not sent of answers of models of other wires."""
    lost: dict[str, None] = {}
    for message in messages:
        if isinstance(message, Assistant) and (native := message.native) is not None and native.wire != wire:
            lost |= dict.fromkeys(find(native.wire).in_answer(native.value))
    return list(lost)


def lost_for_client(native: Json, model: HistoryCrossing, cited: bool) -> list[str]:
    """What a client of another wire does not get of an answer. `cited`: it got the pages that the answer cites."""
    names = dict.fromkeys(model.in_answer(native))
    carried = {model.cited} if cited and all(one.url for one in model.citations(native)) else set[str]()
    return [f"answer.{name.partition('.')[2]}" for name in names if name not in model.shown | carried]


def has_text_after_call(messages: Iterable[Message], wire: str, client: HistoryCrossing) -> bool:
    """Does a message of the model, as a client of `wire` sent it, have text after a call? On other wires it comes
    first."""
    kind_of = client.block_kind
    if kind_of is None:
        return False
    for message in messages:
        native = message.native if isinstance(message, Assistant) else None
        if native is None or native.wire != wire:
            continue
        kinds = [kind for block in dicts(native.value) if (kind := kind_of(block))]
        if "call" in kinds and "text" in kinds[kinds.index("call") :]:
            return True
    return False


# For the wires' own modules


def unknown_fields(value: Mapping[str, Json], known: Iterable[str], before: str) -> Iterator[str]:
    """The fields that say something and are not known. Citations that are turned off say nothing."""
    known = frozenset(known)
    for key, said in value.items():
        if key not in known and said not in (None, [], {}, "", False) and said != {"enabled": False}:
            yield f"{before}{key}"


def other_parts(content: Json, before: str) -> Iterator[str]:
    """The kinds of parts in a system message that are not text: only text crosses."""
    for part in dicts(content):
        type = as_text(part.get("type"))
        if "text" not in part and "refusal" not in part and type:
            yield f"{before}{type}"
