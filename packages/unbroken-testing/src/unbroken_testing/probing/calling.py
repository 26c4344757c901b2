"""Tests of tool calls: one, several, streamed, without arguments, with arguments that are hard to transmit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from unbroken.models.quirks import ChoiceKind
from unbroken_testing.probing.probe_client import (
    CODE,
    ECHO,
    GET_TIME,
    GET_WEATHER,
    HELLO,
    LONG,
    PING,
    PING_TOOL,
    SEVERAL,
    STRICT_WEATHER,
    TWO_CALLS,
    WEATHER,
    WORDS,
    Finding,
    Judgement,
    ProbeClient,
    Reply,
    RequestFailing,
    answered,
    broken,
    differs,
    echo,
    unclear,
    works,
)
from unbroken_wires.messages import Choice, Message, OneTool
from unbroken_wires.wires import DEFAULT_WIRE, find_wire
from unbroken_wires.wires.json_access import MISTRAL

# Tests of the tool choice: which tool, none, any, and how many calls at once.


_LEFT_OUT_BY_PROFILE = "left out, as in its profile"
_FLAG = "parallel_tool_calls"


async def ask_required(client: ProbeClient) -> Finding:
    if "required" not in client.quirks.choices:
        return differs(_LEFT_OUT_BY_PROFILE)
    reply = await client.ask(HELLO, GET_WEATHER, choice="required")
    if reply.cut:  # a small model that is forced to call without a reason may not find an end
        reply = await client.ask(WEATHER, GET_WEATHER, choice="required")
    if reply.calls and not reply.problem:
        client.known.forces = "required"
        client.known.called = client.known.called or reply
        return works()
    return await _without(client, "required", reply)


async def ask_one(client: ProbeClient) -> Finding:
    if "one" not in client.quirks.choices:
        return differs(_LEFT_OUT_BY_PROFILE)
    reply = await client.ask(WEATHER, GET_WEATHER, GET_TIME, choice=OneTool(GET_TIME.name))
    if reply.calls and not reply.problem and {call.name for call in reply.calls} == {GET_TIME.name}:
        client.known.forces = client.known.forces or OneTool("")
        client.known.called = client.known.called or reply
        return works()
    finding = await _without(client, "one", reply)
    if finding.quirks and client.known.forces == "required":
        return replace(finding, words=f"{finding.words}; that tool alone is offered instead")
    return finding


async def ask_none(client: ProbeClient) -> Finding:
    if "none" not in client.quirks.choices:
        return differs(_LEFT_OUT_BY_PROFILE)
    reply = await client.ask(WEATHER, GET_WEATHER, choice="none")
    if reply.problem:
        return await _without(client, "none", reply)
    if not reply.calls:
        return works()
    if await leaks(client, reply, "none"):
        return works("honoured; the model wrote its call as text")
    choices = client.quirks.choices - {"none"}
    return differs(
        "ignored: the model calls anyway; instead, a system line states that no tool will run", choices=choices
    )


async def _without(client: ProbeClient, kind: ChoiceKind, reply: Reply) -> Finding:
    if reply.cut:
        return unclear("the model reached its token limit")
    if not reply.problem and not reply.text and not reply.calls:
        return unclear("the answer is empty")
    if reply.problem and not await client.answers():
        return unclear(f"{reply.problem}; but now it refuses a plain request too")
    what = f"refused: {reply.problem}" if reply.problem else "ignored"
    return differs(what, choices=client.quirks.choices - {kind})


async def ask_parallel_off(client: ProbeClient) -> Finding:
    if _FLAG in client.quirks.drop:
        return differs(_LEFT_OUT_BY_PROFILE)
    reply = await client.ask(SEVERAL, GET_WEATHER, parallel=False)
    if reply.problem:
        if not client.wire.startswith("openai"):
            return broken(reply.problem)
        drop = client.quirks.drop | {_FLAG}
        without = await client.ask(SEVERAL, GET_WEATHER, parallel=False, quirks=replace(client.quirks, drop=drop))
        if without.problem:
            return broken(reply.problem)
        return differs(f"refused, so it is left out: {reply.problem}", drop=drop)
    if len(reply.calls) > 1:
        return differs("ignored: several calls are returned anyway; Unbroken runs the first if only one was requested")
    if not reply.calls:
        return unclear("accepted; the model called nothing")
    return works() if client.known.several > 1 else works("accepted; the model makes only one call anyway")


async def leaks(client: ProbeClient, reply: Reply, choice: Choice | None = None) -> bool:
    """Whether these calls were found in the text. The text is not searched if the tools are given as raw JSON."""
    if not find_wire(client.wire).calls_leak or not any("minted id" in call.notes for call in reply.calls):
        return False
    function = {"name": GET_WEATHER.name, "description": GET_WEATHER.description, "parameters": GET_WEATHER.parameters}
    try:
        repeated = await client.ask(
            WEATHER, choice=choice, extra={"tools": [{"type": "function", "function": function}]}
        )
    except RequestFailing:
        return False
    return not repeated.problem and not repeated.calls and GET_WEATHER.name in repeated.text


_NO_CALL = "the model called nothing"
_LONG_TOKENS = 4000

Attempt: TypeAlias = Callable[[bool], Awaitable[Finding]]
"""Runs the same test, streamed or not."""


async def ask_tools(client: ProbeClient) -> Finding:
    """First requested by the prompt only: the server may refuse a tool choice."""
    refused, failing = "", None
    for choice in (None, "required", OneTool(GET_WEATHER.name)):
        try:
            reply = await client.ask(WEATHER, GET_WEATHER, choice=choice)
        except RequestFailing as failed:
            if failed.reply.calls:
                raise
            failing = failing or failed
            continue
        refused = refused or reply.problem
        if reply.calls and not reply.problem:
            client.known.called = reply
            return await _check_format(client, reply)
    if failing is not None:
        raise failing
    return broken(refused) if refused else unclear(_NO_CALL)


async def _check_format(client: ProbeClient, reply: Reply) -> Finding:
    if await leaks(client, reply):
        return differs("calls are sent as text: Unbroken finds them; better start the server with its tool call parser")
    if any("minted id" in call.notes for call in reply.calls):
        return differs("calls have no ids: Unbroken adds them")
    if any("double-encoded" in call.notes for call in reply.calls):
        return differs("arguments are JSON inside a JSON string: Unbroken reads them")
    return works()


async def ask_several(client: ProbeClient) -> Finding:
    """First requested by the prompt only, as an agent does; forced only if the model then calls nothing."""
    reply = await client.ask(SEVERAL, GET_WEATHER)
    if not reply.calls and not reply.problem:
        reply = await client.ask_for_call(SEVERAL, GET_WEATHER)
    if reply.problem:
        return broken(reply.problem)
    client.known.several = len(reply.calls)
    if len(reply.calls) > 1:
        return works(f"{len(reply.calls)} calls")
    if not client.quirks.asks_for_several:
        asked = await client.ask(SEVERAL, GET_WEATHER, parallel=True)
        if not asked.problem and len(asked.calls) > 1:
            client.known.several = len(asked.calls)
            return differs("one call at a time, unless the request asks for several", asks_for_several=True)
    return unclear("only one call; that may be due to the model" if reply.calls else _NO_CALL)


async def ask_streamed(client: ProbeClient) -> Finding:
    prompt, count = (SEVERAL, 2) if client.known.several > 1 else (WEATHER, 1)

    async def attempt(stream: bool) -> Finding:
        reply = await client.ask_for_call(prompt, GET_WEATHER, stream=stream)
        if reply.problem:
            return broken(reply.problem)
        if len(reply.calls) < count:
            return unclear(f"{len(reply.calls)} of {count} calls")
        return works(f"{len(reply.calls)} calls" if len(reply.calls) > 1 else "")

    if not client.quirks.stream_with_tools:
        return differs("sent without streaming, as in its profile")
    finding = await _either(client, attempt)
    if finding.judgement != "unclear":
        return finding
    # Once more: the model may have behaved differently by chance.
    return await _either(client, attempt, ("broken", "unclear"))


async def _either(client: ProbeClient, attempt: Attempt, blamed: tuple[Judgement, ...] = ("broken",)) -> Finding:
    """Runs the test with streaming; if only streaming fails, the profile can switch it off."""
    try:
        finding = await attempt(True)
    except RequestFailing as failed:
        # The connection may be bad: streaming is to blame only if non-streaming requests always succeed at once.
        failures = client.failures
        unstreamed = client.quirks.stream_with_tools and (await attempt(False)).judgement == "works"
        if not unstreamed or client.failures > failures or not await client.is_steady():
            raise
        return differs(f"only when streamed: {failed}; so streaming is switched off", stream_with_tools=False)
    if finding.judgement not in blamed or not client.quirks.stream_with_tools:
        return finding
    if (await attempt(False)).judgement != "works":
        return finding
    return differs(f"only when streamed: {finding.words}; so streaming is switched off", stream_with_tools=False)


async def ask_no_arguments(client: ProbeClient) -> Finding:
    async def attempt(stream: bool) -> Finding:
        reply = await client.ask_for_call(PING, PING_TOOL, stream=stream)
        if reply.problem:
            return broken(reply.problem)
        if not reply.calls:
            return unclear(_NO_CALL)
        call = reply.calls[0]
        if call.arguments:
            return unclear("the model wrote arguments anyway")
        return works("" if call.raw.strip() else "the arguments are an empty string, which is read as {}")

    return await _either(client, attempt)


async def ask_unicode(client: ProbeClient) -> Finding:
    async def attempt(stream: bool) -> Finding:
        reply = await client.ask_for_call(echo(WORDS), ECHO, stream=stream)
        given = _given(reply)
        if isinstance(given, Finding):
            return given
        if WORDS in given:
            return works()
        if damage := damage_to(WORDS, given):
            return broken(f"{damage}: {given[:60]}")
        return unclear(f"the model changed the text: {given[:60]}")

    return await _either(client, attempt)


async def ask_long(client: ProbeClient) -> Finding:
    async def attempt(stream: bool) -> Finding:
        reply = await client.ask_for_call(echo(LONG), ECHO, stream=stream, tokens=_LONG_TOKENS)
        if reply.cut:
            return unclear("the model reached its token limit")
        given = _given(reply)
        if isinstance(given, Finding):
            return given
        if LONG in given:
            return works(f"{len(LONG):,} characters")
        return unclear(f"the model wrote {len(given):,} of {len(LONG):,} characters, and ended properly")

    return await _either(client, attempt)


def _given(reply: Reply) -> str | Finding:
    if reply.problem:
        return broken(reply.problem)
    texts = [str(call.arguments.get("text", "")) for call in reply.calls if call.arguments is not None]
    return texts[0] if texts else unclear(_NO_CALL)


def damage_to(sent: str, received: str) -> str:
    """How a server damaged a text, judging by the result; empty if the model more likely changed it."""
    if "\ufffd" in received or any("\ud800" <= character <= "\udfff" for character in received):
        return "characters are cut in the middle"
    ways = {
        "UTF-8 was read as Latin-1": sent.encode().decode("latin-1"),
        "UTF-8 was read as Windows-1252": sent.encode().decode("cp1252", "ignore"),
        "non-ASCII characters became ?": sent.encode("ascii", "replace").decode(),
        "non-ASCII characters are missing": sent.encode("ascii", "ignore").decode(),
        "characters beyond 16 bits are missing": "".join(character for character in sent if character < "\U00010000"),
        "escapes were not decoded": sent.encode("ascii", "backslashreplace").decode(),
    }
    return next((way for way, text in ways.items() if received.strip() == text.strip()), "")


async def ask_strict(client: ProbeClient) -> Finding:
    if not client.quirks.strict:
        return differs(_LEFT_OUT_BY_PROFILE)
    reply = await client.ask_for_call(WEATHER, STRICT_WEATHER)
    if not reply.problem:
        return works("accepted")
    without = await client.ask(WEATHER, STRICT_WEATHER, quirks=replace(client.quirks, strict=False))
    return broken(reply.problem) if without.problem else differs(f"refused: {reply.problem}", strict=False)


# Tests of what follows calls: a history with results, and the final request without calls.


async def ask_results(client: ProbeClient) -> Finding:
    """Sends the model its own calls with results, and calls of another model."""
    finding = unclear("the answer is empty")
    for message in (client.known.called and client.known.called.message, TWO_CALLS):
        if message is None:
            continue
        finding = await _accepted(
            client, answered(message), "its own calls" if message is not TWO_CALLS else "two calls"
        )
        if finding.judgement != "works":
            return finding
    return finding


async def _accepted(client: ProbeClient, history: tuple[Message, ...], what: str) -> Finding:
    reply = await client.ask(history, GET_WEATHER)
    if reply.problem and client.wire == DEFAULT_WIRE and client.quirks.call_ids is None:
        short = await client.ask(history, GET_WEATHER, quirks=replace(client.quirks, call_ids=MISTRAL))
        if not short.problem:
            return differs("call ids must have 9 letters and digits", call_ids=MISTRAL)
    if reply.problem:
        return broken(f"{what}: {reply.problem}")
    if not reply.text and not reply.calls:
        return unclear(f"{what}: accepted; the answer is empty")
    return works("accepted and used" if CODE in reply.text else "accepted")


async def ask_final(client: ProbeClient) -> Finding:
    history = answered(TWO_CALLS)
    reply = await client.ask(history, GET_WEATHER, final=True)
    if _answers(reply):
        line = "with a system line instead of the tool choice" if "none" not in client.quirks.choices else ""
        return works(line)
    if "none" in client.quirks.choices and (reply.problem or reply.calls):
        choices = client.quirks.choices - {"none"}
        with_line = await client.ask(history, GET_WEATHER, final=True, quirks=replace(client.quirks, choices=choices))
        if _answers(with_line):
            return differs(reply.problem or "the model calls anyway; a system line prevents it", choices=choices)
    if reply.problem:
        return broken(reply.problem)
    if reply.calls:
        return differs(
            "the model calls anyway: Unbroken answers that the call was not executed, and requests an answer again"
        )
    return unclear("accepted; the answer is empty")


def _answers(reply: Reply) -> bool:
    return bool(reply.text.strip()) and not reply.calls and not reply.problem
