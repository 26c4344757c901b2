"""`RetryingModel`: when it retries, when it retries unstreamed, how long it waits, which model is next, and what is
raised in the end. How the loop handles its deltas is tested elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from scenes import PROVIDERS, Desk, accepted, on_every_wire, play

from unbroken import (
    Agent,
    ChainBroken,
    Conversation,
    Request,
    RetryingModel,
    ScriptedModel,
    User,
    Verdict,
    connect,
)
from unbroken.errors import (
    ContextTooLong,
    ModelNotFound,
    ProviderError,
    RateLimited,
    RequestRefused,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unreachable,
    UserError,
)
from unbroken.models.model import Model, closing
from unbroken_testing import (
    Answer,
    Break,
    Call,
    Cut,
    End,
    ErrorInside,
    Fail,
    FaultyServer,
    Pause,
    Raw,
    Say,
    ScriptedServer,
    Think,
    Uses,
    run_virtual,
)
from unbroken_wires.deltas import AttemptFailed, CallReady, Delta, Ended, Restarted, TextDelta
from unbroken_wires.messages import Assistant, Sampling, ToolCall, ToolMessage, ToolResult, ToolSpec

LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {"note": {"type": "string"}}})
ASKED = Request((User.of("Go."),), tools=(LOOK,))
BUSY = Fail(Unavailable("busy", status=503))


def guard(model: Model, **settings: Any) -> RetryingModel[Any]:
    settings.setdefault("jitter", lambda: 0.0)
    return RetryingModel(model, **settings)


async def listen(model: Model, request: Request = ASKED) -> list[Delta]:
    async with closing(model.stream(request)) as batches:
        return [delta async for deltas in batches for delta in deltas]


def hear(model: Model, request: Request = ASKED) -> list[Delta]:
    return run_virtual(listen(model, request))


def failures(deltas: list[Delta]) -> list[tuple[str, float]]:
    return [(delta.verdict.kind, delta.wait) for delta in deltas if isinstance(delta, AttemptFailed)]


def restarts(deltas: list[Delta]) -> list[tuple[str, ...]]:
    return [delta.dropped for delta in deltas if isinstance(delta, Restarted)]


def said(deltas: list[Delta]) -> str:
    """All text, also text that was discarded later."""
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def ended(deltas: list[Delta]) -> tuple[Verdict, Assistant]:
    last = deltas[-1]
    assert isinstance(last, Ended)
    assert last.message is not None
    return last.verdict, last.message


def streamed(model: ScriptedModel) -> list[bool]:
    return [request.stream for request in model.requests]


# Success


@on_every_wire
def test_a_complete_answer_is_passed_on_unchanged(wire: str) -> None:
    answer: Answer = [Think("Hm."), Say("Hello there."), Call("look"), Uses(3, 4)]
    plain = hear(ScriptedModel(answer, wire=wire))
    assert hear(guard(ScriptedModel(answer, wire=wire))) == plain
    assert ended(plain)[0].whole


# Nothing was passed on


@on_every_wire
@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        pytest.param(Break(), "lost", id="lost"),
        pytest.param(Fail(Unavailable("busy", status=503)), "unavailable", id="503"),
        pytest.param(Fail(RateLimited("slow down", status=429)), "limited", id="429"),
        pytest.param(Fail(TimedOut("nothing came")), "unanswered", id="unanswered"),
        pytest.param(Raw(b"<html>502 Bad Gateway</html>"), "foreign", id="html"),
        pytest.param(Raw(b""), "foreign", id="an empty body"),
    ],
)
def test_before_the_first_delta_it_is_simply_retried(wire: str, broken: Any, kind: str) -> None:
    model = ScriptedModel([broken], "Hello.", wire=wire)
    deltas = hear(guard(model))
    assert [each for each, _ in failures(deltas)] == [kind]
    assert restarts(deltas) == []
    assert streamed(model) == [True, True]
    assert said(deltas) == "Hello."
    verdict, message = ended(deltas)
    assert (verdict.whole, verdict.attempt, message.text) == (True, 2, "Hello.")


def test_usage_alone_does_not_count_as_shown() -> None:
    """Anthropic reports usage in its first event."""
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
        b'"model":"demo","content":[],"stop_reason":null,"usage":{"input_tokens":10,"output_tokens":1}}}\n\n'
    )
    model = ScriptedModel([Raw(start), Break()], "Hello.", wire="anthropic-messages")
    deltas = hear(guard(model))
    assert (restarts(deltas), streamed(model), said(deltas)) == ([], [True, True], "Hello.")


@pytest.mark.parametrize(("jitter", "waits"), [(0.0, [0.5, 1.0, 2.0, 4.0]), (1.0, [0.25, 0.5, 1.0, 2.0])])
def test_waits_double_and_jitter_shortens_them_by_up_to_a_half(jitter: float, waits: list[float]) -> None:
    model = guard(ScriptedModel(BUSY, BUSY, BUSY, BUSY, "Hello."), attempts=5, jitter=lambda: jitter)
    assert failures(hear(model)) == [("unavailable", wait) for wait in waits]


def test_no_wait_is_longer_than_half_a_minute() -> None:
    model = guard(ScriptedModel(*[BUSY] * 9, "Hello."), attempts=10, seconds=None)
    assert [wait for _, wait in failures(hear(model))] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_the_waits_really_happen() -> None:
    async def main() -> float:
        await listen(guard(ScriptedModel(BUSY, BUSY, "Hello.")))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 1.5


def test_a_connection_that_broke_once_is_retried_at_once() -> None:
    model = guard(ScriptedModel([Break()], [Break()], "Hello."))
    assert failures(hear(model)) == [("lost", 0.0), ("lost", 1.0)]


def test_the_wait_that_the_provider_asks_for_overrides_ours() -> None:
    slow = Fail(RateLimited("slow down", status=429, retry_after=7.0))
    assert failures(hear(guard(ScriptedModel(slow, "Hello.")))) == [("limited", 7.0)]


def test_a_wait_beyond_the_time_limit_raises_a_typed_error_at_once() -> None:
    async def main() -> float:
        model = ScriptedModel(Fail(RateLimited("slow down", status=429, retry_after=400.0)), loop_last=True)
        with pytest.raises(RateLimited) as caught:
            await listen(guard(model))
        assert len(model.requests) == 1
        assert [verdict.kind for verdict in caught.value.verdicts] == ["limited"]
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_no_attempt_starts_after_its_time() -> None:
    model = ScriptedModel([Pause(4.0), Break()], loop_last=True)
    with pytest.raises(ChainBroken):
        hear(guard(model, attempts=9, seconds=10.0))
    assert len(model.requests) == 3  # at 0, 4 and 9 (a second was waited); the next would begin at 15


def test_an_answer_that_took_long_before_it_broke_is_retried_too() -> None:
    model = ScriptedModel([Say("Let me "), Pause(400.0), Break()], "Let me see.")
    assert ended(hear(guard(model)))[1].text == "Let me see."


# No retry


@pytest.mark.parametrize(
    "error",
    [
        Unauthorized("the key is wrong", status=401),
        ModelNotFound("no such model", status=404),
        RequestRefused("an odd request", status=400),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_permanent_error_is_raised_unchanged(error: ProviderError) -> None:
    model = ScriptedModel(Fail(error), loop_last=True)
    with pytest.raises(type(error)) as caught:
        hear(guard(model))
    assert caught.value is error
    assert len(model.requests) == 1
    assert [(verdict.kind, verdict.attempt) for verdict in error.verdicts] == [("refused", 1)]


def test_a_users_own_mistake_is_not_a_failure_of_the_model() -> None:
    model = ScriptedModel()  # its script is empty
    with pytest.raises(UserError):
        hear(guard(model, fallback=[ScriptedModel("Hello.")]))
    assert len(model.requests) == 1


def test_an_error_inside_is_retried_unless_it_is_a_refusal() -> None:
    model = ScriptedModel(ErrorInside("The server is overloaded."), "Hello.")
    assert [kind for kind, _ in failures(hear(guard(model)))] == ["error"]
    refused = b'data: {"error": {"message": "You have no credit left", "code": "insufficient_quota"}}\n\n'
    model = ScriptedModel([Raw(refused)], loop_last=True)
    with pytest.raises(ChainBroken, match="no credit left"):
        hear(guard(model))
    assert len(model.requests) == 1


# Something was passed on


@on_every_wire
def test_after_a_break_the_answer_is_requested_unstreamed(wire: str) -> None:
    model = ScriptedModel(
        [Say("Let me look. "), Call("look", id="c1"), Break()], [Say("Now."), Call("look")], wire=wire
    )
    deltas = hear(guard(model))
    assert failures(deltas) == [("lost", 0.0)]
    assert restarts(deltas) == [("c1",)] or wire == "gemini"
    assert streamed(model) == [True, False]
    at = next(at for at, delta in enumerate(deltas) if isinstance(delta, Restarted))
    assert isinstance(deltas[at - 1], AttemptFailed)
    assert said(deltas[:at]) == "Let me look. "
    assert said(deltas[at:]) == "Now."
    verdict, message = ended(deltas)
    assert (verdict.whole, message.text, [call.name for call in message.calls]) == (True, "Now.", ["look"])
    accepted(model)


def test_an_answer_that_keeps_breaking_off_is_requested_with_the_continue_prompt() -> None:
    model = ScriptedModel(*[[Say("Let me "), Break()]] * 3, "Hello.")
    hear(guard(model, attempts=4, continue_prompt="Please go on."))
    last = [request.messages[-1] for request in model.requests]
    assert last == [last[0], last[0], User.of("Please go on."), User.of("Please go on.")]
    assert [len(request.messages) for request in model.requests] == [1, 1, 2, 2]


def test_a_provider_that_did_not_answer_is_not_asked_to_continue() -> None:
    model = ScriptedModel(*[Fail(Unavailable("overloaded", retry_after=0.0))] * 3, "Hello.")
    hear(guard(model, attempts=4, continue_prompt="Please go on."))
    assert {len(request.messages) for request in model.requests} == {1}


def test_the_verdict_reports_what_was_passed_on() -> None:
    model = ScriptedModel([Say("Let me "), Cut("look", '{"note": "x'), Break()], "Hello.")
    (failed,) = (delta for delta in hear(guard(model)) if isinstance(delta, AttemptFailed))
    verdict = failed.verdict
    assert (verdict.kind, verdict.text_seen, verdict.open_calls) == ("lost", 7, ("look",))
    assert verdict.bytes_seen > 100
    assert (verdict.attempt, verdict.model) == (1, "scripted:demo")


def test_once_something_was_shown_every_later_attempt_is_unstreamed() -> None:
    model = ScriptedModel([Say("Let"), Break()], BUSY, [Break()], "Hello.")
    deltas = hear(guard(model, attempts=4))
    assert streamed(model) == [True, False, False, False]
    assert len(restarts(deltas)) == 1  # the other two had given nothing


def test_there_is_one_budget_for_every_kind_of_failure() -> None:
    model = ScriptedModel(BUSY, [Say("Let"), Break()], Fail(RateLimited("slow down", status=429)), "never")
    with pytest.raises(ChainBroken) as caught:
        hear(guard(model))
    assert [(v.kind, v.attempt) for v in caught.value.verdicts] == [("unavailable", 1), ("lost", 2), ("limited", 3)]
    assert len(model.requests) == 3


def test_if_no_answer_arrives_the_providers_own_error_has_all_verdicts() -> None:
    model = ScriptedModel(BUSY, BUSY, Fail(RateLimited("slow down", status=429)))
    with pytest.raises(RateLimited) as caught:
        hear(guard(model))
    assert [verdict.kind for verdict in caught.value.verdicts] == ["unavailable", "unavailable", "limited"]


def test_one_attempt_sends_one_request() -> None:
    model = ScriptedModel([Say("Let"), Break()], "never")
    with pytest.raises(ChainBroken, match=r"^the answer of `scripted:demo` broke off: the connection was lost$"):
        hear(guard(model, attempts=1))
    assert len(model.requests) == 1


# Cut calls and empty answers


@pytest.mark.parametrize("wire", ["openai-chat", "anthropic-messages"])
def test_an_incomplete_call_with_a_wrong_finish_reason_is_retried(wire: str) -> None:
    model = ScriptedModel([Cut("look", '{"note": "x'), End("done")], [Call("look", note="xy")], wire=wire)
    deltas = hear(guard(model))
    assert failures(deltas) == [("cut_call", 0.0)]
    assert len(restarts(deltas)) == 1
    assert streamed(model) == [True, False]
    assert [delta.call.arguments for delta in deltas if isinstance(delta, CallReady)] == [{"note": "xy"}]


def test_an_incomplete_call_that_persists_is_passed_on_in_the_end() -> None:
    model = ScriptedModel([Cut("look", '{"note": "x'), End("done")], loop_last=True)
    verdict, message = ended(hear(guard(model)))
    assert (verdict.kind, verdict.attempt, len(model.requests)) == ("cut_call", 3, 3)
    assert [call.problem != "" for call in message.calls] == [True]


def test_an_incomplete_call_is_reported_if_there_is_no_time_for_a_retry() -> None:
    model = ScriptedModel([Cut("look", '{"note": "x'), End("done")], loop_last=True)
    assert ended(hear(guard(model, seconds=0.4)))[0].kind == "cut_call"


@pytest.mark.parametrize(
    ("end", "sampling"),
    [
        pytest.param([], Sampling(), id="it says so"),
        pytest.param([End("done"), Uses(5, 64)], Sampling(max_tokens=64), id="it was given no more"),
    ],
)
def test_a_call_that_the_token_limit_cut_off_is_reported_and_not_retried(end: list[Any], sampling: Sampling) -> None:
    model = ScriptedModel([Cut("look", '{"note": "x'), *end], "never")
    request = Request((User.of("Go."),), tools=(LOOK,), sampling=sampling)
    verdict, _ = ended(hear(guard(model), request))
    assert (verdict.kind, verdict.meaning, len(model.requests)) == ("cut_call", "length", 1)


def test_complete_but_wrong_arguments_are_the_models_own_mistake() -> None:
    model = ScriptedModel([Call("look", "[1, 2]")], "never")
    hear(guard(model))
    assert len(model.requests) == 1


@on_every_wire
def test_an_empty_answer_is_requested_once_more_and_then_passed_on(wire: str) -> None:
    model = ScriptedModel("", "", "never", wire=wire)
    verdict, message = ended(hear(guard(model)))
    assert (verdict.kind, message.text, len(model.requests)) == ("empty", "", 2)
    assert said(hear(guard(ScriptedModel("", "Hello.", wire=wire)))) == "Hello."


# Another model


@on_every_wire
@pytest.mark.parametrize("other", ["openai-chat", "anthropic-messages", "gemini"])
def test_another_model_continues_with_the_history_of_the_first(wire: str, other: str) -> None:
    """The history contains what only the first wire knows (signatures, item ids)."""
    desk = Desk()
    first = ScriptedModel([Think("Hm."), Say("Let me look."), Call("look")], BUSY, wire=wire, name="a:one")
    second = ScriptedModel("There it is.", wire=other, name="b:two")
    result = play(Agent(guard(first, fallback=[second]), desk.tools("look")))
    assert (result.text, result.fallback_used, result.attempts) == ("There it is.", True, 3)
    assert [verdict.model for verdict in result.verdicts] == ["a:one"]
    accepted(first, result)
    accepted(second)


def test_another_model_is_used_at_once_if_the_first_fails_permanently() -> None:
    async def main() -> float:
        first = ScriptedModel(Fail(Unauthorized("the key is wrong", status=401)), name="a:one")
        deltas = await listen(guard(first, fallback=[ScriptedModel("Hello.", name="b:two")]))
        assert failures(deltas) == [("refused", 0.0)]
        verdict, message = ended(deltas)
        assert (verdict.model, verdict.attempt, message.text) == ("b:two", 2, "Hello.")
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_another_model_has_its_own_attempts_and_answers_unstreamed_if_something_was_shown() -> None:
    first = ScriptedModel([Say("Let"), Break()], loop_last=True, name="a:one")
    second = ScriptedModel(BUSY, BUSY, "Hello.", name="b:two")
    deltas = hear(guard(first, fallback=[second]))
    assert streamed(second) == [False, False, False]
    assert [delta.verdict.attempt for delta in deltas if isinstance(delta, AttemptFailed)] == [1, 2, 3, 4, 5]
    assert ended(deltas)[1].text == "Hello."


def test_another_model_is_used_at_once_if_the_wait_for_the_first_is_too_long() -> None:
    slow = Fail(RateLimited("slow down", status=429, retry_after=4000.0))
    first = ScriptedModel(slow, name="a:one")
    deltas = hear(guard(first, fallback=[ScriptedModel("Hello.", name="b:two")]))
    assert (failures(deltas), said(deltas)) == ([("limited", 0.0)], "Hello.")


@pytest.mark.parametrize(
    "failure",
    [
        Fail(RateLimited("slow down", status=429, retry_after=40.0)),
        Fail(Unavailable("busy", status=503, retry_after=40.0)),
        Fail(Unavailable("busy", status=529)),
        Fail(Unreachable("no connection")),
    ],
    ids=["429", "503", "529", "no connection"],
)
def test_another_model_is_used_at_once_instead_of_a_wait(failure: Fail) -> None:
    async def main() -> float:
        first = ScriptedModel(failure, name="a:one")
        deltas = await listen(guard(first, fallback=[ScriptedModel("Hello.", name="b:two")]))
        assert said(deltas) == "Hello."
        assert [wait for _, wait in failures(deltas)] == [0.0]
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_if_all_models_have_to_wait_the_one_that_is_ready_first_is_asked() -> None:
    def limited(seconds: float) -> Fail:
        return Fail(RateLimited("slow down", status=429, retry_after=seconds))

    async def main() -> tuple[float, list[str]]:
        first = ScriptedModel(limited(40.0), "from one", name="a:one")
        second = ScriptedModel(limited(5.0), limited(50.0), name="b:two")
        deltas = await listen(guard(first, fallback=[second]))
        asked = [delta.verdict.model for delta in deltas if isinstance(delta, AttemptFailed)]
        assert said(deltas) == "from one"
        return asyncio.get_running_loop().time(), asked

    assert run_virtual(main()) == (40.0, ["a:one", "b:two", "b:two"])


def test_another_model_is_not_used_after_the_total_time() -> None:
    first = ScriptedModel([Pause(50.0), Break()], loop_last=True, name="a:one")
    second = ScriptedModel("never", name="b:two")
    with pytest.raises(ChainBroken):
        hear(guard(first, seconds=10.0, fallback=[second]))
    assert second.requests == []


def test_if_all_models_fail_one_error_has_all_verdicts() -> None:
    first = ScriptedModel([Say("Let"), Break()], loop_last=True, name="a:one")
    second = ScriptedModel(BUSY, loop_last=True, name="b:two")
    with pytest.raises(ChainBroken) as caught:
        hear(guard(first, fallback=[second]))
    assert [verdict.model for verdict in caught.value.verdicts] == ["a:one"] * 3 + ["b:two"] * 3
    assert isinstance(caught.value.__cause__, Unavailable)


def test_a_fallback_with_its_own_retries_shares_the_budget_and_passes_on_to_the_next() -> None:
    """As `connect` makes them."""
    broken: Answer = [Say("Let"), Break()]
    first = ScriptedModel(broken, loop_last=True, name="a:one")
    second = ScriptedModel(broken, loop_last=True, name="b:two")
    third = ScriptedModel("Hello.", name="c:three")
    deltas = hear(guard(first, fallback=[guard(second), third]))
    assert ended(deltas)[1].text == "Hello."
    assert (len(first.requests), len(second.requests)) == (3, 3)
    numbers = [delta.verdict.attempt for delta in deltas if isinstance(delta, AttemptFailed)]
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_a_fallback_with_its_own_retries_that_never_answers_raises_the_providers_error() -> None:
    limited = Fail(RateLimited("slow down", status=429))
    first, second = (ScriptedModel(limited, loop_last=True, name=name) for name in ("a:one", "b:two"))
    with pytest.raises(RateLimited) as caught:
        hear(guard(first, fallback=[guard(second)]))
    assert len(caught.value.verdicts) == 6
    assert len(second.requests) == 3


def test_the_fallbacks_of_a_fallback_are_used_too() -> None:
    limited = Fail(RateLimited("slow down", status=429))
    first, second = (ScriptedModel(limited, loop_last=True, name=name) for name in ("a:one", "b:two"))
    third = ScriptedModel("Hello.", name="c:three")
    assert said(hear(guard(first, fallback=[guard(second, fallback=[third])]))) == "Hello."


def test_nested_retries_show_nothing_extra() -> None:
    inner = guard(ScriptedModel(BUSY, BUSY, "Hello."))
    deltas = hear(guard(inner))
    assert (said(deltas), restarts(deltas)) == ("Hello.", [])


def test_nested_retries_do_not_count_a_failure_as_something_shown() -> None:
    model = ScriptedModel(*[Fail(RateLimited("slow down", status=429))] * 3, "Hello.")
    deltas = hear(guard(guard(model), attempts=4))
    assert (said(deltas), restarts(deltas)) == ("Hello.", [])
    assert streamed(model) == [True] * 4


def test_a_custom_fallback_without_an_end_counts_as_ended() -> None:
    result = play(Agent(guard(ScriptedModel(BUSY, loop_last=True), fallback=[Foreign("Hello.")])))
    assert (result.text, result.fallback_used) == ("Hello.", True)


# A context that is too long


def long_history(size: int = 20_000) -> tuple[Any, ...]:
    call = ToolCall("c1", "look", {}, "{}")
    return (User.of("Go."), Assistant("", (call,)), ToolMessage((ToolResult.of(call, "x" * size),)))


TOO_LONG = ContextTooLong("the context is too long", status=400)


@on_every_wire
def test_a_context_that_is_too_long_is_shortened_once_and_retried(wire: str) -> None:
    model = ScriptedModel(Fail(TOO_LONG), "Hello.", wire=wire)
    deltas = hear(guard(model), Request(long_history(), tools=(LOOK,)))
    assert (failures(deltas), said(deltas)) == ([("too_long", 0.0)], "Hello.")
    sizes = [len(str(body)) for body in model.bodies]
    assert sizes[1] < sizes[0] * 0.7
    accepted(model)


def test_a_context_that_stays_too_long_raises_a_typed_error() -> None:
    model = ScriptedModel(Fail(TOO_LONG), loop_last=True)
    with pytest.raises(ContextTooLong) as caught:
        hear(guard(model), Request(long_history(), tools=(LOOK,)))
    assert len(model.requests) == 2
    assert [verdict.kind for verdict in caught.value.verdicts] == ["too_long", "too_long"]


def test_a_context_without_anything_to_cut_raises_a_typed_error_at_once() -> None:
    model = ScriptedModel(Fail(TOO_LONG), loop_last=True)
    with pytest.raises(ContextTooLong):
        hear(guard(model))
    assert len(model.requests) == 1


def test_a_context_that_is_too_long_may_be_reported_inside_an_answer() -> None:
    inside = ErrorInside("This model's maximum context length is 8192 tokens.")
    model = ScriptedModel(inside, "Hello.")
    assert said(hear(guard(model), Request(long_history(), tools=(LOOK,)))) == "Hello."
    with pytest.raises(ContextTooLong):
        hear(guard(ScriptedModel(inside, loop_last=True)))


def test_a_context_that_is_too_long_gets_no_attempt_beyond_the_last() -> None:
    limited = Fail(RateLimited("slow down", status=429))
    model = ScriptedModel(limited, limited, Fail(TOO_LONG), "never")
    with pytest.raises(ContextTooLong):
        hear(guard(model), Request(long_history(), tools=(LOOK,)))
    assert len(model.requests) == 3


def test_another_model_gets_the_complete_history_that_was_too_long_for_the_first() -> None:
    first = ScriptedModel(Fail(TOO_LONG), loop_last=True, name="a:one")
    second = ScriptedModel("Hello.", name="b:two")
    hear(guard(first, fallback=[second]), Request(long_history(), tools=(LOOK,)))
    assert second.requests[0].messages == long_history()


# Without streaming from the start


def test_with_tools_it_sends_unstreamed_requests_if_told_to() -> None:
    model = ScriptedModel("Hello.", loop_last=True)
    guarded = guard(model, stream_with_tools=False)
    hear(guarded)
    hear(guarded, Request((User.of("Go."),)))
    assert streamed(model) == [False, True]


@on_every_wire
def test_connect_sends_unstreamed_requests_with_tools_if_told_to(wire: str) -> None:
    async def main() -> None:
        async with ScriptedServer([Call("look")], "Hello.") as server:
            base = server.base_url(wire)
            model = connect(PROVIDERS[wire], base_url=base, wire=wire, api_key="k", stream_with_tools=False)
            result = await Agent(model, Desk().tools("look")).run("Go.")
            assert (result.text, result.fallback_used) == ("Hello.", False)
            assert [request.stream for request in server.requests] == [False, False]
            await Agent(connect(PROVIDERS[wire], base_url=base, wire=wire, api_key="k")).run("x")

    with pytest.raises(RequestRefused):  # the script has no third answer: it was requested, streamed
        asyncio.run(main())


# Over HTTP


def test_an_unstreamed_answer_that_exceeds_the_first_byte_time_is_requested_as_a_stream() -> None:
    async def main() -> None:
        slow: Answer = [Say("Let me "), Pause(0.1), Say("look. "), Pause(0.1), Say("Here.")]
        lines: list[Answer] = [[Say("Let me "), Break()], slow, slow]
        async with ScriptedServer(*lines) as server:
            model = connect("openai:demo", base_url=server.base_url(), api_key="k", first_byte=0.15)
            deltas = await listen(model, Request((User.of("Go."),)))
            assert [kind for kind, _ in failures(deltas)] == ["lost", "unanswered"]
            assert [request.stream for request in server.requests] == [True, False, True]
            assert ended(deltas)[1].text == "Let me look. Here."

    asyncio.run(main())


@on_every_wire
@pytest.mark.parametrize("fault", ["close", "reset", "stall"])
def test_a_stream_that_breaks_is_retried(wire: str, fault: str) -> None:
    async def main() -> None:
        async with FaultyServer([Say("Let me look at it. "), Call("look")], fault=fault) as server:
            base = server.base_url(wire)
            model = connect(PROVIDERS[wire], base_url=base, wire=wire, api_key="k", idle=0.1)
            deltas = await listen(model)
            assert [kind for kind, _ in failures(deltas)] == ["silent" if fault == "stall" else "lost"]
            verdict, message = ended(deltas)
            assert verdict.whole
            assert (message.text, len(message.calls)) == ("Let me look at it. ", 1)

    asyncio.run(main())


def test_a_response_that_took_all_its_time_is_not_requested_again() -> None:
    async def main() -> None:
        async with ScriptedServer([Say("Let"), Pause(5.0), Say(" me")], loop_last=True) as server:
            model = connect("openai:demo", base_url=server.base_url(), api_key="k", total=0.1)
            with pytest.raises(ChainBroken, match="the time was up") as caught:
                await listen(model)
            assert [verdict.kind for verdict in caught.value.verdicts] == ["late"]
            assert len(server.requests) == 1

    asyncio.run(main())


def test_a_stream_that_is_left_early_closes_its_connection() -> None:
    async def main() -> None:
        gone = asyncio.Event()
        answer: Answer = [Say("Hello "), Pause(30.0), Say("there.")]
        async with ScriptedServer(answer, on_sent=lambda sent: gone.set()) as server:
            model = connect("openai:demo", base_url=server.base_url(), api_key="k")
            async with closing(model.stream(ASKED)) as batches:
                assert said([*await anext(batches)]) == "Hello "
            async with asyncio.timeout(5.0):
                await gone.wait()

    asyncio.run(main())


def test_no_error_of_a_broken_answer_contains_the_key() -> None:
    async def main() -> None:
        async with ScriptedServer("Hello.", api_key="another") as server:
            model = connect("openai:demo", base_url=server.base_url(), api_key="sk-secret-0123456789")
            with pytest.raises(Unauthorized) as caught:
                await listen(model)
            error: BaseException | None = caught.value
            while error is not None:
                assert "secret" not in f"{error!r} {error} {getattr(error, 'verdicts', ())} {model!r}"
                error = error.__cause__ or error.__context__

    asyncio.run(main())


# Custom models


class Foreign:
    """A custom model: it does not yield `Ended`, and fails in its own way."""

    name = "foreign:demo"

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        self.requests.append(request)
        answer = self.answers.pop(0)
        try:
            if isinstance(answer, Exception):
                yield [TextDelta("Let me ")]
                raise answer
            yield [TextDelta(answer)]
        finally:
            self.closed += 1


def test_a_custom_model_without_an_end_counts_as_ended() -> None:
    deltas = hear(guard(Foreign("Hello.")))
    assert deltas == [TextDelta("Hello.")]
    assert play(Agent(guard(Foreign("Hello.")))).text == "Hello."


@pytest.mark.parametrize("error", [ConnectionError("gone"), BrokenPipeError(), TimeoutError("late")], ids=repr)
def test_a_connection_that_breaks_inside_a_custom_model_is_retried(error: Exception) -> None:
    model = Foreign(error, "Let me see.")
    deltas = hear(guard(model))
    assert [kind for kind, _ in failures(deltas)] == ["unreachable"]
    assert deltas[-3:-1] == [Restarted(()), TextDelta("Let me see.")]
    last = deltas[-1]  # after a failure it names the model that answered, and the attempt
    assert isinstance(last, Ended)
    assert (last.verdict.whole, last.verdict.attempt, last.verdict.model) == (True, 2, "foreign:demo")
    assert [request.stream for request in model.requests] == [True, False]
    assert model.closed == 2


def test_a_bug_inside_a_custom_model_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        hear(guard(Foreign(ZeroDivisionError("a bug"), "never")))


def test_closing_early_closes_the_custom_model() -> None:
    async def main() -> int:
        model = Foreign("Hello.")
        async with closing(guard(model).stream(ASKED)) as deltas:
            await anext(deltas)
        return model.closed

    assert run_virtual(main()) == 1


# After the end


def test_the_conversation_can_be_continued_after_a_broken_chain() -> None:
    desk = Desk()
    broken: Answer = [Say("Let me look again. "), Call("look", note="b"), Break()]
    model = ScriptedModel([Call("look", note="a")], broken, broken, broken, "Here I am.", "Fine.")
    chat = Conversation(Agent(guard(model), [desk.tool("look", "seen", effect="read")]))

    async def main() -> None:
        with pytest.raises(ChainBroken) as caught:
            await chat.say("Go.")
        error = caught.value
        assert error.messages == chat.messages
        assert [type(message).__name__ for message in error.messages] == ["User", "Assistant", "ToolMessage"]
        assert [(v.kind, v.turn, v.attempt) for v in error.verdicts] == [("lost", 1, 1), ("lost", 1, 2), ("lost", 1, 3)]
        assert error.verdicts[0].text_seen == len("Let me look again. ")
        assert (await chat.say()).text == "Here I am."
        assert (await chat.say("And now?")).text == "Fine."

    run_virtual(main())
    accepted(model)
    assert desk.names.count("look") == 2  # of the first turn, and once of the one that broke


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"attempts": 0},
        {"attempts": True},
        {"attempts": 2.5},
        {"seconds": 0},
        {"seconds": -1},
        {"seconds": float("nan")},
    ],
    ids=str,
)
def test_invalid_settings_are_refused_with_a_hint(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        RetryingModel(ScriptedModel("Hello."), **settings)


@pytest.mark.parametrize("fallback", ["openai:demo", ["openai:demo"]], ids=str)
def test_an_invalid_fallback_is_refused(fallback: Any) -> None:
    with pytest.raises(UserError, match="fallback"):
        RetryingModel(ScriptedModel("Hello."), fallback=fallback)


def test_its_repr_shows_the_model() -> None:
    guarded = guard(ScriptedModel("x", name="a:one"), fallback=[ScriptedModel("y", name="b:two")])
    assert guarded.name == "a:one"
    assert "b:two" in repr(guarded)
    assert guarded.model.name == "a:one"


def test_nested_retries_keep_the_unstreamed_setting() -> None:
    async def main() -> list[list[bool]]:
        inner, other = ScriptedModel("a", loop_last=True), ScriptedModel("b", loop_last=True)
        request = Request((User.of("Hi"),), tools=(ToolSpec("look"),))
        async for _ in RetryingModel(RetryingModel(inner, stream_with_tools=False)).stream(request):
            pass
        first = ScriptedModel(Fail(RequestRefused("no")), loop_last=True)
        async for _ in RetryingModel(first, fallback=[RetryingModel(other, stream_with_tools=False)]).stream(request):
            pass
        return [[request.stream for request in model.requests] for model in (inner, first, other)]

    assert run_virtual(main()) == [[False], [True], [False]]


def test_signatures_of_one_provider_are_not_sent_to_another_on_the_same_wire() -> None:
    def signed(server: ScriptedServer) -> int:
        return sum("signature" in str(message) for message in server.bodies[-1]["messages"])

    async def main() -> tuple[int, int]:
        desk = Desk()
        call: Answer = [Think("hm"), Call("look", note="a")]
        refused = Fail(Unauthorized("no", status=401))
        first = ScriptedServer(call, refused, refused, [Think("so"), Say("Done.")])
        other = ScriptedServer([Think("well"), Call("look", note="b")], "There.")
        async with first, other:

            def model(server: ScriptedServer, **more: Any) -> RetryingModel[Any]:
                url = server.base_url("anthropic-messages")
                return connect("anthropic:m", base_url=url, api_key="k", reasoning="low", max_tokens=4000, **more)

            agent = Agent(model(first, fallback=[model(other)]), desk.tools("look", effect="read"))
            chat = Conversation(agent)
            await chat.say("Go.")
            saved = Conversation.from_json(agent, chat.to_json())
            assert (await saved.say("And now?")).text == "Done."
        return signed(first), signed(other)

    assert asyncio.run(main()) == (1, 1)  # each its own, and not the other's


def test_a_stray_cancellation_is_retried() -> None:
    class Odd:
        name = "odd"

        def __init__(self) -> None:
            self.asked = 0

        async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
            self.asked += 1
            yield [TextDelta("Hel")]
            if self.asked == 1:
                raise asyncio.CancelledError
            yield [TextDelta("lo.")]

    async def main() -> str:
        return (await Agent(RetryingModel(Odd())).run("Hi")).text

    assert run_virtual(main()) == "Hello."


def test_a_stream_that_is_not_a_generator_is_closed_too() -> None:
    closed: list[bool] = []

    class Stream:
        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> Sequence[Delta]:
            return [Ended(Verdict("lost", "gone"), Assistant())]

        async def aclose(self) -> None:
            closed.append(True)

    class Odd:
        name = "odd"

        def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
            return Stream()

    with pytest.raises(ChainBroken):
        play(Agent(RetryingModel(Odd(), attempts=2)))
    assert closed == [True, True]


@pytest.mark.parametrize("make", [lambda m: RetryingModel("openai:x"), lambda m: RetryingModel(m, seconds="5")])  # type: ignore[misc]
def test_an_invalid_model_or_number_is_refused_at_once(make: Any) -> None:
    with pytest.raises(UserError, match="RetryingModel"):
        make(ScriptedModel("Hi."))
