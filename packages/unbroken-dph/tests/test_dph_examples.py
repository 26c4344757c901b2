"""The examples of the language run as they stand: the one of the seed (000, 12.1) and the six that explain DPH."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

from unbroken import CallFinished, CallStarted, ScriptedModel, User, tool
from unbroken_dph import BlockFinished, BlockStarted, InBlock, ProgramEvent, ProgramResult, run_program
from unbroken_testing import Call, Say, run_virtual

SEED = """\
/explore/(
    tools=[get_weather, get_news],
    multi_tool_calls=true,          # 启用多 tool call 支持
    tool_execution="sequential"     # sequential | parallel
)
查询北京的天气和最新科技新闻
-> result
"""
ASSIGNING = """\
"Hello" -> greeting
$greeting + ", world" -> msg
"""
CALLING = """\
@web_search(query=$topic) -> news
@web_search(query="b") >> all_news
"""
LOOPING = """\
/prompt/(output="list_str") Three search terms for $topic -> terms
/for/ $t in $terms:
    @web_search(query=$t) >> hits
/end/
"""
EXPLORING = """\
/explore/(tools=[get_weather, get_news], multi_tool_calls=true, tool_execution="sequential")
Weather in Beijing and the latest technology news
-> result
"""
BRANCHING = """\
/if/ len($hits) > 5:
    /prompt/ Summarise $hits -> s
else:
    "too little" -> s
/end/
"""
AT_ONCE = """\
/parallel/
    @load(path="a.csv") -> a
    /judge/(tools=[check_stock]) Is $product in stock? -> ok
/end/
"""


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather in a city."""
    await asyncio.sleep(0.5)
    return f"{city}: 25°C"


@tool(effect="read")
async def get_news(topic: str) -> str:
    """The news on a topic."""
    await asyncio.sleep(0.8)
    return f"three headlines on {topic}"


@tool(effect="read")
def web_search(query: str) -> str:
    """Search the web."""
    return f"hits for {query}"


@tool(effect="read")
async def load(path: str) -> list[list[int]]:
    """A table from a file."""
    await asyncio.sleep(3.0)
    return [[1, 2], [3, 4]]


@tool(effect="read")
async def check_stock(product: str) -> bool:
    """Is there any left?"""
    await asyncio.sleep(3.0)
    return product == "tea"


TOOLS = [get_weather, get_news, web_search, load, check_stock]
BOTH = [Say("好的。"), Call("get_weather", city="北京"), Call("get_news", topic="科技")]


def play(
    program: str, *answers: Any, variables: dict[str, Any] | None = None
) -> tuple[ProgramResult, ScriptedModel, list[ProgramEvent], float]:
    """Its result, the model that was used, the events, and the seconds that it took."""
    model, events = ScriptedModel(*answers), list[ProgramEvent]()

    async def run() -> tuple[ProgramResult, ScriptedModel, list[ProgramEvent], float]:
        stream = run_program(program, model, TOOLS, variables)
        async for event in stream:
            events.append(event)
        return stream.result, model, events, asyncio.get_running_loop().time()

    return run_virtual(run)


def asked(model: ScriptedModel) -> list[str]:
    return [request.messages[-1].text for request in model.requests if isinstance(request.messages[-1], User)]


def calls(events: list[ProgramEvent]) -> list[str]:
    """What started and ended, in order: `+name`, `-name`."""
    told: list[str] = []
    for event in events:
        match event:
            case InBlock(event=CallStarted(name=name)):
                told.append(f"+{name}")
            case InBlock(event=CallFinished(name=name)):
                told.append(f"-{name}")
            case _:
                pass
    return told


def test_the_example_of_the_seed_runs_both_calls_in_order() -> None:
    result, model, events, seconds = play(SEED, BOTH, "北京 25°C。")
    assert calls(events) == ["+get_weather", "-get_weather", "+get_news", "-get_news"]
    assert seconds == 1.3
    assert asked(model) == ["查询北京的天气和最新科技新闻"]
    first, second = model.requests
    assert [spec.name for spec in first.tools] == ["get_weather", "get_news"]
    texts = [message["content"] for message in model.bodies[1]["messages"] if message["role"] == "tool"]
    assert texts == ["北京: 25°C", "three headlines on 科技"]
    assert len(second.messages) == 3  # the question, the two calls in one message, both results
    assert result.variables["result"] == {
        "answer": "北京 25°C。",
        "think": "",
        "calls": [
            {"name": "get_weather", "arguments": {"city": "北京"}, "result": "北京: 25°C", "error": False},
            {"name": "get_news", "arguments": {"topic": "科技"}, "result": "three headlines on 科技", "error": False},
        ],
    }
    assert result.requests == 2


def test_the_seed_in_parallel_takes_as_long_as_the_longer_call() -> None:
    result, _, events, seconds = play(SEED.replace('="sequential"', '="parallel"'), BOTH, "北京 25°C。")
    assert calls(events) == ["+get_weather", "+get_news", "-get_weather", "-get_news"]
    assert seconds == 0.8
    assert result.variables["result"]["answer"] == "北京 25°C。"


def test_the_seed_without_several_calls_takes_the_first() -> None:
    _, model, events, _ = play(SEED.replace("=true", "=false"), BOTH, "只有天气。")
    assert calls(events) == ["+get_weather", "-get_weather"]
    assert [request.parallel for request in model.requests] == [False, False]


def test_a_value_is_assigned_and_used() -> None:
    result, model, events, _ = play(ASSIGNING)
    assert result.variables == {"greeting": "Hello", "msg": "Hello, world"}
    assert (model.requests, events, result.requests) == ([], [], 0)


def test_a_tool_is_called_by_the_program_itself() -> None:
    result, model, events, _ = play(CALLING, variables={"topic": "tea"})
    assert result.variables == {"topic": "tea", "news": "hits for tea", "all_news": ["hits for b"]}
    assert calls(events) == ["+web_search", "-web_search"] * 2
    assert model.requests == []


def test_the_program_loops_over_a_list_from_the_model() -> None:
    result, model, events, _ = play(LOOPING, '["green", "black"]', variables={"topic": "tea"})
    assert result.variables["terms"] == ["green", "black"]
    assert result.variables["hits"] == ["hits for green", "hits for black"]
    assert asked(model) == ["Three search terms for tea"]
    assert model.requests[0].tools == ()
    assert calls(events) == ["+web_search", "-web_search"] * 2


def test_the_model_explores_with_two_tools() -> None:
    result, model, events, seconds = play(EXPLORING, BOTH, "Warm, and three headlines.")
    assert result.variables["result"]["answer"] == "Warm, and three headlines."
    assert asked(model) == ["Weather in Beijing and the latest technology news"]
    assert calls(events) == ["+get_weather", "-get_weather", "+get_news", "-get_news"]
    assert seconds == 1.3


def test_a_branch_asks_the_model_only_if_it_is_taken() -> None:
    few, silent, _, _ = play(BRANCHING, variables={"hits": ["a"]})
    assert (few.variables["s"], silent.requests) == ("too little", [])
    hits = ["a", "b", "c", "d", "e", "f"]
    many, model, _, _ = play(BRANCHING, "Six letters.", variables={"hits": hits})
    assert many.variables["s"] == {"answer": "Six letters.", "think": ""}
    assert asked(model) == ['Summarise ["a", "b", "c", "d", "e", "f"]']


def test_a_tool_and_a_judge_run_at_the_same_time() -> None:
    result, model, events, seconds = play(AT_ONCE, Call("check_stock", product="tea"), variables={"product": "tea"})
    assert result.variables == {"product": "tea", "a": [[1, 2], [3, 4]], "ok": True}
    assert asked(model) == ["Is tea in stock?"]
    assert seconds == 3.0
    told = calls(events)
    assert sorted(told[:2]) == ["+check_stock", "+load"]  # both had begun before one ended


def test_all_six_are_one_program_too() -> None:
    """In one file, as a reader may paste them."""
    program = "\n".join([ASSIGNING, CALLING, LOOPING, EXPLORING, BRANCHING, textwrap.indent(AT_ONCE, "    ")])
    answers = ['["a"]', BOTH, "Found.", Call("check_stock", product="salt")]
    result, model, events, _ = play(program, *answers, variables={"topic": "tea", "product": "salt"})
    assert (result.variables["s"], result.variables["ok"], len(model.requests)) == ("too little", False, 4)
    kinds = [event.block.kind for event in events if isinstance(event, BlockStarted)]
    assert kinds == ["call", "call", "prompt", "call", "explore", "call", "judge"]
    assert len([event for event in events if isinstance(event, BlockFinished) and not event.error]) == len(kinds)
