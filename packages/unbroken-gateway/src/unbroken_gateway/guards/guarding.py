"""The guardrails of an alias around one request to its model.

Strategy. The request is prepared first: the provider and a recording get it as the guardrails leave it. Then the answer
passes through the `ask_model` of each guardrail. At the end its calls and its text are checked; for that the answer is
held back until it is complete, so a client gets a call only if all calls of the answer have passed. If one is refused,
the model reads why and answers again: the client sees neither the call nor half of an answer. A veto for the user is an
ordinary answer with the text of the veto.

A guardrail that raises anything else refuses the request, with an error that has the guardrail's name and the kind of
the error, and no content.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

from unbroken.asgi import REQUEST_ID, Refused
from unbroken.clock import RealClock
from unbroken.errors import AnswerInvalid, PromptVetoed, UserError, Vetoed
from unbroken.guardrails import REFUSED, CallCheck, Veto
from unbroken.middleware import Ask, Middleware, RunStart, wrap_model, wraps
from unbroken.models.model import Model, closing
from unbroken.redacting import HeldAnswer
from unbroken.tools.caller import not_executed
from unbroken.tools.context import RunContext
from unbroken.tools.results import Retry
from unbroken_gateway.guards.client_texts import texts_beside, texts_of, with_texts, with_texts_beside
from unbroken_gateway.guards.guard import GatewayRedaction, Guard, RequestInfo
from unbroken_gateway.guards.hook_file import with_arguments
from unbroken_gateway.http.routes import ClientRequest
from unbroken_wires.deltas import AttemptFailed, CallReady, Delta, Ended, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Json, Message, Request, ToolCall, ToolMessage, Usage, User

log = logging.getLogger("unbroken.gateway")

HEADER = "x-unbroken-guardrails"
NOT_SHOWN = "[A message that was refused is not shown.]"
"""In place of an earlier message of the user that a guardrail refused."""
OTHERS = "another call of this message was refused"
RETRIES = 2
"""How often the model may answer again after a call was refused; then the reason is the answer."""
MOST_SEEN, LONGEST_SEEN = 4096, 4096
"""How many earlier messages a check is remembered to have passed, and characters of a text in place of one."""

Count: TypeAlias = Callable[[str, str, str], None]
"""Counts an outcome: the alias, the name of the guardrail, what it did."""


@dataclass(slots=True)
class Guardrails:
    """The guardrails of an alias, the first is the outermost. Serves any number of requests."""

    guards: tuple[tuple[str, Middleware], ...]
    """With their names."""
    seen: OrderedDict[bytes, str | None] = field(default_factory=OrderedDict[bytes, "str | None"])
    """What checks of the prompt said about messages, by the digest of both."""

    def begin(self, incoming: ClientRequest, headers: dict[str, str], count: Count) -> Guarding:
        """`headers`: those of the answer, in which the guardrails report what they did."""
        upstream = incoming.upstream
        info = RequestInfo(upstream.alias, incoming.key, incoming.client, REQUEST_ID.get())
        return Guarding(self, info, headers, partial(count, upstream.counted_as))


class Guarding:
    """The guardrails of one request."""

    def __init__(
        self, guardrails: Guardrails, info: RequestInfo, headers: dict[str, str], count: Callable[[str, str], None]
    ) -> None:
        self._info = info
        self._headers = headers
        self._count = count
        self._seen = guardrails.seen
        self._request = Request(())
        self.noted: dict[str, None] = {}
        """What the guardrails did until now."""
        self._call_veto: Vetoed | None = None
        self._model_error: BaseException | None = None
        self.refusal = ""
        """The text for the user, if the request was refused before a model was asked."""
        run = RunStart(
            info.request_id, "gateway", info.alias, RealClock(), context=self._context, veto=self._veto_by_call
        )
        self._guards: list[tuple[str, Middleware]] = []
        for name, each in guardrails.guards:
            with self._naming(name):
                self._guards.append((name, each.start(run)))

    def _context(self) -> RunContext[Any]:
        info = self._info
        return RunContext(info.request_id, "gateway", info.alias, deps=info, messages=self._request.messages)

    def _veto_by_call(self, veto: Vetoed) -> None:
        self._call_veto = veto

    # Reports

    def _note(self, name: str, outcome: str) -> None:
        noted = f"{name} {outcome}".encode("ascii", "replace").decode()  # it goes into a header
        if noted not in self.noted:
            self.noted[noted] = None
            self._headers[HEADER] = ", ".join(self.noted)
        self._count(name, outcome)
        log.info("guardrail alias=%s name=%s outcome=%s", self._info.alias, name, outcome)

    def _failure(self, name: str, error: BaseException) -> Refused:
        """Without the text of the error, which may hold what the guardrail was given."""
        cause = (error.__cause__ or error) if isinstance(error, UserError) else error
        place = cause.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = "" if place is None else f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
        self._note(name, "failed")
        log.error("the guardrail `%s` failed: %s%s", name, type(cause).__name__, where)
        words = f"the guardrail `{name}` of this model failed ({type(cause).__name__}), so the request was refused"
        return Refused(500, words, {HEADER: f"{name} failed"})

    @contextmanager
    def _naming(self, name: str) -> Generator[None]:
        try:
            yield
        except Vetoed:
            self._note(name, "vetoed")
            raise
        except Veto as veto:  # a guardrail of the user's may raise it anywhere
            self._note(name, "vetoed")
            raise Vetoed(str(veto) or REFUSED) from None
        except Retry:
            self._note(name, "retried")
            raise
        except AnswerInvalid:
            self._note(name, "failed")
            words = f"the guardrail `{name}` accepted none of the model's answers"
            raise Refused(502, words, {HEADER: f"{name} failed"}) from None
        except Refused:
            raise
        except Exception as error:
            if error is self._model_error:
                raise
            raise self._failure(name, error) from None

    # The request

    async def prepare(self, request: Request) -> Request:
        """The request as the provider gets it."""
        self._request = request
        try:
            for name, guard in self._guards:
                with self._naming(name):
                    prepared = await guard.prepare(request) if isinstance(guard, Guard) else request
                    if wraps(guard, "check_input"):
                        prepared = replace(
                            prepared,
                            messages=await self._check_prompts(name, guard, prepared.messages),
                            extra=await self._check_beside(name, guard, prepared.extra),
                        )
                changed = prepared.messages != request.messages or prepared.extra != request.extra
                if changed or (prepared is not request and isinstance(guard, Guard)):
                    self._note(name, "changed")
                self._request = request = prepared
        except (Vetoed, Retry) as veto:
            self.refusal = str(veto) or REFUSED
        return request

    async def _check_prompts(self, name: str, guard: Middleware, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """All texts that a client writes are checked, because it may write any history. An earlier one that is refused
        is not shown to the model."""
        last = max((at for at, said in enumerate(messages) if isinstance(said, Assistant)), default=-1)
        checked = list(messages)
        for at, said in enumerate(messages):
            changed: list[str | None] = []
            for number, text in enumerate(texts_of(said)):
                prompt = said if isinstance(said, User) and not number else None
                changed.append(await self._check_text_of(name, guard, text, prompt, at < last) if text else None)
            if any(text is not None for text in changed):
                checked[at] = with_texts(said, changed)
        return tuple(checked)

    async def _check_beside(self, name: str, guard: Middleware, extra: Mapping[str, Json]) -> Mapping[str, Json]:
        """Texts for the model that are in no message, such as documents."""
        changed: dict[str, str] = {}
        for text in dict.fromkeys(texts_beside(extra)):
            if (other := await self._check_text_of(name, guard, text, None, earlier=False)) is not None:
                changed[text] = other
        return with_texts_beside(extra, changed) if changed else extra

    async def _check_text_of(
        self, name: str, guard: Middleware, text: str, prompt: User | None, earlier: bool
    ) -> str | None:
        """Another text in its place, or None. `prompt`: the message of the user that it is the text of. What is none,
        such as a system text, is in many requests, and is checked once if it passes."""
        if prompt is not None:
            return await self._check_prompt(name, guard, prompt, earlier=earlier)
        prompt = User.of(text)
        digest = self._digest(name, prompt)
        if digest in self._seen and self._seen[digest] != NOT_SHOWN:
            self._seen.move_to_end(digest)
            return self._seen[digest]
        return await self._check_prompt(name, guard, prompt, earlier=earlier)

    def _digest(self, name: str, prompt: User) -> bytes:
        said = f"{name}\n{self._info.key}\n{prompt.text}".encode("utf-8", "surrogatepass")
        return blake2b(said, digest_size=16).digest()

    async def _check_prompt(self, name: str, guard: Middleware, prompt: User, *, earlier: bool) -> str | None:
        """Another text in its place, or None."""
        digest = self._digest(name, prompt)
        if earlier and digest in self._seen:
            self._seen.move_to_end(digest)
            return self._seen[digest]
        try:
            text = (await guard.check_input(prompt, _unchanged)).text
        except PromptVetoed:
            self._remember(digest, NOT_SHOWN)
            if not earlier:
                raise
            self._note(name, "vetoed")
            return NOT_SHOWN
        found = None if text == prompt.text else text
        self._remember(digest, found)
        return found

    def _remember(self, digest: bytes, text: str | None) -> None:
        if text is not None and len(text) > LONGEST_SEEN:
            return
        self._seen[digest] = text
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)

    # The answer

    def model(self, model: Model) -> Model:
        """The model with the guardrails around its answers."""
        return _GuardedModel(model, self)

    async def stream(self, model: Model, request: Request) -> AsyncIterator[Sequence[Delta]]:
        if self.refusal:
            yield [UsageReported(Usage()), *_said(self.refusal)]
            return
        ask: Ask = partial(self._ask, model)
        for name, guard in reversed(self._guards):
            if wraps(guard, "ask_model"):
                ask = partial(self._around, name, guard, ask)
        text = calls = False
        usage = _Usage()
        try:
            async with closing(self._checked(ask, request)) as batches:
                async for deltas in batches:
                    if passed := usage.feed(deltas):
                        text = text or any(isinstance(delta, TextDelta) for delta in passed)
                        calls = calls or any(isinstance(delta, CallReady) for delta in passed)
                        yield passed
        except Vetoed as veto:
            if calls:  # they cannot be taken back
                raise Refused(500, "a guardrail refused this answer after a call of it was sent") from None
            yield usage.feed(_said(str(veto) or REFUSED, "\n\n" if text else ""))

    async def _ask(self, model: Model, request: Request) -> AsyncIterator[Sequence[Delta]]:
        try:
            async with closing(model.stream(request)) as batches:
                async for deltas in batches:
                    yield deltas
        except Exception as error:
            self._model_error = error  # not a guardrail's
            raise

    async def _around(
        self, name: str, guard: Middleware, call_next: Ask, request: Request
    ) -> AsyncIterator[Sequence[Delta]]:
        with self._naming(name):
            async with closing(wrap_model([guard], _Asked(call_next))(request)) as batches:
                async for deltas in batches:
                    if isinstance(guard, GatewayRedaction) and guard.found and isinstance(deltas[-1], Ended):
                        self._note_once(name)
                    yield deltas

    def _note_once(self, name: str) -> None:
        if f"{name} changed" not in self.noted:
            self._note(name, "changed")

    async def _checked(self, ask: Ask, request: Request) -> AsyncIterator[Sequence[Delta]]:
        """The answer after its calls and its text were checked."""
        if not self._holds(request):
            async with closing(ask(request)) as batches:
                async for deltas in batches:
                    yield deltas
            return
        refused = 0
        while True:
            answer = HeldAnswer()
            async with closing(ask(request)) as batches:
                async for deltas in batches:
                    if passed := answer.hold(deltas):
                        yield passed
            last = answer.deltas[-1] if answer.deltas else None
            if not isinstance(last, Ended) or last.verdict.failed:
                yield answer.deltas
                return
            message = answer.message
            try:
                calls = await self._check_calls(message)
                text = await self._check_text(replace(message, calls=calls))
            except _Refusal as refusal:
                refused += 1
                if refused > RETRIES:
                    raise Vetoed(refusal.text) from None
                yield [AttemptFailed(Verdict("refused", "a guardrail refused a call", attempt=refused))]
                request = replace(request, messages=(*request.messages, message, refusal.results))
                continue
            except Retry as retry:  # the guardrail itself counts these
                yield [AttemptFailed(Verdict("refused", "a guardrail refused the answer", attempt=1))]
                said = (message,) if message.text or message.calls else ()
                request = replace(request, messages=(*request.messages, *said, User.of(str(retry))))
                continue
            yield _with_changes(answer, message, calls, text)
            return

    def _holds(self, request: Request) -> bool:
        """Has the answer to be held back until it is complete?"""
        for _, guard in self._guards:
            if wraps(guard, "check_output") or (isinstance(guard, Guard) and guard.checks_answers):
                return True
            checks = wraps(guard, "check_client_call") or (isinstance(guard, Guard) and guard.checks_calls)
            if checks and (request.tools or request.extra):  # an answer to a request without tools has no calls
                return True
        return False

    async def _check_calls(self, message: Assistant) -> tuple[ToolCall, ...]:
        """The calls as the client gets them. Raises `_Refusal` if one is refused."""
        calls = list(message.calls)
        why: dict[int, str] = {}
        for at, call in enumerate(message.calls):
            for name, guard in self._guards if not call.problem else ():
                with self._naming(name):
                    try:
                        call = await self._check_call(guard, call)
                    except (Veto, Retry) as veto:
                        if isinstance(veto, Veto) and veto.to == "user":
                            raise Vetoed(str(veto) or REFUSED) from None
                        self._note(name, "vetoed")
                        why[at] = str(veto) or REFUSED
                        break
                if call is not calls[at]:
                    self._note_once(name)
                calls[at] = call
        if why:
            raise _Refusal(message, why)
        return tuple(calls)

    async def _check_call(self, guard: Middleware, call: ToolCall) -> ToolCall:
        if isinstance(guard, Guard):
            return await guard.check_call(call)
        if isinstance(guard, CallCheck):
            arguments, refusal = await guard.decide(call)
        else:
            arguments, refusal = None, await guard.check_client_call(call)
        if self._call_veto is not None:
            raise self._call_veto
        if refusal:
            raise Veto(refusal)
        return call if arguments is None or arguments == call.arguments else with_arguments(call, arguments)

    async def _check_text(self, message: Assistant) -> str:
        text = message.text
        for name, guard in self._guards:
            with self._naming(name):
                found: object = None
                if isinstance(guard, Guard):
                    try:
                        found = await guard.check_answer(replace(message, text=text))
                    except Retry as retry:
                        raise Vetoed(str(retry)) from None
                elif wraps(guard, "check_output") and not message.calls:
                    found = await guard.check_output(text, _unchanged)
                if found is not None and not isinstance(found, str):
                    raise TypeError("a check of the output has to return a text")
            if found is not None and found != text:
                self._note_once(name)
                text = found
        return text


class _Usage:
    """The usage of an answer together with that of answers that were refused. It is reported with the first content:
    on some wires a report begins the response, and then its headers cannot say any more what the guardrails did."""

    def __init__(self) -> None:
        self._before = Usage()
        self._latest: Usage | None = None
        self._reported = True

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        passed: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, UsageReported):
                self._latest, self._reported = delta.usage, False
                continue
            if isinstance(delta, AttemptFailed):
                if delta.verdict.kind == "refused" and self._latest is not None:
                    self._before, self._latest = self._before + self._latest, None
                    self._reported = False
            elif not self._reported:
                passed.append(UsageReported(self._before + (self._latest or Usage())))
                self._reported = True
            passed.append(delta)
        return passed


class _Refusal(Exception):
    """Calls of an answer were refused; the model reads why."""

    def __init__(self, message: Assistant, why: dict[int, str]) -> None:
        super().__init__()
        self.text = next(iter(why.values()))
        results = (not_executed(call, why.get(at, OTHERS)) for at, call in enumerate(message.calls))
        self.results = ToolMessage(tuple(results))


class _Asked:
    name = ""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        return self._ask(request)


class _GuardedModel:
    def __init__(self, model: Model, guarding: Guarding) -> None:
        self.name = model.name
        self._model = model
        self._guarding = guarding

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        return self._guarding.stream(self._model, request)


async def _unchanged(value: Any) -> Any:
    return value


def _said(text: str, before: str = "") -> list[Delta]:
    """An answer with this text."""
    return [TextDelta(before + text), Ended(Verdict("whole"), Assistant(text))]


def _with_changes(answer: HeldAnswer, message: Assistant, calls: tuple[ToolCall, ...], text: str) -> list[Delta]:
    """The answer's deltas, with these calls and this text in place of its own."""
    if calls == message.calls and text == message.text:
        return answer.deltas
    deltas = answer.deltas if text == message.text else answer.with_text(text)
    changed = {call.index: call for call in calls}
    told: list[Delta] = []
    for delta in deltas:
        if isinstance(delta, CallReady):
            delta = CallReady(changed.get(delta.call.index, delta.call))
        elif isinstance(delta, Ended):
            delta = Ended(delta.verdict, replace(message, text=text, calls=calls, native=None))
        told.append(delta)
    return told
