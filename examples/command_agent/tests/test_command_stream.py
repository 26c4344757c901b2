"""`stream_chat`: the seven scenarios of a chat that streams while it calls commands, and what surrounds them.

The last two play DeepSeek's models over HTTP, breaking the first answer of each wish; with a key in DEEPSEEK_API_KEY
they also ask the real ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

import pytest
from command_client import problems_of, text_of

from command_agent.chat import StreamEvent, stream_chat
from command_agent.scripted import script
from command_agent.tools import TOOL_CHAIN_CONTINUE_PROMPT, Here
from command_agent.upstream import open_model
from command_agent.watching import Watch
from command_agent.world import World
from unbroken import Conversation, Model, Request, RetryingModel, ScriptedModel, User, connect
from unbroken_testing import Break, Call, FaultyServer, Pause, Say, Think, run_virtual
from unbroken_wires.wires.chain import validate_tool_chain

GIVE = Call("give", item="diamond", id="call_1")


class Scene:
    """A world with one player and a model."""

    def __init__(self, model: Model) -> None:
        self.world = World()
        self.world.join("player1")
        self.chat = Conversation(Watch().agent_for("player1", model), deps=Here(self.world, "player1"))

    async def wish(self, wish: str, sentences: bool = True) -> list[StreamEvent]:
        return [event async for event in stream_chat(wish, self.chat, stream_sentence_mode=sentences)]

    @property
    def commands(self) -> list[str]:
        return [done.command for done in self.world.log]


def contents(events: Sequence[StreamEvent]) -> list[str]:
    return [event.content for event in events[:-1] if event.event_type == "content"]


def kinds(events: Sequence[StreamEvent]) -> list[str]:
    return [event.event_type for event in events]


def test_in_sentence_mode_each_sentence_is_an_event_with_commands_in_between() -> None:
    model = ScriptedModel([Say("One moment. Here it comes!"), GIVE], "You have it. 给你了。Enjoy!")
    events = run_virtual(Scene(model).wish("give me a diamond"))

    assert contents(events) == ["One moment. ", "Here it comes!", "You have it. ", "给你了。", "Enjoy!"]
    assert kinds(events)[:4] == ["content", "content", "tool_call", "tool_return"]
    assert problems_of(events) == []
    end = events[-1].metadata
    assert (end["is_complete"], end["tool_calls"], end["tool_returns"], end["tool_fallback_used"]) == (
        True,
        1,
        1,
        False,
    )
    assert len(end["all_messages"]) == 4
    assert end["usage"]["output_tokens"] > 0


def test_with_whole_each_answer_is_one_event() -> None:
    model = ScriptedModel([Say("One moment. Here it comes!"), GIVE], "You have it. Enjoy!")
    events = run_virtual(Scene(model).wish("give me a diamond", sentences=False))

    assert contents(events) == ["One moment. Here it comes!", "You have it. Enjoy!"]
    assert kinds(events) == ["content", "tool_call", "tool_return", "content", "content"]
    assert problems_of(events) == []


@pytest.mark.parametrize("sentences", [True, False])
def test_an_incomplete_chain_is_requested_again_without_streaming(
    sentences: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel([Say("One moment. "), GIVE, Break()], [Say("One moment. "), GIVE], "Done.")
    scene = Scene(RetryingModel(model))
    with caplog.at_level(logging.WARNING, "unbroken.chain"):
        events = run_virtual(scene.wish("give me a diamond", sentences))

    assert [request.stream for request in model.requests] == [True, False, True]
    assert scene.commands == ["/give player1 diamond 1"]
    assert events[-1].metadata["tool_fallback_used"] is True
    assert events[-1].metadata["broken"] == ["lost"]
    assert "retried" in kinds(events)
    assert problems_of(events) == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("tool_chain_incomplete_on_stream run=wish tool_calls=1 tool_returns=0 attempt=1 kind=lost")


@pytest.mark.parametrize("breaks", [3, 4])
def test_three_fallbacks_follow_the_stream_and_are_reported_whether_or_not_they_help(breaks: int) -> None:
    async def settings() -> tuple[int, str]:
        async with open_model() as model:
            assert isinstance(model, RetryingModel)
            return model.attempts, model.continue_prompt

    attempts, prompt = run_virtual(settings())
    model = ScriptedModel(*[[Say("One moment. "), GIVE, Break()]] * breaks, [Say("One moment. "), GIVE], "Done.")
    scene = Scene(RetryingModel(model, attempts, continue_prompt=prompt))
    end = run_virtual(scene.wish("give me a diamond"))[-1].metadata
    assert [request.stream for request in model.requests[:4]] == [True, False, False, False]
    asked_to_continue = [request.messages[-1] == User.of(TOOL_CHAIN_CONTINUE_PROMPT) for request in model.requests[:4]]
    assert asked_to_continue == [False, False, True, True]
    assert User.of(TOOL_CHAIN_CONTINUE_PROMPT) not in scene.chat.messages
    assert (end["is_complete"], end["tool_fallback_used"]) == (breaks == 3, True)
    assert len(end["broken"]) == breaks
    assert end["usage"]["output_tokens"] > 0  # also of the attempts that broke
    assert scene.commands == ["/give player1 diamond 1"] * (breaks == 3)


@pytest.mark.parametrize(
    "command",
    [
        GIVE,
        Call("setblock", x=1, y=64, z=1, block="stone", id="call_1"),
        Call("teleport", x=1, y=64, z=1, id="call_1"),
        Call("time", to="night", id="call_1"),
        Call("say", text="Hello.", id="call_1"),
    ],
)
def test_a_command_of_a_broken_answer_that_is_not_repeated_does_not_run(command: Call) -> None:
    scene = Scene(RetryingModel(ScriptedModel([command, Pause(5), Break()], "Sorry, no.")))
    events = run_virtual(scene.wish("give me a diamond"))
    assert (text_of(events), scene.commands) == ("Sorry, no.", [])
    assert problems_of(events) == []


def test_a_command_that_is_repeated_with_other_arguments_runs_only_with_those() -> None:
    two = Call("give", item="diamond", count=2, id="call_1")
    scene = Scene(RetryingModel(ScriptedModel([GIVE, Pause(5), Break()], [two], "Done.")))
    assert problems_of(run_virtual(scene.wish("give me a diamond"))) == []
    assert scene.commands == ["/give player1 diamond 2"]


def test_after_the_fallback_only_new_text_is_sent() -> None:
    model = ScriptedModel([Say("I see. It com"), Break()], "I see. It comes. Now.")
    events = run_virtual(Scene(RetryingModel(model)).wish("give me a diamond"))

    assert contents(events) == ["I see. ", "It comes. ", "Now."]
    assert "replaced" not in kinds(events)


def test_a_retry_with_different_text_replaces_the_first_answer() -> None:
    model = ScriptedModel(
        [Think("Hm."), Say("I see. It com"), Break()], [Think("Well."), Say("Certainly. Here it is.")]
    )
    events = run_virtual(Scene(RetryingModel(model)).wish("give me a diamond"))

    assert text_of(events) == "Certainly. Here it is."
    assert [event.metadata["of"] for event in events if event.event_type == "replaced"] == ["reasoning", "content"]
    assert [event.content for event in events if event.event_type == "reasoning"] == ["Hm.", "Well."]
    assert problems_of(events) == []


def test_a_read_that_ends_while_the_answer_is_written_is_reported_after_its_call() -> None:
    model = ScriptedModel([Call("inventory", id="call_1"), Pause(5), Call("what_time", id="call_2")], "Nothing.")
    events = run_virtual(Scene(model).wish("what do I have?"))

    assert kinds(events)[:4] == ["tool_call", "tool_call", "tool_return", "tool_return"]
    assert problems_of(events) == []


@pytest.mark.parametrize("again", ["call_1", "call_9"])
def test_a_read_that_ran_in_a_broken_answer_is_reported_once(again: str) -> None:
    looks = [Say("Let me look. "), Call("inventory", id="call_1"), Pause(5), Break()]
    model = ScriptedModel(looks, [Say("Let me look. "), Call("inventory", id=again)], "Nothing.")
    events = run_virtual(Scene(RetryingModel(model)).wish("what do I have?"))

    assert [event.metadata["call_id"] for event in events if event.event_type == "tool_return"] == [again]
    assert problems_of(events) == []


def test_a_read_of_a_broken_answer_that_is_not_repeated_is_not_reported() -> None:
    looks = [Call("inventory", id="call_1"), Pause(5), Break()]
    model = ScriptedModel(looks, [Call("what_time", id="call_1")], "It is 07:00.")
    events = run_virtual(Scene(RetryingModel(model)).wish("what do I have?"))

    returns = [event for event in events if event.event_type == "tool_return"]
    assert [(event.metadata["name"], event.content) for event in returns] == [("what_time", "07:00, day")]
    assert problems_of(events) == []


def test_a_chain_that_keeps_breaking_is_tried_three_times_and_then_reported() -> None:
    breaks = [Say("One moment. "), GIVE, Break()]
    scene = Scene(RetryingModel(model := ScriptedModel(breaks, breaks, [Say("One moment. "), GIVE], "Done.")))
    events = run_virtual(scene.wish("give me a diamond"))
    assert len(model.requests) == 4
    assert events[-1].metadata["attempts"] == 4
    assert scene.commands == ["/give player1 diamond 1"]
    assert problems_of(events) == []

    scene = Scene(RetryingModel(ScriptedModel([GIVE], breaks, breaks, breaks, "You have it.")))
    events = run_virtual(scene.wish("give me a diamond"))
    assert kinds(events)[-2:] == ["error", "content"]
    assert problems_of(events) == []
    assert "broke off, at 3 tries" in events[-2].content
    assert events[-2].metadata["error"] == "ChainBroken"
    assert events[-1].metadata["is_complete"] is False
    assert (events[-1].metadata["attempts"], events[-1].metadata["broken"]) == (4, ["lost"] * 3)
    assert validate_tool_chain(scene.chat.messages)
    assert text_of(run_virtual(scene.wish("and now?"))) == "You have it."  # the conversation continues


def test_a_wish_that_a_limit_ends_is_not_complete() -> None:
    scene = Scene(ScriptedModel(lambda request: [Call("say", text=str(len(request.messages)))]))
    events = run_virtual(scene.wish("talk!"))
    assert problems_of(events) == []
    assert (events[-1].metadata["stop_reason"], events[-1].metadata["is_complete"]) == ("round_limit", False)


def test_a_wish_that_is_answered_at_a_limit_is_complete() -> None:
    def talkative(request: Request) -> Any:
        return "That is all." if request.final else [Call("say", text=str(len(request.messages)))]

    events = run_virtual(Scene(ScriptedModel(talkative)).wish("talk!"))
    assert problems_of(events) == []
    assert (events[-1].metadata["stop_reason"], events[-1].metadata["is_complete"]) == ("round_limit", True)


def test_attempts_are_counted_whether_the_wish_is_answered_or_not() -> None:
    breaks = [Say("One moment. "), GIVE, Break()]
    events = run_virtual(Scene(RetryingModel(ScriptedModel(breaks, [GIVE], breaks, "Done."))).wish("give me a diamond"))
    assert (events[-1].metadata["attempts"], events[-1].metadata["broken"]) == (4, ["lost", "lost"])


def test_if_you_stop_reading_the_run_ends_and_the_conversation_continues() -> None:
    async def main() -> None:
        scene = Scene(ScriptedModel([Say("One. Two. "), GIVE], "Hello."))
        events = stream_chat("give me a diamond", scene.chat)
        assert (await anext(events)).content == "One. "
        await events.aclose()
        assert validate_tool_chain(scene.chat.messages)
        assert text_of(await scene.wish("hello?")) == "Hello."
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main)


async def two_wishes(model: Model) -> tuple[Scene, list[list[StreamEvent]]]:
    scene = Scene(model)
    return scene, [await scene.wish("give me two diamonds"), await scene.wish("give me a torch")]


@pytest.mark.parametrize("name", ["deepseek-chat", "deepseek-reasoner"])
@pytest.mark.parametrize("fault", ["cut_by_lost_connection", "clean_end_without_finish", "finish_says_calls_on_cut"])
def test_deepseek_goes_through_a_chain_of_several_turns(name: str, fault: str) -> None:
    async def main() -> None:
        async with FaultyServer(script()) as server:
            model = connect(f"deepseek:{name}", base_url=server.base_url(fault=fault), api_key="none")
            scene, wishes = await two_wishes(model)
        for events in wishes:
            assert problems_of(events) == []
            assert events[-1].metadata["is_complete"] is True
        assert [events[-1].metadata["tool_calls"] for events in wishes] == [2, 4]
        assert text_of(wishes[1]).endswith("You have 2 × diamond, 1 × torch now.")
        assert scene.commands == ["/give player1 diamond 2", "/give player1 torch 1"]
        assert set(server.broken.values()) == {fault}
        said = [message for message in server.bodies[-1]["messages"] if message["role"] == "assistant"]
        assert len(said) == 5
        if name == "deepseek-reasoner":  # it requires its reasoning, and refuses a history without it
            assert all("The wish is" in message["reasoning_content"] for message in said)
            assert "reasoning" in kinds(wishes[0])

    asyncio.run(main())


@pytest.mark.skipif("DEEPSEEK_API_KEY" not in os.environ, reason="no DEEPSEEK_API_KEY: the real models are not asked")
@pytest.mark.parametrize("name", ["deepseek-chat", "deepseek-reasoner"])
def test_the_real_deepseek_goes_through_a_chain_of_several_turns(name: str) -> None:
    scene, wishes = asyncio.run(two_wishes(connect(f"deepseek:{name}")))
    for events in wishes:
        assert problems_of(events) == []
        end = events[-1].metadata
        assert end["is_complete"] is True
        assert end["tool_calls"] == end["tool_returns"] >= 1
    assert dict(scene.world.player("player1").inventory) == {"diamond": 2, "torch": 1}


def test_a_sentence_leaves_when_it_is_complete_though_a_command_is_still_being_written() -> None:
    script = [Say("One moment."), Pause(3), Call("give", item="diamond", count=1)]
    scene, left = Scene(ScriptedModel(script, [Say("Done."), Pause(2)])), dict[str, float]()

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        start = clock()
        async for event in stream_chat("give me a diamond", scene.chat):
            left.setdefault(event.content, clock() - start)

    run_virtual(main())
    assert left["One moment."] <= 0.05
    assert left["Done."] <= 3.1
