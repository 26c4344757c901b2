from unbroken import Agent, ScriptedModel

agent = Agent(ScriptedModel("Rome is sunny."))
result = agent.run_sync("How is Rome?")
result.output.celsius  # wrong
result.data  # wrong
agent.run_sync("How is Rome?", limit=3)  # wrong
agent.run_sync(3)  # wrong
Agent(ScriptedModel("Hello."), temperature=1)  # wrong
Agent(ScriptedModel("Hello."), schedule="all")  # wrong
Agent()  # wrong
number: int = result.output  # wrong
