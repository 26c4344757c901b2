"""What type checkers know of an agent: read by pyright in test_typed_agents.py, and run there too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from pydantic import BaseModel

from unbroken import Agent, CallContext, Conversation, Output, Result, ScriptedModel, tool
from unbroken.agent import RunStream
from unbroken.agent.streaming import Buffered
from unbroken_testing import Call


class Report(BaseModel):
    city: str
    celsius: int


@dataclass
class Database:
    rows: int


@tool(effect="read")
def count(context: CallContext[Database]) -> int:
    """How many rows there are."""
    return context.deps.rows


ANSWER = [Call("final_answer", city="Rome", celsius=24)]


def plain() -> None:
    agent = Agent(ScriptedModel("Hello."))
    assert_type(agent, Agent[Any, str])
    result = agent.run_sync("Hi.")
    assert_type(result, Result[str])
    assert_type(result.output, str)
    assert result.output == "Hello."


def with_a_type() -> None:
    agent = Agent(ScriptedModel(ANSWER, ANSWER, [Call("final_answer", value=3)]), output=Report)
    assert_type(agent, Agent[Any, Report])
    result = agent.run_sync("Rome?")
    assert_type(result.output, Report)
    assert result.output.celsius == 24
    assert_type(agent.stream("Rome?"), RunStream[Report])
    chat = Conversation(agent)
    assert_type(chat.say_sync("Rome?").output, Report)
    other = agent.run_sync("How many?", output=int)
    assert_type(other.output, int)
    assert other.output == 3


def with_a_way_to_answer() -> None:
    agent = Agent(ScriptedModel('{"city": "Rome", "celsius": 24}', '{"value": 3}'), output=Output(Report, via="native"))
    assert_type(agent, Agent[Any, Report])
    assert_type(agent.run_sync("Rome?").output, Report)
    assert_type(agent.stream("Rome?").outputs(), Buffered[Report])
    other = agent.run_sync("How many?", output=Output(int, via="native"))
    assert_type(other.output, int)
    assert other.output == 3


def with_one_of_several_types() -> None:
    agent = Agent(ScriptedModel([Call("final_answer", value="x")]), output=int | str)
    assert_type(agent, Agent[Any, int | str])
    result = agent.run_sync("Which?")
    assert_type(result.output, int | str)
    assert result.output == "x"


def with_deps() -> None:
    agent = Agent(ScriptedModel([Call("count")], "3", [Call("count")], "4"), [count], deps=Database(3))
    assert_type(agent, Agent[Database, str])
    assert agent.run_sync("How many?").calls[0].result.text == "3"
    assert agent.run_sync("How many?", deps=Database(4)).calls[0].result.text == "4"
