"""The agent as users see it: tools that come and go, failing listeners, what is requested from the provider on each
wire, and prompts and histories of every kind."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from scenes import WIRES, Desk, accepted, on_every_wire, only, play, play_aloud, roles, texts

from unbroken import (
    Agent,
    Assistant,
    Event,
    Image,
    Limits,
    Policy,
    Request,
    RunFailed,
    RunFinished,
    Sampling,
    ScriptedModel,
    System,
    Text,
    Tool,
    ToolCall,
    ToolMessage,
    ToolResult,
    Transcript,
    User,
    UserError,
    tool,
)
from unbroken.compaction import Compaction
from unbroken.errors import MissingKey, Unauthorized
from unbroken_testing import Call, Fail, Say, TestModel, Uses, run_virtual
from unbroken_wires.messages import Media, OneTool

# Tools as a function of turn and transcript


@on_every_wire
def test_the_tools_may_differ_from_turn_to_turn(wire: str) -> None:
    desk = Desk()
    seen: list[tuple[int, int]] = []

    def choose(turn: int, transcript: Transcript) -> Iterable[Tool]:
        seen.append((turn, len(transcript.messages)))
        return desk.tools("look") if turn == 0 else desk.tools("look", "write")

    model = ScriptedModel([Call("look"), Call("write")], [Call("write")], "Done.", wire=wire)
    result = play(Agent(model, choose))
    assert seen == [(0, 1), (1, 3), (2, 5)]
    assert [len(request.tools) for request in model.requests] == [1, 2, 2]
    first, second, third = texts(result)
    assert (first, third) == ("look done", "write done")
    assert second.startswith("Error: unknown tool `write`; there are: look")
    accepted(model, result)


@on_every_wire
def test_tools_may_all_disappear(wire: str) -> None:
    """Providers refuse a history with calls without tools: the tools are still sent, but cannot be called."""
    desk = Desk()
    model = ScriptedModel([Call("look"), Call("find")], Call("look"), "Done.", wire=wire)
    result = play(Agent(model, lambda turn, transcript: [] if turn else desk.tools("look", "find")))
    assert [[tool.name for tool in request.tools] for request in model.requests] == [["look", "find"]] * 3
    assert [request.final for request in model.requests] == [False, True, True]
    assert desk.names == ["look", "find"]
    assert texts(result)[2] == "Error: unknown tool `look`; there are: none"
    accepted(model, result)


@on_every_wire
def test_an_agent_without_tools_continues_with_a_history_of_calls(wire: str) -> None:
    call = ToolCall("c1", "look", {})
    history = [User.of("a"), Assistant("", (call,)), ToolMessage((ToolResult.of(call, "seen"),)), Assistant("Fine.")]
    model = ScriptedModel("Done.", wire=wire)
    result = play(Agent(model), history=history)
    assert result.text == "Done."
    accepted(model, result)


def test_an_agent_is_built_without_the_key_of_its_model_and_a_request_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = Agent("openai:gpt-5", middleware=[Compaction(model="openai:gpt-5-mini")])
    with agent.override(model=TestModel()):
        assert run_virtual(agent.run("?")).text
    with pytest.raises(MissingKey, match=r"provider `openai` needs a key: set OPENAI_API_KEY or pass api_key=…"):
        agent.run_sync("?")
    with pytest.raises(UserError, match="does not name a model"):
        Agent("gpt-5")


def test_an_invalid_function_for_tools_is_named() -> None:
    def fails(turn: int, transcript: Transcript) -> Iterable[Tool]:
        raise ZeroDivisionError("division by zero")

    events: list[Event] = []
    with pytest.raises(UserError, match=r"the function given as tools= failed: division by zero") as caught:
        play(Agent(ScriptedModel("Never."), fails), sinks=[events.append])
    assert roles(caught.value.messages) == ["User"]
    assert isinstance(events[-1], RunFailed)


def test_a_single_function_is_not_accepted_as_a_list_of_tools() -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    async def three(turn: int, transcript: Transcript, more: int) -> list[Tool]:
        return []

    with pytest.raises(UserError, match=r"put it into a list: tools=\[add\]"):
        _with(tools=add)
    with pytest.raises(UserError, match=r"Agent\(tools=three\): .* three\(context\) or three\(turn, transcript\)"):
        _with(tools=three)


def test_two_tools_with_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="look"):
        Agent(ScriptedModel("Never."), [*Desk().tools("look"), *Desk().tools("look")])


# Listeners


def test_a_failing_sink_is_removed_and_the_others_get_everything(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    failed: list[Event] = []

    def fails(event: Event) -> None:
        failed.append(event)
        if len(failed) == 3:
            raise RuntimeError("the disk is full")

    agent = Agent(ScriptedModel(Call("look"), "Done."), Desk().tools("look"), sinks=[fails])
    result = play(agent, sinks=[heard.append])
    assert (result.text, len(failed)) == ("Done.", 3)
    assert [event.seq for event in heard] == list(range(len(heard)))
    assert isinstance(heard[-1], RunFinished)
    (told,) = [record for record in caplog.records if "A sink failed" in record.message]
    assert told.levelno == logging.ERROR


def test_the_same_run_yields_the_same_events() -> None:
    def once() -> list[Event]:
        model = ScriptedModel([Say("Hm."), Call("look"), Call("look", n=2)], "Done.")
        return play_aloud(Agent(model, Desk().tools("look", seconds=0.5)), run_id="r")[1]

    assert once() == once()
    assert {event.run for event in once()} == {"r"}


def test_runs_get_unique_names_unless_one_is_given() -> None:
    agent = Agent(ScriptedModel("Done.", loop_last=True))
    assert len({play(agent).run for _ in range(3)}) == 3
    assert play(agent, run_id="mine").run == "mine"


# Instructions


@pytest.mark.parametrize(
    ("instructions", "words", "budget"),
    [
        ("You help.", "make them all in one reply", "at most 7 replies"),
        ("你是一个助手。", "应该在一次回复中同时发出", "最多可以在 7 次回复中调用工具"),
        ("", "make them all in one reply", "at most 7 replies"),
    ],
    ids=["English", "Chinese", "none"],
)
def test_guidance_follows_the_instructions_in_their_language(instructions: str, words: str, budget: str) -> None:
    model = ScriptedModel("Done.")
    play(Agent(model, Desk().tools("look"), instructions, limits=Limits(rounds=7)))
    (system, _) = model.requests[0].messages
    assert isinstance(system, System)
    assert system.text.startswith(instructions)
    assert words in system.text
    assert budget in system.text


@pytest.mark.parametrize(
    ("instructions", "question", "words"),
    [
        ("You help.", "你好，今天怎么样？", "## 使用工具"),
        ("", "你好，今天怎么样？", "## 使用工具"),
        ("", "How are you?", "## Using tools"),
        ("你是一个助手。", "How are you?", "## 使用工具"),
    ],
)
def test_guidance_is_in_the_language_of_the_question(instructions: str, question: str, words: str) -> None:
    model = ScriptedModel(Call("look"), "Done.")
    play(Agent(model, Desk().tools("look"), instructions), question)
    assert [words in getattr(request.messages[0], "text", "") for request in model.requests] == [True, True]
    assert model.requests[0].messages[0] is model.requests[1].messages[0]


def test_guidance_can_be_switched_off_or_its_language_set() -> None:
    def told(**settings: Any) -> str:
        model = ScriptedModel("Done.")
        play(Agent(model, Desk().tools("look"), "You help.", **settings))
        return getattr(model.requests[0].messages[0], "text", "")

    assert told(guidance=False) == "You help."
    assert "使用工具" in told(guidance="zh")
    assert "Using tools" in told(guidance=True)


def test_without_tools_there_is_no_guidance() -> None:
    model = ScriptedModel("Done.", "Done.")
    play(Agent(model))
    play(Agent(model, instructions="You help."))
    assert [roles(request.messages) for request in model.requests] == [["User"], ["System", "User"]]
    assert getattr(model.requests[1].messages[0], "text", "") == "You help."


ONE_CALL: dict[str, Any] = {
    "openai-chat": {"parallel_tool_calls": False},
    "openai-responses": {"parallel_tool_calls": False},
    "anthropic-messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "gemini": {},
    "ollama": {},
    "cohere-v2": {},
    "bedrock-converse": {},
}


@on_every_wire
def test_a_single_call_is_requested_with_the_wires_own_setting(wire: str) -> None:
    model = ScriptedModel("Done.", "Done.", wire=wire)
    play(Agent(model, Desk().tools("look"), several_calls=False))
    play(Agent(model, Desk().tools("look")))
    one, several = model.bodies
    assert ONE_CALL[wire].items() <= one.items()
    assert not ONE_CALL[wire].items() & several.items() if wire == "anthropic-messages" else True
    assert "parallel_tool_calls" not in several
    accepted(model)


CHOICES: dict[str, list[Any]] = {
    "openai-chat": ["required", {"type": "function", "function": {"name": "look"}}],
    "openai-responses": ["required", {"type": "function", "name": "look"}],
    "anthropic-messages": [{"type": "any"}, {"type": "tool", "name": "look"}],
    "gemini": [
        {"functionCallingConfig": {"mode": "ANY"}},
        {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
    ],
    "cohere-v2": ["REQUIRED", "REQUIRED"],
    "bedrock-converse": [{"any": {}}, {"tool": {"name": "look"}}],
    "ollama": [None, None],
}
"""For any call, and for a call of `look`. Ollama has no choice."""


def choice_in(wire: str, body: dict[str, Any]) -> Any:
    match wire:
        case "gemini":
            return body.get("toolConfig")
        case "bedrock-converse":
            return body["toolConfig"].get("toolChoice")
        case _:
            return body.get("tool_choice")


@pytest.mark.parametrize("named", [False, True], ids=["required", "by name"])
@on_every_wire
def test_a_choice_applies_to_the_first_request_only(wire: str, named: bool) -> None:
    model = ScriptedModel(Call("look"), Call("look", n=2), "Done.", wire=wire)
    result = play(Agent(model, Desk().tools("look"), policy=Policy(choice="look" if named else "required")))
    expected = OneTool("look") if named else "required"
    assert [request.choice for request in model.requests] == [expected, None, None]
    assert [choice_in(wire, body) for body in model.bodies] == [CHOICES[wire][named], None, None]
    accepted(model, result)


def test_settings_go_into_every_request() -> None:
    model = ScriptedModel(Call("look"), "Done.")
    sampling = Sampling(temperature=0.5, max_tokens=99)
    play(Agent(model, Desk().tools("look"), sampling=sampling, reasoning="low"))
    assert [(request.sampling, request.reasoning) for request in model.requests] == [(sampling, "low")] * 2


def _with(**settings: Any) -> Agent:
    return Agent(ScriptedModel("Never."), **settings)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(UserError, match=r"Agent\(on_error='explode'\): expected 'continue' or '"):
        _with(on_error="explode")
    with pytest.raises(UserError, match=r"Policy\(on_all_failed='explode'\): expected 'continue' or '"):
        Policy(on_all_failed=cast("Any", "explode"))
    with pytest.raises(UserError, match=r"Agent has no option `nudge`: use Agent\(model, policy=Policy\(nudge=…\)\)"):
        _with(nudge=True)


# Prompts and histories


@on_every_wire
def test_an_image_may_be_part_of_the_question(wire: str, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    model = ScriptedModel("A picture.", wire=wire)
    result = Agent(model).run_sync(["What is this?", Image(picture)])
    assert result.text == "A picture."
    asked = result.messages[0]
    assert isinstance(asked, User)
    assert asked.parts == (Text("What is this?"), Media("image/png", "iVBORw0KGgo=", name="a.png"))
    assert "iVBORw0KGgo=" in str(model.bodies[0])
    accepted(model, result)


@pytest.mark.parametrize("prompt", ["Hello.", Text("Hello."), User.of("Hello."), ["Hel", Text("lo.")]], ids=str)
def test_a_prompt_may_have_several_forms(prompt: Any) -> None:
    result = run_virtual(Agent(ScriptedModel("Hi.")).run(prompt))
    assert getattr(result.messages[0], "text", "") == "Hello."


@pytest.mark.parametrize("prompt", ["", [], [""]], ids=str)
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    model = ScriptedModel("Never.")
    with pytest.raises(UserError, match="the prompt is empty; write what the agent should do"):
        run_virtual(Agent(model).run(prompt))
    assert model.requests == []


@pytest.mark.parametrize("prompt", [1, [1], ["a", None], object()], ids=["1", "[1]", "None in it", "object"])
def test_a_prompt_of_another_type_is_refused(prompt: Any) -> None:
    with pytest.raises(UserError, match="a prompt is text, images, or a list of them; this one holds a"):
        run_virtual(Agent(ScriptedModel("Never.")).run(prompt))


def test_no_prompt_and_no_history_is_refused() -> None:
    with pytest.raises(UserError, match="there is nothing to answer"):
        run_virtual(Agent(ScriptedModel("Never.")).run())


@pytest.mark.parametrize(
    ("source", "told"),
    [("none.png", "cannot be read"), ("noise", "the name does not show the type"), (b"abc", "needs its mime type")],
    ids=["missing", "no type", "bytes"],
)
def test_an_invalid_image_is_refused(source: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Image(source)


@on_every_wire
def test_a_broken_history_is_repaired_and_reported(wire: str, caplog: pytest.LogCaptureFixture) -> None:
    first, second = ToolCall("c1", "look", {}), ToolCall("c2", "look", {"n": 2}, index=1)
    history = [
        User.of("a"),
        Assistant("", (first, second)),
        ToolMessage((ToolResult("c2", (Text("seen 2"),), name="look"),)),
        ToolMessage((ToolResult("stray", (Text("?"),)),)),
        User.of("b"),
        Assistant("Fine."),
    ]
    model = ScriptedModel("Done.", wire=wire)
    result = play(Agent(model, Desk().tools("look")), history=history)
    assert result.text == "Done."
    assert "The given history was broken and has been repaired" in caplog.text
    accepted(model, result)


@on_every_wire
def test_unicode_survives_the_round_trip(wire: str) -> None:
    odd = "naïve 日本語 \U0001f469\u200d\U0001f680 \u202e\u0000\u2028 \ud83d"
    desk = Desk()
    model = ScriptedModel(
        [Say("日本 \U0001f600"), Call("look", q="\U0001f469\u200d\U0001f680 \u2028 «»")], "Ende.", wire=wire
    )
    result = play(Agent(model, [desk.tool("look", odd)], "指示 \U0001f600"), odd)
    assert desk.ran == [("look", {"q": "\U0001f469\u200d\U0001f680 \u2028 «»"})]
    assert texts(result) == [odd]
    accepted(model, result)


# Nothing is left behind


def test_in_debug_mode_a_run_leaves_no_warning_and_no_task(caplog: pytest.LogCaptureFixture) -> None:
    @tool(effect="read")
    def look(n: int) -> int:
        """Look."""
        return n

    async def main() -> None:
        model = ScriptedModel([Call("look", n=n) for n in range(5)], Call("nothing"), "Done.")
        stream = Agent(model, [look], limits=Limits(seconds=30.0)).stream("Go.")
        events = [event async for event in stream]
        assert only(RunFinished, events)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main(), debug=True)
    assert [record.message for record in caplog.records if record.name == "asyncio" and record.levelno > 30] == []


def test_many_runs_of_one_agent_can_be_active_at_once() -> None:
    def answer(request: Request) -> Any:
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            return last.results[0].text
        return Call("look", n=int(getattr(last, "text", "0")))

    def see(n: int) -> str:
        return f"seen {n}"

    agent = Agent(ScriptedModel(answer), [Desk().tool("look", see, seconds=1.0)])

    async def main() -> list[str]:
        results = await asyncio.gather(*[agent.run(str(n)) for n in range(50)])
        assert asyncio.get_running_loop().time() == 1.0
        return [result.text for result in results]

    assert run_virtual(main()) == [f"seen {n}" for n in range(50)]


def test_these_tests_cover_all_wires() -> None:
    assert set(ONE_CALL) == set(WIRES)


def test_a_failed_run_reports_its_usage() -> None:
    events: list[Event] = []
    model = ScriptedModel([Call("look"), Uses(100, 10)], Fail(Unauthorized("the key is wrong")))
    with pytest.raises(Unauthorized):
        run_virtual(Agent(model, Desk().tools("look"), sinks=[events.append]).run("Look."))
    last = events[-1]
    assert isinstance(last, RunFailed)
    assert (last.usage["input_tokens"], last.requests, last.attempts) == (100, 2, 2)
