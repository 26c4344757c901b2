"""`run_sync`: for scripts, notebooks and threads. One background loop serves them all, and nothing is left when the
program exits. Real time, real threads, and real HTTP if a connection is involved."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from scenes import texts

from unbroken import Agent, Conversation, Result, ScriptedModel, UserError, connect, tool
from unbroken_testing import Call, serve


def script(code: str, *args: str) -> list[str]:
    """Everything that Python could warn about is an error there."""
    return [sys.executable, "-X", "dev", "-W", "error", "-c", code, *args]


def test_it_runs_twice_over_one_connection() -> None:
    with serve("Once.", "Twice.") as server:
        agent = Agent(connect("openai:demo", base_url=server.base_url(), api_key="k"))
        assert [agent.run_sync("Go.").text, agent.run_sync("Go.").text] == ["Once.", "Twice."]


def test_it_runs_while_a_loop_is_running_in_the_same_thread() -> None:
    """As in a notebook, whose cells run inside a loop."""

    async def cell() -> list[str]:
        agent = Agent(ScriptedModel(Call("look"), "Done.", "Again."), [look])
        return [agent.run_sync("Go.").text, agent.run_sync("Go.").text]

    assert asyncio.run(cell()) == ["Done.", "Again."]


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


def test_several_threads_run_at_once() -> None:
    everybody = threading.Barrier(4, timeout=10)

    @tool
    def meet(who: int) -> str:
        """Wait for the others."""
        everybody.wait()
        return f"met {who}"

    def one(who: int) -> Result:
        return Agent(ScriptedModel(Call("meet", who=who), f"Done {who}."), [meet]).run_sync("Go.")

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(one, range(4)))
    assert [result.text for result in results] == [f"Done {who}." for who in range(4)]
    assert [texts(result) for result in results] == [[f"met {who}"] for who in range(4)]


def test_a_synchronous_tool_may_run_another_agent() -> None:
    inner = Agent(ScriptedModel(Call("look"), "The inner answer."), [look])

    @tool
    def ask() -> str:
        """Ask the other one."""
        return inner.run_sync("What do you see?").text

    result = Agent(ScriptedModel(Call("ask"), "Done."), [ask]).run_sync("Go.")
    assert (texts(result), result.text) == (["The inner answer."], "Done.")


def test_an_async_tool_that_would_wait_for_itself_gets_an_error() -> None:
    inner = Agent(ScriptedModel("Never."))

    @tool
    async def ask() -> str:
        """Ask the other one, the wrong way."""
        return inner.run_sync("Go.").text

    result = Agent(ScriptedModel(Call("ask"), "Done."), [ask]).run_sync("Go.")
    assert texts(result) == [
        "Error: run_sync was called from an async tool and would wait for itself; use `await agent.run`"
    ]
    assert result.text == "Done."


def test_an_error_is_raised_where_it_was_called() -> None:
    with pytest.raises(UserError, match="the prompt is empty"):
        Agent(ScriptedModel("Never.")).run_sync("")


def test_a_conversation_continues_from_call_to_call() -> None:
    chat = Conversation(Agent(ScriptedModel("One.", "Two.")))
    assert [chat.say_sync("Go.").text, chat.say_sync("Go on.").text] == ["One.", "Two."]
    assert len(chat.messages) == 4


PROGRAM = """
import logging, sys
from unbroken import Agent, connect, tool

logging.getLogger("asyncio").setLevel(logging.ERROR)  # in development mode a slow machine is a warning

@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b

agent = Agent(connect("openai:demo", base_url=sys.argv[1], api_key="k"), [add])
for _ in range(2):
    print(agent.run_sync("Go.").text)
"""


def test_a_program_that_exits_leaves_no_session_open() -> None:
    with serve([Call("add", a=1, b=2)], "It is 3.", [Call("add", a=1, b=2)], "Still 3.") as server:
        done = subprocess.run(
            script(PROGRAM, server.base_url()), capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.stdout, done.stderr, done.returncode) == ("It is 3.\nStill 3.\n", "", 0)


INTERRUPTED = """
import logging, sys
from unbroken import Agent, Conversation, ScriptedModel, ToolMessage, tool
from unbroken_testing import Call
import asyncio

logging.getLogger("asyncio").setLevel(logging.ERROR)  # as above

@tool(timeout=None)
async def wait() -> str:
    "Wait for ever."
    print("waiting", flush=True)
    await asyncio.Event().wait()
    return "never"

chat = Conversation(Agent(ScriptedModel(Call("wait"), "Done."), [wait]))
try:
    chat.say_sync("Go.")
except KeyboardInterrupt:
    last = chat.messages[-1]
    assert isinstance(last, ToolMessage)
    print(last.results[0].text)
print(chat.say_sync("Go on.").text)
"""


def test_an_interrupt_ends_the_run_with_every_call_answered() -> None:
    with subprocess.Popen(script(INTERRUPTED), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        os.kill(program.pid, signal.SIGINT)
        out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == ("Error: cancelled: the run was cancelled\nDone.\n", "", 0)
