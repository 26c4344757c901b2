"""One history over many turns: it continues whatever happened to the previous turn, and can be saved at any time."""

from __future__ import annotations

import asyncio
import math
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, on_every_wire, results_in, roles

from unbroken import (
    Agent,
    Allow,
    Assistant,
    CallContext,
    ChainBroken,
    Conversation,
    Policy,
    ScriptedModel,
    TextAdded,
    Transcript,
    User,
    UserError,
    Wait,
    client_tool,
    tool,
)
from unbroken.errors import ProviderError, Unauthorized
from unbroken_testing import Break, Call, Fail, Pause, Say, run_virtual
from unbroken_wires.messages import Message


@on_every_wire
def test_the_history_continues_from_turn_to_turn(wire: str) -> None:
    model = ScriptedModel([Call("look"), Call("look", n=2)], "One.", "Two.", Call("look"), "Three.", wire=wire)
    chat = Conversation(Agent(model, Desk().tools("look")))

    async def main() -> list[str]:
        return [(await chat.say(prompt)).text for prompt in ("a", "b", "c")]

    assert run_virtual(main()) == ["One.", "Two.", "Three."]
    expected = ["User", "Assistant", "ToolMessage", "Assistant", "User", "Assistant"]
    assert roles(chat.messages) == [*expected, "User", "Assistant", "ToolMessage", "Assistant"]
    accepted(model)
    can_go_on(chat.messages)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param(Fail(Unauthorized("no")), Unauthorized, id="refused"),
        pytest.param(Break(), ChainBroken, id="broken"),
    ],
)
@on_every_wire
def test_after_a_failed_turn_the_last_prompt_can_be_repeated(wire: str, failure: Any, error: Any) -> None:
    model = ScriptedModel(Call("look"), [Say("I"), failure], "Done.", "And this.", wire=wire)
    chat = Conversation(Agent(model, Desk().tools("look")))

    async def main() -> list[str]:
        with pytest.raises(error) as caught:
            await chat.say("Go.")
        assert caught.value.messages == chat.messages
        can_go_on(chat.messages)
        return [(await chat.say()).text, (await chat.say("And?")).text]

    assert run_virtual(main()) == ["Done.", "And this."]
    accepted(model)


def test_a_cancelled_turn_keeps_its_text() -> None:
    model = ScriptedModel([Say("Once upon a time"), Pause(9.0), Say("there was")], "The end.")
    chat = Conversation(Agent(model))

    async def main() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await chat.say("Tell me a story.")
        assert [getattr(message, "text", "") for message in chat.messages] == ["Tell me a story.", "Once upon a time"]
        return (await chat.say("And then?")).text

    assert run_virtual(main()) == "The end."
    accepted(model)


def test_one_turn_at_a_time() -> None:
    chat = Conversation(Agent(ScriptedModel([Pause(5.0), "One."], "Two.")))

    async def main() -> list[str]:
        first = asyncio.create_task(chat.say("a"))
        await asyncio.sleep(1.0)
        before = chat.messages
        for refused in (chat.say("b"), chat.resume({})):
            with pytest.raises(UserError, match="a turn of this conversation is still active"):
                await refused
        with pytest.raises(UserError, match="a turn of this conversation is still active"):
            chat.stream("b")
        assert chat.messages == before
        return [(await first).text, (await chat.say("b")).text]

    assert run_virtual(main()) == ["One.", "Two."]


def test_a_streamed_turn_is_in_the_history_too() -> None:
    chat = Conversation(Agent(ScriptedModel(Call("look"), "One.", "Two."), Desk().tools("look")))

    async def main() -> str:
        stream = chat.stream("a")
        text = "".join([event.text async for event in stream if isinstance(event, TextAdded)])
        assert stream.messages == chat.messages == stream.result.messages
        assert (await chat.say("b")).text == "Two."
        return text

    assert run_virtual(main()) == "One."


def test_a_path_where_nothing_can_be_saved_is_named(tmp_path: Path) -> None:
    chat = Conversation(Agent(ScriptedModel("One.")))
    with pytest.raises(UserError, match=r"cannot be saved in .*/no/chat\.json: No such file or directory"):
        chat.save(tmp_path / "no" / "chat.json")


def test_only_the_owner_can_read_a_saved_conversation(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    (tmp_path / "chat.json.new").write_text("left behind by a crash")
    for _ in range(2):
        Conversation(Agent(ScriptedModel("One."))).save(file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_half_a_character_beside_a_number_that_json_lacks_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"

    async def main() -> None:
        chat = Conversation(Agent(ScriptedModel("One.")), store={"half": "\ud800", "mean": math.nan, "n": 2**70})
        await chat.say("a \udc00")
        chat.save(file)
        again = Conversation.load(chat.agent, file)
        assert again.store == {"half": "\ufffd", "mean": None, "n": 2**70}
        assert [message.text for message in again.messages] == ["a \ufffd", "One."]

    asyncio.run(main())


def test_a_saved_conversation_can_be_continued_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"

    async def main() -> None:
        chat = Conversation(Agent(ScriptedModel(Call("look", q="日本 \U0001f600"), "One."), Desk().tools("look")))
        await chat.say("a")
        chat.store["mood"] = ["good"]
        chat.store["secret"] = object()
        chat.save(file)
        model = ScriptedModel("Two.")
        again = Conversation.load(Agent(model), file)
        assert again.messages == chat.messages
        assert again.store == {"mood": ["good"]}
        assert (await again.say("b")).text == "Two."
        accepted(model)

    run_virtual(main())
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_a_waiting_conversation_is_saved_with_its_waiting_calls(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    desk = Desk()
    tools = [desk.tool("free"), desk.tool("asks", approve=True), client_tool("locate", "Where?", {"type": "object"})]

    async def main() -> None:
        model = ScriptedModel([Call("free"), Call("asks"), Call("locate")])
        chat = Conversation(Agent(model, tools, on_approval=lambda call: Wait()))
        result = await chat.say("Go.")
        assert result.stop_reason == "waiting"
        chat.save(file)
        model = ScriptedModel("Done.", "And this.")
        again = Conversation.load(Agent(model, tools), file)
        asks, locate = again.pending
        assert (await again.resume({asks.id: Allow()})).stop_reason == "waiting"
        again.save(file)
        again = Conversation.load(Agent(model, tools), file)
        assert again.pending == (locate,)
        assert (asks.name, locate.name) == ("asks", "locate")
        assert (await again.resume({locate.id: "Rome"})).text == "Done."
        assert [text for _, text in results_in(again.messages)] == ["ok", "ok", "Rome"]
        assert (await again.say("And?")).text == "And this."
        accepted(model)

    run_virtual(main())
    assert desk.names == ["free", "asks"]


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel("Never."))
    with pytest.raises(UserError, match="cannot be loaded"):
        Conversation.load(agent, tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(UserError, match=r"not what Conversation\.to_json returns"):
        Conversation.load(agent, tmp_path / "list.json")


def test_a_refused_prompt_changes_nothing() -> None:
    chat = Conversation(
        Agent(ScriptedModel(Call("asks"), "Done."), [Desk().tool("asks", approve=True)], on_approval=lambda c: Wait())
    )

    async def main() -> str:
        await chat.say("Go.")
        before = chat.messages
        with pytest.raises(UserError, match="the prompt is empty"):
            await chat.say("")
        (waiting,) = chat.pending
        assert chat.messages == before
        return (await chat.resume({waiting.id: Allow()})).text

    assert run_virtual(main()) == "Done."


def test_a_refused_option_leaves_the_history_unchanged() -> None:
    chat = Conversation(Agent(ScriptedModel("Done.")))

    async def main() -> None:
        with pytest.raises(UserError, match="cannot become a JSON Schema"):
            await chat.say("Go.", output=type("Odd", (), {}))
        assert chat.messages == ()
        await chat.say("Go.")

    run_virtual(main())
    assert roles(chat.messages) == ["User", "Assistant"]


def test_a_stream_that_nobody_reads_is_not_a_turn() -> None:
    model = ScriptedModel("One.", "Two.")
    chat = Conversation(Agent(model))

    async def main() -> None:
        unread, first = chat.stream("never"), chat.stream("a")
        async for _ in first:
            with pytest.raises(UserError, match="still active"):
                await anext(unread)
        assert (await chat.say("b")).text == "Two."

    run_virtual(main())
    assert [getattr(message, "text", "") for message in chat.messages] == ["a", "One.", "b", "Two."]


def test_without_waiting_calls_there_is_nothing_to_resume() -> None:
    with pytest.raises(UserError, match="no call of this conversation is waiting"):
        run_virtual(Conversation(Agent(ScriptedModel("Never."))).resume({}))


def test_tools_remember_from_turn_to_turn() -> None:
    @tool
    async def count(context: CallContext[Any]) -> int:
        """Count."""
        context.store["n"] = context.store.get("n", 0) + 1
        return context.store["n"]

    chat = Conversation(Agent(ScriptedModel(Call("count"), "One.", Call("count"), "Two."), [count]))

    async def main() -> None:
        await chat.say("a")
        await chat.say("b")

    run_virtual(main())
    assert [text for _, text in results_in(chat.messages)] == ["1", "2"]
    assert chat.store == {"n": 2}


# What is sent of a long history


@pytest.mark.parametrize("length", range(8))
@on_every_wire
def test_a_history_that_is_cut_anywhere_is_still_accepted(wire: str, length: int) -> None:
    """Also between a call and its result, and if nothing at all would be left."""
    model = ScriptedModel(
        [Call("look"), Call("look", n=2)], "One.", [Say("Hm."), Call("look")], Call("look", n=3), "Two.", wire=wire
    )

    def last(messages: tuple[Message, ...]) -> Sequence[Message]:
        return messages[len(messages) - length :] if length else ()

    chat = Conversation(Agent(model, Desk().tools("look")), trim=last)

    async def main() -> None:
        await chat.say("a")
        await chat.say("b")

    run_virtual(main())
    accepted(model)
    assert len(chat.messages) == 10
    assert all(len(request.messages) <= length + 4 for request in model.requests)


def test_a_history_that_is_cut_in_the_middle_of_a_turn_begins_with_its_question() -> None:
    model = ScriptedModel(*[Call("look", n=n) for n in range(4)], "Done.")
    chat = Conversation(Agent(model, Desk().tools("look"), guidance=False), trim=lambda messages: messages[-2:])
    run_virtual(chat.say("What is it?"))
    assert [roles(request.messages) for request in model.requests] == [
        ["User"],
        *[["User", "Assistant", "ToolMessage"]] * 4,
    ]
    assert {getattr(request.messages[0], "text", "") for request in model.requests} == {"What is it?"}


def test_a_summary_replaces_old_messages() -> None:
    model = ScriptedModel("One.", "Two.")
    chat = Conversation(
        Agent(model), [User.of("old"), Assistant("older")], trim=lambda m: (User.of("In short."), *m[-1:])
    )
    run_virtual(chat.say("a"))
    assert [getattr(message, "text", "") for message in model.requests[0].messages] == ["In short.", "a"]
    assert len(chat.messages) == 4


def test_an_invalid_trim_function_is_named() -> None:
    def fails(messages: tuple[Message, ...]) -> Sequence[Message]:
        raise ZeroDivisionError("division by zero")

    chat = Conversation(Agent(ScriptedModel("Never.")), trim=fails)
    with pytest.raises(UserError, match=r"the function given as trim= failed: division by zero"):
        run_virtual(chat.say("a"))
    can_go_on(chat.messages)


def test_an_agent_can_trim_and_a_run_can_override_it() -> None:
    model = ScriptedModel("One.", "Two.")
    agent = Agent(model, trim=lambda messages: messages[-1:])
    history = [User.of("a"), Assistant("b")]

    async def main() -> None:
        await agent.run("c", history=history)
        await agent.run("d", history=history, trim=lambda messages: messages[:])

    run_virtual(main())
    assert [len(request.messages) for request in model.requests] == [1, 3]


def test_a_transcript_is_extended_in_place_and_a_list_is_not() -> None:
    transcript, listed = Transcript(), [User.of("a"), Assistant("b")]

    async def main() -> None:
        agent = Agent(ScriptedModel("One.", "Two."))
        await agent.run("Go.", history=transcript)
        await agent.run("Go.", history=listed)

    run_virtual(main())
    assert roles(transcript.messages) == ["User", "Assistant"]
    assert len(listed) == 2


def test_every_turn_gets_the_deps_of_the_conversation() -> None:
    @tool(effect="read")
    def whose(context: CallContext[str]) -> str:
        """Whose it is."""
        return context.deps

    model = ScriptedModel(Call("whose"), "a", Call("whose"), "b", Call("whose"), "c")
    chat = Conversation(Agent(model, [whose]), deps="Ada's")
    told = [chat.say_sync("1"), chat.say_sync("2", deps="Grace's")]
    loaded = Conversation.from_json(chat.agent, chat.to_json(), deps="Ada's again")
    told.append(loaded.say_sync("3"))
    assert [result.calls[0].result.text for result in told] == ["Ada's", "Grace's", "Ada's again"]


@pytest.mark.parametrize("ends_with", ["cancellation", "error", "answer", "another prompt"])
def test_the_next_turn_knows_how_calls_ended_that_were_in_the_background(ends_with: str) -> None:
    @tool(background=0)
    async def build() -> str:
        """Builds."""
        await asyncio.sleep(10)
        return "built"

    @tool(approve=True)
    async def pay() -> str:
        """Pays."""
        return "paid"

    second: Any = {"error": Fail(ProviderError("down")), "another prompt": Call("pay")}.get(ends_with, "Wait.")
    model = ScriptedModel([Call("build")], [second], "Fine.")
    policy = Policy(wait_for_background=ends_with != "answer")
    chat = Conversation(Agent(model, [build, pay], policy=policy, on_approval=lambda call: Wait()))

    async def main() -> None:
        turn = asyncio.create_task(chat.say("Build it."))
        await asyncio.sleep(3)
        if ends_with == "cancellation":
            turn.cancel()
        await asyncio.wait([turn])
        assert (await chat.say("And now?")).text == "Fine."

    run_virtual(main())
    arrived = [message.text for message in model.requests[-1].messages if isinstance(message, User) and message.arrived]
    how = "has finished. Its result:]\nbuilt" if ends_with == "another prompt" else "was cancelled:]"
    assert len(arrived) == 1
    assert arrived[0].startswith(f"[Background call $call_1 (`build`) {how}")
