"""The request that the model is asked with: the client's own body, or a new one where something has to change.

Pure. The turns of the history are known at this point (`turns.serial`); here the rest is repaired, and what the
provider would refuse is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from unbroken.gateway.http.client_request import ClientRequest
from unbroken.gateway.http.routes import read_request
from unbroken.gateway.turns.serial import AskModel
from unbroken.gateway.upstreams.upstream import Upstream
from unbroken.messages import Assistant, Json, Message, Request, ToolMessage
from unbroken.models.relay_request import RelayRequest, Verbatim, relay_request
from unbroken.transcript import HistoryEdit, repair
from unbroken.wires import find_wire
from unbroken.wires.chain import repair_raw

_LINKS = (Assistant, ToolMessage)
"""Without any of these there is no chain that could be broken."""


def prepare_request(
    incoming: ClientRequest, request: Request, decision: AskModel, *, serial: bool, goes_on: bool
) -> tuple[Request, Sequence[HistoryEdit]]:
    """The request that the model is asked with, and what was wrong with its history. `goes_on`: a part of it is not in
    the client's body but stands in `request`."""
    upstream = incoming.upstream
    passes = incoming.wire if upstream.passes(incoming.wire) else ""
    as_it_is = not decision.changed and not goes_on and (not serial or request.parallel is False)
    if passes and as_it_is and not any(map(_is_unsigned, request.messages)):
        spelled, edits = _as_spelled(incoming, request, passes)
        return (_signed(spelled, upstream.origin) if upstream.fallback else spelled), edits
    messages, edits = repair(decision.messages)
    if not upstream.fallback:  # with others behind it, each is left what it signed itself, when it is asked
        messages = tuple(_without_foreign(message, upstream.origin) for message in messages)
    parallel = False if serial else request.parallel
    if request.stream and not incoming.route.http.wants_usage(incoming.body):
        passes = ""  # usage is asked for, and its event would be the client's undoing
    request = replace(request, messages=messages, parallel=parallel, pieces=False)
    return (relay_request(request, None, passes) if passes else request), edits


def _as_spelled(incoming: ClientRequest, request: Request, passes: str) -> tuple[RelayRequest, Sequence[HistoryEdit]]:
    name = incoming.route.http.messages_field
    raw, body = incoming.body.get(name), incoming.body
    edits: Sequence[HistoryEdit] = ()
    if isinstance(raw, list) and any(isinstance(said, _LINKS) for said in request.messages):
        whole = not incoming.body.get("conversation")
        mended, edits = repair_raw(incoming.wire, cast("list[Json]", raw), whole=whole)
        mended = find_wire(incoming.wire).history.joined(mended)
        if edits or len(mended) < len(cast("list[Json]", raw)):
            body = {**body, name: mended}
            request = replace(read_request(incoming.route, body), stream=request.stream)
    spelled = Verbatim(incoming.wire, body, request.messages, incoming.headers)
    return relay_request(request, spelled, passes), edits


def _signed(request: RelayRequest, origin: str) -> RelayRequest:
    """What the client sent back of this provider is marked as that one's: a fallback will not be sent it."""
    messages = tuple(
        replace(said, native=replace(said.native, source=origin))
        if isinstance(said, Assistant) and said.native is not None and not said.native.source
        else said
        for said in request.messages
    )
    verbatim = request.verbatim
    return replace(request, messages=messages, verbatim=verbatim and replace(verbatim, messages=messages))


def lost_reasoning(upstream: Upstream, request: Request) -> str:
    if upstream.http is None or not any(isinstance(said, Assistant) and said.calls for said in request.messages):
        return ""
    return upstream.http.lost_reasoning(request)


def _is_unsigned(message: Message) -> bool:
    """Thinking of another wire's model, which a client of Anthropic's has sent back: its provider would refuse it."""
    native = message.native if isinstance(message, Assistant) else None
    return native is not None and not find_wire(native.wire).takes_back(native.value)


def _without_foreign(message: Message, origin: str) -> Message:
    """What one provider has signed is refused by another."""
    native = message.native if isinstance(message, Assistant) else None
    if native is None or native.source in ("", origin):
        return message
    return replace(cast("Assistant", message), native=None)


def name_of(edit: HistoryEdit) -> str:
    return f"{type(edit).__name__.lower()}-{edit.reason}"


def describe_edits(edits: Sequence[HistoryEdit]) -> str:
    words = {
        "drop-orphan": "a result answers no call",
        "drop-doubled": "a call has two results",
        "insert-missing": "a call has no result",
        "move-misplaced": "a result does not follow its call",
        "rename-doubled": "two calls share one id",
        "rename-nameless": "a call has no id",
    }
    return "; ".join(f"{words.get(name_of(edit), name_of(edit))} ({edit.id})" for edit in edits[:5])
