"""A prompt that a check refuses: no later request has it, and what the answer beside it used is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from scenes import Bank

from unbroken import Agent, Conversation, Result, ScriptedModel
from unbroken.events import Checked, Event
from unbroken.guardrails import Veto, check_answers, check_input
from unbroken_testing import Say, Uses, run_virtual
from unbroken_wires.deltas import Delta, Ended, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Request, ToolCall, Usage, User


def test_a_refused_prompt_is_in_no_later_request(tmp_path: Path) -> None:
    """Neither with a check before the request, nor with one beside it that is decided before or after the answer."""

    def refuse(seconds: float) -> Callable[[str], Awaitable[None]]:
        async def no_passwords(text: str) -> None:
            await asyncio.sleep(seconds)
            if "password" in text:
                raise Veto("No passwords.")

        return no_passwords

    for number, (seconds, parallel) in enumerate([(0, False), (1, True), (60, True)]):
        recorded = tmp_path / str(number)
        model = ScriptedModel("Hi.", [Say("Let me see.", over=5)], "Fine.", "Well.")
        agent = Agent(model, middleware=[check_input(refuse(seconds), parallel=parallel)], record=recorded)
        chat = Conversation(agent)

        async def talk(chat: Conversation[Any, Any] = chat) -> tuple[Result[Any], list[Event]]:
            events: list[Event] = []
            await chat.say("Hello.")
            refused = await chat.say("My password is 1234.", run_id="refused", sinks=[events.append])
            await chat.say("Good.")
            return refused, events

        refused, events = run_virtual(talk())
        assert (refused.text, refused.stop_reason) == ("No passwords.", "vetoed")
        assert [(each.value, each.outcome) for each in events if isinstance(each, Checked)] == [("input", "veto")]
        assert "1234" not in str(chat.messages)
        assert "1234" not in str(model.requests[-1].messages)
        assert [type(message).__name__ for message in chat.messages] == ["User", "Assistant"] * 3
        (file,) = [each for each in recorded.glob("*.jsonl") if "refused" in each.name]
        again = Agent(ScriptedModel(), middleware=[check_input(refuse(0), parallel=parallel)]).replay(file)
        assert (again.text, again.messages, again.stop_reason) == (refused.text, refused.messages, "vetoed")


def test_a_refused_prompt_after_open_calls_is_not_in_the_history() -> None:
    def never(text: str) -> None:
        raise Veto("No.")

    history = [User.of("Pay."), Assistant("", (ToolCall("a", "pay", {"amount": 1}),))]
    for prompt in ("secret", None):
        given = history if prompt else [User.of("secret")]
        agent = Agent(ScriptedModel(), Bank().tools(), middleware=[check_input(never)])
        result = run_virtual(agent.run(prompt, history=given, open_calls="execute"))
        assert (result.text, "secret" in str(result.messages)) == ("No.", False)


class EarlyUsage:
    """Reports the tokens of the prompt first, as Anthropic does, and then writes for a minute."""

    name = "early:usage"

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        yield [UsageReported(Usage(100, 1))]
        yield [TextDelta("Let me see.")]
        await asyncio.sleep(60)
        yield [Ended(Verdict("whole"))]


def test_tokens_of_a_cancelled_answer_count_as_far_as_the_provider_reported_them(tmp_path: Path) -> None:
    async def slow(text: str) -> None:
        await asyncio.sleep(1)
        raise Veto("No.")

    def agent() -> Agent[Any, Any]:
        return Agent(EarlyUsage(), middleware=[check_input(slow, parallel=True)], record=tmp_path)

    result = run_virtual(agent().run("Hello."))
    assert (result.stop_reason, result.usage.input_tokens, result.usage.output_tokens) == ("vetoed", 100, 1)
    again = agent().replay(next(tmp_path.glob("*.jsonl")))
    assert (again.usage, again.messages) == (result.usage, result.messages)


def test_tokens_of_an_answer_that_a_check_vetoes_count() -> None:
    def never(answer: Assistant) -> None:
        raise Veto("No.")

    model = ScriptedModel(["Bad.", Uses(10, 5)])
    result = run_virtual(Agent(model, middleware=[check_answers(never)]).run("Hello."))
    assert (result.text, result.usage.total_tokens) == ("No.", 15)
