from pydantic import BaseModel

from unbroken import Agent, CallContext, Conversation, ScriptedModel, tool


class Database:
    rows = 3


class Cache:
    hits = 3


class Report(BaseModel):
    rows: int


@tool
def count(context: CallContext[Database]) -> int:
    return context.deps.rows


@tool(effect="read")
async def look(name: str, context: CallContext[Database]) -> int:
    return context.deps.hits  # wrong


def plain(name: str) -> str:
    return name


model = ScriptedModel("Three.")
Agent(model, [count], deps=Cache())  # wrong
Agent(model, [plain, look], deps=Cache())  # wrong
Agent(model, [count], output=Report, deps=Cache())  # wrong
Agent(model, tools=[count], output=Report | str, deps=Cache())  # wrong
cached: Agent[Cache] = Agent(model, [count])  # wrong
Agent[Cache, str](model, [look])  # wrong
agent = Agent(model, [count], deps=Database())
agent.run_sync("How many?", deps=Cache())  # wrong
Conversation(agent, deps=Cache())  # wrong
