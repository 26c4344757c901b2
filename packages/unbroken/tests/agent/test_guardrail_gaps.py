"""Ways around a check that must not exist: limits, retries of requests, open calls, clients, crashes and replays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from scenes import Bank

from unbroken import (
    Agent,
    CallContext,
    Limits,
    Middleware,
    Policy,
    Result,
    RetryingModel,
    ScriptedModel,
    client_tool,
    tool,
)
from unbroken.agent.recorded_agent import agent_of
from unbroken.errors import AnswerInvalid, ProviderError, Unavailable, UserError
from unbroken.events import Checked, Event, event_to_json
from unbroken.guardrails import Retry, Veto, check_calls, check_input, check_output, redact
from unbroken.middleware import Ask
from unbroken.models.scripted import Answer
from unbroken.tools.approval import Allow, Deny
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Break, Call, Cut, End, Fail, Say, run_virtual
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Assistant, Message, Request, ToolCall, ToolMessage, ToolResult, User


def ask(model: Any, *middleware: Middleware, prompt: str = "Pay.", tools: Any = (), **options: Any) -> Result[Any]:
    return run_virtual(Agent(model, tools, middleware=middleware, **options).run(prompt))


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, User | Assistant)]


def by_history(*answers: Answer) -> ScriptedModel:
    """The answer depends on the history alone, so a resumed run gets the same one."""

    def answer(request: Request) -> Answer:
        return answers[sum(isinstance(message, Assistant) for message in request.messages)]

    return ScriptedModel(answer)


async def no_evil(text: str) -> None:
    await asyncio.sleep(5)
    if "evil" in text:
        raise Veto("No evil.")


def too_much(call: ToolCall) -> None:
    if (call.arguments or {}).get("amount", 0) > 10:
        raise Veto("Too much.", to="user")


def never(text: object) -> None:
    raise Veto("Never.")


# A parallel check of the prompt


def test_a_parallel_check_holds_for_a_run_that_a_time_limit_ends() -> None:
    model = ScriptedModel([Say("one two three", over=100)], "Last.")
    result = ask(model, check_input(no_evil, parallel=True), prompt="evil", limits=Limits(seconds=1, final_seconds=60))
    assert (result.text, result.stop_reason) == ("No evil.", "vetoed")


def test_a_parallel_check_holds_for_a_request_that_other_middleware_repeats() -> None:
    class Again(Middleware):
        async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
            for attempt in range(2):
                try:
                    async for deltas in call_next(request):
                        yield deltas
                except ProviderError:
                    if attempt:
                        raise
                else:
                    return

    bank = Bank()
    model = ScriptedModel([Fail(Unavailable("busy", status=503))], Call("pay", amount=1), "Paid.")
    result = ask(model, Again(), check_input(no_evil, parallel=True), prompt="evil", tools=bank.tools())
    assert (result.text, bank.paid) == ("No evil.", [])


@pytest.mark.parametrize("parallel", [True, False])
def test_open_calls_of_the_history_do_not_run_if_the_prompt_is_refused(parallel: bool) -> None:
    bank = Bank()
    left = [User.of("Pay 9."), Assistant(calls=(ToolCall("call_1", "pay", {"amount": 9}),))]
    agent = Agent(ScriptedModel("Paid."), bank.tools(), middleware=[check_input(no_evil, parallel=parallel)])
    result = run_virtual(agent.run("evil", history=left, open_calls="execute"))
    assert (result.text, result.stop_reason, bank.paid) == ("No evil.", "vetoed", [])
    assert texts(result.messages) == ["Pay 9.", "", "[A message that was refused is not shown.]", "No evil."]
    assert isinstance(result.messages[2], ToolMessage)


def test_a_model_that_is_cancelled_inside_does_not_hang_beside_a_parallel_check() -> None:
    class Cancelled:
        name = "test:cancelled"

        async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
            yield []
            raise asyncio.CancelledError("inside")

    async def run() -> None:
        agent = Agent(Cancelled(), middleware=[check_input(no_evil, parallel=True)])
        with pytest.raises(asyncio.CancelledError, match="inside"):
            await asyncio.wait_for(agent.run("good"), 60)

    run_virtual(run())


def test_a_parameter_with_a_default_is_not_the_value() -> None:
    def words(text: str, forbidden: tuple[str, ...] = ("bad",)) -> None:
        if any(word in text for word in forbidden):
            raise Veto("No bad words.")

    assert ask(ScriptedModel("Fine."), check_input(words), prompt="bad").text == "No bad words."


# A veto of a call that ends the run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"limits": Limits(rounds=1), "policy": Policy(final_answer=False)},
        {"policy": Policy(on_all_failed="stop")},
        {"output": dict[str, int]},
    ],
)
def test_a_veto_for_the_user_ends_the_run_and_no_later_call_of_the_round_starts(options: dict[str, Any]) -> None:
    bank = Bank()
    calls: list[Any] = [Call("pay", amount=50), Call("pay", amount=5)]
    if "output" in options:
        calls.append(Call("final_answer", answer={"a": 1}))
    result = ask(ScriptedModel(calls, "Unreached."), check_calls(too_much), tools=bank.tools(), **options)
    assert (result.text, result.stop_reason, bank.paid, result.requests) == ("Too much.", "vetoed", [], 1)
    assert {call.outcome for call in result.calls} == {"not_executed"}


def test_a_veto_for_the_user_ends_a_run_that_would_wait_for_somebody() -> None:
    bank = Bank()
    where = client_tool("where", "Where the user is.", {"type": "object", "properties": {}})
    model = ScriptedModel([Call("pay", amount=50), Call("where")], "Unreached.")
    result = ask(model, check_calls(too_much), tools=[*bank.tools(), where])
    assert (result.text, result.stop_reason, result.pending) == ("Too much.", "vetoed", ())
    told = result.messages[-2]
    assert isinstance(told, ToolMessage)
    assert [each.text for each in told.results] == ["Error: not executed: Too much."] * 2


def test_a_veto_for_the_user_counts_although_the_retried_answer_lacks_the_call() -> None:
    bank = Bank()
    events: list[Event] = []
    model = ScriptedModel([Call("look", amount=50), Say("Wait.", after=1), Break()], "All is well.")
    result = ask(RetryingModel(model), check_calls(too_much), tools=bank.tools(), sinks=[events.append])
    assert (result.text, result.stop_reason, bank.paid) == ("Too much.", "vetoed", [])
    assert [(event.value, event.outcome) for event in events if isinstance(event, Checked)] == [("call", "veto")]


def test_a_call_that_would_run_at_the_client_is_checked_too(tmp_path: Path) -> None:
    place = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    open_page = client_tool("open_page", "Opens a page.", place)

    def agent(check: Any, *script: Any) -> Agent[Any, Any]:
        return Agent(ScriptedModel(*script), [open_page], middleware=[check_calls(check)], record=tmp_path)

    def small(call: ToolCall) -> None:
        if (call.arguments or {})["amount"] > 10:
            raise Veto("Too much.")

    def other(call: ToolCall) -> dict[str, int]:
        return {"amount": 3}

    script = (Call("open_page", amount=50), "It may not be opened.")
    result = run_virtual(agent(small, *script).run("Open.", run_id="small"))
    assert (result.text, result.calls[0].result.text) == ("It may not be opened.", "Error: not executed: Too much.")
    (file,) = tmp_path.iterdir()
    assert agent(small).replay(file).messages == result.messages
    assert run_virtual(agent(small, Call("open_page", amount=5)).run("Open.")).stop_reason == "waiting"
    assert run_virtual(agent(too_much, *script).run("Open.")).stop_reason == "vetoed"
    changed = run_virtual(agent(other, *script).run("Open."))
    assert "cannot change what a client is given" in changed.calls[0].result.text


def test_arguments_that_a_check_has_changed_do_not_go_around_an_approval() -> None:
    sent: list[int] = []

    @tool(approve=lambda arguments: arguments["amount"] > 10)
    async def send(amount: int) -> str:
        """Sends."""
        sent.append(amount)
        return "sent"

    def more(call: ToolCall) -> dict[str, int]:
        return {"amount": 500}

    def small(call: ToolCall) -> Allow | Deny:
        asked.append(call.arguments)
        return Allow() if (call.arguments or {})["amount"] < 100 else Deny()

    asked: list[Any] = []
    for amount in (5, 50):
        model = ScriptedModel(Call("send", amount=amount), "Done.")
        result = ask(model, check_calls(more), tools=[send], on_approval=small)
        assert (sent, result.calls[0].result.text) == ([], "Error: not executed: denied")
    assert asked == [{"amount": 500}, {"amount": 50}, {"amount": 500}]
    result = ask(ScriptedModel(Call("send", amount=5), "Done."), check_calls(more), tools=[send])
    assert (sent, "nobody is there to give it" in result.calls[0].result.text) == ([], True)


def test_a_check_of_calls_does_not_see_the_typed_answer() -> None:
    def small(call: ToolCall) -> None:
        if (call.arguments or {})["amount"] > 10:
            raise Veto("Too much.")

    model = ScriptedModel(Call("pay", amount=5), Call("final_answer", city="Rome"))
    result = ask(model, check_calls(small), tools=Bank().tools(), output=Place)
    assert (result.output, result.calls[0].result.text) == (Place(city="Rome"), "paid 5")


# The output, at a limit


async def slowly_never(text: str) -> None:
    await asyncio.sleep(100)
    raise Veto("Never.")


@pytest.mark.parametrize(
    ("script", "check", "limits"),
    [
        ([Call("pay", amount=1), "Secret."], slowly_never, Limits(rounds=1)),
        (
            [Call("pay", amount=1), ["Secret.", Call("pay", amount=2)], ["Secret.", Call("pay", amount=3)]],
            never,
            Limits(rounds=1),
        ),
        ([[Say("Secret words. " * 9, over=100)]], never, Limits(seconds=1, final_seconds=10)),
        ([Call("pay", amount=1), [Say("Secret words. " * 9, over=100)]], never, Limits(rounds=1, final_seconds=10)),
    ],
    ids=["a slow check", "text beside calls", "an answer that is cut", "a final answer that is cut"],
)
def test_no_text_passes_unchecked_because_of_a_limit(script: list[Any], check: Any, limits: Limits) -> None:
    result = ask(ScriptedModel(*script), check_output(check), tools=Bank().tools(), limits=limits)
    assert (result.text, result.stop_reason) == ("Never.", "vetoed")
    assert texts(result.messages)[-1] == "Never."


def test_a_text_that_a_limit_cut_is_replaced_or_refused_as_any_other() -> None:
    def shorter(text: str) -> str:
        return text.split()[0]

    def longer(text: str) -> None:
        raise Retry("Longer, please.")

    model = [Say("Secret words. " * 9, over=100)]
    limits = Limits(seconds=1, final_seconds=10)
    result = ask(ScriptedModel(model), check_output(shorter), limits=limits)
    assert (result.text, texts(result.messages)) == ("Secret", ["Pay.", "Secret"])
    with pytest.raises(AnswerInvalid, match=r"the run ended \(time_limit\) without an answer that its checks accept"):
        ask(ScriptedModel(model), check_output(longer), limits=limits)


class Place(BaseModel):
    city: str


def test_a_typed_output_that_was_replaced_stays_replaced_after_the_run_has_waited() -> None:
    where = client_tool("where", "Where the user is.", {"type": "object", "properties": {}})

    def title(place: Place) -> Place:
        return Place(city=place.city.title())

    model = ScriptedModel([Call("final_answer", city="rome"), Call("where", id="call_1")])
    agent = Agent(model, [where], output=Place, middleware=[check_output(title)])
    waiting = run_virtual(agent.run("Where?"))
    assert waiting.stop_reason == "waiting"
    result = run_virtual(agent.resume(waiting.to_json(), {"call_1": "there"}))
    assert result.output == Place(city="Rome")


# Redaction


def test_a_secret_in_the_given_history_in_reports_and_in_a_typed_answer_is_redacted_too() -> None:
    @tool(effect="read")
    async def cards(context: CallContext[Any]) -> AsyncIterator[str]:
        """Cards."""
        context.report("reading 4111 1111")
        yield "4111 1111"

    call = ToolCall("call_0", "cards", {})
    history = [
        User.of("Mine is 4111 1111."),
        Assistant("It is 4111 1111.", (call,), reasoning="4111 1111"),
        ToolMessage((ToolResult.of(call, "4111 1111"),)),
        Assistant("4111 1111"),
    ]
    model = ScriptedModel(Call("cards"), Call("final_answer", city="4111 1111"))
    events: list[Event] = []
    agent = Agent(model, [cards], output=Place, middleware=[redact("4111 1111", "[card]")], sinks=[events.append])
    result = run_virtual(agent.run("Again.", history=history))
    assert result.output == Place(city="[card]")
    assert "4111" not in str(model.bodies)
    assert "4111" not in str([event_to_json(event) for event in events if not hasattr(event, "messages")])
    assert "4111" not in str(result.messages[len(history) :])


# Crashes and replays


def outcomes_of_cuts(file: Path, agent: Agent[Any, Any], folder: Path) -> set[tuple[str, str, tuple[str, ...]]]:
    """How the run ends if its process dies after each line of its recording, and it is resumed."""
    lines = file.read_bytes().splitlines(keepends=True)
    found: set[tuple[str, str, tuple[str, ...]]] = set()
    for kept in range(1, len(lines)):
        cut = folder / str(kept) / file.name
        cut.parent.mkdir(parents=True)
        cut.write_bytes(b"".join(lines[:kept]))
        if json.loads(lines[kept - 1]).get("event") == "run_failed":
            continue
        try:
            result = run_virtual(agent.resume(cut))
            found.add((result.text, result.stop_reason, tuple(texts(result.messages))))
        except AnswerInvalid as error:
            found.add((str(error), "failed", ()))
    return found


def recorded(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_a_replaced_prompt_is_not_replaced_twice_when_its_run_is_resumed(tmp_path: Path) -> None:
    def louder(text: str) -> str:
        return f"{text}!"

    model = by_history(Call("look", amount=1), "Seen.")
    agent = Agent(model, Bank().tools(), middleware=[check_input(louder)], record=tmp_path / "runs")
    result = run_virtual(agent.run("Look"))
    assert texts(result.messages) == ["Look!", "", "Seen."]
    file = recorded(tmp_path / "runs")
    assert outcomes_of_cuts(file, agent, tmp_path) == {("Seen.", "answered", ("Look!", "", "Seen."))}


def test_the_retries_of_a_check_count_on_when_its_run_is_resumed(tmp_path: Path) -> None:
    asked: list[str] = []

    def wrong(text: str) -> None:
        asked.append(text)
        raise Retry("Wrong.")

    agent = Agent(by_history("1", "2", "3"), middleware=[check_output(wrong, retries=2)], record=tmp_path / "runs")
    with pytest.raises(AnswerInvalid, match="even after 2 corrections") as failed:
        run_virtual(agent.run("Count."))
    assert asked == ["1", "2", "3"]
    file = recorded(tmp_path / "runs")
    assert outcomes_of_cuts(file, agent, tmp_path) == {(str(failed.value), "failed", ())}


def test_a_veto_that_was_recorded_ends_the_resumed_run_too(tmp_path: Path) -> None:
    bank = Bank()
    model = by_history([Call("pay", amount=50), Call("pay", amount=5)], "Unreached.")
    agent = Agent(model, bank.tools(), middleware=[check_calls(too_much)], record=tmp_path / "runs")
    result = run_virtual(agent.run("Pay."))
    file = recorded(tmp_path / "runs")
    lines = file.read_bytes().splitlines(keepends=True)
    decided = next(at for at, line in enumerate(lines) if json.loads(line).get("event") == "checked")
    file.write_bytes(b"".join(lines[: decided + 1]))
    again = run_virtual(agent.resume(file))
    assert (again.text, again.stop_reason, again.messages) == ("Too much.", "vetoed", result.messages)
    assert bank.paid == []


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([Call("pay", amount=50), Call("pay", amount=5)], id="before"),
        pytest.param([Call("look", amount=50), Call("look", amount=5), Call("pay", amount=5)], id="reads"),
        pytest.param([Call("pay", amount=50), Call("pay", amount=5), Call("final_answer", value=1)], id="typed"),
    ],
)
def test_after_a_veto_for_the_user_and_a_crash_no_other_call_of_the_round_starts(
    calls: list[Any], tmp_path: Path
) -> None:
    """Not even if the check would allow it by now."""
    output: Any = int if len(calls) == 3 and calls[2].name == "final_answer" else None
    model = by_history(calls, "Unreached.")
    agent = Agent(model, Bank().tools(), middleware=[check_calls(too_much)], output=output, record=tmp_path / "runs")
    result = run_virtual(agent.run("Pay."))
    assert result.stop_reason == "vetoed"
    lines = recorded(tmp_path / "runs").read_bytes().splitlines(keepends=True)
    decided = next(at for at, line in enumerate(lines) if json.loads(line).get("veto"))
    for kept in range(decided + 1, len(lines)):
        file, bank = tmp_path / str(kept) / "run.jsonl", Bank()
        file.parent.mkdir()
        file.write_bytes(b"".join(lines[:kept]))
        later = Agent(model, bank.tools(), output=output)
        again = run_virtual(later.resume(file))
        assert (again.text, again.stop_reason, bank.paid) == ("Too much.", "vetoed", []), kept
        assert {call.outcome for call in again.calls} <= {"not_executed", "unknown"}


def broken(text: object) -> None:
    raise KeyError("oops")


@pytest.mark.parametrize("check", [check_output(broken), check_input(broken)], ids=["output", "input"])
def test_a_replay_of_a_run_that_a_check_has_ended_does_not_answer(check: Middleware, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel("Secret."), middleware=[check], record=tmp_path)
    with pytest.raises(UserError, match="the check `broken` failed"):
        run_virtual(agent.run("Go."))
    file = recorded(tmp_path)
    for player in (agent, agent_of(read_recording(file))):
        with pytest.raises(UserError, match="the check `broken` failed"):
            player.replay(file)


def test_a_replay_of_a_vetoed_call_and_of_a_refused_output_ends_as_the_run_did(tmp_path: Path) -> None:
    bank = Bank()
    model = ScriptedModel([Call("look", amount=1), Call("pay", amount=50), Call("pay", amount=5)])
    agent = Agent(model, bank.tools(), middleware=[check_calls(too_much)], record=tmp_path / "calls")
    result = run_virtual(agent.run("Pay."))
    file = recorded(tmp_path / "calls")
    for player in (agent, agent_of(read_recording(file))):
        again = player.replay(file)
        assert (again.text, again.stop_reason, again.messages) == ("Too much.", "vetoed", result.messages)

    def wrong(text: str) -> None:
        raise Retry("Wrong.")

    agent = Agent(ScriptedModel("1", "2"), middleware=[check_output(wrong)], record=tmp_path / "outputs")
    with pytest.raises(AnswerInvalid):
        run_virtual(agent.run("Go."))
    with pytest.raises(AnswerInvalid, match="even after 1 correction"):
        agent.replay(recorded(tmp_path / "outputs"))


@pytest.mark.parametrize("step", [Call("look", amount=1, note="4111 1111"), Cut("look", '{"note": "4111 1111')])
def test_arguments_of_calls_are_redacted_if_that_is_asked_for(step: Any, tmp_path: Path) -> None:
    notes: list[str] = []

    @tool(effect="read")
    async def look(amount: int, note: str) -> str:
        """Looks."""
        notes.append(note)
        return note

    guard = redact("4111 1111", "[card]", arguments=True)
    model = ScriptedModel([step, End("done")], "Done.")
    run_virtual(Agent(model, [look], middleware=[guard], record=tmp_path).run("Look."))
    assert notes in (["[card]"], [])
    assert "4111" not in recorded(tmp_path).read_text("utf-8") + str(model.bodies[1:])
