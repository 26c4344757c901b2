"""Random histories through compaction and clearing: every wire's strict checker accepts what is sent, and no call is
without its result. `UNBROKEN_FUZZ` runs more examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scenes import PROVIDERS, WIRES
from strategies import PARTS, SAID, calls, costly, results

from unbroken import Agent, Assistant, ScriptedModel, System, Text, ToolResult, User, connect
from unbroken.agent.limits import Limits
from unbroken.compaction import SUMMARISE, ClearResults, Compaction
from unbroken.models.http import HTTPModel
from unbroken.models.scripted import Answer, Call, Say, Uses
from unbroken.tools.schema import Signature
from unbroken.tools.tool import Tool
from unbroken_testing import check_request, run_virtual
from unbroken_wires.messages import Json, Message, Native, Request, ToolMessage, ToolSpec
from unbroken_wires.transcript.summaries import before_last_rounds, is_summary, may_cut, sent_part
from unbroken_wires.wires.chain import validate_tool_chain

KEY = "k" * 24


def signed(message: Assistant, wire: str, number: int) -> Assistant:
    """The same answer with what only its wire knows of it: reasoning that is signed or encrypted."""
    match wire:
        case "anthropic-messages":
            thinking = {"type": "thinking", "thinking": "Hm.", "signature": f"sig{number}"}
            text = [{"type": "text", "text": message.text}] if message.text else []
            uses = [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in message.calls]
            value: Json = [thinking, *text, *uses]
        case "openai-responses":
            reasoning: Json = {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": [],
                "encrypted_content": f"e{number}",
            }
            said = {"type": "message", "role": "assistant", "content": [_output_text(message.text)]}
            items = [
                {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.raw} for c in message.calls
            ]
            value = [reasoning, *([said] if message.text else []), *items]
        case "gemini":
            texts = [{"text": message.text}] if message.text else []
            value = [
                *texts,
                *[
                    {"functionCall": {"name": c.name, "args": c.arguments or {}}, "thoughtSignature": f"c2ln{number}"}
                    for c in message.calls
                ],
            ]
        case _:
            return message
    return replace(message, native=Native(wire, value, tuple(call.id for call in message.calls)))


def _output_text(text: str) -> dict[str, Json]:
    return {"type": "output_text", "text": text, "annotations": []}


@st.composite
def long_histories(draw: st.DrawFn, wire: str) -> tuple[Message, ...]:
    """Turns of several rounds, with parallel calls, media, signed reasoning, answers in parts, and older summaries."""
    messages: list[Message] = [System((Text(draw(SAID)),))] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        messages.append(User(draw(PARTS)))
        for _ in range(draw(st.integers(0, 5))):
            number += 1
            made = draw(calls(prefix=f"call_{number}", least=1))
            said = Assistant(draw(SAID | st.just("")), made, draw(SAID | st.just("")))
            messages.append(signed(said, wire, number) if draw(st.booleans()) else said)
            messages.append(_longer(draw(results(made)), draw(st.booleans())))
        if draw(st.integers(0, 5)) == 0:
            kept = len(messages) - before_last_rounds(messages, draw(st.integers(1, 3)))
            messages.append(User((Text("What was before."),), kept))
        messages.append(Assistant(draw(SAID)))
    return tuple(messages)


def _longer(message: ToolMessage, long: bool) -> ToolMessage:
    if not long:
        return message
    return ToolMessage(tuple(replace(r, content=(*r.content, Text("x" * 600))) for r in message.results))


def refusals(wire: str, model: HTTPModel, request: Request) -> list[str]:
    """Why a provider would refuse it."""
    _, body = model.write(request)
    return check_request(wire, json.loads(body))


@given(st.data())
@costly
def test_every_wire_accepts_what_is_sent_of_any_history(data: st.DataObject) -> None:
    wire = data.draw(st.sampled_from(WIRES))
    history = data.draw(long_histories(wire))
    compaction = Compaction(1.0, window=data.draw(st.integers(1, 800)), keep=data.draw(st.integers(1, 4)))
    clearing = ClearResults(data.draw(st.integers(1, 3)), step=data.draw(st.integers(1, 3)))
    middleware: list[Any] = data.draw(st.permutations([compaction, clearing]))[: data.draw(st.integers(1, 2))]
    rounds = data.draw(st.integers(0, 3))
    reports = data.draw(st.booleans())

    def answer(request: Request) -> Answer:
        uses = [Uses(sum(len(str(m)) for m in request.messages) // 4, 5)] if reports else []
        if isinstance(request.messages[-1], User) and request.messages[-1].text == SUMMARISE:
            return [Say("It was so."), *uses]
        if sum(not _asks_summary(r) for r in model.requests) <= rounds:
            return [Call("look", n=1), Call("look", n=2), *uses]
        return [Say("Done."), *uses]

    model = ScriptedModel(answer, wire=wire)
    agent = Agent(model, [_look()], middleware=middleware, limits=Limits(rounds=None))
    result = run_virtual(lambda: agent.run("Now?", history=history))
    assert result.text == "Done."
    assert validate_tool_chain(result.messages)
    plain = [message for message in result.messages if not is_summary(message)]
    before = [message for message in history if not is_summary(message)]
    assert plain[: len(before)] == before
    real = connect(PROVIDERS[wire], wire=wire, api_key=KEY, base_url="http://127.0.0.1:1/v1").model
    for request in model.requests:
        said = [message for message in request.messages if not isinstance(message, System)]
        assert validate_tool_chain(said)
        assert isinstance(said[0], User)
        assert refusals(wire, real, request) == []


def _asks_summary(request: Request) -> bool:
    last = request.messages[-1]
    return isinstance(last, User) and last.text == SUMMARISE


def _look() -> Tool:
    async def look(**arguments: Any) -> str:
        return "seen " + "y" * 500

    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return Tool(ToolSpec("look", "Looks.", schema), look, Signature("look", "Looks.", schema, dict, is_async=True))


@given(long_histories("openai-chat"), st.integers(0, 12), st.integers(0, 6))
def test_a_summary_anywhere_separates_no_call_from_its_result(
    history: tuple[Message, ...], place: int, kept: int
) -> None:
    place = may_cut(history, min(place, len(history)))
    given = (*history[:place], User((Text("So far."),), kept), *history[place:])
    sent = sent_part(given)
    assert validate_tool_chain(sent)
    assert sum(map(is_summary, sent)) == 1
    assert _results(sent) <= _results(history)
    after = [message for message in history[place:] if not is_summary(message)]
    assert list(sent[len(sent) - len(after) :]) == after or any(map(is_summary, history[place:]))


def _results(messages: Sequence[Message]) -> set[str]:
    found: list[ToolResult] = [r for m in messages if isinstance(m, ToolMessage) for r in m.results]
    return {result.call_id for result in found}
