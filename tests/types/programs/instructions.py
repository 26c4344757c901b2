"""Instructions, tools and a history that are functions of the run."""

from unbroken import Agent, CallContext, Message, RunContext, ScriptedModel, Tool, tool


@tool(effect="read")
def whoami(context: CallContext[str]) -> str:
    """Who I am."""
    return context.deps


async def greet(context: RunContext[str]) -> str:
    return f"You talk to {context.deps.title()}; they said {context.prompt!r}."


def offered(context: RunContext[str]) -> list[Tool[str]]:
    return [whoami] if context.turn == 0 else []


def last_two(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return messages[-2:]


agent = Agent(ScriptedModel("Hello, Ada."), offered, greet, deps="ada", trim=last_two)
assert agent.run_sync("Hi.").output == "Hello, Ada."
