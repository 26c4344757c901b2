"""What users of other libraries look for in docs/moving, topic by topic: what the scripted model answers, and what must
come out of the code before and after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unbroken import Request, System, ToolMessage, User
from unbroken.errors import Unauthorized, Unavailable
from unbroken.models.scripted import Line
from unbroken_testing import Answer, Call, Fail, Uses

MCP_SERVER = '''
from mcp.server.{module} import {server}

server = {server}("weather")


@server.tool()
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


server.run()
'''
"""`weather_server.py` of the topic `mcp`; the two generations of the package have other names."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A field that is None is not checked."""

    title: str
    """The heading of its section."""
    answers: Sequence[Line] = ()
    """Of the scripted model, one for each request."""
    scripts: Mapping[str, Sequence[Line]] = field(default_factory=dict[str, Sequence[Line]])
    """The same for models with a script of their own."""
    outcome: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables at the end of the code, and their values."""
    printed: str | None = ""
    """What the code has printed."""
    results: Sequence[str] | None = ()
    """The results of tools in the last request; a library may put words around them."""
    prompts: Sequence[str] | None = None
    """The user's messages in the last request."""
    offered: Sequence[str] | None = None
    """The tools in the last request."""
    native: str = ""
    """A tool of the provider in the last request."""
    system: str = ""
    """A part of the instructions in the last request."""
    summary: str = ""
    """A part of the messages of the user in the last request."""


def report(request: Request) -> Answer:
    """Some libraries offer a tool for structured output, others ask for JSON."""
    if not any(isinstance(message, ToolMessage) for message in request.messages):
        return [Call("get_weather", city="Rome")]
    tools = [spec.name for spec in request.tools if spec.name != "get_weather"]
    return [Call(tools[0], city="Rome", celsius=24)] if tools else '{"city": "Rome", "celsius": 24}'


def tell(request: Request) -> Answer:
    story = {"title": "Rome", "lines": ["It was late.", "Rain."]}
    return [Call(request.tools[0].name, story)] if request.tools else json.dumps(story)


def ask_expert(request: Request) -> Answer:
    """The parameter of a sub-agent's tool has another name in each library."""
    if any(isinstance(message, ToolMessage) for message in request.messages):
        return "You fly at noon."
    (parameter, *_) = request.tools[0].parameters["properties"]
    return [Call("ask_expert", {parameter: "When do I fly?"})]


def transfer(request: Request) -> Answer:
    """The tool that hands over has another name in each library."""
    return [Call(request.tools[0].name)]


def place(request: Request) -> Answer:
    return "In Paris." if prompts_of(request)[-1] == "And the Louvre?" else "In Rome."


def summarise(request: Request) -> Answer:
    return "The user is called Ada."


def down(request: Request) -> Answer:
    return Fail(Unavailable("down for maintenance", status=503))


BOTH_CITIES = [Call("get_weather", city="Rome"), Call("get_weather", city="Oslo")]
ROME = Call("get_weather", city="Rome")
STORY = ["Once upon a time there was a cat. " * 400, Uses(100, 3_600)]
KEY_EXPIRED = Fail(Unauthorized("the key has expired", status=401))

TOPICS: dict[str, Topic] = {
    "first": Topic(
        "An agent with a tool",
        [BOTH_CITIES, "Rome."],
        outcome={"text": "Rome."},
        results=["sunny", "snow"],
        system="You plan journeys.",
    ),
    "deps": Topic(
        "A tool with dependencies",
        [Call("book", city="Rome"), "Booked."],
        outcome={"text": "Booked."},
        results=["Rome for Ada"],
    ),
    "output": Topic(
        "A structured answer",
        [report],
        outcome={"report": {"city": "Rome", "celsius": 24}},
        results=["24 degrees"],
    ),
    "text": Topic("Stream the text", ["Hello, dear Ada!"], printed="Hello, dear Ada!"),
    "partial": Topic(
        "Stream a structured answer",
        [tell],
        outcome={"story": {"title": "Rome", "lines": ["It was late.", "Rain."]}},
        printed=None,
    ),
    "events": Topic("Stream the calls", [ROME, "Sunny."], printed="get_weather\nsunny\n", results=["sunny"]),
    "retry": Topic(
        "A tool that lets the model try again",
        [Call("book", day="Monday"), Call("book", day="Friday"), "Booked."],
        outcome={"text": "Booked."},
        results=["We are closed on Monday.", "booked for Friday"],
    ),
    "input": Topic("Check the input", outcome={"text": "Please do not send passwords."}),
    "check": Topic(
        "Check the output, and let the model correct it",
        ["in Rome", "It is in Rome."],
        outcome={"text": "It is in Rome."},
    ),
    "approval": Topic(
        "Wait for an approval, and resume",
        [Call("delete", path="a.txt"), "It is gone."],
        outcome={"text": "It is gone."},
        results=["a.txt is deleted"],
    ),
    "dynamic": Topic(
        "Instructions that depend on the run",
        ["Hello, Ada."],
        outcome={"text": "Hello, Ada."},
        system="You talk to Ada.",
    ),
    "tools": Topic(
        "Tools that depend on the run",
        [Call("read_page", name="start"), "Old things."],
        outcome={"text": "Old things."},
        results=["It is old."],
        offered=["read_page"],
    ),
    "model": Topic(
        "Another model for one run", scripts={"gpt-5-mini": ["I am small."]}, outcome={"text": "I am small."}
    ),
    "fallback": Topic(
        "Another model if the first one fails",
        scripts={"gpt-5": [down], "gpt-5-mini": ["Hello!"]},
        outcome={"text": "Hello!"},
    ),
    "testmodel": Topic("A test without a model", outcome={"called": ["get_weather"]}),
    "limits": Topic(
        "A limit, and an answer all the same",
        [Call("search", page=1), Call("search", page=2), "Nothing so far."],
        outcome={"text": "Nothing so far."},
        results=["nothing on page 1", "nothing on page 2"],
    ),
    "history": Topic(
        "Continue a conversation",
        ["Hello, Ada.", "You are Ada."],
        outcome={"text": "You are Ada."},
        prompts=["I am Ada.", "Who am I?"],
    ),
    "memory": Topic(
        "Keep a conversation",
        ["Hello, Ada.", "You are Ada."],
        outcome={"text": "You are Ada."},
        prompts=["I am Ada.", "Who am I?"],
    ),
    "trim": Topic(
        "Send only a part of the history",
        ["1", "2", "3"],
        outcome={"text": "3"},
        prompts=["Two?", "Three?"],
    ),
    "compact": Topic(
        "Summarise a long history",
        scripts={"gpt-5": ["Hello, Ada.", STORY, "You are welcome.", "You are Ada."], "gpt-5-mini": [summarise]},
        outcome={"text": "You are Ada."},
        summary="The user is called Ada.",
    ),
    "subagent": Topic(
        "An agent as a tool",
        scripts={"gpt-5": [ask_expert], "gpt-5-mini": ["At noon."]},
        outcome={"text": "You fly at noon."},
        results=["At noon."],
    ),
    "handoff": Topic(
        "Hand the conversation over to another agent",
        scripts={"gpt-5": [transfer], "gpt-5-mini": ["You called the moon."]},
        outcome={"text": "You called the moon."},
        results=None,
        system="You know bills.",
    ),
    "websearch": Topic(
        "A search of the web by the provider", ["Nothing new."], outcome={"text": "Nothing new."}, native="web_search"
    ),
    "mcp": Topic("Tools of an MCP server", [ROME, "Sunny."], outcome={"text": "Sunny."}, results=["sunny"]),
    "order": Topic(
        "Calls whose order matters",
        [[Call("deposit", amount=50), Call("withdraw", amount=20)], "30 are left."],
        outcome={"text": "30 are left.", "balance": 30},
        results=["balance 50", "balance 30"],
    ),
    "hooks": Topic(
        "Watch every call",
        [ROME, "Sunny."],
        outcome={"text": "Sunny."},
        printed="get_weather sunny\n",
        results=["sunny"],
    ),
    "crash": Topic(
        "Resume after a failure, without doing anything twice",
        [Call("pay", amount=5), KEY_EXPIRED, "Paid."],
        outcome={"text": "Paid."},
        printed="failed\n",
        results=["paid 5"],
    ),
    "evals": Topic("Score answers", [place], outcome={"passed": True}),
}


def prompts_of(request: Request) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, User)]


def results_of(request: Request) -> list[str]:
    messages = [message for message in request.messages if isinstance(message, ToolMessage)]
    return [result.text for message in messages for result in message.results]


def system_of(request: Request) -> str:
    return "\n".join(message.text for message in request.messages if isinstance(message, System))
