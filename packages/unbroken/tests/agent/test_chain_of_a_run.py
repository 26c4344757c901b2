"""The chain of a run: what events, the result and the log report about it, how a model that stays silent or only
announces is asked to continue, and what happens to open calls at the end of a given history."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, on_every_wire, only, play, play_aloud, results_in, roles, texts

from unbroken import (
    Agent,
    Allow,
    CallStarted,
    ChainBroken,
    Conversation,
    Event,
    Limits,
    Policy,
    RetryingModel,
    RunFailed,
    RunFinished,
    ScriptedModel,
    Transcript,
    User,
    UserError,
    Wait,
)
from unbroken.errors import RateLimited
from unbroken.events import RequestRetried, event_from_json, event_to_json
from unbroken_testing import Answer, Break, Call, End, Fail, Say, Think, Uses, run_virtual
from unbroken_wires.messages import Assistant, Message, ToolCall, ToolMessage, ToolResult
from unbroken_wires.transcript import from_json
from unbroken_wires.wires.chain import chain_status, validate_tool_chain

ENGLISH = "Please continue the tool calls to the end and give the final answer."
CHINESE = "请继续完成工具调用链并给出最终回复。"


def guarded(*answers: Answer, **settings: Any) -> tuple[RetryingModel[ScriptedModel], ScriptedModel]:
    model = ScriptedModel(*answers, **settings)
    return RetryingModel(model, jitter=lambda: 0.0), model


def last_said(model: ScriptedModel) -> list[str]:
    """The last message of each request, if it is the user's."""
    return [m.text if isinstance(m := request.messages[-1], User) else "" for request in model.requests]


# What the run reports


def test_a_run_without_problems_reports_none() -> None:
    desk = Desk()
    model, asked = guarded([Call("look"), Call("act")], "Done.")
    result, events = play_aloud(Agent(model, desk.tools("look", "act")))
    (end,) = only(RunFinished, events)
    assert (end.complete, end.tool_calls, end.tool_returns, end.calls) == (True, 2, 2, 2)
    assert (end.fallback_used, end.attempts, end.requests, end.verdicts) == (False, 2, 2, [])
    assert from_json(end.messages) == result.messages
    assert (result.fallback_used, result.attempts, result.verdicts) == (False, 2, ())
    assert validate_tool_chain(result.messages)
    accepted(asked, result)


@on_every_wire
def test_a_run_with_broken_answers_reports_them(wire: str) -> None:
    desk = Desk()
    slow = Fail(RateLimited("slow down", status=429, retry_after=2.0))
    broken: Answer = [Say("Let me "), Call("look", id="c1"), Break()]
    model, asked = guarded(slow, broken, [Call("look")], [Say("It "), Break()], "It is done.", wire=wire)
    result, events = play_aloud(Agent(model, [desk.tool("look", effect="read")]))
    (end,) = only(RunFinished, events)
    assert (end.complete, end.tool_calls, end.tool_returns) == (True, 1, 1)
    assert (end.fallback_used, end.attempts, end.requests) == (True, 5, 2)
    kinds = [(verdict["kind"], verdict["turn"], verdict["attempt"]) for verdict in end.verdicts]
    assert kinds == [("limited", 0, 1), ("lost", 0, 2), ("lost", 1, 1)]
    assert [verdict["text_seen"] for verdict in end.verdicts] == [0, 7, 3]
    assert [(r.attempt, r.kind, r.wait, r.turn, r.model) for r in only(RequestRetried, events)] == [
        (1, "limited", 2.0, 0, "scripted:demo"),
        (2, "lost", 1.0, 0, "scripted:demo"),
        (1, "lost", 0.0, 1, "scripted:demo"),
    ]
    assert event_from_json(event_to_json(end)) == end
    assert (result.attempts, len(result.verdicts)) == (5, 3)
    accepted(asked, result)


def test_a_run_that_waits_is_not_complete() -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Call("asks")], "Done.")
    tools = [*desk.tools("look"), desk.tool("asks", approve=True)]
    result, events = play_aloud(Agent(model, tools, on_approval=lambda call: Wait()))
    (end,) = only(RunFinished, events)
    assert (end.complete, end.tool_calls, end.tool_returns, len(end.pending)) == (False, 2, 1, 1)
    assert not validate_tool_chain(result.messages)
    assert len(chain_status(result.messages).open) == 2


def test_plain_retries_of_an_answer_do_not_count_as_fallback() -> None:
    model, _ = guarded([Break()], Fail(RateLimited("slow down", status=429)), "Hello.")
    result = play(Agent(model))
    assert (result.fallback_used, result.attempts, result.requests) == (False, 3, 1)


def test_usage_covers_all_answers() -> None:
    lines: list[Answer] = [[Say("Let"), Uses(10, 1), Break()], [Say("Let me."), Uses(10, 5)]]
    model, _ = guarded(*lines, wire="anthropic-messages")
    _, events = play_aloud(Agent(model))
    (end,) = only(RunFinished, events)
    assert end.usage["input_tokens"] == 20


# The log


def test_the_log_reports_what_broke_and_how_the_chain_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "unbroken.chain")
    desk = Desk()
    model, _ = guarded(
        [Call("look")], [Say("Let me "), Call("look", note="b"), Break()], [Call("look", note="b")], "Done."
    )
    play(Agent(model, [desk.tool("look", effect="read")]), run_id="r7")
    broke, status = (record for record in caplog.records if record.name == "unbroken.chain")
    assert broke.levelname == "WARNING"
    assert broke.getMessage().startswith(
        "tool_chain_incomplete_on_stream run=r7 tool_calls=2 tool_returns=1 attempt=1 kind=lost"
    )
    assert status.getMessage() == "tool_chain_status run=r7 tool_calls=2 tool_returns=2 fallback_used=True"


def test_only_a_stream_that_broke_with_a_call_in_it_is_logged_as_an_incomplete_chain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A text that breaks off, an answer without streaming, an empty one and no answer leave no call open."""
    caplog.set_level(logging.WARNING, "unbroken.chain")
    begun = [Call("look"), Break()]
    cases: list[list[Answer]] = [
        [[Say("It is "), Break()], "It is noon."],
        [Fail(RateLimited("slow down", status=429)), "It is noon."],
        ["", "It is noon."],
        [begun, begun, [Call("look")], "It is noon."],
    ]
    names: list[list[str]] = []
    for answers in cases:
        caplog.clear()
        play(Agent(guarded(*answers)[0], Desk().tools("look")))
        names.append([record.getMessage().split()[0] for record in caplog.records])
    assert names == [
        ["request_retried"],
        ["request_retried"],
        ["request_retried"],
        ["tool_chain_incomplete_on_stream", "request_retried"],
    ]


def test_a_fallback_that_failed_too_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "unbroken.chain")
    events: list[Event] = []
    model, asked = guarded(*[[Say("It is "), Break()]] * 3)
    with pytest.raises(ChainBroken):
        play(Agent(model, sinks=[events.append]), run_id="r3")
    assert [request.stream for request in asked.requests] == [True, False, False]
    (failed,) = only(RunFailed, events)
    assert failed.fallback_used
    assert event_from_json(event_to_json(failed)) == failed
    assert caplog.records[-1].getMessage() == "tool_chain_status run=r3 tool_calls=0 tool_returns=0 fallback_used=True"


def test_a_run_without_problems_is_logged_only_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "unbroken.chain")
    play(Agent(guarded("Hello.")[0]), run_id="r1")
    assert [record for record in caplog.records if record.name == "unbroken.chain"] == []
    caplog.set_level(logging.DEBUG, "unbroken.chain")
    play(Agent(guarded("Hello.")[0]), run_id="r1")
    (status,) = (record.getMessage() for record in caplog.records if record.name == "unbroken.chain")
    assert status == "tool_chain_status run=r1 tool_calls=0 tool_returns=0 fallback_used=False"


# Silence


@on_every_wire
@pytest.mark.parametrize(("language", "words"), [("en", ENGLISH), ("zh", CHINESE)])
def test_a_model_that_stays_silent_is_asked_to_continue(wire: str, language: Any, words: str) -> None:
    desk = Desk()
    model, asked = guarded([Call("look")], "", "", [Call("look", note="b")], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("look"), guidance=language))
    assert result.text == "Done."
    assert last_said(asked) == ["Go.", "", "", words, ""]
    assert words not in [m.text for m in result.messages if isinstance(m, User)]  # it is in no history
    assert (result.requests, result.attempts) == (4, 5)
    accepted(asked, result)


def test_a_silent_model_gets_three_requests_at_most() -> None:
    model, asked = guarded("", loop_last=True)
    with pytest.raises(ChainBroken, match="empty answer, even after it was asked once") as caught:
        play(Agent(model))
    assert last_said(asked) == ["Go.", "Go.", ENGLISH]
    assert {verdict.kind for verdict in caught.value.verdicts} == {"empty"}
    assert {verdict.turn for verdict in caught.value.verdicts} == {0, 1}
    can_go_on(caught.value.messages)


@pytest.mark.parametrize("answer", ["", "There is no answer."])
def test_a_run_may_have_an_answer_for_a_silent_model(answer: str) -> None:
    model, asked = guarded([Call("look")], "", loop_last=True)
    result = play(Agent(model, Desk().tools("look"), policy=Policy(empty_answer=answer)))
    assert (result.text, result.stop_reason, len(asked.requests)) == (answer, "answered", 4)
    can_go_on(result.messages)


def test_empty_answers_with_calls_in_between_do_not_add_up() -> None:
    model = ScriptedModel("", "", [Call("look")], "", "Done.")
    assert play(Agent(model, Desk().tools("look"))).text == "Done."


def test_this_also_works_without_a_loop_guard() -> None:
    model = ScriptedModel("", "", "Here.")
    assert (play(Agent(model)).text, last_said(model)) == ("Here.", ["Go.", ENGLISH, ENGLISH])


def test_reasoning_alone_is_not_an_answer() -> None:
    model, asked = guarded([Think("Hm.")], [Think("Hm.")], "Here.")
    assert play(Agent(model)).text == "Here."
    assert last_said(asked)[-1] == ENGLISH


def test_the_continue_prompt_is_a_setting() -> None:
    model, asked = guarded("", "", "Here.")
    play(Agent(model, policy=Policy(continue_prompt="Well?")))
    assert last_said(asked)[-1] == "Well?"


# Announcements


def test_with_nudge_a_model_that_only_announces_a_call_is_asked_to_continue() -> None:
    desk = Desk()
    model, asked = guarded("Let me look that up for you.", [Call("look")], "Here.")
    result = play(Agent(model, desk.tools("look"), policy=Policy(nudge=True)))
    assert (result.text, desk.names) == ("Here.", ["look"])
    assert last_said(asked)[1] == ENGLISH
    kinds = ["User", "Assistant", "User", "Assistant", "ToolMessage", "Assistant"]
    assert roles(result.messages) == kinds
    accepted(asked, result)


def test_without_nudge_an_announcement_counts_as_the_answer() -> None:
    model, asked = guarded("Let me look that up for you.", "never")
    assert play(Agent(model, Desk().tools("look"))).text == "Let me look that up for you."
    assert len(asked.requests) == 1


def test_a_model_that_keeps_announcing_is_accepted_in_the_end() -> None:
    model, asked = guarded("Let me look that up for you.", loop_last=True)
    result = play(Agent(model, Desk().tools("look"), policy=Policy(nudge=True)))
    assert (result.text, len(asked.requests)) == ("Let me look that up for you.", 4)
    accepted(asked, result)


def test_silence_and_announcements_share_three_attempts() -> None:
    announces = "Let me look that up for you."
    model, asked = guarded(announces, "", "", announces, announces, "never")
    result = play(Agent(model, Desk().tools("look"), policy=Policy(nudge=True)))
    assert (result.text, len(asked.requests)) == (announces, 5)
    # Once for the first announcement and once more for the silence, which is removed when the next announcement is
    # kept.
    prompts = [sum(isinstance(m, User) and m.text == ENGLISH for m in r.messages) for r in asked.requests]
    assert prompts == [0, 1, 1, 2, 2]
    accepted(asked, result)


def test_an_announcement_that_broke_off_counts_as_broken_first() -> None:
    desk = Desk()
    model, asked = guarded([Say("Let me look that up"), Break()], [Say("Let me look that up"), Call("look")], "Here.")
    result = play(Agent(model, desk.tools("look"), policy=Policy(nudge=True)))
    assert (result.text, desk.names) == ("Here.", ["look"])
    assert ENGLISH not in last_said(asked)


# Open calls of a given history


def call(id: str, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments, "{}" if not arguments else '{"note": "x"}', int(id[1:]) - 1)


def history(*answered: str) -> list[Message]:
    """It ends in two calls, `answered` of which have their result."""
    calls = (call("c1", "look", note="x"), call("c2", "act"))
    messages: list[Message] = [User.of("Go."), Assistant("I look.", calls)]
    results = tuple(ToolResult.of(each, "from before") for each in calls if each.id in answered)
    return [*messages, ToolMessage(results)] if results else messages


@on_every_wire
@pytest.mark.parametrize("prompt", [None, "And now?"])
def test_open_calls_can_be_executed(wire: str, prompt: str | None) -> None:
    desk = Desk()
    model, asked = guarded("Done.", wire=wire)
    agent = Agent(model, desk.tools("look", "act"), policy=Policy(open_calls="execute"))
    events: list[Any] = []
    result = run_virtual(agent.run(prompt, history=history(), sinks=[events.append]))
    assert results_in(result.messages) == [("c1", "look done"), ("c2", "act done")]
    asks = ["User"] if prompt else []
    assert roles(result.messages) == ["User", "Assistant", "ToolMessage", *asks, "Assistant"]
    assert [event.call_id for event in only(CallStarted, events)] == ["c1", "c2"]
    accepted(asked, result)


def test_for_a_partly_answered_round_only_the_rest_is_executed() -> None:
    desk = Desk()
    model, asked = guarded("Done.")
    result = play(Agent(model, desk.tools("look", "act")), history=history("c2"), open_calls="execute")
    assert results_in(result.messages) == [("c1", "look done"), ("c2", "from before")]
    assert desk.names == ["look"]
    accepted(asked, result)


def test_by_default_open_calls_are_answered_as_not_executed(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    model, asked = guarded("Done.")
    result = play(Agent(model, desk.tools("look", "act")), history=history("c1"))
    assert texts(result)[0] == "from before"
    assert [r.error for m in result.messages if isinstance(m, ToolMessage) for r in m.results] == [False, True]
    assert (desk.names, "c2" in caplog.text) == ([], True)
    accepted(asked, result)


def test_open_calls_can_be_an_error() -> None:
    transcript = Transcript(history())
    agent = Agent(guarded("Done.")[0], Desk().tools("look", "act"))
    with pytest.raises(UserError, match=r"`c1` \(look\), `c2` \(act\).*open_calls="):
        play(agent, history=transcript, open_calls="error")
    assert [each.id for each in transcript.open] == ["c1", "c2"]
    assert play(agent, history=[User.of("Hi.")], open_calls="error").text == "Done."


def test_an_unknown_value_for_open_calls_is_refused() -> None:
    with pytest.raises(UserError, match=r"open_calls='run'.*'execute'"):
        Agent(ScriptedModel("x"), policy=Policy(open_calls="run"))  # pyright: ignore[reportArgumentType] - that is the test
    with pytest.raises(UserError, match=r"open_calls='run'.*'execute'"):
        play(Agent(ScriptedModel("x")), history=history(), open_calls="run")


def test_open_calls_of_missing_tools_get_an_error_result() -> None:
    model, asked = guarded("Done.")
    result = play(Agent(model, Desk().tools("act")), history=history(), open_calls="execute")
    assert texts(result)[0].startswith("Error: unknown tool `look`")
    accepted(asked, result)


def test_a_question_next_to_waiting_open_calls_is_not_lost() -> None:
    desk = Desk()
    model, asked = guarded("Done.")
    tools = [*desk.tools("look"), desk.tool("act", approve=True)]
    agent = Agent(model, tools, on_approval=lambda call: Wait(), policy=Policy(open_calls="execute"))
    waiting = play(agent, "And now?", history=history())
    assert [each.id for each in waiting.pending] == ["c2"]
    for saved in (waiting, waiting.to_json()):
        model, asked = guarded("Done.")
        agent = Agent(model, tools, on_approval=lambda call: Wait())
        result = run_virtual(agent.resume(saved, {"c2": Allow()}))
        assert roles(result.messages) == ["User", "Assistant", "ToolMessage", "User", "Assistant"]
        assert last_said(asked) == ["And now?"]
        accepted(asked, result)


def test_an_answer_that_breaks_after_open_calls_were_executed_repeats_none_of_them() -> None:
    desk = Desk()
    model, asked = guarded([Say("It "), Break()], "It is done.")
    result = play(Agent(model, desk.tools("look", "act")), history=history(), open_calls="execute")
    assert (result.text, desk.names) == ("It is done.", ["look", "act"])
    accepted(asked, result)


# In the end


def test_a_chain_that_broke_in_the_final_request_raises_a_typed_error_and_can_be_continued() -> None:
    desk = Desk()
    model, asked = guarded([Call("look")], [Say("It "), Break()], [Break()], [Break()], "It is done.")
    chat = Conversation(Agent(model, desk.tools("look"), limits=Limits(rounds=1)))
    with pytest.raises(ChainBroken):
        run_virtual(chat.say("Go."))
    assert roles(chat.messages) == ["User", "Assistant", "ToolMessage"]
    assert run_virtual(chat.say()).text == "It is done."
    accepted(asked)


def test_a_final_answer_that_breaks_off_is_repaired() -> None:
    desk = Desk()
    model, asked = guarded([Call("look")], [Say("It "), Break()], "It is done.")
    result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=1)))
    assert (result.text, result.stop_reason) == ("It is done.", "round_limit")
    assert [request.final for request in asked.requests] == [False, True, True]


def test_a_pause_of_the_provider_is_not_a_break() -> None:
    lines: list[Answer] = [[Say("Wait. "), End("paused")], "Here."]
    model, asked = guarded(*lines, wire="anthropic-messages")
    result = play(Agent(model))
    assert (result.text, result.attempts, len(asked.requests)) == ("Here.", 2, 2)


def test_an_announcement_in_chinese_is_answered_in_chinese() -> None:
    model = ScriptedModel([Say("让我查一下。")], "晴。")
    play(Agent(model, Desk().tools("look"), policy=Policy(nudge=True)))
    assert last_said(model)[1] == CHINESE


def test_without_tools_the_model_is_not_asked_to_call_one() -> None:
    model = ScriptedModel("Let me look that up.")
    assert play(Agent(model, policy=Policy(nudge=True))).text == "Let me look that up."


def test_a_providers_messages_are_refused_as_history_with_a_hint() -> None:
    raw: Any = [{"role": "user", "content": "Hi"}]
    with pytest.raises(UserError, match=r"history= holds no message at 0, .* type dict.*decode_request"):
        play(Agent(ScriptedModel("Hi.")), history=raw)


def test_an_empty_history_is_accepted() -> None:
    orphan = ToolMessage((ToolResult("gone", (), name="look"),))
    assert play(Agent(ScriptedModel("Hi.")), history=[orphan]).text == "Hi."
    with pytest.raises(UserError, match="there is nothing to answer"):
        run_virtual(Agent(ScriptedModel("Hi.")).run(history=[orphan]))
