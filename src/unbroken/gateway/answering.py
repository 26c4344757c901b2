"""One request of a client, from its body to the last byte of its answer.

The order: what the history means (`kept`, `serial`), what is wrong with it (`transcript`), who is asked and with what
(`upstreams`), what the client hears of the answer (`speaking`), what has to be kept of it (`kept`). Each is decided
elsewhere; here it is only done, and counted. HTTP stays outside: an answer goes into an `Outlet`.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from unbroken.decoding.plain import look_at
from unbroken.deltas import AttemptFailed, CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken.errors import ChainBroken, InvalidRequest, UnbrokenError
from unbroken.gateway.asked import Asked
from unbroken.gateway.book import Book
from unbroken.gateway.doors import (
    RESPONSES,
    check_body,
    held_by_provider,
    most_tokens,
    new_id,
    read_request,
    wants_usage,
)
from unbroken.gateway.kept import Kept
from unbroken.gateway.mending import ends_in_result, in_words, lost_reasoning, mend, name_of
from unbroken.gateway.serial import AskModel, HandOut, decide, fold_turns
from unbroken.gateway.settings import GatewaySettings
from unbroken.gateway.shortcut import Fetched, fetch, going_on, is_fresh, send
from unbroken.gateway.speaking import Speaker, StreamSpeaker, WholeSpeaker
from unbroken.gateway.turns import Turn, asked_key, chain, is_named, turn_key
from unbroken.messages import (
    Assistant,
    Message,
    Request,
    ToolCall,
    Usage,
)
from unbroken.models.model import Model, closing
from unbroken.models.sent import Sent
from unbroken.verdicts import Verdict
from unbroken.wires import find_wire
from unbroken.wires.ids import RULES, fit
from unbroken.wires.values import as_text
from unbroken.wires.wire import Plain
from unbroken.wires.writer import ResponseWriter

if TYPE_CHECKING:  # loaded by a gateway that records
    from unbroken.gateway.recording import RequestRecording

log = logging.getLogger("unbroken.gateway")

WHOLE_EVERY = 50
"""So many responses that stand on one another, and all that was said is kept once more: a long line is read in few."""
REPAIRS, TURN, REASONING = "x-unbroken-repairs", "x-unbroken-turn", "x-unbroken-reasoning"


class Outlet(Protocol):
    """Where an answer goes: headers once, then bytes as they come."""

    async def begin(self, stream: bool, headers: Mapping[str, str]) -> None: ...

    async def send(self, data: bytes) -> None: ...


@dataclass(slots=True)
class Account:
    """What became of it, for metrics and for people."""

    began: float
    stream: bool = False
    usage: Usage | None = None
    first_after: float | None = None
    """Seconds from the request to the first thing that the model said."""
    calls: tuple[str, ...] = ()
    handed: str = ""
    """`2/3`: the second of three calls was handed out."""
    repairs: tuple[str, ...] = ()
    restarts: list[str] = field(default_factory=list[str])
    """What broke, each time that the model was asked again."""
    error: str = ""
    """How an answer failed that had begun."""
    error_kind: str = ""
    recording: RequestRecording | None = None
    """If it is recorded."""


class Answering:
    def __init__(self, settings: GatewaySettings, kept: Kept, book: Book, now: Callable[[], float]) -> None:
        self._settings = settings
        self._kept = kept
        self._book = book
        self._metrics = book.metrics
        self._now = now

    async def answer(self, asked: Asked, out: Outlet, account: Account) -> None:
        check_body(asked.door, asked.body)
        if account.recording is not None or not is_fresh(asked):
            await self._answer(asked, out, account)
        elif asked.body.get("stream"):
            sent = await send(asked)
            try:
                await self._answer(asked, out, account, sent)
            finally:
                sent.drop()
        else:
            fetched = await fetch(asked)
            plain = look_at(find_wire(asked.wire), fetched.data, most_tokens(asked.body))
            if plain is not None:
                await self._give_back(asked.upstream.alias, fetched.data, plain, out, account)
            else:
                await self._answer(asked, out, account, fetched)

    async def _answer(self, asked: Asked, out: Outlet, account: Account, first: Fetched | Sent | None = None) -> None:
        """`first`: the first try, where it was made already."""
        if asked.upstream.wire != asked.wire and (what := held_by_provider(asked.door, asked.body)):
            raise InvalidRequest(f"`{what}` is held by the provider of openai-responses, and this model is not of it")
        request = read_request(asked.door, asked.body)
        account.stream = request.stream
        said = request.messages
        parent, depth = as_text(asked.body.get("previous_response_id")) if asked.wire == RESPONSES else "", 0
        if parent:
            request, depth = await self._go_on_from(asked, request, parent)
        serial = asked.serial or request.parallel is False
        answer = _Answer(asked, request, said, parent, serial, out, account, new_id(asked.wire), first, depth)
        if first is not None:  # a fresh question: there are no turns in it
            await self._ask(answer, AskModel(request.messages))
            return
        found = await self._kept.find(asked.scope, request.messages)
        if not serial:
            found = {at: turn for at, turn in found.items() if not turn.held or is_named(turn, request.messages[at])}
        folds = fold_turns(request.messages, found)
        holds = await self._kept.holds(fold.turn for fold in folds if fold.turn.held and fold.waiting)
        decision = decide(
            request.messages,
            folds,
            holds,
            self._now(),
            ends_in_result=ends_in_result(asked),
            on_tool_error=self._settings.on_tool_error,
            wire=asked.wire,
            origin=asked.upstream.origin,
        )
        match decision:
            case HandOut(turn):
                await self._kept.touch(turn, holds.get(turn.key))
                self._metrics.released(asked.upstream.alias)
                self._book.hold(turn.key, len(turn.message.calls) - decision.position - 1)
                await self._hand_out(answer, decision)
            case AskModel():
                await self._kept.close(decision.closed, holds)
                for turn in decision.closed:
                    self._book.hold(turn.key, 0)
                await self._ask(answer, decision)

    async def _give_back(self, alias: str, data: bytes, plain: Plain, out: Outlet, account: Account) -> None:
        """The short way: the model's own bytes, and nothing of them has to be kept."""
        account.usage = plain.usage
        account.first_after = time.perf_counter() - account.began
        if plain.calls:
            account.calls = tuple([call["function"]["name"] for call in plain.calls])
        if plain.usage is not None:
            self._metrics.tokens(alias, plain.usage)
        await out.begin(False, {})
        await out.send(data)

    async def _go_on_from(self, asked: Asked, request: Request, parent: str) -> tuple[Request, int]:
        """The request with all that was said up to `parent`, and how many responses that were."""
        before, depth = await self._kept.conversation(asked.scope, parent)
        if before is None:
            raise InvalidRequest(
                f"previous_response_id `{parent}` is not kept here: it is unknown, too old, or was made with "
                f"store=false; send the whole conversation in `input`"
            )
        first = 1 if asked.body.get("instructions") else 0
        messages = (*request.messages[:first], *before, *request.messages[first:])
        extra = {name: value for name, value in request.extra.items() if name != "previous_response_id"}
        return replace(request, messages=messages, extra=extra), depth

    # A call that was held

    async def _hand_out(self, answer: _Answer, next: HandOut, text: str = "") -> None:
        """`text`: what was said before it, for a request that comes once more."""
        turn, total = next.turn, len(next.turn.message.calls)
        account = answer.account
        account.handed = f"{next.position + 1}/{total}"
        account.calls = (next.call.name,)
        log.info("serial_hold session=%s calls=%d handed=%d", turn.key[-8:], total, next.position + 1)
        speaker = answer.speaker(raw=False, settings=self._settings, now=self._now())
        await answer.begin({TURN: f"handed {account.handed}"})
        if text:
            await answer.send(speaker.feed(TextDelta(text)))
        await answer.send(speaker.feed(UsageReported(Usage())))
        if answer.keeps_responses:
            await self._keep_response(answer, Assistant(text, (next.call,)))
        await answer.send(speaker.end(Ended(Verdict("whole")), next.call))

    # The model

    async def _ask(self, answer: _Answer, decision: AskModel) -> None:
        asked, account = answer.asked, answer.account
        if answer.serial and (turn := await self._asked_before(answer)) is not None:
            await self._hand_out(answer, HandOut(turn, 0), turn.text)
            return
        request, edits = mend(asked, answer.request, decision, serial=answer.serial, goes_on=bool(answer.parent))
        account.repairs = tuple(dict.fromkeys(map(name_of, edits)))
        if edits:
            if self._settings.strict:
                raise InvalidRequest(f"the history is broken, and this gateway is strict: {in_words(edits)}")
            for name, times in Counter(map(name_of, edits)).items():
                self._metrics.repaired(name, times)
        headers = {REPAIRS: ", ".join(account.repairs)} if edits else {}
        if lost := lost_reasoning(asked.upstream, request):
            headers[REASONING] = f"lost; {lost}"
        speaker = answer.speaker(raw=bool(request.passes), settings=self._settings, now=self._now())
        ended = Ended(Verdict("unfinished", "the model stopped without an end"))
        begun = False
        model = answer.model
        if account.recording is not None:
            model = await account.recording.model(asked, request, answer.serial, model)
        try:
            async with closing(model.stream(request)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Ended):
                        ended = delta
                        break
                    self._count(answer, delta)
                    if data := speaker.feed(delta):
                        if not begun:
                            begun = True
                            await answer.begin(headers)
                        await answer.send(data)
        except UnbrokenError as error:
            if not begun:
                raise
            ended = Ended(_as_verdict(error))
        last = await self._conclude(answer, speaker, ended, headers)
        if not begun:
            if ended.verdict.failed:
                raise ChainBroken(ended.verdict.reason, (ended.verdict,))
            await answer.begin(headers)
        await answer.send(last)

    async def _asked_before(self, answer: _Answer) -> Turn | None:
        """The turn that this very request was answered with a moment ago, if its calls are still waited for."""
        turn = await self._kept.asked_before(answer.asked_key)
        if turn is None:
            return None
        hold = (await self._kept.holds([turn])).get(turn.key)
        if hold is None or self._now() > hold.until:
            return None
        await self._kept.touch(turn, hold)
        return turn

    def _count(self, answer: _Answer, delta: Delta) -> None:
        account, alias = answer.account, answer.asked.upstream.alias
        if isinstance(delta, AttemptFailed):
            account.restarts.append(delta.verdict.kind)
            self._metrics.restarted(alias, delta.verdict.kind)
            if delta.elsewhere:
                self._metrics.fallback(alias)
        elif isinstance(delta, UsageReported):
            account.usage = delta.usage
        elif account.first_after is None and isinstance(delta, (TextDelta, ReasoningDelta, CallReady)):
            account.first_after = time.perf_counter() - account.began

    async def _conclude(self, answer: _Answer, speaker: Speaker, ended: Ended, headers: dict[str, str]) -> bytes:
        """The end of the answer, after what has to be kept of it is kept."""
        asked, account = answer.asked, answer.account
        alias = asked.upstream.alias
        if account.usage is not None:
            self._metrics.tokens(alias, account.usage)
        message = ended.message or Assistant(speaker.text)
        if ended.verdict.failed:
            account.error, account.error_kind = ended.verdict.reason, ended.verdict.kind
            return speaker.end(ended)
        calls = tuple(call for call in message.calls if not call.problem)
        account.calls = tuple(call.name for call in calls)
        for call in message.calls:
            if call.problem:
                self._metrics.repaired("drop-spoiled")
                log.warning("a call of %s was not passed on: %s", call.name, call.problem[:200])
        holds = answer.serial and len(calls) > 1
        handed = answer.handed(calls[0]) if answer.serial and calls else None
        last = speaker.end(ended, handed)
        turn = answer.turn(message, calls, holds, speaker)
        if turn is not None:
            key, window = (answer.asked_key, self._settings.retry_window) if holds else ("", 0.0)
            if await self._kept.keep(asked.scope, *turn, key, window):
                self._metrics.kept("held" if holds else "turn")
            elif holds:
                log.error("%d calls are lost: their turn could not be kept, and only one is handed out", len(calls) - 1)
                turn = None
        if holds and turn is not None:
            account.calls, account.handed = account.calls[:1], f"1/{len(calls)}"
            headers[TURN] = f"handed {account.handed}"
            self._metrics.held(alias, len(calls) - 1)
            self._book.hold(turn[0].key, len(calls) - 1)
            log.info("serial_hold session=%s calls=%d handed=1", turn[0].key[-8:], len(calls))
        if answer.keeps_responses:
            given = (handed,) if handed is not None else tuple(map(answer.handed, calls))
            await self._keep_response(answer, Assistant(speaker.text, given), speaker.head)
        return last

    async def _keep_response(self, answer: _Answer, message: Assistant, head: bytes = b"") -> None:
        """For who goes on by `previous_response_id`. `head`: the provider's own bytes, where the client has its id."""
        asked = answer.asked
        id = _id_in(head) or answer.id
        systems = 1 if asked.body.get("instructions") else 0
        depth = answer.depth + 1
        if depth % WHOLE_EVERY:
            await self._kept.keep_response(asked.scope, id, answer.parent, depth, (*answer.said[systems:], message))
        else:
            await self._kept.keep_response(asked.scope, id, "", depth, (*answer.request.messages[systems:], message))


@dataclass(slots=True)
class _Answer:
    """What belongs to one answer on its way out."""

    asked: Asked
    request: Request
    said: tuple[Message, ...]
    """What this request itself brought, without what it stands on."""
    parent: str
    serial: bool
    out: Outlet
    account: Account
    id: str
    first: Fetched | Sent | None = None
    """The first try, where it was made already."""
    depth: int = 0
    """Responses that this one stands on, by `previous_response_id`."""

    @property
    def model(self) -> Model:
        upstream = self.asked.upstream
        return upstream.model if self.first is None else going_on(upstream, self.first)

    def speaker(self, raw: bool, settings: GatewaySettings, now: float) -> Speaker:
        asked, wire = self.asked, self.asked.wire
        writer = ResponseWriter(
            wire,
            asked.upstream.alias,
            self.id,
            created=int(now),
            include_usage=wants_usage(asked.door, asked.body),
        )
        if self.request.stream:
            return StreamSpeaker(wire, writer, raw=raw, serial=self.serial, on_diverge=settings.on_diverge)
        return WholeSpeaker(wire, writer, raw=raw, serial=self.serial)

    @property
    def keeps_responses(self) -> bool:
        return self.asked.wire == RESPONSES and self.asked.body.get("store") is not False

    async def begin(self, headers: Mapping[str, str]) -> None:
        await self.out.begin(self.request.stream, headers)

    async def send(self, data: bytes) -> None:
        if data:
            await self.out.send(data)

    def handed(self, call: ToolCall) -> ToolCall:
        """The call under the id that the client's wire can carry."""
        rule = RULES.get(self.asked.wire)
        id = call.id if rule is None else fit(call.id, rule)
        return call if id == call.id else replace(call, id=id)

    @property
    def asked_key(self) -> str:
        return asked_key(self.asked.scope, self.asked.upstream.alias, self.asked.data)

    def turn(
        self, message: Assistant, calls: tuple[ToolCall, ...], holds: bool, speaker: Speaker
    ) -> tuple[Turn, bytes] | None:
        """What has to be kept, and the digest under which it is found; None if the client's history will say it all."""
        asked, request, shown = self.asked, self.request, speaker.text
        passed = {call.index for call in speaker.passed}
        handed = tuple(call if call.index in passed else self.handed(call) for call in calls)
        renamed = any(call.id != own.id for call, own in zip(handed, calls, strict=True))
        # For who takes one call at a time, a single call is kept too: it may begin as another turn did that was held.
        if not (self.serial and calls) and message.native is None and not renamed and shown == message.text:
            return None
        if message.native is not None and not message.native.source:
            message = replace(message, native=replace(message.native, source=asked.upstream.origin))
        digest = chain((*request.messages, Assistant(shown, handed[:1] if holds else handed)))
        message, ids = replace(message, calls=calls), tuple(call.id for call in handed)
        key = turn_key(asked.scope, digest, message, ids)
        return Turn(key, message, ids, holds, None if shown == message.text else shown), digest


_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"([^"\\]+)"')


def _id_in(head: bytes) -> str:
    """The id of a response, which stands in its first event and before all other ids."""
    found = _RESPONSE_ID.search(head)
    return found[1].decode() if found else ""


def _as_verdict(error: UnbrokenError) -> Verdict:
    """How an answer failed that had begun: what is left to say in its stream."""
    kind = error.verdicts[-1].kind if error.verdicts and error.verdicts[-1].failed else "error"
    return Verdict(kind, str(error))
