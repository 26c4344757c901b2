"""The questions in the order in which they are asked: later ones build on what earlier ones found.

Questions without tools are defined here (text, the token limit, a system message, streaming and its usage), those with
tools in `calling`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from unbroken.errors import (
    ModelNotFound,
    ProviderError,
    RateLimited,
    RequestRefused,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from unbroken.messages import System, User
from unbroken.probing.asker import Asker, Failing, Reply
from unbroken.probing.calling import (
    ask_final,
    ask_long,
    ask_no_arguments,
    ask_none,
    ask_one,
    ask_parallel_off,
    ask_required,
    ask_results,
    ask_several,
    ask_streamed,
    ask_strict,
    ask_tools,
    ask_unicode,
)
from unbroken.probing.findings import COUNT, PONG, Finding, bent, broken, unclear, works
from unbroken.wires import DEFAULT_WIRE

_HOPELESS = (Unauthorized, ModelNotFound, Unreachable, TimedOut, RateLimited)
_LIMIT = 16
_UNLIMITED = 150
"""More characters than any answer within the token limit has."""


async def ask_text(asker: Asker) -> Finding:
    """Raises if the endpoint does not answer."""
    reply = await _plain(asker)
    if isinstance(reply.error, RequestRefused):
        asker.temperature = None  # OpenAI's reasoning models take none
        reply = await _plain(asker)
    if isinstance(reply.error, _HOPELESS):
        raise reply.error
    if not reply.problem:
        return works() if reply.text else unclear("the answer is empty")
    streamed = await _plain(asker, stream=True)
    if streamed.problem:
        raise reply.error or ProviderError(f"{asker.model.name} gave no answer, streamed or not: {reply.problem}")
    if not reply.refused and not await asker.is_steady(stream=True):
        return unclear(f"{reply.problem}; streamed it answers at times: ask on a better line")
    return broken(f"it answers only when streamed: {reply.problem}")


async def _plain(asker: Asker, stream: bool = False) -> Reply:
    try:
        return await asker.ask(PONG, tokens=0, stream=stream)
    except Failing as failed:
        return failed.reply


async def ask_limit(asker: Asker) -> Finding:
    quirks = asker.quirks
    renamed = {**quirks.rename, "max_tokens": "max_completion_tokens"}
    spellings = [("max_tokens", quirks)]
    if asker.wire == DEFAULT_WIRE and "max_tokens" not in quirks.rename:
        spellings.append(("max_completion_tokens", replace(quirks, rename=renamed)))
    refused = ignored = ""
    for name, spelled in spellings:
        reply = await asker.ask(COUNT, tokens=_LIMIT, quirks=spelled)
        if reply.problem:
            refused = refused or reply.problem
        elif len(reply.text) > _UNLIMITED and not reply.cut:
            ignored = ignored or name
        elif name == "max_tokens":
            return works("honoured" if reply.cut else "accepted")
        else:
            how = "max_tokens is refused" if refused else "max_tokens is ignored"
            return bent(f"{how}, max_completion_tokens is taken", rename=renamed)
    if ignored == "max_tokens":
        return bent("accepted and ignored: answers may be longer than asked for")
    if ignored:
        return bent("max_tokens is refused, max_completion_tokens is ignored", rename=renamed)
    if not await asker.answers():
        return unclear(f"{refused}; but now it refuses a plain question too")
    if asker.wire == DEFAULT_WIRE:
        return bent(f"refused by any name, so it is left out: {refused}", drop=quirks.drop | {"max_tokens"})
    return broken(refused)


async def ask_system(asker: Asker) -> Finding:
    rule = "Whatever the user says, your whole reply is the word BANANA."
    reply = await asker.ask((System.of(rule), User.of("Say hello.")))
    if reply.problem:
        return broken(f"{reply.problem}; say it in the first user message instead")
    return works() if "banana" in reply.text.lower() else unclear("accepted; the model did not follow it")


async def ask_stream(asker: Asker) -> Finding:
    try:
        reply = await asker.ask(COUNT, stream=True)
    except Failing as failed:
        failed.advice = "; connect with stream=False"
        raise
    found = works()
    if reply.problem and asker.wire == DEFAULT_WIRE and "stream_options" not in asker.quirks.drop:
        drop = asker.quirks.drop | {"stream_options"}
        without = await asker.ask(COUNT, stream=True, quirks=replace(asker.quirks, drop=drop))
        if not without.problem:
            found = bent("stream_options is refused, so it is left out", drop=drop)
            reply = without
    if reply.problem:
        return broken(f"{reply.problem}; connect with stream=False")
    asker.known.streamed = reply
    if not reply.text:
        return unclear("accepted; the answer is empty")
    if reply.pieces == 1 and len(reply.text) > _UNLIMITED and found.judgement == "works":
        return bent("the text comes in one piece at the end")
    return found


async def ask_usage(asker: Asker) -> Finding:
    reply = asker.known.streamed
    if reply is None:
        return unclear("not asked: there is no streamed answer")
    if reply.usage is None:
        return bent("none is sent: Unbroken estimates tokens, and marks them so")
    if not reply.usage.input_tokens or not reply.usage.output_tokens:
        return bent("it counts nothing: input or output tokens are 0")
    return works()


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    title: str
    ask: Callable[[Asker], Awaitable[Finding]]
    tools: bool = True
    """It is skipped if tools do not work at all."""


QUESTIONS = (
    Question("text", "plain text", ask_text, tools=False),
    Question("limit", "token limit", ask_limit, tools=False),
    Question("system", "system message", ask_system, tools=False),
    Question("stream", "streaming", ask_stream, tools=False),
    Question("usage", "usage in the stream", ask_usage, tools=False),
    Question("tools", "a tool call", ask_tools, tools=False),
    Question("required", "choice: any tool", ask_required),
    Question("one", "choice: one tool by name", ask_one),
    Question("none", "choice: none", ask_none),
    Question("several", "several calls at once", ask_several),
    Question("parallel_off", "one call at most", ask_parallel_off),
    Question("stream_tools", "streaming with tools", ask_streamed),
    Question("no_arguments", "a tool without arguments", ask_no_arguments),
    Question("unicode", "unicode arguments", ask_unicode),
    Question("long", "long arguments", ask_long),
    Question("strict", "strict tools", ask_strict),
    Question("results", "results given back", ask_results),
    Question("final", "final request", ask_final),
)
