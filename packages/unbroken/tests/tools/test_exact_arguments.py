"""Ambiguous arguments are refused before a tool runs, and forwarded unchanged by code that only forwards calls."""

from __future__ import annotations

import math

import pytest
from scenes import Desk, accepted, can_go_on, play, texts

from unbroken import Agent, Request, ScriptedModel, ToolCall, User, decode, tool
from unbroken.models.scripted import play_bytes
from unbroken.tools.parameters import inexact
from unbroken_testing import Call
from unbroken_wires.wires import WIRES

REFUSED = [
    ('{"a": 1, "a": 2}', "`a` is given more than once"),
    ('{"a": {"b": 1, "b": 1}}', "`b` is given more than once"),
    ('{"a": [{"b": 1}, {"b": 1, "b": 2}], "note": "x: y"}', "`b` is given more than once"),
    (r'{"a": 1, "\u0061": 2}', "`a` is given more than once"),
    ('{"a": 1e400}', "the number 1e400 is too large"),
    ('{"a": [-1e400]}', "the number -1e400 is too large"),
    ('{"a": ' + "9" * 400 + ".5}", "is too large"),
]
EXACT = ['{"a": 1e308}', '{"a": "1e400"}', '{"a": 1e-400}', '{"a": {"a": 1}, "b": "a: b"}', '{"a": ' + "9" * 400 + "}"]


@pytest.mark.parametrize(("raw", "why"), REFUSED)
@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages"])
def test_ambiguous_arguments_never_run_and_the_model_is_told(wire: str, raw: str, why: str) -> None:
    desk = Desk()
    model = ScriptedModel([Call("act", raw), Call("act", '{"a": 3}')], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("act")))
    assert desk.ran == [("act", {"a": 3})]
    assert texts(result)[0].startswith("Error: not executed: the arguments of `act` cannot be read in one way only: ")
    assert why in texts(result)[0]
    can_go_on(result.messages)


@pytest.mark.parametrize("raw", EXACT)
def test_unambiguous_arguments_run(raw: str) -> None:
    desk = Desk()
    model = ScriptedModel(Call("act", raw), "Done.")
    result = play(Agent(model, desk.tools("act")))
    assert texts(result) == ["act done"]
    accepted(model, result)


def test_no_tool_gets_an_infinite_number() -> None:
    got: list[float] = []

    @tool
    def pay(amount: float) -> str:
        """Pay."""
        got.append(amount)
        return "paid"

    play(Agent(ScriptedModel([Call("pay", '{"amount": 1e400}'), Call("pay", '{"amount": 1e30}')], "Done."), [pay]))
    assert got == [1e30]
    assert all(map(math.isfinite, got))


@pytest.mark.parametrize("raw", ['{"amount": 1e400}', '{"amount": NaN}'])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_no_wire_turns_a_number_that_json_or_floats_lack_into_null(wire: str, stream: bool, raw: str) -> None:
    (call,) = decode(b"".join(data for _, data in play_bytes([Call("pay", raw)], wire, asked(stream))), wire).calls
    assert call.arguments is None or inexact(call)


def asked(stream: bool) -> Request:
    return Request((User.of("Pay."),), model="demo", stream=stream)


def test_arguments_that_were_not_text_are_used_unchanged() -> None:
    assert inexact(ToolCall("c", "act", {"a": 1})) == ""
    assert inexact(ToolCall("c", "act", {"a": 1}, raw="no JSON: a: b")) == ""
    assert inexact(ToolCall("c", "act", None, raw='{"a": 1, "a": 2}')) == ""


def test_json_inside_a_string_is_checked() -> None:
    assert "`a` is given" in inexact(ToolCall("c", "act", {"a": 2}, raw=r'"{\"a\": 1, \"a\": 2}"'))
