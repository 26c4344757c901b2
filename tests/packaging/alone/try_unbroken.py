"""An agent calls a tool. There is no command, and `python -m unbroken` names the package that has it."""

import subprocess
import sys

from unbroken import Agent, ScriptedModel, connect, tool
from unbroken.models.scripted import Call


@tool(effect="read")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


result = Agent(ScriptedModel(Call("weather", city="Rome"), "Go to Rome."), [weather]).run_sync("Where is it sunny?")
assert (result.text, [call.result.text for call in result.calls]) == ("Go to Rome.", ["sunny in Rome"])
connect("openai:gpt-5", api_key="a key")
ended = subprocess.run([sys.executable, "-m", "unbroken"], capture_output=True, text=True, check=False)
assert ended.returncode != 0
assert "pip install 'unbroken[cli]'" in ended.stderr, ended.stderr
