"""Checks on prompts, answers, calls and outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from scenes import Bank

from unbroken import Agent, Limits, Middleware, Policy, Result, Schedule, ScriptedModel, tool
from unbroken.agent.recorded_agent import agent_of
from unbroken.clock import current_clock
from unbroken.errors import AnswerInvalid, UserError
from unbroken.events import CallStarted, Checked, Event, TextReplaced
from unbroken.guardrails import (
    Retry,
    Veto,
    check_answers,
    check_calls,
    check_input,
    check_output,
    redact,
)
from unbroken.models.scripted import Answer, Call, Say
from unbroken.tools.context import RunContext
from unbroken.tools.search import ToolSearch
from unbroken.tools.selection import select
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Think, run_virtual
from unbroken_wires.messages import Assistant, Message, Request, ToolCall, ToolMessage, User


def run(model: Any, *middleware: Middleware, prompt: str = "Pay.", tools: Any = (), **options: Any) -> Result[Any]:
    return run_virtual(Agent(model, tools, middleware=middleware, **options).run(prompt))


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if not isinstance(message, ToolMessage)]


# The prompt


def test_a_vetoed_prompt_ends_the_run_and_the_model_is_not_asked() -> None:
    def no_passwords(text: str) -> None:
        if "password" in text:
            raise Veto("Never send passwords.")

    model = ScriptedModel("Fine.")
    events: list[Event] = []
    result = run(model, check_input(no_passwords), prompt="My password is x", sinks=[events.append])
    assert (result.text, result.stop_reason, result.requests) == ("Never send passwords.", "vetoed", 0)
    assert model.requests == []
    assert result.messages[-1] == Assistant("Never send passwords.")
    assert [(e.value, e.outcome) for e in events if isinstance(e, Checked)] == [("input", "veto")]
    assert run(model, check_input(no_passwords), prompt="Hello").text == "Fine."


def test_a_replaced_prompt_is_what_the_model_and_the_history_have() -> None:
    async def shout(context: RunContext[str], text: str) -> str:
        return f"{text.upper()} {context.deps}"

    model = ScriptedModel("Fine.", "Again.")
    agent: Agent[str, Any] = Agent(model, middleware=[check_input(shout)], deps="NOW")
    result = run_virtual(agent.run("hello"))
    assert result.messages[0] == User.of("HELLO NOW")
    run_virtual(agent.run("more", history=result.messages))
    assert texts(model.requests[1].messages) == ["HELLO NOW", "Fine.", "MORE NOW"]


def test_a_parallel_check_cancels_the_answer_and_no_call_starts_before_it_has_passed() -> None:
    bank = Bank()

    async def slow(text: str) -> None:
        await asyncio.sleep(5)
        if "evil" in text:
            raise Veto

    def model() -> ScriptedModel:
        return ScriptedModel([Say("Let me see.", over=1), Call("look", amount=7), Call("pay", amount=7)], "Paid.")

    began = 0.0

    async def ask(prompt: str) -> tuple[Result[Any], float, list[Event]]:
        events: list[Event] = []
        agent = Agent(model(), bank.tools(), middleware=[check_input(slow, parallel=True)], sinks=[events.append])
        began = current_clock().elapsed()
        return await agent.run(prompt), current_clock().elapsed() - began, events

    result, took, events = run_virtual(ask("evil"))
    assert (result.text, result.stop_reason, bank.paid) == ("I cannot help with that.", "vetoed", [])
    assert took == pytest.approx(5)
    assert any(isinstance(event, TextReplaced) for event in events)  # the text had been shown
    result, took, events = run_virtual(ask("good"))
    assert (result.text, bank.paid, took) == ("Paid.", [-7, 7], pytest.approx(5))
    assert all(event.time >= began for event in events if isinstance(event, CallStarted))


def test_a_parallel_check_that_trips_late_ends_a_run_without_calls_too() -> None:
    async def slow(text: str) -> None:
        await asyncio.sleep(60)
        raise Veto("No.")

    result = run(ScriptedModel("Quick."), check_input(slow, parallel=True))
    assert (result.text, result.stop_reason) == ("No.", "vetoed")


def test_a_broken_check_fails_the_run_and_lets_nothing_pass() -> None:
    bank = Bank()

    def broken(value: object) -> None:
        raise KeyError("oops")

    for check in (check_input(broken), check_input(broken, parallel=True), check_answers(broken), check_output(broken)):
        with pytest.raises(UserError, match="the check `broken` failed: KeyError: 'oops'"):
            run(ScriptedModel("Fine."), check)
    result = run(ScriptedModel(Call("pay", amount=1), "Done."), check_calls(broken), tools=bank.tools())
    assert ("the check `broken` failed" in result.calls[0].result.text, bank.paid) == (True, [])


# Answers


def test_an_answer_is_retried_with_feedback_and_the_history_has_only_the_good_one() -> None:
    def german(answer: Assistant) -> None:
        if "Guten" not in answer.text:
            raise Retry("Answer in German.")

    model = ScriptedModel("Hello.", "Guten Tag.")
    events: list[Event] = []
    result = run(model, check_answers(german), sinks=[events.append])
    assert (result.text, texts(result.messages)[-1], result.attempts) == ("Guten Tag.", "Guten Tag.", 2)
    assert texts(model.requests[1].messages) == [
        "Pay.",
        "Hello.",
        "Answer in German.",
    ]
    assert "Hello" not in str([event for event in events if not hasattr(event, "messages")])
    assert not result.fallback_used
    with pytest.raises(AnswerInvalid, match="not accepted by the check `german`, even after 1 correction"):
        run(ScriptedModel("Hello.", "Hi."), check_answers(german))


def test_an_answer_with_calls_that_is_refused_runs_none_of_them() -> None:
    bank = Bank()

    def small(answer: Assistant) -> None:
        if any((call.arguments or {}).get("amount", 0) > 10 for call in answer.calls):
            raise Retry("Pay less.")

    model = ScriptedModel([Call("look", amount=50), Call("pay", amount=50)], Call("pay", amount=5), "Paid.")
    result = run(model, check_answers(small), tools=bank.tools())
    assert (result.text, bank.paid) == ("Paid.", [5])
    refused = model.requests[1].messages[-1]
    assert isinstance(refused, ToolMessage)
    assert {each.text for each in refused.results} == {"Error: not executed: Pay less."}


def test_the_text_of_an_answer_is_replaced_in_events_history_and_result() -> None:
    events: list[Event] = []

    def polite(answer: Assistant) -> str:
        return answer.text.replace("Damn", "Very")

    result = run(ScriptedModel("Damn good."), check_answers(polite), sinks=[events.append])
    assert (result.text, texts(result.messages)[-1]) == ("Very good.", "Very good.")
    assert "Damn" not in str(events)


# Calls


def test_a_vetoed_call_never_runs_and_the_model_reads_why() -> None:
    bank = Bank()

    def small(context: RunContext[int], call: ToolCall) -> None:
        if (call.arguments or {})["amount"] > context.deps:
            raise Veto(f"At most {context.deps}.")

    model = ScriptedModel([Call("pay", amount=50), Call("pay", amount=5)], "Done.")
    result = run(model, check_calls(small), tools=bank.tools(), deps=10)
    assert [call.result.text for call in result.calls] == ["Error: not executed: At most 10.", "paid 5"]
    assert (bank.paid, result.calls[0].outcome) == ([5], "not_executed")


def test_a_veto_to_the_user_ends_the_run_after_the_round() -> None:
    bank = Bank()

    def never(call: ToolCall) -> None:
        raise Veto("I may not pay.", to="user")

    model = ScriptedModel(Call("pay", amount=50), "Unreached.")
    result = run(model, check_calls(never, tools=["pay"]), tools=bank.tools())
    assert (result.text, result.stop_reason, bank.paid, len(model.requests)) == ("I may not pay.", "vetoed", [], 1)


def changed(amount: object) -> Any:
    def change(call: ToolCall) -> dict[str, object]:
        return {"amount": amount}

    return change


def test_arguments_are_replaced_and_checked_again_by_the_schema() -> None:
    bank = Bank()
    model = ScriptedModel(Call("pay", amount=50), "Done.")
    run(model, check_calls(changed(3)), tools=bank.tools())
    assert bank.paid == [3]
    result = run(ScriptedModel(Call("pay", amount=5), "Done."), check_calls(changed([])), tools=bank.tools())
    assert ("do not fit" in result.calls[0].result.text, bank.paid) == (True, [3])


@given(
    st.lists(st.tuples(st.sampled_from(["pay", "look"]), st.integers(0, 9)), min_size=1, max_size=6),
    st.sets(st.integers(0, 9)),
    st.sampled_from(Schedule),
)
def test_no_vetoed_call_ever_runs_in_any_schedule(
    calls: list[tuple[str, int]], bad: set[int], schedule: Schedule
) -> None:
    bank = Bank()

    def not_bad(call: ToolCall) -> None:
        if (call.arguments or {})["amount"] in bad:
            raise Veto("bad")

    model = ScriptedModel([Call(name, amount=amount) for name, amount in calls], "Done.")
    result = run(model, check_calls(not_bad), tools=bank.tools(), schedule=schedule)
    assert {abs(amount) for amount in bank.paid}.isdisjoint(bad)
    assert [call.error for call in result.calls] == [amount in bad for _, amount in calls]


# The output


class Place(BaseModel):
    city: str
    people: int


def test_a_typed_output_is_checked_and_asked_for_again() -> None:
    def plausible(place: Place) -> Place | None:
        if place.people < 0:
            raise Retry("People cannot be negative.")
        return place.model_copy(update={"city": place.city.title()})

    model = ScriptedModel(Call("final_answer", city="rome", people=-1), Call("final_answer", city="rome", people=3))
    result = run(model, check_output(plausible), output=Place)
    assert result.output == Place(city="Rome", people=3)
    told = model.requests[1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert "People cannot be negative." in told.results[0].text
    bad = Call("final_answer", city="rome", people=-1)
    with pytest.raises(AnswerInvalid, match="not accepted by the check `plausible`"):
        run(ScriptedModel(bad, bad, bad), check_output(plausible), output=Place)


def test_a_typed_output_is_vetoed() -> None:
    def never(place: Place) -> None:
        raise Veto("Places are secret.")

    result = run(ScriptedModel(Call("final_answer", city="rome", people=1)), check_output(never), output=Place)
    assert (result.text, result.stop_reason, result.output) == ("Places are secret.", "vetoed", None)


def test_a_text_is_checked_retried_replaced_and_vetoed() -> None:
    def short(text: str) -> str | None:
        if "never" in text:
            raise Veto("No.")
        if len(text) > 10:
            raise Retry("Shorter, please.")
        return text.upper() if text.islower() else None

    result = run(ScriptedModel("This is far too long.", "Short."), check_output(short))
    assert texts(result.messages)[1:] == [
        "This is far too long.",
        "Shorter, please.",
        "Short.",
    ]
    result = run(ScriptedModel("tiny"), check_output(short))
    assert (result.text, texts(result.messages)[-1]) == ("TINY", "TINY")
    result = run(ScriptedModel("never"), check_output(short))
    assert (result.text, result.stop_reason, texts(result.messages)[-1]) == ("No.", "vetoed", "No.")


def test_at_a_limit_a_refused_answer_is_not_given_either() -> None:
    def never(text: str) -> None:
        raise Retry("Still wrong.")

    with pytest.raises(AnswerInvalid, match="Still wrong"):
        run(ScriptedModel("One.", "Two.", "Three."), check_output(never, retries=9), limits=Limits(rounds=0))


# Tools that ask for a retry


def test_a_tool_asks_for_a_retry_and_is_not_called_any_more_when_its_retries_are_used_up(tmp_path: Path) -> None:
    tried: list[str] = []

    @tool(effect="read", retries=2)
    async def book(day: str) -> str:
        """Books."""
        tried.append(day)
        raise Retry(f"{day} is no day")

    def model(request: Request) -> Answer:
        asked = sum(isinstance(message, Assistant) for message in request.messages)
        return [Call("book", day=f"day {asked}")] if asked < 4 else ["Sorry."]

    agent = Agent(ScriptedModel(model), [book], policy=Policy(tool_retries=2), record=tmp_path)
    result = run_virtual(agent.run("Book."))
    (file,) = tmp_path.iterdir()
    assert agent.replay(file).messages == agent_of(read_recording(file)).replay(file).messages == result.messages
    assert tried == ["day 0", "day 1"]
    assert [call.result.text for call in result.calls] == [
        "Error: day 0 is no day; correct the call and make it again",
        "Error: day 1 is no day; do not call it again",
        "Error: not executed: `book` has asked for a retry 2 times",
        "Error: not executed: `book` has asked for a retry 2 times",
    ]
    assert [call.outcome for call in result.calls] == ["retry", "retry", "not_executed", "not_executed"]


def test_a_tool_that_may_not_ask_for_a_retry_is_not_called_again_and_others_are() -> None:
    tried: list[str] = []

    @tool
    async def book(day: str) -> str:
        """Books."""
        tried.append(day)
        raise Retry(f"{day} is no day")

    @tool
    async def pay(day: str) -> str:
        """Pays."""
        tried.append(f"pay {day}")
        return "paid"

    model = ScriptedModel(*[[Call("book", day=day), Call("pay", day=day)] for day in ("a", "b")], "Sorry.")
    result = run(model, tools=[book, pay], policy=Policy(tool_retries=0))
    assert tried == ["a", "pay a", "pay b"]
    assert [call.result.text for call in result.calls if call.error] == [
        "Error: a is no day; do not call it again",
        "Error: not executed: `book` has asked for a retry once",
    ]


# Redaction


def test_what_matches_is_seen_neither_by_the_model_nor_by_the_user() -> None:
    @tool(effect="read")
    async def card() -> str:
        """The card."""
        return "It is 4111 1111 1111 1111."

    model = ScriptedModel([Think("4111 1111"), Call("card")], [Say("Card 4111 1111 1111 1111 is yours.", chunks=9)])
    events: list[Event] = []
    guard = redact(r"\d{4}( \d{4})+", "[card]")
    result = run(model, guard, prompt="Use 1234 5678.", tools=[card], sinks=[events.append])
    assert result.text == "Card [card] is yours."
    assert "4111" not in str(result.messages) + str(events)
    assert "5678" not in str([message for request in model.requests for message in request.messages])


# Everywhere


def test_decorators_of_an_agent_add_checks_in_order() -> None:
    agent = Agent(ScriptedModel("hello", "hello"))

    @agent.check_output
    def first(text: str) -> str:
        return f"{text}!"

    @agent.check_output(retries=2)
    async def second(context: RunContext[Any], text: str) -> str:
        return f"{text}?"

    @agent.check_input
    def polite(text: str) -> None:
        if "please" not in text:
            raise Veto("Say please.")

    assert run_virtual(agent.run("please")).text == "hello?!"
    assert run_virtual(agent.run("now")).text == "Say please."
    assert (first("x"), polite("please")) == ("x!", None)


def test_wrong_use_is_named() -> None:
    with pytest.raises(UserError, match="the check `none` has to take the value, or two arguments"):
        check_output(none)
    with pytest.raises(UserError, match="retries=-1"):
        check_output(len, retries=-1)
    with pytest.raises(UserError, match=r"check_calls\(tools=…\): expected a list of strings, got str"):
        check_calls(len, tools="pay")
    with pytest.raises(UserError, match="check_output has no option `retry`: did you mean `retries`"):
        Agent(ScriptedModel()).check_output(retry=2)(len)  # type: ignore[call-overload]
    with pytest.raises(UserError, match="expected 'user' or 'model'"):
        Veto("x", to="nobody")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="return nothing, or the text"):
        run(ScriptedModel("Hi."), check_answers(five))
    with pytest.raises(UserError, match="so it cannot replace the prompt"):
        run(ScriptedModel("Hi."), check_input(five, parallel=True))


def none() -> None:
    pass


def five(value: object) -> int:
    return 5


def test_recorded_checks_are_replayed_without_being_asked_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def note(text: str) -> str | None:
        asked.append(text)
        if text == "bad":
            raise Veto("No.")
        if text == "First.":
            raise Retry("Again.")
        return text.upper()

    def agent() -> Agent[Any, Any]:
        middleware = [check_input(note), check_output(note)]
        return Agent(ScriptedModel("First.", "Second."), middleware=middleware, record=tmp_path)

    for prompt, expected in (("good", ("SECOND.", "answered")), ("bad", ("No.", "vetoed"))):
        asked.clear()
        result = run_virtual(agent().run(prompt, run_id=prompt))
        (file,) = [file for file in tmp_path.iterdir() if prompt in file.name]
        assert (result.text, result.stop_reason) == expected
        asked.clear()
        for again in (agent().replay(file), agent_of(read_recording(file)).replay(file)):
            assert (again.text, again.stop_reason, again.messages) == (*expected, result.messages)
        assert asked == []


def test_a_check_of_calls_that_names_no_tool_is_refused_before_anything_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bank = Bank()
    seen: list[str] = []

    def note(call: ToolCall) -> None:
        seen.append(call.name)

    def chosen(context: RunContext[Any]) -> Any:
        return bank.tools()

    def ask(names: list[str], own: Any, **options: Any) -> Result[Any]:
        model = ScriptedModel(Call("pay", amount=1), "Paid.")
        return run_virtual(Agent(model, own, middleware=[check_calls(note, tools=names)]).run("Pay.", **options))

    for names, tools, meant in (
        (["pya"], bank.tools(), "did you mean `pay`"),
        (["pay"], [select(bank.tools(), prefix="bank_")], "did you mean `bank_pay`"),
        (["pya"], [ToolSearch(bank.tools())], "did you mean `pay`"),
        (["pya"], chosen, "did you mean `pay`"),
        (["refund"], bank.tools(), "there are: "),
    ):
        with pytest.raises(UserError, match=f"for the check `note`: there is no such tool; {meant}"):
            ask(names, tools)
    assert bank.paid == []
    ask(["pay"], [ToolSearch(bank.tools())])  # it is there, although no search has found it
    ask(["transmogrify"], chosen)
    assert "it may come later" in caplog.text
    ask(["pay"], bank.tools(), tools=[])  # the tools of this run do not have it, but the agent's do
    ask(["pay"], bank.tools())
    assert seen == ["pay"]
