"""Structured answers: whatever the type and however the model answers, `result.output` is validated, or the run ends
with one typed error and a valid history."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from scenes import Desk, accepted, can_go_on, on_every_wire, play, texts, under_every_schedule

from unbroken import Agent, Conversation, Limits, Sampling, Schedule, ScriptedModel, UserError
from unbroken.agent.json_in_text import values_in
from unbroken.agent.output import ANSWER
from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.errors import AnswerInvalid, ChainBroken
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, Cut, End, Say, Think, run_virtual
from unbroken_wires.messages import OneTool


class City(BaseModel):
    name: str
    people: int


@dataclass
class Point:
    x: float
    y: float = 0.0


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


ROME = City(name="Rome", people=2_800_000)
KINDS = [
    pytest.param(City, ROME.model_dump(), ROME, id="a pydantic model"),
    pytest.param(Point, {"x": 1.5}, Point(1.5), id="a dataclass"),
    pytest.param(list[int], {"value": [1, 2, 3]}, [1, 2, 3], id="a list"),
    pytest.param(Literal["yes", "no"], {"value": "no"}, "no", id="a literal"),
    pytest.param(City | None, {"value": None}, None, id="nothing at all"),
    pytest.param(dict[str, int], {"a": 1}, {"a": 1}, id="a dict"),
    pytest.param(list[City], {"value": [ROME.model_dump()]}, [ROME], id="a list of models"),
    pytest.param(Tree, {"value": {"name": "a", "children": [{"name": "b"}]}}, None, id="a recursive model"),
]


@pytest.mark.parametrize(("kind", "arguments", "output"), KINDS)
@on_every_wire
def test_a_model_answers_by_a_call(wire: str, kind: Any, arguments: dict[str, Any], output: Any) -> None:
    model = ScriptedModel(Call(ANSWER, arguments), wire=wire)
    result = play(Agent(model), output=kind)
    expected = Tree(name="a", children=[Tree(name="b")]) if kind is Tree else output
    assert (result.output, result.stop_reason, result.requests) == (expected, "answered", 1)
    assert texts(result) == ["The answer is accepted."]
    accepted(model, result)


TEXTS = [
    pytest.param('{"name": "Rome", "people": 2800000}', id="alone"),
    pytest.param('Here it is:\n```json\n{"name": "Rome", "people": 2800000}\n```\nAnything else?', id="in a fence"),
    pytest.param('```\n{"name": "Rome", "people": 2800000}\n```', id="in a fence without a language"),
    pytest.param('Sure! {"name": "Rome", "people": 2800000} I hope that helps.', id="within words"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_json_written_as_text_is_accepted(text: str) -> None:
    model = ScriptedModel(text)
    result = play(Agent(model), output=City)
    assert (result.output, result.requests) == (ROME, 1)
    accepted(model, result)


@pytest.mark.parametrize(
    ("kind", "text", "output"),
    [
        pytest.param(list[int], "The numbers are [1, 2, 3], as you see.", [1, 2, 3], id="an array within words"),
        pytest.param(
            list[int], "First:\n```json\n[1, 2]\n```\nThat is all [of them].", [1, 2], id="an array in a fence"
        ),
        pytest.param(int, "So:\n```json\n42\n```\nSure.", 42, id="a number in a fence"),
        pytest.param(City, 'See [1] and {x}: {"name": "Rome", "people": 3} {"n": 1}', None, id="one of several fits"),
        pytest.param(
            City, '{"name": "Rome", "people": 3}, so {"people": 3, "name": "Rome"}', None, id="twice the same"
        ),
        pytest.param(City, '[{"name": "Rome", "people": 3}]', None, id="alone in an array"),
    ],
)
def test_the_value_that_fits_is_found_in_a_text(kind: Any, text: str, output: Any) -> None:
    result = play(Agent(ScriptedModel(text)), output=kind)
    assert (result.output, result.requests) == (output or City(name="Rome", people=3), 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            'Either {"name": "Rome", "people": 3} or {"name": "Oslo", "people": 1}.',
            "has 2 different JSON values that fit",
        ),
        ('```\n{"name": "a", "people": 1}\n```\n```\n{"name": "b", "people": 2}\n```', "has 2 different JSON values"),
        ('A draft: {"name": "Rome", "people": 3}. The answer: {"name": "Oslo", "pe', "is not JSON"),
        ('[{"name": "Rome", "people": 3}, {"name": "Oslo", "pe', "is not JSON"),
        ('{\'cities\': {"name": "Rome", "people": 3}}', "is not JSON"),
        ("42", "is JSON, but no object"),
    ],
)
def test_nothing_is_guessed_from_a_text(text: str, why: str) -> None:
    model = ScriptedModel(text, Call(ANSWER, ROME.model_dump()))
    assert play(Agent(model), output=City).output == ROME
    assert why in str(model.requests[1].messages[-1])


def test_a_text_full_of_brackets_is_read_in_linear_time() -> None:
    for text in ("[1" * 50_000, "{" * 50_000, "{a}" * 20_000, '{"a" ' * 20_000, "```\n" * 20_000):
        assert values_in(text) == []


def test_half_a_surrogate_pair_in_an_answer_is_kept() -> None:
    text = r'{"name":"\ud83d","people":1}'
    result = play(Agent(ScriptedModel(text)), output=City)
    assert result.output == City(name="\ud83d", people=1)
    assert result.text == text


def test_text_may_be_a_bare_list() -> None:
    assert play(Agent(ScriptedModel("[1, 2, 3]")), output=list[int]).output == [1, 2, 3]


@on_every_wire
def test_an_answer_that_does_not_match_is_reported_to_the_model_and_corrected(wire: str) -> None:
    wrong = Call(ANSWER, {"name": "Rome", "people": "many"})
    model = ScriptedModel(wrong, Call(ANSWER, ROME.model_dump()), wire=wire)
    result = play(Agent(model, Desk().tools("look")), output=City)
    assert result.output == ROME
    told, taken = texts(result)
    assert told.startswith("Error:")
    assert "`people`" in told
    assert taken == "The answer is accepted."
    assert [request.choice for request in model.requests] == [None, OneTool(ANSWER)]
    accepted(model, result)


@on_every_wire
def test_text_that_does_not_match_is_reported_to_the_model_and_corrected(wire: str) -> None:
    model = ScriptedModel("It is Rome.", Call(ANSWER, ROME.model_dump()), wire=wire)
    result = play(Agent(model), output=City)
    assert result.output == ROME
    assert model.requests[1].choice == OneTool(ANSWER)
    accepted(model, result)


@pytest.mark.parametrize(
    "wrong",
    [pytest.param(Call(ANSWER, {"name": "Rome"}), id="as a call"), pytest.param(Say("It is Rome."), id="as text")],
)
@on_every_wire
def test_an_answer_that_is_wrong_twice_raises_an_error_with_a_valid_history(wire: str, wrong: Any) -> None:
    model = ScriptedModel([wrong], [wrong], "Go on.", wire=wire)
    chat = Conversation(Agent(model))

    async def main() -> str:
        with pytest.raises(AnswerInvalid, match="does not fit") as caught:
            await chat.say("Go.", output=City)
        can_go_on(caught.value.messages)
        can_go_on(chat.messages)
        return (await chat.say("Never mind.")).text

    assert run_virtual(main()) == "Go on."
    accepted(model)


@under_every_schedule
@on_every_wire
def test_an_answer_next_to_other_calls_is_used_and_the_others_run(wire: str, schedule: Schedule) -> None:
    desk = Desk()
    model = ScriptedModel([Call("look"), Call(ANSWER, ROME.model_dump()), Call("look", n=2)], wire=wire)
    result = play(Agent(model, desk.tools("look"), schedule=schedule), output=City)
    assert (result.output, result.requests) == (ROME, 1)
    assert texts(result) == ["look done", "The answer is accepted.", "look done"]
    accepted(model, result)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        pytest.param(Limits(rounds=1), "round_limit", id="rounds"),
        pytest.param(Limits(calls=1), "call_limit", id="calls"),
        pytest.param(Limits(tokens=1), "token_limit", id="tokens"),
    ],
)
@on_every_wire
def test_at_a_limit_the_answer_tool_is_required_by_name(wire: str, limits: Limits, stop: str) -> None:
    """A call of the answer tool does not count for the budget: it is the answer."""
    model = ScriptedModel(Call("look"), Call(ANSWER, ROME.model_dump()), wire=wire)
    result = play(Agent(model, Desk().tools("look"), limits=limits), output=City)
    assert (result.output, result.stop_reason, result.requests) == (ROME, stop, 2)
    assert model.requests[1].choice == OneTool(ANSWER)
    assert not model.requests[1].final
    accepted(model, result)


@on_every_wire
def test_other_calls_next_to_the_answer_at_a_limit_do_not_run(wire: str) -> None:
    desk = Desk()
    model = ScriptedModel(Call("look"), [Call("look", n=2), Call(ANSWER, ROME.model_dump())], wire=wire)
    result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=1)), output=City)
    assert (result.output, desk.ran) == (ROME, [("look", {})])
    assert texts(result)[1].startswith("Error: not executed: no more tools can be called")
    accepted(model, result)


@on_every_wire
def test_without_rounds_the_answer_is_required_at_once(wire: str) -> None:
    model = ScriptedModel(Call(ANSWER, ROME.model_dump()), wire=wire)
    result = play(Agent(model, Desk().tools("look"), limits=Limits(rounds=0)), output=City)
    assert (result.output, result.stop_reason, result.requests) == (ROME, "round_limit", 1)
    assert model.requests[0].choice == OneTool(ANSWER)
    accepted(model, result)


def test_at_a_limit_a_wrong_answer_is_corrected_too() -> None:
    model = ScriptedModel(Call("look"), "Rome, I think.", Call(ANSWER, ROME.model_dump()))
    result = play(Agent(model, Desk().tools("look"), limits=Limits(rounds=1)), output=City)
    assert (result.output, result.stop_reason) == (ROME, "round_limit")


@pytest.mark.parametrize("text", ["I cannot help with that.", '{"name": "I cannot", "people": 0}', ""])
@on_every_wire
def test_a_refusal_ends_the_run_with_its_text_and_is_not_retried(wire: str, text: str) -> None:
    model = ScriptedModel([Say(text), End("refused")], "Go on.", wire=wire)
    chat = Conversation(Agent(model))

    async def main() -> str:
        with pytest.raises(AnswerInvalid, match="`scripted:demo` refused to answer: ") as caught:
            await chat.say("Go.", output=City)
        assert (text or "it gave no text (finish reason ") in str(caught.value)
        can_go_on(caught.value.messages)
        return (await chat.say("Never mind.")).text

    assert (run_virtual(main()), len(model.requests)) == ("Go on.", 2)
    accepted(model)


def test_a_refusal_at_a_limit_is_reported() -> None:
    model = ScriptedModel(Call("look"), [Say("No."), End("refused")])
    with pytest.raises(AnswerInvalid, match="refused to answer: No"):
        play(Agent(model, Desk().tools("look"), limits=Limits(rounds=1)), output=City)


@pytest.mark.parametrize("cut", [[Say('{"name": "Rom'), End("length")], [Cut(ANSWER, '{"name": "Rom')]])
def test_an_answer_that_is_cut_at_its_length_limit_names_the_limit_and_the_way_out(cut: Any) -> None:
    model = ScriptedModel(cut, cut)
    words = "it was cut off at its length limit of 5 tokens; raise `max_tokens`, or ask for a shorter answer"
    with pytest.raises(AnswerInvalid, match=words):
        play(Agent(model, sampling=Sampling(max_tokens=5)), output=City)
    text = str(model.requests[1].messages[-1])
    assert "so it has to be shorter" in text or "before the arguments were complete" in text


def test_an_answer_without_room_for_text_names_the_limit() -> None:
    model = ScriptedModel([Think("Hm."), End("length")], loop_last=True)
    with pytest.raises(ChainBroken, match="finish reason 'length'; raise `max_tokens`, its length limit"):
        play(Agent(model), output=City)


FAILURES = [
    pytest.param([[Say("No."), End("refused")]], id="refused"),
    pytest.param([[Say('{"name'), End("length")], [Say('{"name"'), End("length")]], id="cut"),
    pytest.param(["No.", "Never."], id="no JSON"),
    pytest.param([Call(ANSWER, name="Rome"), Call(ANSWER, name="Rome")], id="a call that does not fit"),
]


@pytest.mark.parametrize("script", FAILURES)
def test_the_error_of_an_answer_is_the_same_in_a_replay(script: Any, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(*script), output=City, record=tmp_path)
    with pytest.raises(AnswerInvalid) as caught:
        run_virtual(agent.run("?"))
    recording = read_recording(next(tmp_path.glob("*.jsonl")))
    for replay in (
        lambda: agent.replay(recording),
        lambda: agent_of(recording).replay(recording, output=output_of(recording)),
    ):
        with pytest.raises(AnswerInvalid) as again:
            replay()
        assert str(again.value) == str(caught.value)


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        (list[int], ["[1, 2, 3]"]),
        (int, ["42"]),
        (Point, ['{"x": 1}']),
        (City, ['Not {"name": "x"} but {"name": "Rome", "people": 3}']),
        (City, ['{"name": "a", "people": 1} {"name": "b", "people": 2}', '{"name": "b", "people": 2}']),
    ],
)
def test_an_answer_as_text_is_the_same_in_a_replay_without_its_type(kind: Any, script: Any, tmp_path: Path) -> None:
    result = play(Agent(ScriptedModel(*script), record=tmp_path), output=kind)
    recording = read_recording(next(tmp_path.glob("*.jsonl")))
    assert agent_of(recording).replay(recording, output=output_of(recording)).text == result.text


def test_json_that_is_too_deep_does_not_match() -> None:
    assert play(Agent(ScriptedModel("[" * 200_000, "[1]")), output=list[int]).output == [1]


def test_a_users_tool_with_the_name_of_the_answer_tool_is_an_ordinary_tool() -> None:
    desk = Desk()
    model = ScriptedModel(Call(ANSWER, n=1), Call(ANSWER, n=2), "Done.")
    result = play(Agent(model, desk.tools(ANSWER), limits=Limits(rounds=1)))
    assert desk.ran == [(ANSWER, {"n": 1})]
    assert result.text == "Done."


def test_a_type_that_has_no_schema_is_refused() -> None:
    with pytest.raises(UserError, match="output=Odd cannot become a JSON Schema"):
        play(Agent(ScriptedModel("Never.")), output=Odd)


class Odd:
    pass


def test_a_conversation_continues_after_a_structured_answer() -> None:
    model = ScriptedModel(Call(ANSWER, ROME.model_dump()), "You are welcome.")
    chat = Conversation(Agent(model))

    async def main() -> tuple[Any, str]:
        first = await chat.say("Which city?", output=City)
        return first.output, (await chat.say("Thanks.")).text

    assert run_virtual(main()) == (ROME, "You are welcome.")
    accepted(model)
