"""The tests of the probe, in their order, later ones built on what earlier ones found; and `probe`, which runs them all
and returns the findings and the provider profile that handles the differences.

Tests without tools are defined here (text, the token limit, a system message, streaming and its usage), those with
tools in `calling`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from typing import Any

from yarl import URL

from unbroken.clock import current_clock
from unbroken.errors import (
    ModelNotFound,
    ProviderError,
    RateLimited,
    RequestRefused,
    TimedOut,
    Unauthorized,
    UnknownProvider,
    Unreachable,
)
from unbroken.models.addresses import read_base, shown
from unbroken.models.http import HTTPModel
from unbroken.models.provider_files import ProfileTable
from unbroken.models.providers import find_provider
from unbroken.models.quirks import Quirks
from unbroken_testing.probing.calling import (
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
from unbroken_testing.probing.probe_client import (
    COUNT,
    PONG,
    WAITS,
    Answer,
    Finding,
    Judgement,
    ProbeClient,
    Reply,
    RequestFailing,
    TooSlow,
    broken,
    differs,
    unclear,
    works,
)
from unbroken_wires.messages import System, User
from unbroken_wires.wires import DEFAULT_WIRE

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


# Runs all tests, one at a time, and returns the findings and the provider profile that handles the differences

_WORST_FIRST: tuple[Judgement, ...] = ("broken", "differs", "unclear", "works")


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    """`provider:model`, as given."""
    address: str
    wire: str
    answers: tuple[Answer, ...]
    quirks: dict[str, Any]
    """The fields of the provider's quirks that have to change."""

    @property
    def judgement(self) -> Judgement:
        """The worst judgement of all."""
        found = {answer.finding.judgement for answer in self.answers}
        for judgement in _WORST_FIRST:
            if judgement in found:
                return judgement
        return "unclear"

    def profile(self, base_url: str = "", key_variable: str = "") -> ProfileTable:
        """The profile for the user's file, as small as possible. Secrets in the base URL are left out."""
        name = self.model.partition(":")[0]
        provider = find_provider(name)
        given: dict[str, Any] = {}
        if base_url:
            given["base_url"] = shown(read_base(base_url, name, provider.port))
        if self.wire != provider.wire and not (base_url and provider.elsewhere and self.wire == DEFAULT_WIRE):
            given["wire"] = self.wire
        if key_variable and key_variable not in provider.keys:
            given["keys"] = (key_variable,)
        like = "" if name == "compatible" else name
        return ProfileTable(_name(name, base_url), like, given, self.quirks)


def _name(provider: str, base_url: str) -> str:
    """A name that is not used yet, taken from the host if there is one."""
    if not base_url:
        return f"my-{provider}"
    host = URL(shown(read_base(base_url, provider))).host or ""
    labels = [label for label in host.split(".") if label not in ("api", "www", "")]
    name = "local" if _is_local(host) else labels[0] if labels else "mine"
    try:
        find_provider(name)
    except UnknownProvider:
        return name
    return f"my-{name}"


def _is_local(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return "." not in host
    return True


async def probe(
    model: HTTPModel,
    questions: Sequence[Question] = QUESTIONS,
    *,
    on_start: Callable[[Question], None] = lambda _: None,
    on_answer: Callable[[Answer], None] = lambda _: None,
    waits: tuple[float, ...] = WAITS,
) -> Report:
    """Runs all tests. `on_start` is called with each test before it runs, `on_answer` with its outcome; `waits` are the
    seconds before each retry of a temporary failure. Raises a `ProviderError` if the endpoint does not answer."""
    client, clock = ProbeClient(model, waits=waits), current_clock()
    answers: list[Answer] = []
    without_tools = ""
    for question in questions:
        on_start(question)
        requests, start = client.requests, clock.elapsed()
        try:
            finding = unclear(without_tools) if question.tools and without_tools else await question.ask(client)
        except TooSlow as slow:
            if not answers:
                raise slow.error from None
            within = f"no answer within {model.timeouts.total:g} s" if slow.error.total else str(slow.error)
            finding = unclear(f"{within}: give it more time")
        except RequestFailing as failed:
            finding = await _blamed(client, failed)
        client.quirks = replace(client.quirks, **finding.quirks)
        if question.name == "tools" and finding.judgement == "broken":
            without_tools = "not tested: tool calls do not work"
        answer = Answer(question.name, question.title, finding, client.requests - requests, clock.elapsed() - start)
        answers.append(answer)
        on_answer(answer)
    changed = _changed(model.endpoint.quirks, client.quirks)
    return Report(model.name, shown(model.endpoint.stream_url), model.wire, tuple(answers), changed)


async def _blamed(client: ProbeClient, failed: RequestFailing) -> Finding:
    """The feature is to blame if everything else works; otherwise it may be the connection, which no profile can
    fix."""
    if failed.reply.too_long:
        return unclear(str(failed))
    if await client.is_steady() or await client.is_steady(stream=True):
        return broken(f"{failed}{failed.advice}")
    return unclear(f"{failed}; a plain request sometimes fails too: repeat the probe on a better connection")


def _changed(before: Quirks, after: Quirks) -> dict[str, Any]:
    names = [field.name for field in fields(Quirks)]
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
