"""Many runs at once, each with its own outcome."""

import asyncio

from unbroken import Agent, Limits, Result, ScriptedModel, UnbrokenError


async def label(agent: Agent, text: str) -> Result | UnbrokenError:
    try:
        return await agent.run(f"Label: {text}", limits=Limits(seconds=30, rounds=2))
    except UnbrokenError as error:
        return error


async def main() -> list[str]:
    agent = Agent(ScriptedModel("good", loop_last=True))
    done = await asyncio.gather(*(label(agent, text) for text in ("a", "b", "c")))
    return [each.output for each in done if isinstance(each, Result)]


assert asyncio.run(main()) == ["good"] * 3
