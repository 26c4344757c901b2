"""Questions about calls: one, several, streamed, without arguments, with arguments that are hard to carry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from unbroken.messages import OneTool
from unbroken.probing.asker import Asker, Failing, Reply
from unbroken.probing.choosing import leaks
from unbroken.probing.findings import Finding, Judgement, bent, broken, unclear, works
from unbroken.probing.wording import (
    ECHO,
    GET_WEATHER,
    LONG,
    PING,
    PING_TOOL,
    SEVERAL,
    STRICT_WEATHER,
    WEATHER,
    WORDS,
    echo,
)

_NO_CALL = "the model called nothing"
_LONG_TOKENS = 4000

Look: TypeAlias = Callable[[bool], Awaitable[Finding]]
"""Asks the same thing, streamed or whole."""


async def ask_tools(asker: Asker) -> Finding:
    """Asked for in words first: a choice may be what is refused."""
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
    """Asked for in words first, as an agent does; forced only if the model then calls nothing."""
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
        return bent("asked whole, as its row says")
    finding = await _either(asker, look)
    if finding.judgement != "unclear":
        return finding
    # Once more: the model may just have done otherwise this time.
    return await _either(asker, look, ("broken", "unclear"))


async def _either(asker: Asker, look: Look, blamed: tuple[Judgement, ...] = ("broken",)) -> Finding:
    """Streamed; where that is to blame and whole is not, the row can help."""
    try:
        finding = await look(True)
    except Failing as failed:
        # The line may just be bad: streaming is to blame if whole answers come at once, again and again.
        failures = asker.failures
        whole = asker.quirks.stream_with_tools and (await look(False)).judgement == "works"
        if not whole or asker.failures > failures or not await asker.is_steady():
            raise
        return bent(f"only when streamed: {failed}; so it is asked whole", stream_with_tools=False)
    if finding.judgement not in blamed or not asker.quirks.stream_with_tools:
        return finding
    if (await look(False)).judgement != "works":
        return finding
    return bent(f"only when streamed: {finding.words}; so it is asked whole", stream_with_tools=False)


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
    """How a server spoiled a text, by what is left of it; empty if it rather was the model."""
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
        return bent("left out, as its row says")
    reply = await asker.ask_for_call(WEATHER, STRICT_WEATHER)
    if not reply.problem:
        return works("accepted")
    without = await asker.ask(WEATHER, STRICT_WEATHER, quirks=replace(asker.quirks, strict=False))
    return broken(reply.problem) if without.problem else bent(f"refused: {reply.problem}", strict=False)
