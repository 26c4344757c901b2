"""One of several types, or plain text."""

from pydantic import BaseModel

from unbroken import Agent, ScriptedModel
from unbroken_testing import Call


class Report(BaseModel):
    city: str


class Question(BaseModel):
    text: str


agent = Agent(ScriptedModel([Call("final_answer", value={"text": "Which one?"})]), output=Report | Question)
output = agent.run_sync("Weather?").output
if isinstance(output, Report):
    assert output.city
else:
    assert output.text == "Which one?"

free = Agent(ScriptedModel("Hello."), output=Report | str).run_sync("Hi.").output
assert (free if isinstance(free, str) else free.city) == "Hello."
