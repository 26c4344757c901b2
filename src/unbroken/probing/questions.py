"""The tests of the probe, in their order: later ones build on what earlier ones found.

Tests without tools are defined here (text, the token limit, a system message, streaming and its usage), those with
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
from unbroken.probing.findings import COUNT, PONG, Finding, broken, differs, unclear, works
from unbroken.probing.probe_client import ProbeClient, Reply, RequestFailing
from unbroken.wires import DEFAULT_WIRE

_FATAL = (Unauthorized, ModelNotFound, Unreachable, TimedOut, RateLimited)
_LIMIT = 16
_UNLIMITED = 150
"""More characters than any answer within the token limit can have."""


async def ask_text(client: ProbeClient) -> Finding:
    """Raises if the endpoint does not answer at all."""
    reply = await _plain(client)
    if isinstance(reply.error, RequestRefused):
        client.temperature = None  # OpenAI's reasoning models do not accept it
        reply = await _plain(client)
    if isinstance(reply.error, _FATAL):
        raise reply.error
    if not reply.problem:
        return works() if reply.text else unclear("the answer is empty")
    streamed = await _plain(client, stream=True)
    if streamed.problem:
        raise reply.error or ProviderError(
            f"{client.model.name} did not answer, with or without streaming: {reply.problem}"
        )
    if not reply.refused and not await client.is_steady(stream=True):
        return unclear(f"{reply.problem}; with streaming it answers sometimes: repeat the probe on a better connection")
    return broken(f"it answers only when streamed: {reply.problem}")


async def _plain(client: ProbeClient, stream: bool = False) -> Reply:
    try:
        return await client.ask(PONG, tokens=0, stream=stream)
    except RequestFailing as failed:
        return failed.reply


async def ask_limit(client: ProbeClient) -> Finding:
    quirks = client.quirks
    renamed = {**quirks.rename, "max_tokens": "max_completion_tokens"}
    spellings = [("max_tokens", quirks)]
    if client.wire == DEFAULT_WIRE and "max_tokens" not in quirks.rename:
        spellings.append(("max_completion_tokens", replace(quirks, rename=renamed)))
    refused = ignored = ""
    for name, spelled in spellings:
        reply = await client.ask(COUNT, tokens=_LIMIT, quirks=spelled)
        if reply.problem:
            refused = refused or reply.problem
        elif len(reply.text) > _UNLIMITED and not reply.cut:
            ignored = ignored or name
        elif name == "max_tokens":
            return works("honoured" if reply.cut else "accepted")
        else:
            how = "max_tokens is refused" if refused else "max_tokens is ignored"
            return differs(f"{how}, max_completion_tokens works", rename=renamed)
    if ignored == "max_tokens":
        return differs("accepted and ignored: answers may be longer than requested")
    if ignored:
        return differs("max_tokens is refused, max_completion_tokens is ignored", rename=renamed)
    if not await client.answers():
        return unclear(f"{refused}; but now it refuses a plain request too")
    if client.wire == DEFAULT_WIRE:
        return differs(f"refused under any name, so it is left out: {refused}", drop=quirks.drop | {"max_tokens"})
    return broken(refused)


async def ask_system(client: ProbeClient) -> Finding:
    rule = "Whatever the user says, your complete reply is the word BANANA."
    reply = await client.ask((System.of(rule), User.of("Say hello.")))
    if reply.problem:
        return broken(f"{reply.problem}; put it into the first user message instead")
    return works() if "banana" in reply.text.lower() else unclear("accepted; the model did not follow it")


async def ask_stream(client: ProbeClient) -> Finding:
    try:
        reply = await client.ask(COUNT, stream=True)
    except RequestFailing as failed:
        failed.advice = "; connect with stream=False"
        raise
    found = works()
    if reply.problem and client.wire == DEFAULT_WIRE and "stream_options" not in client.quirks.drop:
        drop = client.quirks.drop | {"stream_options"}
        without = await client.ask(COUNT, stream=True, quirks=replace(client.quirks, drop=drop))
        if not without.problem:
            found = differs("stream_options is refused, so it is left out", drop=drop)
            reply = without
    if reply.problem:
        return broken(f"{reply.problem}; connect with stream=False")
    client.known.streamed = reply
    if not reply.text:
        return unclear("accepted; the answer is empty")
    if reply.pieces == 1 and len(reply.text) > _UNLIMITED and found.judgement == "works":
        return differs("the text is sent in one piece at the end")
    return found


async def ask_usage(client: ProbeClient) -> Finding:
    reply = client.known.streamed
    if reply is None:
        return unclear("not tested: there is no streamed answer")
    if reply.usage is None:
        return differs("no usage is sent: Unbroken estimates tokens, and marks them as estimated")
    if not reply.usage.input_tokens or not reply.usage.output_tokens:
        return differs("the input or output tokens are 0")
    return works()


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    title: str
    ask: Callable[[ProbeClient], Awaitable[Finding]]
    tools: bool = True
    """Skipped if tools do not work at all."""


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
    Question("results", "results sent back", ask_results),
    Question("final", "final request", ask_final),
)
