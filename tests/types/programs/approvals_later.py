"""A run that waits for an approval, and is resumed from JSON."""

import json

from unbroken import Agent, Allow, ScriptedModel, ToolCall, Wait, tool
from unbroken_testing import Call


@tool(approve=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


def later(call: ToolCall) -> Wait:
    return Wait()


agent = Agent(ScriptedModel([Call("delete", path="a.txt")], "It is gone."), [delete], on_approval=later)
waiting = agent.run_sync("Delete a.txt.")
assert waiting.stop_reason == "waiting" and waiting.pending[0].args == {"path": "a.txt"}
saved = json.dumps(waiting.to_json())
result = agent.resume_sync(saved, {call.id: Allow() for call in waiting.pending})
assert result.output == "It is gone."
