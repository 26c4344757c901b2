"""Long histories: summaries in place of old messages, notes in place of old results."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scenes import PROVIDERS, on_every_wire
from thorough import some

from unbroken import (
    Agent,
    Allow,
    Assistant,
    Conversation,
    Limits,
    Policy,
    Prices,
    Request,
    ScriptedModel,
    User,
    connect,
    tool,
)
from unbroken.agent.recorded_agent import agent_of
from unbroken.clock import RealClock
from unbroken.compaction import CLEARED, SUMMARISE, SUMMARY, ClearResults, Compaction
from unbroken.errors import RateLimited, UserError
from unbroken.events import Compacted, Event, RequestSent
from unbroken.middleware import RunStart
from unbroken.models.model import Model
from unbroken.models.scripted import Answer, Call, End, Fail, Say, Think, Uses
from unbroken.run_view import RunView
from unbroken.tools.tool import Tool
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken_durable import drive, open_journal
from unbroken_testing import ScriptedServer, run_virtual
from unbroken_wires.messages import Message, System, ToolMessage
from unbroken_wires.transcript.summaries import is_summary, sent_part

LONG = "x" * 2000


@tool(effect="read")
def look(n: int) -> str:
    """Looks."""
    return f"result {n}: {LONG}"


def wants_summary(request: Request) -> bool:
    last = request.messages[-1]
    return isinstance(last, User) and last.text == SUMMARISE


def tokens_of(request: Request) -> int:
    """As a provider would count them."""
    return sum(len(str(message)) for message in request.messages) // 4


def looks(rounds: int, summary: Answer = "All was well.") -> Callable[[Request], Answer]:
    """A model that looks in each round, twice in every third, and reports its tokens."""
    count = 0

    def answer(request: Request) -> Answer:
        nonlocal count
        uses = Uses(tokens_of(request), 10)
        if wants_summary(request):
            return [Say(summary), uses] if isinstance(summary, str) else summary
        count += 1
        if count > rounds:
            return [Say("Done."), uses]
        calls = [Call("look", n=count, id=f"a{count}"), Call("look", n=-count, id=f"b{count}")]
        return [Think("Hm."), *calls[: 2 if count % 3 == 0 else 1], uses]

    return answer


def shape(messages: Sequence[Message]) -> str:
    """`SUCRCR`: system, user, call, result, summary (`+`), answer."""
    return "".join(
        "+"
        if is_summary(m)
        else "S"
        if isinstance(m, System)
        else "U"
        if isinstance(m, User)
        else "R"
        if isinstance(m, ToolMessage)
        else "C"
        if m.calls
        else "A"
        for m in messages
    )


def run(model: Model, *middleware: Any, prompt: str = "Go.", **options: Any) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    agent = Agent(model, [look], middleware=middleware, guidance=False, sinks=[events.append], **options)
    return run_virtual(lambda: agent.run(prompt)), events


def test_older_rounds_are_replaced_by_a_summary_and_the_history_stays_complete() -> None:
    model = ScriptedModel(looks(12))
    result, events = run(model, Compaction(4000, keep=2))
    assert result.text == "Done."
    asked = [shape(request.messages) for request in model.requests]
    summaries = [request for request in model.requests if wants_summary(request)]
    assert len(summaries) >= 2
    assert all(re.fullmatch(r"U(\+|)(CR)*U?", each) for each in asked), asked
    following = [now for before, now in pairwise(asked) if before.endswith("RU")]
    assert set(following) == {"U+CRCR"}  # the first prompt, the summary, the last two rounds
    sent = next(r for r in model.requests if shape(r.messages).startswith("U+")).messages
    assert sent[0] == User.of("Go.")
    assert isinstance(sent[1], User)
    assert sent[1].text == f"{SUMMARY}All was well."
    assert shape(result.messages).replace("+", "") == "U" + "CR" * 12 + "A"
    assert len(result.calls) == 16
    compacted = [event for event in events if isinstance(event, Compacted)]
    assert len(compacted) == len(summaries)
    assert all(event.before >= 4000 > event.after > 0 and not event.problem for event in compacted)
    assert [event.text for event in compacted] == ["All was well."] * len(compacted)
    assert result.requests == len(model.requests) == sum(isinstance(event, RequestSent) for event in events)
    view = RunView()
    for event in events:
        view.feed(event)
    assert (view.requests, len(view.turns), len(view.calls)) == (result.requests, result.requests, 16)


def test_the_tokens_of_a_summary_count_for_the_run_its_cost_and_its_limits() -> None:
    model = ScriptedModel(looks(8))
    result, events = run(model, Compaction(4000, keep=2), limits=Limits(rounds=None, prices=Prices(1.0, 1.0)))
    assert result.usage.input_tokens == sum(map(tokens_of, model.requests))
    costs = [event.cost for event in events if isinstance(event, Compacted)]
    assert costs
    assert all(costs)
    assert result.cost == pytest.approx(result.usage.total_tokens / 1_000_000)
    stopped, _ = run(ScriptedModel(looks(99)), Compaction(4000, keep=2), limits=Limits(tokens=30_000))
    assert stopped.stop_reason == "token_limit"


def test_another_model_may_write_the_summary() -> None:
    cheap = ScriptedModel(lambda request: "Short.")
    model = ScriptedModel(looks(6))
    result, _ = run(model, Compaction(4000, keep=1, model=cheap))
    assert result.text == "Done."
    assert not any(map(wants_summary, model.requests))
    assert cheap.requests
    assert all(request.final and wants_summary(request) for request in cheap.requests)


def test_a_prompt_in_the_middle_of_the_work_is_kept_too() -> None:
    model = ScriptedModel(looks(12))
    history = [User.of("First."), Assistant("Yes?"), User.of("Second."), Assistant("And?")]
    agent = Agent(model, [look], middleware=[Compaction(4000, keep=2)], guidance=False)
    result = run_virtual(lambda: agent.run("Go.", history=history))
    sent = next(request.messages for request in model.requests if shape(request.messages).startswith("U+"))
    assert shape(sent) == "U+UCRCR"
    assert (sent[0], sent[2]) == (User.of("First."), User.of("Go."))
    assert result.text == "Done."


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ([Fail(RateLimited("slow down"))], "slow down"),
        ([Say("So far"), End("length")], "broke off"),
        ([Call("look", n=0)], "no summary"),
    ],
)
def test_without_a_summary_the_run_continues_with_all_of_its_history(
    summary: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel(looks(12, summary))
    with caplog.at_level(logging.WARNING):
        result, events = run(model, Compaction(4000, keep=2))
    assert result.text == "Done."
    assert shape(result.messages) == "U" + "CR" * 12 + "A"
    failed = [event for event in events if isinstance(event, Compacted)]
    assert reason in failed[0].problem
    assert failed[0].messages == 0
    assert reason in caplog.text
    assert 1 < len(failed) < 8  # not in each round
    assert len(result.calls) == 16  # a call in place of a summary does not run


def test_the_first_request_of_a_run_may_need_a_summary_and_the_choice_of_a_tool_is_still_that_of_the_first() -> None:
    before, _ = run(ScriptedModel(looks(6)))
    model = ScriptedModel(looks(1))
    agent = Agent(model, [look], middleware=[Compaction(2000, keep=1)], policy=Policy(choice="required"))
    result = run_virtual(lambda: agent.run("More.", history=before.messages))
    assert [request.choice for request in model.requests if not wants_summary(request)][:2] == ["required", None]
    assert wants_summary(model.requests[0])
    assert result.text == "Done."


def test_a_conversation_continues_from_its_summary_even_if_it_is_saved_and_the_agent_has_no_compaction() -> None:
    model = ScriptedModel(looks(6))
    chat = Conversation(Agent(model, [look], middleware=[Compaction(4000, keep=1)], guidance=False))
    run_virtual(lambda: chat.say("Go."))
    summaries = sum(map(wants_summary, model.requests))
    assert summaries
    run_virtual(lambda: chat.say("And?"))
    assert sum(map(wants_summary, model.requests)) == summaries  # not again in each turn
    sent = shape(model.requests[-1].messages)
    assert re.fullmatch(r"U\+(CR)*AU", sent), sent
    plain = ScriptedModel("Fine.")
    loaded = Conversation.from_json(Agent(plain, [look], guidance=False), chat.to_json())
    assert loaded.messages == chat.messages
    run_virtual(lambda: loaded.say("More."))
    assert shape(plain.requests[0].messages) == sent + "AU"


# Recorded, replayed, resumed, durable


def recorded(path: Path, *middleware: Any, rounds: int = 9) -> Any:
    model = ScriptedModel(looks(rounds))
    agent = Agent(
        model, [look], middleware=middleware, record=path, limits=Limits(rounds=None, prices=Prices(1.0, 2.0))
    )
    return run_virtual(lambda: agent.run("Go.", run_id="r"))


@pytest.mark.parametrize("clear", [False, True], ids=["compaction", "both"])
def test_a_recorded_run_replays_the_same_with_its_agent_and_without(tmp_path: Path, clear: bool) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    middleware = [*([ClearResults(1, step=2)] if clear else []), Compaction(4000, keep=2)]
    result = recorded(first, *middleware)
    agent = Agent(ScriptedModel(), [look], middleware=middleware)
    again = agent.replay(first, sinks=[Recorder(second)])
    assert (again.text, again.messages, again.cost) == (result.text, result.messages, result.cost)
    assert again.usage == result.usage
    assert second.read_bytes() == first.read_bytes()
    recording = read_recording(first)
    rebuilt = agent_of(recording).replay(recording)
    assert (rebuilt.text, rebuilt.messages, rebuilt.requests) == (result.text, result.messages, result.requests)


def test_a_failed_summary_replays_as_it_failed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    model = ScriptedModel(looks(7, [Fail(RateLimited("slow down"))]))
    result = run_virtual(lambda: Agent(model, [look], middleware=[Compaction(4000)], record=path).run("Go."))
    again = Agent(ScriptedModel(), [look], middleware=[Compaction(4000)]).replay(path)
    assert (again.messages, again.requests) == (result.messages, result.requests)
    recording = read_recording(path)
    assert agent_of(recording).replay(recording).messages == result.messages


def test_a_run_that_is_cut_off_at_any_line_resumes_and_its_recording_replays(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    result = recorded(whole, Compaction(4000, keep=2), rounds=7)
    lines = whole.read_bytes().splitlines(keepends=True)
    summaries = sum(map(is_summary, result.messages))
    assert summaries >= 1
    for count in some(range(1, len(lines) - 1), 3):
        path = tmp_path / f"{count}.jsonl"
        path.write_bytes(b"".join(lines[:count]))
        written = [message for request in read_recording(path).requests for message in request.messages]
        answered = sum(message["role"] == "assistant" for message in (written if written else []))
        model = ScriptedModel(_continues(result.messages))
        agent = Agent(model, [look], middleware=[Compaction(4000, keep=2)])
        resumed = run_virtual(lambda: agent.resume(path))  # noqa: B023
        assert resumed.text == "Done.", (count, answered)
        assert shape(resumed.messages) == shape(result.messages), count
        assert len(resumed.calls) == len(result.calls), count
        assert resumed.cost is not None
        assert result.cost is not None
        assert resumed.cost > result.cost - 1e-9, count  # an answer that never came is estimated
        again = Agent(ScriptedModel(), [look], middleware=[Compaction(4000, keep=2)]).replay(path)
        assert again.messages == resumed.messages, count


def _continues(messages: Sequence[Message]) -> Callable[[Request], Answer]:
    """A model that knows how the run continues, by the calls that it is shown last."""
    said = [message for message in messages if isinstance(message, Assistant)]

    def answer(request: Request) -> Answer:
        uses = Uses(tokens_of(request), 10)
        if wants_summary(request):
            return [Say("All was well."), uses]
        last = next((m for m in reversed(request.messages) if isinstance(m, Assistant)), None)
        ids = [each.calls[0].id if each.calls else "" for each in said]
        following = said[ids.index(last.calls[0].id) + 1 if last is not None else 0]
        if not following.calls:
            return [Say(following.text), uses]
        return [Think("Hm."), *[Call(c.name, c.arguments, id=c.id) for c in following.calls], uses]

    return answer


def test_a_durable_run_that_waited_continues_from_its_summary(tmp_path: Path) -> None:
    @tool(approve=True)
    def refund(order: int) -> str:
        """Refunds."""
        return f"refunded {order}"

    looking = looks(6)

    def first(request: Request) -> Answer:
        answer = looking(request)
        done = isinstance(answer, list) and answer[0] == Say("Done.")
        return [Call("refund", order=7, id="r1")] if done else answer

    async def main() -> None:
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as journal:
            before, after = ScriptedModel(first), ScriptedModel("Refunded.")
            await journal.start("support", "Go.", run_id="r")
            options: dict[str, Any] = {"middleware": [Compaction(4000, keep=2)], "guidance": False}
            outcome = await drive({"support": Agent(before, [look, refund], **options)}, journal, "r")
            assert outcome.state == "waiting"
            assert sum(map(wants_summary, before.requests)) == 1
            await journal.answer("r", {"r1": Allow()})
            outcome = await drive({"support": Agent(after, [look, refund], **options)}, journal, "r")
            assert outcome.result is not None
            assert outcome.result.text == "Refunded."
            assert re.fullmatch(r"U\+(CR)+", shape(after.requests[0].messages))
            events = [event async for event in journal.events("r")]
            assert sum(isinstance(event, Compacted) for event in events) == 1

    run_virtual(main)


# Clearing


def test_old_results_are_cleared_in_steps_so_that_requests_begin_like_the_ones_before() -> None:
    model = ScriptedModel(looks(12))
    result, _ = run(model, ClearResults(2, step=4))
    cleared = [str(request.messages).count(CLEARED) for request in model.requests]
    assert cleared == [0] * 6 + [5] * 4 + [10] * 3  # every third round has two calls
    steps = sum(now.messages[: len(before.messages)] != before.messages for before, now in pairwise(model.requests))
    assert steps == 2
    assert CLEARED not in str(result.messages)
    assert all(len(m.results) == len(c.calls) for c, m in _rounds(model.requests[-1].messages))


def _rounds(messages: Sequence[Message]) -> list[tuple[Assistant, ToolMessage]]:
    pairs = pairwise(messages)
    return [(one, two) for one, two in pairs if isinstance(one, Assistant) and isinstance(two, ToolMessage)]


def test_results_of_some_tools_and_short_results_are_never_cleared() -> None:
    model = ScriptedModel(looks(8))
    run(model, ClearResults(1, step=1, never=["look"]))
    assert CLEARED not in str(model.requests[-1].messages)
    model = ScriptedModel(looks(8))
    run(model, ClearResults(1, step=1, least=5000))
    assert CLEARED not in str(model.requests[-1].messages)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in (
        lambda: Compaction(0),
        lambda: Compaction(1.5),
        lambda: Compaction(999),
        lambda: Compaction(keep=0),
        lambda: Compaction(window=0),
        lambda: ClearResults(0),
        lambda: ClearResults(never="look"),
    ):
        with pytest.raises(UserError):
            wrong()
    with pytest.raises(UserError, match=r"Compaction\(at=75\): .* too few .*; for 75 % of the context give 0.75"):
        Compaction(at=75)


@pytest.mark.parametrize(
    ("name", "window", "tokens"),
    [("anthropic:claude-sonnet-4-5", None, 100_000), ("scripted:x", None, 64_000), ("scripted:x", 1000, 500)],
)
def test_a_part_of_the_context_is_a_part_of_what_the_model_has(name: str, window: int | None, tokens: int) -> None:
    compaction = Compaction(0.5, window=window)
    assert compaction.start(RunStart("r", "main", name, RealClock())).threshold == tokens


# Over HTTP


@on_every_wire
def test_every_wire_accepts_what_is_sent_with_a_summary_and_cleared_results(wire: str) -> None:
    async def main() -> None:
        async with ScriptedServer(looks(10)) as server:
            model = connect(PROVIDERS[wire], base_url=server.base_url(wire), wire=wire, api_key="k")
            middleware = [ClearResults(1, step=1), Compaction(2000, keep=3)]
            agent = Agent(model, [look], "Look around.", middleware=middleware, policy=Policy(cache=True))
            result = await agent.run("Go.")
            assert result.text == "Done."
            assert any("All was well." in str(body) for body in server.bodies)
            assert any(CLEARED in str(body) for body in server.bodies)
            assert sent_part(result.messages) != result.messages

    asyncio.run(main())


def test_a_summary_is_made_of_what_is_sent_if_results_are_cleared_first() -> None:
    model = ScriptedModel(looks(40))
    run(model, ClearResults(1, step=1), Compaction(2500, keep=1), limits=Limits(rounds=None))
    summarised = [request for request in model.requests if wants_summary(request)]
    assert summarised
    for request in summarised:
        assert CLEARED in str(request.messages)
        assert tokens_of(request) < 2 * 2500


def builds_and_looks(rounds: int) -> Callable[[Request], Answer]:
    """A model that starts something slow, and looks meanwhile."""
    count = 0

    def answer(request: Request) -> Answer:
        nonlocal count
        uses = Uses(tokens_of(request), 10)
        if wants_summary(request):
            return [Say("All was well."), uses]
        count += 1
        if count == 1:
            return [Call("build"), uses]
        return [Call("look", n=count), uses] if count <= rounds else [Say("So far."), uses]

    return answer


def slow_build(seconds: float, answer: str = "built") -> Tool:
    @tool(effect="write", background=0, timeout=None)
    async def build() -> str:
        """Builds."""
        await asyncio.sleep(seconds)
        return answer

    return build


def test_a_summary_keeps_the_handles_of_calls_that_are_still_running(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    model = ScriptedModel(builds_and_looks(9))
    middleware = [Compaction(2060, keep=1)]
    agent = Agent(model, [look, slow_build(100)], middleware=middleware, record=path)
    result = run_virtual(agent.run("Build it."))
    summaries = [message.text for message in result.messages if isinstance(message, User) and is_summary(message)]
    assert "still running in the background: $call_1 (`build`). Do not make them again" in summaries[0]
    assert "still running" not in summaries[-1]  # written after its result had arrived
    asked = [str(request.messages) for request in model.requests]
    arrived = next(at for at, sent in enumerate(asked) if "$call_1 (`build`) has finished" in sent)
    for sent in asked[1:arrived]:
        assert "$call_1" in sent, "a request does not know of the open call"
    assert [call.outcome for call in result.calls if call.name == "build"] == ["done"]
    replayed = Agent(ScriptedModel(), [look, slow_build(100)], middleware=middleware).replay(path)
    assert replayed.messages == result.messages


def test_the_handle_of_a_background_call_is_never_cleared() -> None:
    model = ScriptedModel(builds_and_looks(6))
    agent = Agent(model, [look, slow_build(100)], middleware=[ClearResults(keep=1, step=1, least=100)])
    run_virtual(agent.run("Build it."))
    assert CLEARED in str(model.requests[-1].messages)
    for request in model.requests[1:]:
        assert "in the background, as $call_1" in str(request.messages)


def test_results_that_arrive_are_no_prompt_of_their_own() -> None:
    """The prompt that a turn works on is sent beside the summary, and not the result that arrived last."""
    model = ScriptedModel(builds_and_looks(12))

    @tool(effect="read")
    async def look(n: int) -> str:
        """Looks."""
        await asyncio.sleep(1)
        return f"result {n}: {LONG}"

    tools = [look, slow_build(2, "the build log " + LONG)]
    agent = Agent(model, tools, middleware=[Compaction(2000, keep=1)])
    chat = Conversation(agent, messages=[User.of("Hello."), Assistant("Hello! What shall I do?")])
    result = run_virtual(chat.say("Build the blue house."))
    assert any(isinstance(message, User) and message.arrived for message in result.messages)
    last = [str(message) for message in model.requests[-1].messages]
    assert any(map(is_summary, model.requests[-1].messages))
    assert any("Build the blue house." in message for message in last)
    assert not any("the build log" in message for message in last)
    again = Conversation.from_json(agent, chat.to_json())
    assert again.messages == chat.messages


def test_trimmed_messages_follow_their_prompt_and_not_a_result_that_arrived() -> None:
    model = ScriptedModel(builds_and_looks(4))

    def last_round(messages: Sequence[Message]) -> Sequence[Message]:
        return messages[-2:]

    agent = Agent(model, [look, slow_build(0)], trim=last_round, guidance=False)
    result = run_virtual(agent.run("Build it."))
    assert any(isinstance(message, User) and message.arrived for message in result.messages)
    assert all(request.messages[0] == User.of("Build it.") for request in model.requests)


def test_a_model_for_summaries_that_raises_does_not_end_the_run() -> None:
    def fail(request: Request) -> Answer:
        raise RuntimeError("boom")

    result, events = run(ScriptedModel(looks(8)), Compaction(2000, keep=1, model=ScriptedModel(fail)))
    assert result.text == "Done."
    problems = [event.problem for event in events if isinstance(event, Compacted)]
    assert problems[0] == "model `scripted:demo` failed: boom"
