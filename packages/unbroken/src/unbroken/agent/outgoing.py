"""The next request of a run. What is sent of the history: its last summary in place of what that stands for, what
middleware makes of it (`before_request`), and what `trim=` chooses of that. Middleware may ask a model meanwhile,
beside the rounds of the run: that is a turn of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from unbroken.agent.aside import estimate
from unbroken.agent.options import Trim
from unbroken.agent.output import ANSWER
from unbroken.agent.prompts import ANSWER_NOW, language_of
from unbroken.agent.rules.nudges import nudge_text
from unbroken.agent.run import Run
from unbroken.errors import ProviderError, TimedOut, UnbrokenError, UserError
from unbroken.events import RequestSent
from unbroken.middleware import AsideAnswer, Middleware, NextRequest, blaming, wrap_model
from unbroken.models.model import Model, closing, refuse_single
from unbroken.tools.caller import in_words
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.deltas import AttemptFailed, Delta, Ended, PartialResponse, UsageReported, Verdict
from unbroken_wires.messages import (
    Assistant,
    Message,
    OneTool,
    Request,
    System,
    ToolCall,
    ToolSpec,
    Usage,
    User,
    own_messages,
)
from unbroken_wires.transcript import repair
from unbroken_wires.transcript.shorten import CHARACTERS_PER_TOKEN, characters
from unbroken_wires.transcript.summaries import is_prompt, sent_part

ASIDE = "aside"
"""In the notes of a run: how many requests were made beside its rounds."""


async def write_request(run: Run, toolbox: Toolbox, final: bool) -> Request:
    """The next request of the run. With `final`, the model may not call tools."""
    plan, history, tools = run.plan, run.transcript.messages, toolbox.specs
    counters, prefix = run.state.counters, run.spending.prefix
    if plan.write_system is not None:
        await _write_system(run, toolbox)
    messages = history
    taken: frozenset[str] = frozenset()
    if (
        plan.trim is not None
        or plan.preparing
        or run.transcript.summarised
        or (run.changing is not None and run.changing.shown is not None)
    ):
        messages = await messages_to_send(run, toolbox, final)
        taken = frozenset(call.id for message in run.transcript.messages for call in _calls_of(message))
    if not tools and (called := _called(messages)):
        # Providers refuse a history with calls but no tools. These tools no longer exist, so nothing can be called.
        tools, final = tuple(ToolSpec(name) for name in called), True
    if plan.system is not None:
        keeps = messages is history and plan.write_system and getattr(plan.model, "later_system", False)
        messages = prefix.instruct(plan.system, messages, run.state.agent) if keeps else (plan.system, *messages)
    if counters.nudge:
        messages = (*messages, User.of(ANSWER_NOW[plan.language] if final else nudge_text(run)))
    choice, output = plan.choice, plan.output
    if choice is not None and run.state.used.requests - counters.notes.get(ASIDE, 0) != 1:
        choice = None
    if output is not None and not output.free_text and (final or counters.corrections):
        choice, final = (OneTool(ANSWER), False) if output.has_tool else (None, True)
    prefix.take(tools, messages)
    return Request(
        messages,
        tools,
        choice,
        None if plan.settings.several_calls else False,
        final,
        reasoning=plan.settings.reasoning,
        cache=plan.settings.policy.cache,
        sampling=plan.settings.sampling,
        taken=taken,
        server_tools=toolbox.server_tools,
        pieces=False,
        output=None if output is None else output.wanted,
        insists=counters.nudge,
        appended=messages if prefix.intact else None,
    )


async def _write_system(run: Run, toolbox: Toolbox) -> None:
    """The instructions of the next request, if they are a function or guidance is added."""
    plan = run.plan
    if plan.write_system is None:
        return
    run.asked_in = run.asked_in or language_of(run.last_prompt)
    try:
        written = await plan.write_system(run.run_context, toolbox, run.asked_in)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"the function given as instructions= failed: {in_words(error)}") from error
    if written is not plan.system and written != plan.system:
        plan.system = written


def _calls_of(message: Message) -> tuple[ToolCall, ...]:
    return message.calls if isinstance(message, Assistant) else ()


def _called(messages: tuple[Message, ...]) -> dict[str, None]:
    """The names of all tools that were called, in order."""
    return dict.fromkeys(call.name for message in messages for call in _calls_of(message))


async def messages_to_send(run: Run, toolbox: Toolbox, final: bool) -> tuple[Message, ...]:
    """Without the agent's own instructions."""
    messages = await _prepared(run, toolbox, final)
    trim = run.plan.trim
    return messages if trim is None else await _trimmed(run, trim, messages)


async def _prepared(run: Run, toolbox: Toolbox, final: bool) -> tuple[Message, ...]:
    """As middleware leaves it. If middleware has added to the history, it is called again."""
    transcript, preparing = run.transcript, run.plan.preparing
    aside = _Aside(run, toolbox)
    while True:
        history, shown = transcript.messages, run.shown_messages()
        sent = sent_part(shown) if transcript.summarised else shown
        if not preparing:
            return sent
        tokens = _tokens(run, sent, toolbox.specs)
        request = NextRequest(
            sent,
            shown,
            toolbox.specs,
            tokens,
            final,
            run.state.counters.notes,
            aside.ask,
            transcript.add,
            background=() if run.futures is None else tuple(each.saved() for each in run.futures.undelivered()),
        )
        for each in preparing:
            with blaming(each, "before_request"):
                await (_prepare_with_own(each, request) if each.mutates else each.before_request(request))
        if len(transcript.messages) == len(history):
            aside.end_turn()
            return request.messages
        if run.state.counters.tokens:
            _scale(run, tokens, sent)


async def _prepare_with_own(middleware: Middleware, request: NextRequest) -> None:
    given, sent = (*request.messages, *request.history), len(request.messages)
    copies = own_messages(given)
    request.messages, request.history = copies[:sent], copies[sent:]
    await middleware.before_request(request)
    request.messages, request.history = _put_back(request.messages, copies, given), given[sent:]


def _put_back(
    chosen: Sequence[Message], copies: tuple[Message, ...], given: tuple[Message, ...]
) -> tuple[Message, ...]:
    """Messages that were given as copies are those of the history again: a recorder knows them by their identity."""
    originals = {id(copy): message for copy, message in zip(copies, given, strict=True)}
    return tuple(originals.get(id(message), message) for message in chosen)


async def filter_history(run: Run, filter: Trim, count: int) -> tuple[Message, ...]:
    """What an agent that takes over sees of these first messages of the history, as its filter chooses."""
    shown = run.shown_messages(count)
    shown = sent_part(shown) if run.transcript.summarised else shown
    return await _trimmed(run, filter, shown, "as_handoff(filter=…)")


async def _trimmed(run: Run, trim: Trim, messages: tuple[Message, ...], given_as: str = "trim=") -> tuple[Message, ...]:
    """The part of the history that is sent. If it would begin inside a turn, that turn's prompt is put before it: some
    providers require that the user begins."""
    function: Callable[..., Any] = trim
    try:
        copies = own_messages(messages)
        chosen = function(run.run_context(), copies) if takes_two(function) else function(copies)
        kept = repair(_put_back(await chosen if inspect.isawaitable(chosen) else chosen, copies, messages))[0]
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"the function given as {given_as} failed: {in_words(error)}") from error
    return _after_prompt(kept, messages)


def takes_two(function: Callable[..., Any]) -> bool:
    """Does it take the run's context and the messages?"""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return False  # it has no signature
    return sum(each.default is each.empty and each.kind is not each.VAR_POSITIONAL for each in parameters) == 2


def _after_prompt(kept: tuple[Message, ...], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    start = next((at for at, message in enumerate(kept) if not isinstance(message, System)), len(kept))
    first = kept[start] if start < len(kept) else None
    if isinstance(first, User) and not first.arrived:
        return kept
    place = next((at for at, message in enumerate(messages) if message is first), len(messages))
    before = [message for message in reversed(messages[:place]) if isinstance(message, User)]
    asked = next(filter(is_prompt, before), before[0] if before else None)
    return kept if asked is None else (*kept[:start], asked, *kept[start:])


def _tokens(run: Run, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    """As the provider counted them, and what came since the last answer; or all estimated by its characters."""
    if run.state.counters.tokens:
        return run.state.counters.tokens + _since_last_answer(messages)
    system = run.plan.system
    count = sum(map(characters, messages)) + (characters(system) if system is not None else 0)
    count += sum(len(tool.name) + len(tool.description) + len(str(tool.parameters)) for tool in tools)
    return count // CHARACTERS_PER_TOKEN


def _scale(run: Run, tokens: int, before: Sequence[Message]) -> None:
    """What is sent has changed, so the last report does not fit it any more."""
    now = sent_part(run.shown_messages())
    tokens = tokens * sum(map(characters, now)) // max(sum(map(characters, before)), 1)
    run.state.counters.tokens = max(tokens - _since_last_answer(now), 1)


def _since_last_answer(messages: Sequence[Message]) -> int:
    last = next((at for at in range(len(messages) - 1, -1, -1) if isinstance(messages[at], Assistant)), -1)
    return sum(map(characters, messages[last + 1 :])) // CHARACTERS_PER_TOKEN


class _Aside:
    """Asks a model something beside the rounds of a run."""

    def __init__(self, run: Run, toolbox: Toolbox) -> None:
        self._run = run
        self._toolbox = toolbox
        self._used = False
        """The current turn was used for a request."""
        self._usage: Usage | None = None
        self._response = PartialResponse()
        self._ended: Ended | None = None

    async def ask(self, messages: Sequence[Message], model: Model | None = None) -> AsideAnswer:
        """Raises what the model raises; at the time limit of the run a `TimedOut`."""
        self.end_turn()
        self._used = True
        run, plan = self._run, self._run.plan
        request = self._request(messages, model)
        asked = plan.model if model is None else model
        if model is not None:
            await run.account.load_prices((model.name,), plan.clock)
        self._usage, self._response, self._ended = None, PartialResponse(), None
        run.state.counters.aside = True
        run.emitter.emit(RequestSent, len(request.messages), len(request.tools), request.final)
        try:
            async with asyncio.timeout(run.time_left()):
                await self._read(asked, request)
        except TimeoutError as error:
            raise TimedOut(f"`{asked.name}` did not answer within the time of the run") from error
        except UnbrokenError:
            raise
        except (Exception, SystemExit) as error:
            raise ProviderError(f"model `{asked.name}` failed: {in_words(error)}") from error
        finally:
            self._count(asked, request)
            run.state.counters.aside = False
        verdict = self._ended.verdict if self._ended is not None else Verdict("whole")
        return AsideAnswer(self._answer, verdict, run.account.request_cost)

    def end_turn(self) -> None:
        """What follows is another turn: the next request beside the rounds, or that of the round."""
        if self._used:
            self._used, run = False, self._run
            run.state.counters.notes[ASIDE] = run.state.counters.notes.get(ASIDE, 0) + 1
            run.next_turn()
            for middleware in run.plan.middleware:
                with blaming(middleware, "on_tools"):
                    middleware.on_tools(run.emitter.turn, self._toolbox)

    @property
    def _answer(self) -> Assistant:
        message = self._ended.message if self._ended is not None else None
        return message or self._response.message

    def _request(self, messages: Sequence[Message], model: Model | None) -> Request:
        """With the tools of the run: providers refuse calls in a history without them, and the beginning is the same as
        that of its other requests, so a cache has it. For another model there is nothing in a cache."""
        plan = self._run.plan
        system = () if plan.system is None else (plan.system,)
        cached = model is None and plan.settings.policy.cache
        return Request(
            (*system, *messages),
            self._toolbox.specs,
            final=not cached,  # a tool choice would make Anthropic's cache useless
            reasoning=plan.settings.reasoning if cached else None,
            cache=cached,
            server_tools=self._toolbox.server_tools if model is None else (),
            pieces=False,
        )

    async def _read(self, model: Model, request: Request) -> None:
        plan = self._run.plan
        ask = plan.ask if model is plan.model else wrap_model(plan.middleware, model)
        async with closing(ask(request)) as batches:
            async for deltas in batches:
                if not isinstance(deltas, (list, tuple)):
                    refuse_single(model.name, deltas)
                for delta in deltas:
                    self._take(delta, model)

    def _take(self, delta: Delta, model: Model) -> None:
        run = self._run
        self._response.feed(delta)
        match delta:
            case UsageReported(reported):
                self._usage = reported if reported.total_tokens else self._usage
            case AttemptFailed(verdict, wait, elsewhere, streamed):
                if self._usage is not None:
                    self._spend(self._usage, verdict.model or model.name)
                    self._usage = None
                run.attempt_failed(verdict, wait, elsewhere, 0, streamed)
            case Ended():
                self._ended = delta
                if not delta.verdict.whole:
                    run.ended_with(delta.verdict)
            case _:
                pass

    def _count(self, model: Model, request: Request) -> None:
        answer = self._answer
        if self._usage is not None:
            by = self._ended.verdict.model if self._ended is not None else ""
            self._spend(self._usage, by or model.name)
        elif answer.text or answer.calls:
            self._spend(estimate(sum(map(characters, request.messages)), answer), model.name)

    def _spend(self, usage: Usage, model: str) -> None:
        run = self._run
        run.account.spend_on_request(usage, model, run.emitter.turn, run.plan.clock)
