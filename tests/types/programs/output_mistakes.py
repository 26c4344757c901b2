from dataclasses import dataclass

from pydantic import BaseModel

from unbroken import Agent, Conversation, Output, ScriptedModel


class Report(BaseModel):
    city: str


@dataclass
class Place:
    name: str


agent = Agent(ScriptedModel("…"), output=Report)
agent.run_sync("Rome?").output.name  # wrong
agent.run_sync("Rome?", output=Place).output.city  # wrong
Conversation(agent).say_sync("Rome?").output.name  # wrong
Agent(ScriptedModel("…"), output=Report | Place).run_sync("Rome?").output.city  # wrong
Agent(ScriptedModel("…"), output=list[Place]).run_sync("Rome?").output.name  # wrong
Agent(ScriptedModel("…"), output=Output(Place, via="json"))  # wrong
Agent(ScriptedModel("…"), output=Output(Place)).run_sync("Rome?").output.city  # wrong
placed: Agent[None, Place] = Agent(ScriptedModel("…"), output=Report)  # wrong
