"""A chat that pydantic-ai stored, as JSON."""

import json

from unbroken import Agent, Conversation, ScriptedModel

STORED = '[{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "I am Ada."}]}]'
agent = Agent(ScriptedModel("Hello, Ada.", "Yes."))
assert agent.run_sync(history=json.loads(STORED)).output == "Hello, Ada."
chat = Conversation(agent, json.loads(STORED))
assert chat.say_sync("Still?").messages[0].text == "I am Ada."
