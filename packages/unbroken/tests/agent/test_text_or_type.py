"""`output=str` and `output=Cat | str`: plain text is an answer, beside the typed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from unbroken import Agent, Limits, ScriptedModel, tool
from unbroken.agent.output import ANSWER, Output
from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, run_virtual


class Cat(BaseModel):
    name: str


@tool
async def look() -> str:
    """Look."""
    return "a cat"


CAT = Cat(name="Tom")


@pytest.mark.parametrize(
    ("output", "said", "value", "text"),
    [
        (str, "Hello.", "Hello.", "Hello."),
        (str, "5", "5", "5"),
        (int | str, "5", 5, "5"),
        (Cat | str, "There is no cat.", "There is no cat.", "There is no cat."),
        (Cat | str, 'I saw {"name": "Tom"} there.', 'I saw {"name": "Tom"} there.', 'I saw {"name": "Tom"} there.'),
        (Cat | str, '{"name": "Tom"}', CAT, '{"name":"Tom"}'),
        (Cat | str, '```json\n{"name": "Tom"}\n```', CAT, '{"name":"Tom"}'),
        (Cat | str, Call(ANSWER, value={"name": "Tom"}), CAT, '{"name":"Tom"}'),
        (Cat | str, Call(ANSWER, value="None."), "None.", "None."),
    ],
)
def test_text_is_an_answer_and_is_replayed(output: Any, said: Any, value: Any, text: str, tmp_path: Path) -> None:
    def agent() -> Agent[Any, Any]:
        return Agent(ScriptedModel(Call("look"), said), [look], output=output, record=tmp_path)

    result = run_virtual(agent().run("?"))
    assert (result.output, result.text, result.stop_reason) == (value, text, "answered")
    (path,) = tmp_path.glob("*.jsonl")
    assert agent().replay(path).output == value
    recording = read_recording(path)
    again = agent_of(recording).replay(recording, output=output_of(recording))
    assert again.output == (value.model_dump() if isinstance(value, Cat) else value)


def test_no_schema_is_forced_and_the_call_is_optional() -> None:
    kinds: list[tuple[Any, list[str]]] = [(str, ["look"]), (Cat | str, ["look", ANSWER])]
    for output, offered in kinds:
        model = ScriptedModel(Call("look"), "Enough.")
        result = run_virtual(Agent(model, [look], output=output, limits=Limits(rounds=1)).run("?"))
        assert (result.output, result.stop_reason) == ("Enough.", "round_limit")
        assert [tool.name for tool in model.requests[0].tools] == offered
        assert [(request.output, request.choice) for request in model.requests] == [(None, None)] * 2
    assert Output(Cat | str, via="native").wanted is not None


def test_values_that_are_read_while_they_arrive_end_with_the_text() -> None:
    async def values(said: Any) -> list[Any]:
        agent = Agent(ScriptedModel(said), output=Cat | str)
        return [value async for value in agent.stream("?").outputs()]

    assert run_virtual(values('No {"name": "T"} here.')) == ['No {"name": "T"} here.']
    assert run_virtual(values(Call(ANSWER, value={"name": "Tom"})))[-1] == CAT
