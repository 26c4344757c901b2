"""Questions about what comes after calls: a history with results, and the request in which nothing may be called."""

from __future__ import annotations

from dataclasses import replace

from unbroken.messages import Message
from unbroken.probing.asker import Asker, Reply
from unbroken.probing.findings import Finding, bent, broken, unclear, works
from unbroken.probing.wording import CODE, GET_WEATHER, TWO_CALLS, answered
from unbroken.wires import DEFAULT_WIRE
from unbroken.wires.ids import MISTRAL


async def ask_results(asker: Asker) -> Finding:
    """Its own calls, given back as they came, and calls that somebody else made."""
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
        return bent("it calls all the same: Unbroken answers that it was not executed, and asks once more")
    return unclear("accepted; the answer is empty")


def _answers(reply: Reply) -> bool:
    return bool(reply.text.strip()) and not reply.calls and not reply.problem
