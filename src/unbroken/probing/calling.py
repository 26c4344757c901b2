"""Questions about calls: one, several, streamed, without arguments, with arguments that are hard to carry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from unbroken.messages import Choice, Message, OneTool
from unbroken.models.quirks import ChoiceKind
from unbroken.probing.asker import Asker, Failing, Reply
from unbroken.probing.findings import (
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
    answered,
    bent,
    broken,
    echo,
    unclear,
    works,
)
from unbroken.wires import DEFAULT_WIRE, find_wire
from unbroken.wires.values import MISTRAL

# Questions about tool choice: which tool, none, any, and how many calls at once.


_LEFT_OUT_BY_PROFILE = "left out, as in its profile"
_FLAG = "parallel_tool_calls"


async def ask_required(asker: Asker) -> Finding:
    if "required" not in asker.quirks.choices:
        return bent(_LEFT_OUT_BY_PROFILE)
    reply = await asker.ask(HELLO, GET_WEATHER, choice="required")
    if reply.cut:  # a small model that is made to call gets lost where there is nothing to call for
        reply = await asker.ask(WEATHER, GET_WEATHER, choice="required")
    if reply.calls and not reply.problem:
        asker.known.forces = "required"
        asker.known.called = asker.known.called or reply
        return works()
    return await _without(asker, "required", reply)


async def ask_one(asker: Asker) -> Finding:
    if "one" not in asker.quirks.choices:
        return bent(_LEFT_OUT_BY_PROFILE)
    reply = await asker.ask(WEATHER, GET_WEATHER, GET_TIME, choice=OneTool(GET_TIME.name))
    if reply.calls and not reply.problem and {call.name for call in reply.calls} == {GET_TIME.name}:
        asker.known.forces = asker.known.forces or OneTool("")
        asker.known.called = asker.known.called or reply
        return works()
    finding = await _without(asker, "one", reply)
    if finding.quirks and asker.known.forces == "required":
        return replace(finding, words=f"{finding.words}; that tool alone is offered instead")
    return finding


async def ask_none(asker: Asker) -> Finding:
    if "none" not in asker.quirks.choices:
        return bent(_LEFT_OUT_BY_PROFILE)
    reply = await asker.ask(WEATHER, GET_WEATHER, choice="none")
    if reply.problem:
        return await _without(asker, "none", reply)
    if not reply.calls:
        return works()
    if await leaks(asker, reply, "none"):
        return works("honoured; the model wrote its call as text")
    choices = asker.quirks.choices - {"none"}
    return bent("ignored: it calls all the same; a system line says instead that nothing will run", choices=choices)


async def _without(asker: Asker, kind: ChoiceKind, reply: Reply) -> Finding:
    if reply.cut:
        return unclear("the model met its token limit")
    if not reply.problem and not reply.text and not reply.calls:
        return unclear("the answer is empty")
    if reply.problem and not await asker.answers():
        return unclear(f"{reply.problem}; but now it refuses a plain question too")
    what = f"refused: {reply.problem}" if reply.problem else "ignored"
    return bent(what, choices=asker.quirks.choices - {kind})


async def ask_parallel_off(asker: Asker) -> Finding:
    if _FLAG in asker.quirks.drop:
        return bent(_LEFT_OUT_BY_PROFILE)
    reply = await asker.ask(SEVERAL, GET_WEATHER, parallel=False)
    if reply.problem:
        if not asker.wire.startswith("openai"):
            return broken(reply.problem)
        drop = asker.quirks.drop | {_FLAG}
        without = await asker.ask(SEVERAL, GET_WEATHER, parallel=False, quirks=replace(asker.quirks, drop=drop))
        if without.problem:
            return broken(reply.problem)
        return bent(f"refused, so it is left out: {reply.problem}", drop=drop)
    if len(reply.calls) > 1:
        return bent("ignored: several come all the same; Unbroken runs the first when one was asked for")
    if not reply.calls:
        return unclear("accepted; the model called nothing")
    return works() if asker.known.several > 1 else works("accepted; the model gives one call in any case")


async def leaks(asker: Asker, reply: Reply, choice: Choice | None = None) -> bool:
    """Were these calls found in the text? Nothing is looked for in it when the tools are given as raw JSON."""
    if not find_wire(asker.wire).calls_leak or not any("minted id" in call.notes for call in reply.calls):
        return False
    function = {"name": GET_WEATHER.name, "description": GET_WEATHER.description, "parameters": GET_WEATHER.parameters}
    try:
        again = await asker.ask(WEATHER, choice=choice, extra={"tools": [{"type": "function", "function": function}]})
    except Failing:
        return False
    return not again.problem and not again.calls and GET_WEATHER.name in again.text


_NO_CALL = "the model called nothing"
_LONG_TOKENS = 4000

Look: TypeAlias = Callable[[bool], Awaitable[Finding]]
"""Asks the same question, streamed or not."""


async def ask_tools(asker: Asker) -> Finding:
    """Requested in the prompt first: the server may refuse a tool choice."""
    refused, failing = "", None
    for choice in (None, "required", OneTool(GET_WEATHER.name)):
        try:
            reply = await asker.ask(WEATHER, GET_WEATHER, choice=choice)
        except Failing as failed:
            if failed.reply.calls:
                raise
            failing = failing or failed
            continue
        refused = refused or reply.problem
        if reply.calls and not reply.problem:
            asker.known.called = reply
            return await _spelled(asker, reply)
    if failing is not None:
        raise failing
    return broken(refused) if refused else unclear(_NO_CALL)


async def _spelled(asker: Asker, reply: Reply) -> Finding:
    if await leaks(asker, reply):
        return bent("calls come as text: Unbroken finds them there; better start the server with its tool call parser")
    if any("minted id" in call.notes for call in reply.calls):
        return bent("calls come without ids: Unbroken gives them some")
    if any("double-encoded" in call.notes for call in reply.calls):
        return bent("arguments are JSON inside a JSON text: Unbroken reads them")
    return works()


async def ask_several(asker: Asker) -> Finding:
    """Requested in the prompt first, as an agent does; forced only if the model then calls nothing."""
    reply = await asker.ask(SEVERAL, GET_WEATHER)
    if not reply.calls and not reply.problem:
        reply = await asker.ask_for_call(SEVERAL, GET_WEATHER)
    if reply.problem:
        return broken(reply.problem)
    asker.known.several = len(reply.calls)
    if len(reply.calls) > 1:
        return works(f"{len(reply.calls)} calls")
    if not asker.quirks.asks_for_several:
        asked = await asker.ask(SEVERAL, GET_WEATHER, parallel=True)
        if not asked.problem and len(asked.calls) > 1:
            asker.known.several = len(asked.calls)
            return bent("one at a time, unless the request asks for several", asks_for_several=True)
    return unclear("one call only; that may be the model" if reply.calls else _NO_CALL)


async def ask_streamed(asker: Asker) -> Finding:
    prompt, count = (SEVERAL, 2) if asker.known.several > 1 else (WEATHER, 1)

    async def look(stream: bool) -> Finding:
        reply = await asker.ask_for_call(prompt, GET_WEATHER, stream=stream)
        if reply.problem:
            return broken(reply.problem)
        if len(reply.calls) < count:
            return unclear(f"{len(reply.calls)} of {count} calls")
        return works(f"{len(reply.calls)} calls" if len(reply.calls) > 1 else "")

    if not asker.quirks.stream_with_tools:
        return bent("asked without streaming, as its profile says")
    finding = await _either(asker, look)
    if finding.judgement != "unclear":
        return finding
    # Once more: the model may just have done otherwise this time.
    return await _either(asker, look, ("broken", "unclear"))


async def _either(asker: Asker, look: Look, blamed: tuple[Judgement, ...] = ("broken",)) -> Finding:
    """Streamed; if only streaming fails, the profile can help."""
    try:
        finding = await look(True)
    except Failing as failed:
        # The connection may be bad: streaming is to blame if non-streaming answers always arrive at once.
        failures = asker.failures
        whole = asker.quirks.stream_with_tools and (await look(False)).judgement == "works"
        if not whole or asker.failures > failures or not await asker.is_steady():
            raise
        return bent(f"only when streamed: {failed}; so it is not streamed", stream_with_tools=False)
    if finding.judgement not in blamed or not asker.quirks.stream_with_tools:
        return finding
    if (await look(False)).judgement != "works":
        return finding
    return bent(f"only when streamed: {finding.words}; so it is not streamed", stream_with_tools=False)


async def ask_no_arguments(asker: Asker) -> Finding:
    async def look(stream: bool) -> Finding:
        reply = await asker.ask_for_call(PING, PING_TOOL, stream=stream)
        if reply.problem:
            return broken(reply.problem)
        if not reply.calls:
            return unclear(_NO_CALL)
        call = reply.calls[0]
        if call.arguments:
            return unclear("the model gave arguments all the same")
        return works("" if call.raw.strip() else "the arguments are an empty text, which is read as {}")

    return await _either(asker, look)


async def ask_unicode(asker: Asker) -> Finding:
    async def look(stream: bool) -> Finding:
        reply = await asker.ask_for_call(echo(WORDS), ECHO, stream=stream)
        given = _given(reply)
        if isinstance(given, Finding):
            return given
        if WORDS in given:
            return works()
        if sign := mangled(WORDS, given):
            return broken(f"{sign}: {given[:60]}")
        return unclear(f"the model changed the text: {given[:60]}")

    return await _either(asker, look)


async def ask_long(asker: Asker) -> Finding:
    async def look(stream: bool) -> Finding:
        reply = await asker.ask_for_call(echo(LONG), ECHO, stream=stream, tokens=_LONG_TOKENS)
        if reply.cut:
            return unclear("the model met its token limit")
        given = _given(reply)
        if isinstance(given, Finding):
            return given
        if LONG in given:
            return works(f"{len(LONG):,} characters")
        return unclear(f"the model wrote {len(given):,} of {len(LONG):,} characters, and ended well")

    return await _either(asker, look)


def _given(reply: Reply) -> str | Finding:
    if reply.problem:
        return broken(reply.problem)
    texts = [str(call.arguments.get("text", "")) for call in reply.calls if call.arguments is not None]
    return texts[0] if texts else unclear(_NO_CALL)


def mangled(sent: str, came: str) -> str:
    """How a server damaged a text, judging by the result; empty if it was more likely the model."""
    if "\ufffd" in came or any("\ud800" <= character <= "\udfff" for character in came):
        return "characters are cut in the middle"
    ways = {
        "its UTF-8 is read as Latin-1": sent.encode().decode("latin-1"),
        "its UTF-8 is read as Windows-1252": sent.encode().decode("cp1252", "ignore"),
        "what is not ASCII became ?": sent.encode("ascii", "replace").decode(),
        "what is not ASCII is gone": sent.encode("ascii", "ignore").decode(),
        "characters beyond 16 bits are gone": "".join(character for character in sent if character < "\U00010000"),
        "escapes are left as they are": sent.encode("ascii", "backslashreplace").decode(),
    }
    return next((way for way, text in ways.items() if came.strip() == text.strip()), "")


async def ask_strict(asker: Asker) -> Finding:
    if not asker.quirks.strict:
        return bent("left out, as in its profile")
    reply = await asker.ask_for_call(WEATHER, STRICT_WEATHER)
    if not reply.problem:
        return works("accepted")
    without = await asker.ask(WEATHER, STRICT_WEATHER, quirks=replace(asker.quirks, strict=False))
    return broken(reply.problem) if without.problem else bent(f"refused: {reply.problem}", strict=False)


# Questions about what comes after calls: a history with results, and the final request without calls.


async def ask_results(asker: Asker) -> Finding:
    """Sends back its own calls unchanged, and calls of another model."""
    finding = unclear("the answer is empty")
    for message in (asker.known.called and asker.known.called.message, TWO_CALLS):
        if message is None:
            continue
        finding = await _accepted(
            asker, answered(message), "its own calls" if message is not TWO_CALLS else "two calls"
        )
        if finding.judgement != "works":
            return finding
    return finding


async def _accepted(asker: Asker, history: tuple[Message, ...], what: str) -> Finding:
    reply = await asker.ask(history, GET_WEATHER)
    if reply.problem and asker.wire == DEFAULT_WIRE and asker.quirks.call_ids is None:
        short = await asker.ask(history, GET_WEATHER, quirks=replace(asker.quirks, call_ids=MISTRAL))
        if not short.problem:
            return bent("call ids must have 9 letters and digits", call_ids=MISTRAL)
    if reply.problem:
        return broken(f"{what}: {reply.problem}")
    if not reply.text and not reply.calls:
        return unclear(f"{what}: accepted; the answer is empty")
    return works("accepted and used" if CODE in reply.text else "accepted")


async def ask_final(asker: Asker) -> Finding:
    history = answered(TWO_CALLS)
    reply = await asker.ask(history, GET_WEATHER, final=True)
    if _answers(reply):
        line = "with a system line in place of the choice" if "none" not in asker.quirks.choices else ""
        return works(line)
    if "none" in asker.quirks.choices and (reply.problem or reply.calls):
        choices = asker.quirks.choices - {"none"}
        told = await asker.ask(history, GET_WEATHER, final=True, quirks=replace(asker.quirks, choices=choices))
        if _answers(told):
            return bent(reply.problem or "it calls all the same; a system line helps", choices=choices)
    if reply.problem:
        return broken(reply.problem)
    if reply.calls:
        return bent("it calls all the same: Unbroken answers that it was not executed, and requests an answer again")
    return unclear("accepted; the answer is empty")


def _answers(reply: Reply) -> bool:
    return bool(reply.text.strip()) and not reply.calls and not reply.problem
