"""Newer Claude models refuse thinking behind something else than it was written behind, and so does the server of these
tests. What changes the beginning of a conversation must not end in that refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Limits, Policy, Result, connect, tool
from unbroken.compaction import ClearResults, Compaction
from unbroken.errors import ProviderError
from unbroken.guardrails import redact
from unbroken.models.model import Model
from unbroken.models.scripted import Line
from unbroken.tools.search import ToolSearch
from unbroken_testing import Call, Say, ScriptedServer, Think
from unbroken_wires.messages import Message

DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BETA = "thinking-binding-controls-2026-08-01"
DROPPED = "anthropic:{model} does not accept `messages.thinking` as it was given: it was left out or replaced"


@tool(effect="read")
def look(n: int) -> str:
    """Looks at a page."""
    return f"page {n} " * 40


def rounds(*names: str) -> list[Line]:
    arguments: dict[str, Any] = {"search_tools": {"query": "look"}, "transfer_to_second": {}}
    calls = [Call(name, arguments.get(name, {"n": n})) for n, name in enumerate(names)]
    return [*[[Think(f"thought {n}"), Say("Let me see."), call] for n, call in enumerate(calls)], "Done."]


def model_of(server: ScriptedServer, model: str = "claude-opus-5-5", **settings: Any) -> Model:
    return connect(f"anthropic:{model}", base_url=server.base_url("anthropic-messages"), api_key="k", **settings)


def play(*lines: Line, model: str = "claude-opus-5-5", settings: Any = None, **options: Any) -> tuple[Any, Any]:
    async def main() -> tuple[Result[Any], ScriptedServer]:
        async with ScriptedServer(*(lines or rounds(*["look"] * 4))) as server:
            agent = Agent(model_of(server, model, **(settings or {})), options.pop("tools", [look]), **options)
            return await agent.run("Look. " * 1000), server

    return asyncio.run(main())


def asked_to_drop(server: ScriptedServer) -> list[bool]:
    """For each request: did it ask for that? The field is never sent without its header."""
    asked = [body.get("thinking", {}).get("block_binding") == DROP["block_binding"] for body in server.bodies]
    assert asked == [BETA in headers.get("anthropic-beta", "") for headers in server.headers]
    return asked


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"instructions": "Be brief."}, {"stream": False}),
        ({"policy": Policy(cache=False)}, {}),
        ({"limits": Limits(rounds=3)}, {}),
        ({"reasoning": "high"}, {}),
    ],
    ids=["plain", "not streamed", "no cache marks", "limited", "effort"],
)
def test_requests_that_only_grow_keep_their_thinking_and_ask_for_nothing(options: Any, settings: Any) -> None:
    result, server = play(settings=settings, **options)
    assert result.text == "Done." or result.stop_reason == "rounds"
    assert not any(asked_to_drop(server))
    assert not result.warnings


def ends(messages: Sequence[Message]) -> Sequence[Message]:
    return (messages[0], *messages[-2:])


def growing(turn: int, history: Any) -> list[Any]:
    return [look, later] if turn > 1 else [look]


def stepping(rounds: int = 1) -> Callable[[Any], str]:
    """Instructions that are others after so many requests."""
    numbers = count()
    return lambda _: f"Step {next(numbers) // rounds}."


CHANGES: dict[str, Any] = {
    "cleared results": {"middleware": [ClearResults(keep=1, step=1, least=1)]},
    "compaction": {"middleware": [Compaction(at=1000, keep=1)]},
    "trim": {"trim": ends},
    "tool search": {"tools": ToolSearch(look, native=False)},
    "tools that change": {"tools": growing},
}


@tool(effect="read")
def later(n: int) -> str:
    """Looks later."""
    return ""


@pytest.mark.parametrize(
    "model", ["claude-opus-5-5", "claude-fable-5-1", "claude-sonnet-6", "anthropic/claude-haiku-5.5"]
)
@pytest.mark.parametrize("change", CHANGES)
def test_thinking_behind_a_change_is_dropped_and_that_is_reported_once(change: str, model: str) -> None:
    script = rounds(*["look"] * 5)
    if change == "tool search":
        script = rounds("search_tools", "look", "look")
    if change == "compaction":
        script = [*script[:2], "A summary.", *script[2:5], *["A summary."] * 3, "Done."]
    result, server = play(*script, model=model, **CHANGES[change])
    assert result.stop_reason == "answered"
    asked = asked_to_drop(server)
    assert asked[-1]
    assert asked == sorted(asked), "it is asked for in every later request"
    assert list(result.warnings).count(DROPPED.format(model=model)) == 1


def test_new_instructions_stand_behind_the_history_and_the_old_ones_stay() -> None:
    result, server = play(instructions=stepping(2), guidance=False)
    assert result.text == "Done."
    assert not any(asked_to_drop(server))
    assert not result.warnings
    last = server.bodies[-1]
    assert last["system"] == "Step 0."
    said = [message["content"] for message in last["messages"] if message["role"] == "system"]
    assert said == [[{"type": "text", "text": "Step 1."}], [{"type": "text", "text": "Step 2."}]]
    first = server.bodies[2]["messages"]
    assert last["messages"][: len(first) - 1] == first[:-1]


def test_a_model_without_system_text_between_messages_gets_new_instructions_in_front() -> None:
    result, server = play(model="claude-sonnet-4-6", instructions=stepping())
    assert result.text == "Done."
    assert str(server.bodies[-1]["system"]).count("Step") == 1
    assert "Step 4." in str(server.bodies[-1]["system"])
    assert {message["role"] for message in server.bodies[-1]["messages"]} == {"user", "assistant"}


def test_an_agent_that_takes_over_gets_an_answer() -> None:
    async def main() -> None:
        async with ScriptedServer(*rounds("look", "transfer_to_second", "look")) as server:
            model = model_of(server)
            second = Agent(model, [look], name="second", instructions="You are the second.")
            agent = Agent(model, [look], handoffs=[second], instructions="You are the first.")
            assert (await agent.run("Look.")).text == "Done."
            assert asked_to_drop(server) == [False, False, True, True]
            assert "first" not in str(server.bodies[-1]["system"])

    asyncio.run(main())


def test_a_conversation_goes_on_with_other_instructions() -> None:
    async def main() -> None:
        async with ScriptedServer(*rounds("look"), *rounds("look")) as server:
            first = await Agent(model_of(server), [look], instructions="One.").run("Look.")
            saved = Result.from_json(first.to_json())
            result = await Agent(model_of(server), [look], instructions="Two.").run("Again.", history=saved.messages)
            assert result.text == "Done."
            assert asked_to_drop(server) == [False, False, True, True]
            assert list(result.warnings) == [DROPPED.format(model="claude-opus-5-5")]

    asyncio.run(main())


def test_a_resumed_run_asks_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with ScriptedServer(*rounds("look", "look")[:2]) as server:
            with pytest.raises(ProviderError):
                await Agent(model_of(server), [look], instructions="One.", record=tmp_path / "run.jsonl").run("Look.")
            assert asked_to_drop(server) == [False, False, False]
        async with ScriptedServer("Done again.") as server:
            agent = Agent(model_of(server), [look], instructions="Two.")
            assert (await agent.resume(tmp_path / "run.jsonl")).text == "Done again."
            assert asked_to_drop(server) == [True]

    asyncio.run(main())


def test_a_prompt_that_was_sent_once_and_is_gone_counts_as_a_change() -> None:
    script = [*rounds("look", "look")[:2], [Think("Hm.")], [Think("Oh."), Call("look", n=3)], "Done."]
    result, server = play(*script, settings={"attempts": 1})
    assert result.text == "Done."
    assert asked_to_drop(server) == [False, False, False, False, True]


def test_what_is_redacted_in_every_request_invalidates_nothing() -> None:
    result, server = play(middleware=[redact(r"page \d")])
    assert result.text == "Done."
    assert not result.warnings
    assert asked_to_drop(server)[-1], "the run does not know what the middleware sent"


def test_a_request_that_turns_thinking_off_leaves_it_out_by_hand() -> None:
    async def main() -> None:
        async with ScriptedServer(*rounds("look"), "Yes.") as server:
            first = await Agent(model_of(server, "claude-haiku-5-5"), [look], instructions="One.").run("Look.")
            other = Agent(model_of(server, "claude-haiku-5-5"), [look], instructions="Two.", reasoning="none")
            assert (await other.run("Again.", history=first.messages)).text == "Yes."
            assert server.bodies[-1]["thinking"] == {"type": "disabled"}
            assert "signature" not in str(server.bodies[-1]["messages"])

    asyncio.run(main())
