"""What the model is asked: the client's request as it was spelled, or put together anew where something has to change.

Pure. What the turns of the history are is known by now (`serial`); here the rest is mended, and what its provider would
refuse is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from unbroken.gateway.asked import Asked
from unbroken.gateway.doors import MESSAGES, MESSAGES_FIELD, read_request, wants_usage
from unbroken.gateway.serial import AskModel
from unbroken.gateway.upstreams import Upstream
from unbroken.messages import Assistant, Json, Message, Request, ToolMessage, Verbatim
from unbroken.transcript import HistoryEdit, repair
from unbroken.wires.anthropic.thinking import is_signed
from unbroken.wires.chain import HISTORIES, repair_raw
from unbroken.wires.openai_chat.history import IMAGES_OF
from unbroken.wires.values import Object, as_dict, as_text, dicts

_LINKS = (Assistant, ToolMessage)
"""Without any of these there is no chain that could be broken."""


def mend(
    asked: Asked, request: Request, decision: AskModel, *, serial: bool, goes_on: bool
) -> tuple[Request, Sequence[HistoryEdit]]:
    """The request that the model is asked with, and what was wrong with its history. `goes_on`: a part of it is not in
    the client's body but stands in `request`."""
    upstream = asked.upstream
    passes = asked.wire if upstream.passes(asked.wire) else ""
    as_it_is = not decision.changed and not goes_on and (not serial or request.parallel is False)
    if passes and as_it_is and not any(map(_is_unsigned, request.messages)):
        spelled, edits = _as_spelled(asked, request, passes)
        return (_signed(spelled, upstream.origin) if upstream.fallback else spelled), edits
    messages, edits = repair(decision.messages)
    if not upstream.fallback:  # with others behind it, each is left what it signed itself, when it is asked
        messages = tuple(_without_foreign(message, upstream.origin) for message in messages)
    parallel = False if serial else request.parallel
    if request.stream and not wants_usage(asked.door, asked.body):
        passes = ""  # usage is asked for, and its event would be the client's undoing
    return replace(request, messages=messages, parallel=parallel, passes=passes, pieces=False), edits


def _as_spelled(asked: Asked, request: Request, passes: str) -> tuple[Request, Sequence[HistoryEdit]]:
    name = MESSAGES_FIELD[asked.wire]
    raw, body = asked.body.get(name), asked.body
    edits: Sequence[HistoryEdit] = ()
    if isinstance(raw, list) and any(isinstance(said, _LINKS) for said in request.messages):
        whole = not asked.body.get("conversation")
        mended, edits = repair_raw(asked.wire, cast("list[Json]", raw), whole=whole)
        if edits:
            body = {**body, name: mended}
            request = replace(read_request(asked.door, body), stream=request.stream)
    spelled = Verbatim(asked.wire, body, request.messages, asked.headers)
    return replace(request, verbatim=spelled, passes=passes, pieces=False), edits


def _signed(request: Request, origin: str) -> Request:
    """What the client sent back of this provider is marked as that one's: a fallback will not be sent it."""
    messages = tuple(
        replace(said, native=replace(said.native, source=origin))
        if isinstance(said, Assistant) and said.native is not None and not said.native.source
        else said
        for said in request.messages
    )
    verbatim = request.verbatim
    return replace(request, messages=messages, verbatim=verbatim and replace(verbatim, messages=messages))


def ends_in_result(asked: Asked) -> bool:
    """Does the client's last message bring a result? Text that only comes with one is no new question, and neither are
    the images of a result, which two wires can only carry in a message of their own."""
    raw = asked.body.get(MESSAGES_FIELD[asked.wire])
    history = HISTORIES[asked.wire]
    for message in reversed(cast("list[Json]", raw) if isinstance(raw, list) else []):
        if as_dict(message).get("role") in ("system", "developer") or _brings_images(as_dict(message)):
            continue
        return any(piece.kind == "result" for piece in history.pieces(message))
    return False


_MEDIA = frozenset({"image_url", "input_image", "file", "input_file", "input_audio"})


def _brings_images(message: Object) -> bool:
    """A message of the user that is nothing but media, and the words by which our own encoder says whose they are."""
    parts = dicts(message.get("content"))
    media = [part for part in parts if as_text(part.get("type")) in _MEDIA]
    texts = [as_text(part.get("text")) for part in parts if part.get("type") in ("text", "input_text")]
    if message.get("role") != "user" or not media or len(media) + len(texts) < len(parts):
        return False
    return all(not text.strip() or text.startswith(IMAGES_OF) for text in texts)


def lost_reasoning(upstream: Upstream, request: Request) -> str:
    if upstream.http is None or not any(isinstance(said, Assistant) and said.calls for said in request.messages):
        return ""
    return upstream.http.lost_reasoning(request)


def _is_unsigned(message: Message) -> bool:
    """Thinking of another wire's model, which a client of Anthropic's has sent back: its provider would refuse it."""
    native = message.native if isinstance(message, Assistant) else None
    return native is not None and native.wire == MESSAGES and not all(map(is_signed, dicts(native.value)))


def _without_foreign(message: Message, origin: str) -> Message:
    """What one provider has signed is refused by another."""
    native = message.native if isinstance(message, Assistant) else None
    if native is None or native.source in ("", origin):
        return message
    return replace(cast("Assistant", message), native=None)


def name_of(edit: HistoryEdit) -> str:
    return f"{type(edit).__name__.lower()}-{edit.reason}"


def in_words(edits: Sequence[HistoryEdit]) -> str:
    words = {
        "drop-orphan": "a result answers no call",
        "drop-doubled": "a call has two results",
        "insert-missing": "a call has no result",
        "move-misplaced": "a result does not follow its call",
        "rename-doubled": "two calls share one id",
        "rename-nameless": "a call has no id",
    }
    return "; ".join(f"{words.get(name_of(edit), name_of(edit))} ({edit.id})" for edit in edits[:5])
