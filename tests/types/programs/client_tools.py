"""A tool that runs at the client: the run waits for its result."""

from unbroken import Agent, ScriptedModel, client_tool
from unbroken_testing import Call

where = client_tool("where_am_i", "The user's position.", {"type": "object", "properties": {}})
agent = Agent(ScriptedModel([Call("where_am_i")], "You are in Rome."), [where])
waiting = agent.run_sync("Where am I?")
result = agent.resume_sync(waiting, {waiting.pending[0].id: "Rome"})
assert result.output == "You are in Rome."
