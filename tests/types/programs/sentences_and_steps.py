"""A run as sentences, as steps, and collected."""

import asyncio

from unbroken import Agent, ScriptedModel, collect, sentences, steps, todo_write
from unbroken.agent.steps import Action, Thought
from unbroken_testing import Call, Say


async def main() -> list[str]:
    agent = Agent(ScriptedModel("It is sunny. Go out!"))
    return [sentence async for sentence in sentences(agent.stream("Weather?"))]


async def show() -> list[str]:
    todos = [{"content": "look", "status": "pending"}]
    agent = Agent(ScriptedModel([Say("I plan."), Call("todo_write", todos=todos)], "Planned."), [todo_write])
    return [
        f"{step.type} {step.step}" async for step in steps(agent.stream("Plan.")) if isinstance(step, Thought | Action)
    ]


assert asyncio.run(main()) == ["It is sunny. ", "Go out!"]
assert asyncio.run(show()) == ["thought 0", "action 0"]
assert asyncio.run(collect(Agent(ScriptedModel("Hello.")).stream("Hi."))).text == "Hello."
