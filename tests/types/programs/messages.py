"""Every message has its text; calls that may run have their arguments."""

from unbroken import Agent, Assistant, ScriptedModel, ToolMessage, User, tool
from unbroken_testing import Call


@tool(effect="read")
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


calls = [Call("get_weather", city="Rome"), Call("get_weather", city="Oslo")]
result = Agent(ScriptedModel(calls, "Both."), [get_weather]).run_sync("Rome and Oslo?")
assert [message.text for message in result.messages] == [
    "Rome and Oslo?",
    "",
    "Rome: sunny\nOslo: sunny",
    "Both.",
]
for message in result.messages:
    match message:
        case User():
            assert message.parts
        case Assistant(calls=calls_made):
            assert all(call.args["city"] in ("Rome", "Oslo") for call in calls_made)
        case ToolMessage(results=results):
            assert [each.text for each in results] == message.text.split("\n")
        case _:
            pass
