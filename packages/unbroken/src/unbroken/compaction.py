"""Long runs that stay within the context of their model: `Compaction` sends a summary in place of old messages,
`ClearResults` short notes in place of old tool results.

Both are middleware, and both change only what is sent: the history of the run stays complete. A summary is a message in
that history, so whatever saves, records or continues the history has it too.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

from unbroken.errors import ChainBroken, ProviderError, UserError
from unbroken.events import Compacted
from unbroken.middleware import Ask, Middleware, NextRequest, RunStart
from unbroken.models.connect import connect_later
from unbroken.models.model import Model, closing
from unbroken.models.pricing import find_window
from unbroken_wires.deltas import Delta, Ended
from unbroken_wires.messages import Assistant, Managed, Message, Request, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript.shorten import characters, size_of
from unbroken_wires.transcript.summaries import before_last_rounds, is_summary, sent_part
from unbroken_wires.validation import checked
from unbroken_wires.wires.json_access import as_text, dicts

LOG = logging.getLogger("unbroken.compaction")

WINDOW = 128_000
"""Tokens: the context of a model that is in no list."""

LEAST_TOKENS = 1000
"""A smaller number is no threshold that anybody means."""
LEAST_SHARE = 0.2
"""A summary is written if it takes the place of at least this part of the history."""
MORE_AFTER_FAILURE = 1.1
"""How much longer the history has to be before a summary is tried again that failed."""

SUMMARY = "This is a summary of the conversation before this point, which is not shown any more:\n\n"
"""Begins the message that the model reads in place of the older messages."""

STILL_RUNNING = (
    "\n\n[Calls that are still running in the background: {calls}. Do not make them again: their results will arrive "
    "in later messages. A call that needs one may have its handle as the value of an argument.]"
)
"""Ends a summary if it takes the place of handles whose results have not arrived."""

SUMMARISE = """\
The conversation is becoming too long for you, so its messages up to this one will be replaced by a summary that you \
write now. Do not call a tool and do not continue the task. Write everything that is needed to continue without these \
messages: what the user wants, in the user's own words where they matter; what was done and what it showed, with the \
names, numbers, ids, paths and quotations that may be needed again; what was decided, and why; what failed; what is \
left to do. Write in the language of the conversation, and nothing but the summary."""


def can_manage(run: RunStart, what: str) -> bool:
    """Can the provider do this by itself with a long history?"""
    return what in getattr(run.asks, "manages", ())


@checked
class Compaction(Middleware):
    """Summarises the older part of a history that has become long.

    - `at`: how many tokens are too many, as the provider counts them; or, from 0 to 1, which part of the model's
      context (`window`, else from the price list, else 128,000 tokens).
    - `keep`: how many of the last rounds are sent as they are.
    - `model`: writes the summary; by default the model of the run.
    - `prompt`: asks for the summary, as the last message after the part that it is to replace.
    - `native`: lets the provider compact the history by itself, where it can (Anthropic, OpenAI's Responses API).

    The first prompt, and the one that the run works on, are always sent as they are. If a summary cannot be written,
    that is logged and reported (`Compacted`), and the run continues with all of its history.
    """

    mutates = False
    edits_answers = False

    def __init__(
        self,
        at: int | float = 0.75,
        *,
        keep: int = 4,
        model: Model | str | None = None,
        prompt: str = SUMMARISE,
        window: int | None = None,
        native: bool = False,
    ) -> None:
        if at <= 0 or (isinstance(at, float) and at > 1):
            raise UserError(f"Compaction(at={at!r}): expected a number of tokens, or a part of the context from 0 to 1")
        if 1 < at < LEAST_TOKENS:
            meant = f"; for {at} % of the context give {at / 100:g}" if at <= 100 else ""
            raise UserError(f"Compaction(at={at!r}): that is a number of tokens, and too few for any history{meant}")
        if keep < 1:
            raise UserError(f"Compaction(keep={keep!r}): expected a number of rounds from 1")
        if window is not None and window < 1:
            raise UserError(f"Compaction(window={window!r}): expected a number of tokens from 1")
        self.at = at
        self.keep = keep
        self.prompt = prompt
        self.window = window
        self.native = native
        """In a run: whether the provider compacts."""
        self.model: Model | None = connect_later(model) if isinstance(model, str) else model
        self._run: RunStart | None = None
        self.threshold = 0
        """Tokens: what is too many in this run."""

    def start(self, run: RunStart) -> Self:
        started = copy(self)
        started._run = run
        started.threshold = self._threshold(run)
        started.native = self.native and can_manage(run, "compact")
        if self.native and not started.native:
            LOG.info("run %s: `%s` does not compact by itself, so a summary is requested", run.run, run.model)
        return started

    def _threshold(self, run: RunStart) -> int:
        if isinstance(self.at, int):
            return self.at
        window = self.window or find_window(run.model, run.clock.now()) or WINDOW
        return int(self.at * window)

    async def before_request(self, request: NextRequest) -> None:
        """Summarises what is older than the last rounds, if the history is too long."""
        if self.native:
            return
        failed_at = request.state.get("not_summarised", 0)
        if request.final or request.tokens < max(self.threshold, failed_at * MORE_AFTER_FAILURE):
            return
        cut = self._cut(request)
        if cut is None:
            return
        summary, problem, cost = await self._summarise(request, cut)
        assert self._run is not None
        after = 0
        if summary is not None:
            request.state.pop("not_summarised", None)
            after = request.tokens * _length(sent_part((*request.history, summary))) // _length(request.messages)
            request.add(summary)
        else:
            request.state["not_summarised"] = request.tokens
            after = request.tokens
            LOG.warning("run %s: its history cannot be summarised, and is sent as it is: %s", self._run.run, problem)
        text = "" if summary is None else summary.text.removeprefix(SUMMARY)
        self._run.emit(Compacted, cut if summary is not None else 0, request.tokens, after, text, problem, cost)

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        """Asks the provider to compact, if it does that, and reports that it did."""
        if not self.native:
            return call_next(request)
        instructions = "" if self.prompt == SUMMARISE else self.prompt
        managed = replace(request.managed or Managed(), compact_at=self.threshold, instructions=instructions)
        return self._reported(call_next(replace(request, managed=managed)))

    async def _reported(self, stream: AsyncIterator[Sequence[Delta]]) -> AsyncIterator[Sequence[Delta]]:
        async with closing(stream) as batches:
            async for deltas in batches:
                self._report(deltas)
                yield deltas

    def _report(self, deltas: Sequence[Delta]) -> None:
        last = deltas[-1] if deltas else None
        message = last.message if isinstance(last, Ended) else None
        if message is None or message.native is None or self._run is None:
            return
        for item in dicts(message.native.value):
            if item.get("type") == "compaction":
                before = self._run.state().get("tokens", 0)
                self._run.emit(Compacted, 0, before, 0, as_text(item.get("content")), "", None)

    def _cut(self, request: NextRequest) -> int | None:
        """Where the part that stays begins. None if a summary of what is before it would not help."""
        history = request.history
        everything = _length(request.messages)
        last = next((at for at in range(len(history) - 1, -1, -1) if is_summary(history[at])), -1)
        most = everything * self.threshold // (2 * request.tokens)
        for rounds in range(self.keep, 0, -1):
            cut = before_last_rounds(history, rounds)
            kept = _length([message for message in history[cut:] if not is_summary(message)])
            if kept <= most or rounds == 1:  # half of it, so that the next summary is not needed at once
                break
        else:
            return None
        if cut <= last - (_kept(history[last]) if last >= 0 else 0):
            return None
        return cut if everything - kept >= LEAST_SHARE * everything else None

    async def _summarise(self, request: NextRequest, cut: int) -> tuple[User | None, str, float | None]:
        """The summary, or why there is none; and what that cost."""
        kept = sum(not is_summary(message) for message in request.history[cut:])
        older = request.messages[: len(request.messages) - kept]
        try:
            answer = await request.ask((*older, User.of(self.prompt)), self.model)
        except (ProviderError, ChainBroken) as error:
            return None, str(error), None
        text, verdict = answer.message.text.strip(), answer.verdict
        if verdict.failed or verdict.meaning == "length":
            return None, f"the summary broke off: {verdict.reason or verdict.finish}", answer.cost
        if not text:
            return None, "the model gave no summary", answer.cost
        handles = _handles_before(request, cut)
        text += STILL_RUNNING.format(calls=", ".join(handles)) if handles else ""
        return User((Text(SUMMARY + text),), len(request.history) - cut), "", answer.cost


def _handles_before(request: NextRequest, cut: int) -> list[str]:
    """The background calls whose results have not arrived, except those whose handles are still sent."""
    shown = [message for message in request.history[cut:] if isinstance(message, ToolMessage)]
    sent = {result.call_id for message in shown for result in message.results if result.outcome == "running"}
    return [f"{each.handle} (`{each.call.name}`)" for each in request.background if each.call.id not in sent]


def _kept(message: Message) -> int:
    return message.kept or 0 if isinstance(message, User) else 0


def _length(messages: Sequence[Message]) -> int:
    return sum(map(characters, messages)) + 1


CLEARED = "[The result of this call was removed to save space. Make the call again if you need it.]"


@checked
class ClearResults(Middleware):
    """Sends a short note in place of the results of old calls. Calls and their ids stay.

    - `keep`: the results of this many last rounds are always sent.
    - `step`: this many rounds are cleared at once. In between, requests begin like the ones before, so that the
      provider's cache helps.
    - `never`: the names of tools whose results are not cleared.
    - `least`: results that are shorter than this many characters are not cleared.
    - `native`: lets the provider do it, where it can (Anthropic).
    """

    mutates = False
    edits_answers = False

    def __init__(
        self, keep: int = 4, *, step: int = 8, never: Collection[str] = (), least: int = 400, native: bool = False
    ) -> None:
        if keep < 1 or step < 1:
            raise UserError(f"ClearResults(keep={keep!r}, step={step!r}): expected numbers of rounds from 1")
        if isinstance(never, str):
            raise UserError(f"ClearResults(never={never!r}): give a list of names, never=[{never!r}]")
        self.keep = keep
        self.step = step
        self.never = frozenset(never)
        self.least = max(least, len(CLEARED))
        self.native = native
        """In a run: whether the provider clears."""
        self._cleared: dict[int, tuple[ToolMessage, ToolMessage]] = {}
        """By the id of a message: the message, and what is sent in its place. The same object each time, so that
        nothing is encoded or recorded twice."""

    def start(self, run: RunStart) -> Self:
        started = copy(self)
        started._cleared = {}
        started.native = self.native and can_manage(run, "clear")
        return started

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        """Asks the provider to clear results, if it does that."""
        if not self.native:
            return call_next(request)
        managed = replace(
            request.managed or Managed(),
            clear_at=self.keep + self.step,
            keep_results=self.keep,
            never_clear=tuple(sorted(self.never)),
        )
        return call_next(replace(request, managed=managed))

    async def before_request(self, request: NextRequest) -> None:
        """Clears what is older than the last rounds."""
        if self.native:
            return
        messages = request.messages
        rounds = [at for at, message in enumerate(messages) if isinstance(message, ToolMessage)]
        count = (len(rounds) - self.keep) // self.step * self.step
        if count <= 0:
            return
        names = {call.id: call.name for at in rounds[:count] for call in _calls_before(messages, at)}
        changed = list(messages)
        for at in rounds[:count]:
            message = messages[at]
            assert isinstance(message, ToolMessage)
            changed[at] = self._without_results(message, names)
        request.messages = tuple(changed)

    def _without_results(self, message: ToolMessage, names: dict[str, str]) -> ToolMessage:
        known = self._cleared.get(id(message))
        if known is None or known[0] is not message:
            cleared = ToolMessage(tuple(self._clear(result, names) for result in message.results))
            known = self._cleared[id(message)] = message, message if cleared == message else cleared
        return known[1]

    def _clear(self, result: ToolResult, names: dict[str, str]) -> ToolResult:
        if names.get(result.call_id, result.name) in self.never or size_of(result) < self.least:
            return result
        if result.outcome == "running":  # the handle; "make the call again" would run it twice
            return result
        return replace(result, content=(Text(CLEARED),), native=None)


def _calls_before(messages: Sequence[Message], at: int) -> tuple[ToolCall, ...]:
    before = messages[at - 1] if at else None
    return before.calls if isinstance(before, Assistant) else ()
