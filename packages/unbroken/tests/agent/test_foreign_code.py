"""User code may do anything: approvers that raise, tools that ignore cancellation, callers that forget to return. No
run hangs, no call runs twice or out of order, and every call has a result."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from typing import Any, cast

import pytest
from scenes import accepted, play, play_aloud, results_in

from unbroken import (
    Agent,
    Allow,
    CallContext,
    CallFinished,
    CallStarted,
    Conversation,
    Deny,
    Edit,
    Event,
    Limits,
    Policy,
    Result,
    Schedule,
    ScriptedModel,
    ToolCall,
    ToolResult,
    Transcript,
    User,
    UserError,
    Wait,
    client_tool,
    tool,
)
from unbroken.errors import InvalidTool
from unbroken.middleware import Middleware
from unbroken.tools.caller import Caller
from unbroken.tools.threads import SIZE
from unbroken_testing import Call, Pause, Raw, Say, run_virtual
from unbroken_wires.messages import Assistant, Message


async def do(n: int = 0) -> str:
    """Do something."""
    return f"acted {n}"


act = tool(name="act")(do)


def test_a_caller_that_forgets_to_return_is_a_failing_call() -> None:
    class Forgetful(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            await call_next(call, context)
            return cast("ToolResult", None)

    model = ScriptedModel([Call("act")], "Done.")
    result = play(Agent(model, [act], middleware=[Forgetful()]))
    assert "it returned NoneType, and no ToolResult" in str(result.calls[0].result.exception)
    assert result.text == "Done."


def test_a_result_with_another_calls_id_is_assigned_to_the_call_that_was_made() -> None:
    kept = ToolResult("of another", ())

    class Keeps(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            return kept

    model = ScriptedModel([Call("act", n=1), Call("act", n=2)], "Done.")
    accepted(model, play(Agent(model, [act], middleware=[Keeps()])))


class Failed(BaseException):
    """As test frameworks raise it."""


def test_a_base_exception_ends_the_run_and_does_not_block_it() -> None:
    @tool(approve=True)
    async def asks() -> str:
        return "never"

    def refuse(call: ToolCall) -> Allow:
        raise Failed("must not be asked")

    async def main() -> None:
        chat = Conversation(Agent(ScriptedModel([Call("asks")], "Done."), [asks], on_approval=refuse))
        with pytest.raises(Failed):
            await asyncio.wait_for(chat.say("Go."), 5)
        Transcript(chat.messages)
        assert len(results_in(chat.messages)) == 1

    run_virtual(main())


def test_a_system_exit_in_an_approver_does_not_end_the_background_loop() -> None:
    @tool(approve=True)
    async def asks() -> str:
        return "never"

    async def leave(call: ToolCall) -> Allow:
        raise SystemExit(3)

    agent = Agent(ScriptedModel([Call("asks")], "Done."), [asks], on_approval=leave)
    assert agent.run_sync("Go.").text == "Done."
    assert Agent(ScriptedModel("Still here.")).run_sync("Go.").text == "Still here."


def test_synchronous_tools_run_in_a_forked_child() -> None:
    @tool
    def compute() -> str:
        return "computed"

    async def ask() -> str:
        return (await Agent(ScriptedModel([Call("compute")], "Done."), [compute]).run("Go.")).calls[0].result.text

    assert asyncio.run(ask()) == "computed"
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if asyncio.run(ask()) == "computed" else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("how", ["timeout", "seconds", "cancel"])
def test_a_tool_that_ignores_cancellation_is_answered_and_abandoned(how: str) -> None:
    heard = 0

    @tool(timeout=1.0 if how == "timeout" else None)
    async def stubborn() -> str:
        nonlocal heard
        while heard < 1000:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                heard += 1
        return "late"

    async def main() -> None:
        limits = Limits(seconds=2.0 if how == "seconds" else None)
        chat = Conversation(Agent(ScriptedModel([Call("stubborn")], "Done."), [stubborn], limits=limits))
        turn = asyncio.ensure_future(chat.say("Go."))
        await asyncio.sleep(3)
        if how == "cancel":
            turn.cancel()
        await asyncio.wait([turn], timeout=60)
        assert turn.done()
        assert heard
        (told,) = [text for _, text in results_in(chat.messages)]
        assert told.startswith(
            {"timeout": "Error: Execution timeout", "seconds": "Error: cancelled", "cancel": "Error: cancelled"}[how]
        )
        heard_enough()

    def heard_enough() -> None:
        nonlocal heard
        heard = 1000

    run_virtual(main())


def test_a_key_may_be_anything() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("do not compare me")

        __hash__ = None  # type: ignore[assignment] - that is what is odd about it

    for value in ({"a": 1}, [1, {2}], float("nan"), Odd()):
        written = tool(name="act", key=lambda arguments, value=value: value)(do)
        model = ScriptedModel([Call("act", n=1), Call("act", n=2)], "Done.")
        assert [call.result.text for call in play(Agent(model, [written])).calls] == ["acted 1", "acted 2"]


def test_a_failing_key_function_is_reported_and_an_async_one_refused() -> None:
    def leaves(arguments: dict[str, Any]) -> str:
        raise SystemExit(1)

    result = play(Agent(ScriptedModel([Call("act")], "Done."), [tool(name="act", key=leaves)(do)]))
    assert "could not be prepared" in result.calls[0].result.text

    async def later(arguments: dict[str, Any]) -> str:
        return "x"

    with pytest.raises(InvalidTool, match="key must not be async"):
        tool(key=later)(do)


def test_an_invalid_edit_is_reported() -> None:
    asks = tool(name="act", approve=True)(do)
    refused = r"Edit\(arguments=…\): expected a dict, got dict with int in it"
    for arguments, words in (
        ({1: 2, "n": 3}, refused),
        ({"n": {1, 2}}, "are not JSON"),
        ({"n": float("nan")}, "are not JSON"),
    ):
        model = ScriptedModel([Call("act")], "Done.")
        result = play(Agent(model, [asks], on_approval=lambda call, a=arguments: Edit(cast("Any", a))))
        assert re.search(words, result.calls[0].result.text)


def test_an_edited_call_waits_for_a_later_one_that_now_has_its_key() -> None:
    log: list[str] = []

    @tool(key=lambda arguments: arguments["path"], approve=lambda arguments: arguments["path"] == "a")
    async def write(path: str, n: int) -> str:
        log.append(f"start {n}")
        await asyncio.sleep(1)
        log.append(f"end {n}")
        return path

    async def edit(call: ToolCall) -> Edit:
        await asyncio.sleep(0.5)
        return Edit({"path": "b", "n": 1})

    script = [Call("write", path="a", n=1), Call("write", path="b", n=2)]
    play(Agent(ScriptedModel(script, "Done."), [write], on_approval=edit))
    assert log == ["start 2", "end 2", "start 1", "end 1"]


def piece(index: int, id: str, name: str, arguments: str) -> bytes:
    call = f'{{"index":{index},"id":"{id}","type":"function","function":{{"name":"{name}","arguments":"{arguments}"}}}}'
    return f'data: {{"choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}},"finish_reason":null}}]}}\n\n'.encode()


END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, ["act", "look", "look"]), ({"limits": Limits(calls=1)}, ["act"]), ({"several_calls": False}, ["act"])],
    ids=["free", "one call allowed", "one call asked for"],
)
def test_if_calls_are_out_of_order_none_starts_early(options: dict[str, Any], expected: list[str]) -> None:
    """Indexes 1, 0, 0: the order of such a message is that of arrival, whatever the numbers are."""
    ran: list[str] = []

    @tool(effect="read")
    async def look(n: int = 0) -> str:
        ran.append("look")
        return "seen"

    @tool(name="act")
    async def write() -> str:
        ran.append("act")
        return "written"

    steps = [
        Raw(piece(1, "A", "act", "{}")),
        Raw(piece(0, "B", "look", "{}"), after=1.0),
        Raw(piece(0, "C", "look", '{\\"n\\": 1}'), after=1.0),
        Raw(END, after=1.0),
    ]
    play(Agent(ScriptedModel(steps, "Done."), [look, write], **options))
    assert ran == expected


def test_a_call_that_is_withdrawn_after_its_start_is_reported_as_ended() -> None:
    text = '<tool_call>{\\"name\\": \\"look\\", \\"arguments\\": {\\"n\\": 1}}</tool_call>'
    said = f'data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}\n\n'.encode()

    @tool(effect="read")
    async def look(n: int) -> str:
        await asyncio.sleep(5)
        return "seen"

    steps = [Raw(said), Raw(piece(0, "A", "look", '{\\"n\\": 1}'), after=1.0), Raw(END, after=1.0)]
    _, events = play_aloud(Agent(ScriptedModel(steps, "Done."), [look]))
    started = [event.call_id for event in events if isinstance(event, CallStarted)]
    assert sorted(started) == sorted(event.call_id for event in events if isinstance(event, CallFinished))


@pytest.mark.parametrize("on_error", ["continue", "finish"])
def test_what_happened_before_a_wait_still_counts_after_it(on_error: Any) -> None:
    @tool(effect="read", overlap=True)
    async def fails() -> str:
        await asyncio.sleep(1)
        raise ValueError("no")

    asks = tool(name="asks", approve=True, overlap=True)(do)

    async def main() -> None:
        model = ScriptedModel([Call("fails", id="f"), Call("asks", id="s")], "Done.")
        agent = Agent(model, [fails, asks], on_error=on_error, on_approval=lambda call: Wait(), schedule=Schedule.EAGER)
        waiting = await agent.run("Go.")
        result = await agent.resume(waiting, {"s": Allow()})
        ran = result.calls[-1].result.text
        if on_error == "finish":
            assert (result.stop_reason, ran) == ("tool_failure", "Error: not executed: an earlier call failed")
        else:
            assert (result.stop_reason, ran) == ("answered", "acted 0")

    run_virtual(main())


def test_the_run_does_not_count_as_all_failed_if_one_call_succeeded_before_a_wait() -> None:
    asks = tool(name="asks", approve=True)(do)

    async def main() -> None:
        model = ScriptedModel([Call("act", id="a"), Call("asks", id="s")], "Done.")
        agent = Agent(model, [act, asks], policy=Policy(on_all_failed="stop"), on_approval=lambda call: Wait())
        result = await agent.resume(await agent.run("Go."), {"s": Deny("no")})
        assert (result.text, result.stop_reason) == ("Done.", "answered")

    run_virtual(main())


def test_an_answer_next_to_a_waiting_call_waits_too() -> None:
    async def main() -> None:
        here = client_tool("here", "Where are we?", {"type": "object"})
        model = ScriptedModel([Call("final_answer", value=3), Call("here", id="h")])
        agent = Agent(model, [here])
        waiting = await agent.run("Go.", output=int)
        assert (waiting.stop_reason, [call.id for call in waiting.pending]) == ("waiting", ["h"])

    run_virtual(main())


def test_a_history_whose_calls_have_no_numbers_can_be_continued() -> None:
    async def main() -> None:
        calls = tuple(ToolCall(id, "act", {"n": n}) for n, id in enumerate("AB"))
        transcript = Transcript([User.of("Go."), Assistant("", calls)])
        model = ScriptedModel("Done.")
        result = await Agent(model, [act]).run(history=transcript)
        assert [call.result.text for call in result.calls] == ["acted 0", "acted 1"]
        accepted(model, result)

    run_virtual(main())


def test_ids_are_unique_in_a_run_even_if_only_a_part_of_its_history_is_sent() -> None:
    def last_two(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return messages[-2:]

    script: list[Any] = [[Call("act", n=n, id="")] for n in range(4)]
    model = ScriptedModel(*script, "Done.")
    result = play(Agent(model, [act], trim=last_two))
    ids = [call.id for call in result.calls]
    assert len(set(ids)) == len(ids) == 4
    accepted(model)


def test_a_result_for_one_user_is_not_cached_for_another() -> None:
    def tools_of(user: str) -> Any:
        @tool(effect="read", cache=60.0)
        async def profile() -> str:
            return f"profile of {user}"

        return [profile]

    async def main() -> None:
        users = iter(["ann", "bob"])
        model = ScriptedModel([Call("profile")], "Done.", [Call("profile")], "Done.")
        agent = Agent(model, lambda turn, transcript: tools_of(next(users) if turn == 0 else "nobody"))
        said = [(await agent.run("Who?")).calls[0].result.text for _ in range(2)]
        assert said == ["profile of ann", "profile of bob"]

    run_virtual(main())


def test_a_sink_that_raises_a_base_exception_is_removed() -> None:
    def listens(event: Event) -> None:
        if isinstance(event, CallFinished):
            raise Failed("must not happen")

    async def main() -> None:
        agent = Agent(ScriptedModel([Call("act")], "Done."), [act], sinks=[listens])
        assert (await asyncio.wait_for(agent.run("Go."), 5)).text == "Done."

    run_virtual(main())


class Place:
    """Equal by name, with an own repr each."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


@pytest.mark.parametrize(
    ("keys", "together"),
    [
        ([Place("a"), Place("a")], False),
        ([1, 1.0], False),
        ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], False),
        ([{1, 2}, {2, 1}], False),
        ([Place("a"), Place("b")], True),
        (["1", 1], True),
        ([None, None], False),
    ],
    ids=["own class", "numbers", "dicts", "sets", "unequal", "text and number", "none"],
)
def test_equal_keys_run_one_after_another_whatever_they_are(keys: list[Any], together: bool) -> None:
    running = most = 0

    @tool(key=lambda arguments: keys[arguments["n"]])
    async def write(n: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return "written"

    play(Agent(ScriptedModel([Call("write", n=0), Call("write", n=1)], "Done."), [write]))
    assert (most == 2) is together


@pytest.mark.parametrize(
    "options", [{"on_error": "finish"}, {"policy": Policy(on_all_failed="stop")}], ids=["on_error", "on_all_failed"]
)
def test_what_the_time_limit_cancels_has_not_failed(options: Any) -> None:
    @tool
    async def slow() -> str:
        await asyncio.sleep(100)
        return "late"

    agent = Agent(ScriptedModel([Call("slow")], "Here is what I have."), [slow], limits=Limits(seconds=2.0), **options)
    result = play(agent)
    assert (result.stop_reason, result.text) == ("time_limit", "Here is what I have.")


@pytest.mark.parametrize(
    "options", [{"on_error": "finish"}, {"policy": Policy(on_all_failed="stop")}], ids=["on_error", "on_all_failed"]
)
def test_a_call_that_is_refused_as_a_repetition_has_not_failed(options: Any) -> None:
    script: list[Any] = [[Call("act")] for _ in range(5)]
    result = play(Agent(ScriptedModel(*script, "Enough."), [act], **options))
    assert (result.stop_reason, result.text) == ("loop", "Enough.")


def test_a_plain_handler_may_wait_for_a_person_while_other_calls_continue() -> None:
    looked = threading.Event()

    @tool(effect="read")
    async def look() -> str:
        looked.set()
        return "seen"

    def ask(call: ToolCall) -> Allow:
        assert looked.wait(10)
        return Allow()

    asks = tool(name="asks", approve=True)(do)
    script = [Call("look"), Call("asks")]
    agent = Agent(ScriptedModel(script, "Done."), [look, asks], on_approval=ask, schedule=Schedule.PARALLEL)
    result = asyncio.run(agent.run("Go."))
    assert [call.result.text for call in result.calls] == ["seen", "acted 0"]


def test_the_time_limit_of_a_synchronous_tool_starts_when_it_gets_a_thread() -> None:
    """All threads are taken for longer than its time-out; then it runs at once."""
    go = threading.Event()

    @tool(timeout=None)
    def hold(n: int) -> int:
        go.wait(30)
        return n

    @tool(timeout=1.0)
    def compute() -> str:
        return "computed"

    async def main() -> Result:
        asyncio.get_running_loop().call_later(1.3, go.set)
        script = [*(Call("hold", n=n) for n in range(SIZE)), Call("compute")]
        return await Agent(ScriptedModel(script, "Done."), [hold, compute]).run("Go.")

    assert asyncio.run(main()).calls[-1].result.text == "computed"


@pytest.mark.parametrize("answers", [None, [Allow()], {"s": True}], ids=["nothing", "a list", "a truth"])
def test_ambiguous_answers_are_refused(answers: Any) -> None:
    asks = tool(name="asks", approve=True)(do)

    async def main() -> None:
        agent = Agent(ScriptedModel([Call("asks", id="s")]), [asks], on_approval=lambda call: Wait())
        waiting = await agent.run("Go.")
        with pytest.raises(UserError, match="resume: "):
            await agent.resume(waiting, answers)

    run_virtual(main())


def test_a_schedule_may_be_given_by_its_name() -> None:
    assert Agent(ScriptedModel("Done."), schedule="parallel").settings.schedule is Schedule.PARALLEL
    with pytest.raises(UserError, match="'sequential', 'parallel' or 'eager'"):
        Agent(ScriptedModel("Done."), schedule=cast("Any", "fast"))


def test_a_waiting_run_can_be_resumed_synchronously() -> None:
    asks = tool(name="asks", approve=True)(do)
    agent = Agent(ScriptedModel([Call("asks", id="s")], "Done."), [asks], on_approval=lambda call: Wait())
    assert agent.resume_sync(agent.run_sync("Go."), {"s": Allow()}).text == "Done."
    chat = Conversation(Agent(ScriptedModel([Call("asks", id="s")], "Done."), [asks], on_approval=lambda call: Wait()))
    chat.say_sync("Go.")
    assert chat.resume_sync({"s": Allow()}).text == "Done."
    with pytest.raises(UserError, match="it is not what Conversation"):
        Conversation.from_json(agent, agent_result().to_json())


def agent_result() -> Result:
    return Agent(ScriptedModel("Done.")).run_sync("Go.")


def test_a_permission_that_was_given_while_the_call_could_not_run_stays_valid() -> None:
    asks = tool(name="asks", approve=True)(do)

    async def main() -> None:
        model = ScriptedModel([Call("asks", n=1, id="A"), Call("asks", n=2, id="B")], "Done.")
        first = await Agent(model, [asks], on_approval=lambda call: Wait()).run("Go.")
        assert [call.id for call in first.pending] == ["A", "B"]
        agent = Agent(model, [asks])
        second = await agent.resume(first.to_json(), {"B": Allow()})
        assert [call.id for call in second.pending] == ["A"]
        third = await agent.resume(json.dumps(second.to_json()), {"A": Allow()})
        assert [text for _, text in results_in(third.messages)] == ["acted 1", "acted 2"]

    run_virtual(main())


def test_an_accepted_answer_is_still_valid_when_a_run_is_resumed() -> None:
    async def main() -> None:
        here = client_tool("here", "Where are we?", {"type": "object"})
        model = ScriptedModel([Call("final_answer", value=3), Call("here", id="h")])
        agent = Agent(model, [here])
        waiting = await agent.run("Go.", output=int)
        with pytest.raises(UserError, match="output="):
            await agent.resume(waiting, {"h": "Rome"})
        result = await agent.resume(waiting.to_json(), {"h": "Rome"}, output=int)
        assert (result.output, result.requests) == (3, 1)

    run_virtual(main())


def test_a_run_that_does_not_wait_is_not_resumed() -> None:
    async def main() -> None:
        agent = Agent(ScriptedModel("Done."))
        with pytest.raises(UserError, match="not waiting"):
            await agent.resume(await agent.run("Go."), {})

    run_virtual(main())


def test_the_answer_is_the_text_of_this_turn() -> None:
    """The history ends in an older answer, and time cuts the new one off."""
    model = ScriptedModel([Say("So far I see", over=1.0), Pause(1000.0)])
    history = [User.of("a"), Assistant("An older answer.")]
    result = play(Agent(model, limits=Limits(seconds=5.0, final_seconds=5.0)), "Go.", history=history)
    assert (result.text.strip(), result.stop_reason) == ("So far I see", "time_limit")
