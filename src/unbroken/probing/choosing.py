"""Questions about what the request may say of calls: which tool, none, any, and how many at once."""

from __future__ import annotations

from dataclasses import replace

from unbroken.messages import Choice, OneTool
from unbroken.models.quirks import ChoiceKind
from unbroken.probing.asker import Asker, Failing, Reply
from unbroken.probing.findings import Finding, bent, broken, unclear, works
from unbroken.probing.wording import GET_TIME, GET_WEATHER, HELLO, SEVERAL, WEATHER
from unbroken.wires import find_wire

_BY_THE_ROW = "left out, as its row says"
_FLAG = "parallel_tool_calls"


async def ask_required(asker: Asker) -> Finding:
    if "required" not in asker.quirks.choices:
        return bent(_BY_THE_ROW)
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
        return bent(_BY_THE_ROW)
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
        return bent(_BY_THE_ROW)
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
        return bent(_BY_THE_ROW)
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
