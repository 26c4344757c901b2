"""A conversation over several turns, saved and loaded."""

import tempfile
from pathlib import Path

from unbroken import Agent, Conversation, ScriptedModel

agent = Agent(ScriptedModel("Hello, Ada.", "You are Ada."))
chat = Conversation(agent, store={"name": "Ada"})
assert chat.say_sync("I am Ada.").output == "Hello, Ada."
path = Path(tempfile.mkdtemp()) / "chat.json"
chat.save(path)
later = Conversation.load(agent, path)
assert later.say_sync("Who am I?").output == "You are Ada."
assert later.messages[0].text == "I am Ada."
assert later.store["name"] == "Ada"
