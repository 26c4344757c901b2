"""An agent without a type: its output is the text."""

from unbroken import Agent, ScriptedModel

agent = Agent(ScriptedModel("Rome is sunny.", "Oslo is not."))
result = agent.run_sync("How is Rome?")
assert result.output == result.text == "Rome is sunny."
assert result.output.upper().startswith("ROME")
assert agent.run_sync("How is Oslo?").output.split()[0] == "Oslo"
