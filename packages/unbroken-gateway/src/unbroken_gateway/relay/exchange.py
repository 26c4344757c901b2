"""The state of one exchange: the request, where its answer goes, and what has to be stored. Also the fast path.

Most requests need nothing from the gateway: no calls in the history that could be broken, nothing to hold, nothing to
restore, and the model speaks the client's wire. They are sent on before they are decoded. For a stream, the request is
decoded while its answer is awaited. A non-streaming body is returned after a quick check: decoding request and answer
would cost twice as much as forwarding them. Anything else (a refusal, an answer with reasoning, a broken one) continues
on the normal path with the answer that is already there: no model is asked twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, cast

from unbroken.errors import InvalidRequest, ProviderError, RequestRefused
from unbroken.models.addresses import Endpoint
from unbroken.models.connections import Sent
from unbroken.models.http import HTTPModel
from unbroken.models.model import RESPONSE_HEAD, RESPONSE_LIMIT, Model
from unbroken.models.quirks import fit_spelled, rules_of
from unbroken.models.relay import PassingDecoder, RelayRequest, Verbatim, relay_request
from unbroken.models.request_writer import Written
from unbroken.models.retrying import RetryingModel
from unbroken_gateway.http.client_response import FAILED
from unbroken_gateway.http.large_requests import off_loop
from unbroken_gateway.http.routes import ClientRequest, read_request
from unbroken_gateway.relay.client_stream import ClientStream, CompleteResponse, StreamedResponse
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.turns.call_ids import is_random, new_call_id
from unbroken_gateway.turns.retries import Answered
from unbroken_gateway.turns.serial import AskModel, Reason
from unbroken_gateway.turns.turn import Turn, asked_key, chain, context_of, turn_key
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Assistant, Json, Message, Request, ToolCall, ToolMessage, Usage
from unbroken_wires.transcript import HistoryEdit, repair
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.chain import repair_raw
from unbroken_wires.wires.history_losses import has_text_after_call, lost_for_client
from unbroken_wires.wires.json_access import as_dict, as_text, dicts, fit, is_name
from unbroken_wires.wires.rules import obey
from unbroken_wires.wires.writer import ResponseWriter

if TYPE_CHECKING:
    from unbroken_gateway.relay.request_recording import RequestRecording
    from unbroken_gateway.spending.estimates import Tally
    from unbroken_gateway.telemetry import RequestTrace


_FRESH = frozenset({"system", "developer", "user"})


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of the first attempt."""

    data: bytes = b""
    error: ProviderError | None = None


def can_forward(incoming: ClientRequest) -> bool:
    """May this request be forwarded as it is?"""
    wire, body, http = incoming.wire, incoming.body, incoming.upstream.http
    if http is None or http.logs or not incoming.upstream.passes(wire) or find_wire(wire).plain is None:
        return False
    if body.get("parallel_tool_calls") is False or (body.get("tools") and not http.endpoint.quirks.stream_with_tools):
        return False
    spec = find_wire(wire)
    for tool in dicts(body.get("tools")):
        if not is_name(as_text(as_dict(tool.get("function")).get("name")), spec.name_rule):
            return False
    for message in cast("list[Json]", body[spec.http.messages_field]):
        if as_text(as_dict(message).get("role")) not in _FRESH:
            return False
    return _is_accepted(body, http.endpoint)


def _is_accepted(body: Mapping[str, Json], endpoint: Endpoint) -> bool:
    """Do the rules of the model leave the body as it is?"""
    rules = rules_of(endpoint.wire, endpoint.vendor, endpoint.model)
    if not rules:
        return True
    spelled = fit_spelled({**body}, endpoint.quirks)
    try:
        return obey(rules, spelled, endpoint.model, {}, bool(body.get("stream")))[0] is spelled
    except InvalidRequest:
        return False


async def send(incoming: ClientRequest) -> Sent:
    """Returns once the request is on its way."""
    assert incoming.upstream.http is not None
    sent = incoming.upstream.http.send(incoming.body, incoming.headers)
    await asyncio.sleep(0)  # until it is sent
    await asyncio.sleep(0)  # until aiohttp's own task has written it
    return sent


async def fetch(incoming: ClientRequest) -> Fetched:
    assert incoming.upstream.http is not None
    try:
        return Fetched(await incoming.upstream.http.fetch(incoming.body, incoming.headers))
    except ProviderError as error:
        return Fetched(error=error)


def continue_from(upstream: Upstream, first: Fetched | Sent) -> Model:
    """The model, with its first attempt already made."""
    assert upstream.http is not None
    model, begun = upstream.model, _Begun(upstream.http, first)
    if not isinstance(model, RetryingModel):
        return begun
    retrying = cast("RetryingModel[Model]", model)
    return RetryingModel(
        begun,
        retrying.attempts,
        retrying.seconds,
        fallback=retrying.fallback,
        continue_prompt=retrying.continue_prompt,
    )


class _Begun:
    def __init__(self, http: HTTPModel, first: Fetched | Sent) -> None:
        self._http = http
        self._first: Fetched | Sent | None = first

    @property
    def name(self) -> str:
        return self._http.name

    @property
    def origin(self) -> str:
        return self._http.origin

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        first, self._first = self._first, None
        if not isinstance(first, Fetched):
            return self._http.stream(request, first)
        if isinstance(first.error, RequestRefused):
            return self._http.stream(request, first.error)
        return self._read(first, request)

    async def _read(self, fetched: Fetched, request: Request) -> AsyncIterator[Sequence[Delta]]:
        if fetched.error is not None:
            raise fetched.error
        limit = RESPONSE_LIMIT.get()
        max_calls = inf if limit is None else limit.max_calls
        decoder = PassingDecoder(Decoder(self._http.wire, None, request, max_calls=max_calls), streamed=False)
        deltas = await off_loop(len(fetched.data), lambda: [*decoder.feed(fetched.data), *decoder.end()])
        self._http.conclude(deltas)
        yield deltas


_all_but_id = attrgetter(*(field.name for field in fields(ToolCall) if field.name != "id"))


def _message_names(messages: Json) -> list[Json]:
    """The `name` fields of the messages before the first answer; later messages change with each request."""
    names: list[Json] = []
    for said in dicts(messages):
        if said.get("role") not in ("user", "system", "developer"):
            break
        if "name" in said:
            names.append(said["name"])
    return names


class Outlet(Protocol):
    """Where an answer goes: headers once, then bytes as they arrive."""

    async def begin(self, stream: bool, headers: Mapping[str, str]) -> None: ...

    async def send(self, data: bytes) -> None: ...


@dataclass(slots=True)
class Outcome:
    """How a request ended, for metrics and the status page."""

    began: float
    stream: bool = False
    usage: Usage | None = None
    failed: list[tuple[str, Usage]] = field(default_factory=list[tuple[str, Usage]])
    """The usage of attempts that failed, with the model that reported it."""
    cost: int | None = None
    """In nano-dollars, all attempts together. None if that is not known, or not counted."""
    is_estimated: bool = False
    """Some of the cost is an estimate."""
    tally: Tally | None = None
    """Set if it is counted what the request costs."""
    first_after: float | None = None
    """Seconds from the request to the model's first token."""
    calls: tuple[str, ...] = ()
    handed: str = ""
    """`2/3`: the second of three calls was released."""
    repairs: tuple[str, ...] = ()
    restarts: list[str] = field(default_factory=list[str])
    """What broke, for each retry."""
    guardrails: Iterable[str] = ()
    """What guardrails did: `cards changed`."""
    error: str = ""
    """How an answer failed after it had begun."""
    error_kind: str = ""
    recording: RequestRecording | None = None
    """Set if the request is recorded."""
    trace: RequestTrace | None = None
    """Set if telemetry is on."""

    @property
    def is_watched(self) -> bool:
        """All of its answer is needed, not only its bytes."""
        return self.recording is not None or self.trace is not None

    def note_failed(self, model: str) -> None:
        """An attempt at this model failed; what it has reported is spent all the same."""
        if self.usage is not None and not (self.failed and self.failed[-1][1] is self.usage):
            self.failed.append((model, self.usage))


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    incoming: ClientRequest
    request: Request
    said: tuple[Message, ...]
    """The messages in this request's body, without those of its `previous_response_id`."""
    parent: str
    serial: bool
    out: Outlet
    outcome: Outcome
    id: str
    first: Fetched | Sent | None = None
    """The first attempt, if it was made already."""
    depth: int = 0
    """How many responses precede this one, by `previous_response_id`."""
    doubts: Mapping[int, Reason] = field(default_factory=dict[int, Reason])
    """Why turns that may be stored for this history are not used."""
    answered: Answered | None = None
    """What the client received, for a retry of the request."""
    begun: bool = False
    """The client has received the head of the answer."""
    _renamed: dict[int, tuple[ToolCall, ToolCall]] = field(default_factory=dict[int, tuple[ToolCall, ToolCall]])
    """By index: a call, and the same call with an id that the gateway made."""
    _retry_key: str = ""
    _context: bytes = b""

    @property
    def context(self) -> bytes:
        if not self._context:
            incoming = self.incoming
            messages = incoming.body.get(incoming.route.http.messages_field)
            self._context = context_of(self.request, incoming.upstream.alias, _message_names(messages))
        return self._context

    @property
    def model(self) -> Model:
        upstream = self.incoming.upstream
        return upstream.model if self.first is None else continue_from(upstream, self.first)

    def client_stream(self, raw: bool, settings: GatewaySettings, now: Callable[[], float]) -> ClientStream:
        incoming, wire = self.incoming, self.incoming.wire
        writer = ResponseWriter(
            wire,
            incoming.upstream.alias,
            self.id,
            created=int(now()),
            include_usage=not incoming.hides_usage and incoming.route.http.wants_usage(incoming.body),
            request=incoming.body,
            now=now,
        )
        if self.request.stream:
            serial, hides_usage = self.serial, incoming.hides_usage
            return StreamedResponse(
                wire, writer, raw=raw, serial=serial, on_diverge=settings.on_diverge, hides_usage=hides_usage
            )
        return CompleteResponse(wire, writer, raw=raw, serial=self.serial)

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Sends the head of the answer, unless that was done."""
        if not self.begun:
            self.begun = True
            if self.outcome.restarts:
                headers = {**headers, FAILED: ", ".join(self.outcome.restarts[:10])}
            if (head := RESPONSE_HEAD.get()) is not None and (names := (*head.left_out, *head.unread)):
                known = headers.get(DROPPED, "").split(", ")
                headers = {**headers, DROPPED: ", ".join(filter(None, dict.fromkeys((*known, *names))))}
                if head.left_out:
                    self.outcome.repairs = (*self.outcome.repairs, DROP_REFUSED)
            await self.out.begin(self.request.stream, headers)

    async def send(self, data: bytes) -> None:
        if data:
            await self.out.send(data)

    def handed(self, call: ToolCall) -> ToolCall:
        """The call with an id that the client's wire can carry and that, in serial mode, is unique."""
        if self.serial and not is_random(call.id, call.name):
            known, renamed = self._renamed.get(call.index, (None, None))
            if renamed is None or known is not call:  # after a retry another call may have the same id
                renamed = ToolCall(new_call_id() if renamed is None else renamed.id, *_all_but_id(call))
                self._renamed[call.index] = call, renamed
            return renamed
        rule = find_wire(self.incoming.wire).id_rule
        id = call.id if rule is None else fit(call.id, rule)
        return call if id == call.id else replace(call, id=id)

    @property
    def retry_key(self) -> str:
        """The same for all attempts at this request. With an idempotency key, the body does not matter."""
        if not self._retry_key:
            incoming = self.incoming
            body = b"" if incoming.attempt.key else incoming.data
            self._retry_key = asked_key(incoming.scope, incoming.upstream.alias, incoming.attempt.name, body)
        return self._retry_key

    @property
    def body_digest(self) -> str:
        return blake2b(self.incoming.data, digest_size=16).hexdigest()

    def turn(
        self, message: Assistant, calls: tuple[ToolCall, ...], holds: bool, client_stream: ClientStream
    ) -> tuple[Turn, bytes] | None:
        """The turn to store and the digest that finds it; None if the client's history will contain everything."""
        incoming, request, shown = self.incoming, self.request, client_stream.text
        passed = {call.index: call for call in client_stream.passed}
        handed = tuple(passed.get(call.index) or self.handed(call) for call in calls)
        renamed = any(call.id != own.id for call, own in zip(handed, calls, strict=True))
        # In serial mode a single call is stored too: another held turn may begin the same way.
        if not (self.serial and calls) and message.native is None and not renamed and shown == message.text:
            return None
        if message.native is not None and not message.native.source:
            message = replace(message, native=replace(message.native, source=incoming.upstream.origin))
        digest = chain((*request.messages, Assistant(shown, handed[:1] if holds else handed)))
        if len(calls) < len(message.calls):
            message = replace(message, calls=calls)
        ids = tuple(call.id for call in handed)
        key = turn_key(incoming.scope, digest, message, ids)
        return Turn(key, message, ids, holds, None if shown == message.text else shown), digest


# Builds the model's request: the client's own body, or a new one if something has to change. Pure. The turns of the
# history are known at this point (`turns.serial`); here the rest is repaired, and what the provider would refuse is
# left out.


_LINKS = (Assistant, ToolMessage)
"""A history without any of these has no call chain to repair."""


def prepare_request(
    incoming: ClientRequest, request: Request, decision: AskModel, *, serial: bool, continued: bool, pieces: bool
) -> tuple[Request, Sequence[HistoryEdit]]:
    """The model's request, and the repairs of its history. `continued`: `request` has messages that are not in the
    client's body. `pieces`: as in `Request`."""
    upstream = incoming.upstream
    passes = incoming.wire if upstream.passes(incoming.wire) else ""
    rule = find_wire(incoming.wire).name_rule
    if passes and not all(is_name(tool.name, rule) for tool in request.tools):
        passes = ""  # a name that the provider refuses is shortened for it, and the client has to get its own back
    as_it_is = not decision.changed and not continued and (not serial or request.parallel is False)
    asks_for_one = request.parallel is False if incoming.all_calls is None else not incoming.all_calls
    if serial and not asks_for_one:
        passes = ""  # calls that are held would be passed on with the others
    named = all(
        is_name(call.name, rule) for each in request.messages if isinstance(each, Assistant) for call in each.calls
    )
    if passes and as_it_is and named and not any(map(_is_unsigned, request.messages)):
        spelled, edits = _as_spelled(incoming, request, passes, pieces)
        return (_signed(spelled, upstream.origin) if upstream.fallback else spelled), edits
    messages, edits = repair(decision.messages)
    if not upstream.fallback:  # with fallbacks, each gets only what it signed itself
        messages = tuple(_without_foreign(message, upstream.origin) for message in messages)
    parallel = (False if asks_for_one else None) if serial else request.parallel
    if request.stream and not incoming.route.http.wants_usage(incoming.body):
        passes = ""  # usage is requested, and its event would break the client
    request = replace(request, messages=messages, parallel=parallel, pieces=pieces)
    if not passes and not incoming.headers:
        return request, edits
    return relay_request(request, None, passes, incoming.headers, pieces=pieces), edits


def _as_spelled(
    incoming: ClientRequest, request: Request, passes: str, pieces: bool
) -> tuple[RelayRequest, Sequence[HistoryEdit]]:
    name = incoming.route.http.messages_field
    raw, body = incoming.body.get(name), incoming.body
    edits: Sequence[HistoryEdit] = ()
    if isinstance(raw, list) and any(isinstance(said, _LINKS) for said in request.messages):
        whole = not incoming.body.get("conversation")
        mended, edits = repair_raw(incoming.wire, cast("list[Json]", raw), whole=whole)
        mended = find_wire(incoming.wire).history.joined(mended)
        if edits or mended != raw:
            body = {**body, name: mended}
            request = replace(read_request(incoming.route, body), stream=request.stream)
    spelled = Verbatim(incoming.wire, body, request.messages, edited=body is not incoming.body)
    return relay_request(request, spelled, passes, incoming.headers, pieces=pieces), edits


def _signed(request: RelayRequest, origin: str) -> RelayRequest:
    """Marks signed parts from the client as this provider's, so that a fallback does not get them."""
    messages = tuple(
        replace(said, native=replace(said.native, source=origin))
        if isinstance(said, Assistant) and said.native is not None and not said.native.source
        else said
        for said in request.messages
    )
    verbatim = request.verbatim
    return replace(request, messages=messages, verbatim=verbatim and replace(verbatim, messages=messages))


def changes_for(upstream: Upstream, request: Request) -> Written | None:
    """How the upstream's model changes the request; None for a model without HTTP."""
    if upstream.http is None:
        return None
    model = upstream.model
    if upstream.fallback and isinstance(model, RetryingModel):  # it is not sent what others have signed
        request = cast("RetryingModel[Model]", model).fit(request, upstream.http)
    return upstream.http.prepare(request)


def left_out_for_client(exchange: Exchange, changes: Written, moved: bool) -> Sequence[str]:
    """The fields that were left out, without those that the client has not sent: in serial mode the gateway itself asks
    for one call at a time. `moved`: the gateway has changed the messages, so earlier thinking may be dropped."""
    incoming, left_out = exchange.incoming, changes.left_out
    http = incoming.upstream.http
    drops = find_wire(http.wire).drops_moved_thinking if http is not None and moved else None
    if drops is not None and drops(changes.body) and not drops(incoming.body):
        left_out = (*left_out, "messages.thinking")
    if http is not None and http.wire != incoming.wire:
        crossing = find_wire(incoming.wire).crossing()
        if crossing is not None:
            left_out = tuple(dict.fromkeys((*left_out, *crossing.history.in_body(incoming.body))))
    if not left_out or not exchange.serial or exchange.request.parallel is not None:
        return left_out
    crossing = find_wire(incoming.wire).crossing()
    own = "parallel" if crossing is None else crossing.places.get("parallel", ("parallel",))[0]
    return [name for name in left_out if name != own]


def lost_from_answer(exchange: Exchange, message: Assistant, client_stream: ClientStream) -> list[str]:
    """What the client does not get of an answer, because its wire has no place for it."""
    native = message.native
    if native is None or native.wire == exchange.incoming.wire or native.wire not in WIRES:
        return []
    crossing = find_wire(native.wire).crossing()
    return [] if crossing is None else lost_for_client(native.value, crossing.history, client_stream.cited)


MOVE_TEXT, DROP_REFUSED = "move-text", "drop-refused"
DROPPED = "x-unbroken-dropped"


def moves_text(incoming: ClientRequest, messages: Sequence[Message]) -> bool:
    """Is text of the model after a call moved before it, because the upstream's wire has one order only?"""
    http = incoming.upstream.http
    if http is None or http.wire == incoming.wire:
        return False
    crossing = find_wire(incoming.wire).crossing()
    return crossing is not None and has_text_after_call(messages, incoming.wire, crossing.history)


def _is_unsigned(message: Message) -> bool:
    """Thinking from a model of another wire, sent back by an Anthropic client: Anthropic would refuse it."""
    native = message.native if isinstance(message, Assistant) else None
    return native is not None and not find_wire(native.wire).takes_back(native.value)


def _without_foreign(message: Message, origin: str) -> Message:
    """Removes what another provider signed, because this one would refuse it."""
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
