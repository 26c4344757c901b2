"""Runs in the environment of pydantic-ai: chats that this package makes and stores are continued with Unbroken.

Every assertion is here, because the objects exist only in that environment; `check_before.py` starts it.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic_ai import Agent as TheirAgent
from pydantic_ai import ModelMessagesTypeAdapter, ModelRetry, messages
from pydantic_ai.models.function import FunctionModel

from unbroken import Agent, Conversation, ScriptedModel, UserError, tool
from unbroken_testing import run_virtual
from unbroken_wires.wires.chain import chain_status, validate_tool_chain
from unbroken_wires.wires.pydantic_ai import read_stored

given: list[str] = []


def their_model(history: list[Any], info: Any) -> messages.ModelResponse:
    """Calls once with a wrong argument, once with a good one, and answers."""
    returned = [each for message in history for each in message.parts if each.part_kind == "tool-return"]
    if len(returned) >= 2:
        return messages.ModelResponse([messages.TextPart("You have a diamond.")])
    item = "dirt" if not returned else "diamond"
    return messages.ModelResponse(
        [messages.TextPart("One moment."), messages.ToolCallPart("give", {"item": item}, tool_call_id=f"call_{item}")]
    )


def finished_chat() -> list[Any]:
    agent = TheirAgent(FunctionModel(their_model), system_prompt="Be brief.", instructions="Be kind.")

    @agent.tool_plain(retries=2)
    def give(item: str) -> dict[str, str]:
        if item == "dirt":
            raise ModelRetry("not dirt")
        return {"given": item}

    picture = messages.BinaryContent(data=b"\xfb\xff", media_type="image/png")
    return agent.run_sync(["A diamond, like this: ", picture]).all_messages()


@tool(name="give")
def our_give(item: str) -> str:
    """Give an item."""
    given.append(item)
    return f"gave {item}"


def in_both_forms(stored: list[Any]) -> list[Any]:
    return [stored, json.loads(ModelMessagesTypeAdapter.dump_json(stored))]


def check_a_finished_chat_continues() -> None:
    stored = finished_chat()
    read = [read_stored(form) for form in in_both_forms(stored)]
    assert read[0] == read[1]
    own, left_out = read[0]
    assert left_out == (), left_out
    assert [type(message).__name__ for message in own] == [
        "System",
        "User",
        "Assistant",
        "ToolMessage",
        "Assistant",
        "ToolMessage",
        "Assistant",
    ]
    assert [result.outcome for message in own for result in getattr(message, "results", ())] == ["retry", "done"]
    for form in in_both_forms(stored):
        assert validate_tool_chain(form)
        assert chain_status(form).tool_calls == 2
        chat = Conversation(Agent(ScriptedModel("Bye."), [our_give]), form)
        assert run_virtual(chat.say("Bye.")).text == "Bye."


def check_an_open_call_runs_once() -> None:
    stored = finished_chat()[:4]
    assert stored[-1].parts[-1].part_kind == "tool-call"
    for form in in_both_forms(stored):
        given.clear()
        assert [call.id for call in chain_status(form).open] == ["call_diamond"]
        chat = Conversation(Agent(ScriptedModel("You have it."), [our_give]), form)
        assert run_virtual(chat.say()).text == "You have it."
        assert given == ["diamond"]


def check_that_every_kind_of_part_is_known() -> None:
    """A new version may have new ones: then this fails, and they need a decision."""
    kinds = {
        str(field.default)
        for _, each in inspect.getmembers(messages, inspect.isclass)
        if is_dataclass(each)
        for field in fields(each)
        if field.name == "part_kind"
    }
    inside = {"instruction", "instruction-digest"}  # of an instruction-baseline
    for kind in sorted(kinds - inside):
        part = {"part_kind": kind, "content": "x", "tool_name": "t", "tool_call_id": "c", "transcript": "x"}
        read = 0
        for message in ("request", "response"):
            try:
                own, left_out = read_stored([{"kind": message, "parts": [part]}])
            except UserError:
                continue
            else:
                assert own or left_out, kind
                read += 1
        assert read, f"no message may have a part {kind}"


check_a_finished_chat_continues()
check_an_open_call_runs_once()
check_that_every_kind_of_part_is_known()
sys.stdout.write("3 checks passed\n")
