"""A history of our own, from a run, as JSON, and of a provider."""

import json
from typing import Any

from unbroken import Agent, Assistant, Message, ScriptedModel, Transcript, User
from unbroken_wires.transcript import from_json, to_json
from unbroken_wires.wires import find_wire

agent = Agent(ScriptedModel(*["Yes."] * 5))
history: list[Message] = [User.of("I am Ada."), Assistant("Hello.")]
first = agent.run_sync("Do you know me?", history=history)
second = agent.run_sync("Still?", history=first.messages)
saved = json.dumps(to_json(second.messages))
third = agent.run_sync("Still?", history=from_json(json.loads(saved)))
assert len(third.messages) == 8 and [message.text for message in third.messages[:2]] == ["I am Ada.", "Hello."]
raw: list[dict[str, Any]] = [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello."}]
read = find_wire("openai-chat").decode_request({"messages": raw}).messages
assert agent.run_sync("Still?", history=read).output == "Yes."
assert agent.run_sync("Still?", history=Transcript(history)).output == "Yes."
