"""A scripted model fakes only the provider: its bytes go through the real decoder of each wire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scenes import IN_FRAGMENTS

from unbroken import Agent, Assistant, Decoder, Request, ToolCall, ToolMessage, ToolResult, User
from unbroken.errors import RateLimited, UserError
from unbroken.models.scripted import Answer, pieces_of, play_bytes, steps_of
from unbroken_testing import (
    Break,
    Call,
    Cut,
    End,
    ErrorInside,
    Fail,
    Pause,
    Raw,
    Say,
    ScriptedModel,
    Think,
    Uses,
    run_virtual,
)
from unbroken_wires.deltas import (
    CallArguments,
    CallOpened,
    CallReady,
    Delta,
    Ended,
    ReasoningDelta,
    TextDelta,
    UsageReported,
)
from unbroken_wires.messages import ToolSpec
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.json_access import NAMESPACE

ASKED = Request((User.of("What is the weather in Beijing, and what is the news?"),), tools=(ToolSpec("get_weather"),))
STREAMED = [pytest.param(True, id="streamed"), pytest.param(False, id="whole")]
TWO_CALLS: Answer = [
    Think("Two things."),
    Say("Let me look."),
    Call("get_weather", city="Beijing"),
    Call("get_news", {"topic": "tech"}, after=0.25),
    Uses(10, 20, cached=3),
]


def heard(model: ScriptedModel, request: Request = ASKED) -> list[tuple[float, Delta]]:
    """Every delta of one answer with its virtual time."""

    async def listen() -> list[tuple[float, Delta]]:
        loop = asyncio.get_running_loop()
        return [(loop.time(), delta) async for deltas in model.stream(request) for delta in deltas]

    return run_virtual(listen)


def end_of(model: ScriptedModel, request: Request = ASKED) -> Ended:
    ended = heard(model, request)[-1][1]
    assert isinstance(ended, Ended)
    return ended


def message_of(ended: Ended) -> Assistant:
    assert ended.message is not None
    return ended.message


def calls_of(ended: Ended) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in message_of(ended).calls]


@pytest.mark.multi_tool_call
@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_is_the_same_on_every_wire(wire: str, stream: bool) -> None:
    ended = end_of(ScriptedModel(TWO_CALLS, wire=wire), replace(ASKED, stream=stream))
    assert ended.verdict.whole
    message = message_of(ended)
    assert (message.reasoning, message.text) == ("Two things.", "Let me look.")
    assert calls_of(ended) == [("get_weather", {"city": "Beijing"}), ("get_news", {"topic": "tech"})]
    assert [call.problem for call in message.calls] == ["", ""]


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_usage_is_reported_on_every_wire(wire: str, stream: bool) -> None:
    deltas = heard(ScriptedModel(TWO_CALLS, wire=wire), replace(ASKED, stream=stream))
    usage = [delta.usage for _, delta in deltas if isinstance(delta, UsageReported)][-1]
    assert (usage.input_tokens, usage.output_tokens) == (10, 20)
    assert usage.cached_tokens == (0 if wire == "ollama" else 3)


@pytest.mark.parametrize("wire", IN_FRAGMENTS)
def test_a_call_opens_grows_and_becomes_ready_in_this_order(wire: str) -> None:
    model = ScriptedModel(Call("get_weather", city="Beijing", after=1.0, over=0.3), wire=wire)
    told = [(second, delta) for second, delta in heard(model) if not isinstance(delta, Ended | UsageReported)]
    assert [type(delta) for _, delta in told] == [CallOpened, *[CallArguments] * 3, CallReady]
    assert [second for second, _ in told[1:]] == [1.1, 1.2, 1.3, 1.3]


def test_a_gemini_call_arrives_complete() -> None:
    model = ScriptedModel(Call("get_weather", city="Beijing", after=1.0, over=0.3), wire="gemini")
    assert {second for second, _ in heard(model)} == {1.3}


@pytest.mark.parametrize("wire", WIRES)
def test_pauses_pass_in_virtual_time(wire: str) -> None:
    model = ScriptedModel([Say("One.", after=1.0), Pause(2.0), Call("a"), Call("b", after=0.25), Pause(0.5)], wire=wire)
    deltas = heard(model)
    ready = {delta.call.name: second for second, delta in deltas if isinstance(delta, CallReady)}
    text = [second for second, delta in deltas if isinstance(delta, TextDelta)]
    assert (text, ready, deltas[-1][0]) == ([1.0], {"a": 3.0, "b": 3.25}, 3.75)


def test_an_unstreamed_answer_arrives_when_it_is_complete() -> None:
    model = ScriptedModel([Say("One.", after=1.0), Pause(2.0), Call("a", over=0.5)])
    assert {second for second, _ in heard(model, replace(ASKED, stream=False))} == {3.5}


def test_text_arrives_word_by_word_or_in_a_number_of_chunks() -> None:
    def chunks(answer: Answer) -> list[str]:
        return [delta.text for _, delta in heard(ScriptedModel(answer)) if isinstance(delta, TextDelta)]

    assert chunks("It is sunny.") == ["It ", "is ", "sunny."]
    assert chunks(Say("abcdef", chunks=3)) == ["ab", "cd", "ef"]


def test_chunks_can_have_a_delay() -> None:
    deltas = heard(ScriptedModel("It is sunny.", chunk_delay=0.1))
    assert [second for second, delta in deltas if isinstance(delta, TextDelta)] == [0.0, 0.1, 0.2]


def test_pieces_add_up_to_the_text_and_none_is_empty() -> None:
    for text in ("", "a", "It is  sunny.\n", "天气 很好"):
        for count in range(8):
            pieces = pieces_of(text, count)
            assert "".join(pieces) == text
            assert all(pieces) or not text


@pytest.mark.parametrize("wire", WIRES)
def test_ids_come_from_the_script_or_from_us(wire: str) -> None:
    model = ScriptedModel([Call("a"), Call("a"), Call("b", id="mine"), Call("c", id="")], wire=wire)
    first, second, mine, minted = (call.id for call in message_of(end_of(model)).calls)
    assert first != second
    assert mine == "mine"
    assert minted == "call_0_3"


@pytest.mark.parametrize("wire", WIRES)
def test_ids_differ_from_round_to_round_and_are_repeatable(wire: str) -> None:
    def ids() -> list[str]:
        model = ScriptedModel(Call("a"), Call("a"), wire=wire)
        message = message_of(end_of(model))
        results = ToolMessage(tuple(ToolResult.of(call, "ok") for call in message.calls))
        again = end_of(model, replace(ASKED, messages=(*ASKED.messages, message, results)))
        return [call.id for call in (*message.calls, *message_of(again).calls)]

    assert len(set(ids())) == 2
    assert ids() == ids()


def test_arguments_named_like_options_are_given_as_a_dict() -> None:
    model = ScriptedModel([Call("wait", {"after": 3, "id": "x"}, name="y", after=0.5)])
    assert calls_of(end_of(model)) == [("wait", {"after": 3, "id": "x", "name": "y"})]


def test_arguments_may_be_given_as_raw_text() -> None:
    call = message_of(end_of(ScriptedModel(Call("a", '{"n": 1}')))).calls[0]
    assert (call.arguments, call.raw) == ({"n": 1}, '{"n": 1}')
    with pytest.raises(UserError, match="`a` has its arguments both as text and by name"):
        Call("a", "{}", n=1)
    with pytest.raises(UserError, match=r"""for an argument of this name write Call\('a', \{"id": 7\}\)"""):
        Call("a", id=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", IN_FRAGMENTS)
def test_an_incomplete_call_never_becomes_ready(wire: str, stream: bool) -> None:
    model = ScriptedModel([Call("a", n=1), Cut("b", '{"path": "/tm')], wire=wire)
    ended = end_of(model, replace(ASKED, stream=stream))
    assert (ended.verdict.kind, ended.verdict.meaning) == ("cut_call", "length")
    assert calls_of(ended) == [("a", {"n": 1}), ("b", None)]


@pytest.mark.parametrize("stream", STREAMED)
def test_gemini_has_its_own_finish_reason_for_an_incomplete_call(stream: bool) -> None:
    ended = end_of(ScriptedModel([Say("Hm."), Cut("b", '{"a')], wire="gemini"), replace(ASKED, stream=stream))
    assert (ended.verdict.kind, ended.verdict.finish) == ("error", "MALFORMED_FUNCTION_CALL")
    assert message_of(ended).calls == ()


@pytest.mark.parametrize("wire", WIRES)
def test_a_break_keeps_what_came_before_it(wire: str) -> None:
    ended = end_of(ScriptedModel([Say("Let me"), Call("a"), Break("the cable was cut")], wire=wire))
    assert ended.verdict.kind == "lost"
    assert ended.verdict.reason.startswith("the cable was cut")
    assert (message_of(ended).text, calls_of(ended)) == ("Let me", [("a", {})])


@pytest.mark.parametrize("wire", WIRES)
def test_an_unstreamed_body_that_breaks_off_yields_nothing(wire: str) -> None:
    ended = end_of(ScriptedModel([Say("Let me"), Call("a"), Break()], wire=wire), replace(ASKED, stream=False))
    assert ended.verdict.kind == "lost"
    assert calls_of(ended) == []


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_an_error_inside_an_answer_is_decoded_as_one(wire: str, stream: bool) -> None:
    model = ScriptedModel([Say("Let me"), ErrorInside("overloaded")], wire=wire)
    verdict = end_of(model, replace(ASKED, stream=stream)).verdict
    assert (verdict.kind, "overloaded" in verdict.reason) == ("error", True)


@pytest.mark.parametrize("stream", STREAMED)
def test_a_failure_is_raised_at_its_time(stream: bool) -> None:
    async def main() -> float:
        model = ScriptedModel([Pause(3.0), Fail(RateLimited("too many", status=429))])
        with pytest.raises(RateLimited, match="too many"):
            _ = [delta async for deltas in model.stream(replace(ASKED, stream=stream)) for delta in deltas]
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 3.0


@pytest.mark.parametrize("stream", STREAMED)
def test_raw_bytes_alone_are_all_that_is_sent(stream: bool) -> None:
    verdict = end_of(ScriptedModel(Raw(b"<html>busy</html>")), replace(ASKED, stream=stream)).verdict
    assert (verdict.kind, verdict.bytes_seen) == ("foreign", 17)


def test_raw_bytes_can_be_between_others() -> None:
    noise = b'data: {"choices": [{"index": 0, "delta": {"content": "raw "}}]}\n\n'
    ended = end_of(ScriptedModel([Say("before "), Raw(noise), Say("after")]))
    assert (ended.verdict.whole, message_of(ended).text) == (True, "before raw after")


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_may_have_another_finish_reason(wire: str) -> None:
    assert end_of(ScriptedModel([Say("And so"), End("length")], wire=wire)).verdict.meaning == "length"
    assert end_of(ScriptedModel([Say("I will not"), End("refused")], wire=wire)).verdict.meaning == "refused"


@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_answer_is_empty(wire: str) -> None:
    assert end_of(ScriptedModel("", wire=wire)).verdict.kind == "empty"
    assert end_of(ScriptedModel([], wire=wire)).verdict.kind == "empty"


def test_calls_written_as_text_are_found_as_in_a_real_answer() -> None:
    leaked = 'Sure. <tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
    assert calls_of(end_of(ScriptedModel(leaked))) == [("get_weather", {"city": "Oslo"})]
    assert calls_of(end_of(ScriptedModel(leaked, recover=False))) == []


def test_requests_are_kept_and_answers_are_given_in_order() -> None:
    model = ScriptedModel("First.", "Second.", name="scripted:mine")
    other = replace(ASKED, messages=(User.of("And now?"),))
    assert [message_of(end_of(model, request)).text for request in (ASKED, other)] == ["First.", "Second."]
    assert [request.messages for request in model.requests] == [ASKED.messages, other.messages]
    assert [body["model"] for body in model.bodies] == ["mine", "mine"]
    assert model.bodies[1]["messages"] == [{"role": "user", "content": "And now?"}]


def test_a_function_can_give_the_answer() -> None:
    def count(request: Request) -> str:
        return f"{len(request.messages)} so far."

    assert message_of(end_of(ScriptedModel(count))).text == "1 so far."
    alone = ScriptedModel(count)
    assert [message_of(end_of(alone)).text for _ in range(3)] == ["1 so far."] * 3


def test_more_requests_than_answers_is_a_mistake_in_the_script() -> None:
    model = ScriptedModel("Only this.", name="scripted:short")
    end_of(model)
    with pytest.raises(UserError, match="the model scripted:short was asked for answer 2 and its script has 1"):
        end_of(model)


def test_the_last_answer_can_be_repeated() -> None:
    model = ScriptedModel("First.", "Again.", loop_last=True)
    assert [message_of(end_of(model)).text for _ in range(4)] == ["First.", "Again.", "Again.", "Again."]


def test_other_tasks_run_between_two_chunks() -> None:
    async def main() -> tuple[int, int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        deltas = [delta async for deltas in ScriptedModel("one two three four").stream(ASKED) for delta in deltas]
        counting.cancel()
        return turns, len(deltas)

    turns, deltas = asyncio.run(main())
    assert turns >= deltas - 1


@pytest.mark.parametrize("wire", WIRES)
def test_the_bytes_mean_the_same_at_every_chunk_size(wire: str) -> None:
    answer: Sequence[Any] = [*steps_of(TWO_CALLS), Cut("b", '{"a')]
    body = b"".join(data for _, data in play_bytes(answer, wire, ASKED))

    def read(size: int) -> list[Delta]:
        decoder = Decoder(wire, request=ASKED)
        deltas = [delta for at in range(0, len(body), size) for delta in decoder.feed(body[at : at + size])]
        return deltas + decoder.end()

    whole = read(len(body))
    assert any(isinstance(delta, ReasoningDelta) for delta in whole)
    assert all(read(size) == whole for size in (1, 7, 64))


def test_thinking_is_sent_back_with_its_signature() -> None:
    model = ScriptedModel([Think("Hm."), Call("a")], "Done.", wire="anthropic-messages")
    message = message_of(end_of(model))
    results = ToolMessage((ToolResult.of(message.calls[0], "ok"),))
    end_of(model, replace(ASKED, messages=(*ASKED.messages, message, results)))
    thinking = model.bodies[1]["messages"][1]["content"][0]
    assert thinking == {"type": "thinking", "thinking": "Hm.", "signature": "sig-scripted-0"}


def test_calls_are_real_calls() -> None:
    call = message_of(end_of(ScriptedModel(Call("a", n=10**30)))).calls[0]
    assert call == ToolCall("call_r0c0", "a", {"n": 10**30}, f'{{"n": {10**30}}}', 0)


def test_a_long_running_model_keeps_only_its_last_requests() -> None:
    model = ScriptedModel("Yes.", loop_last=True, keep=2)
    for number in range(5):
        run_virtual(Agent(model).run(f"{number}"))
        assert len(model.requests) == len(model.bodies) == min(number + 1, 2)
    assert [request.messages[-1] for request in model.requests] == [User.of("3"), User.of("4")]


@pytest.mark.parametrize("include", [["reasoning.encrypted_content"], []], ids=["requested", "not requested"])
def test_reasoning_of_the_responses_wire_is_encrypted_if_that_is_requested(include: list[str]) -> None:
    model = ScriptedModel([Think("Hm."), Say("Hi.")], wire="openai-responses")
    asked = replace(ASKED, wire="openai-responses", extra={"store": False, "include": include})
    message = end_of(model, asked).message
    assert message is not None
    assert message.native is not None
    items: list[Any] = message.native.value
    assert [bool(item.get("encrypted_content")) for item in items] == [bool(include), False]


@pytest.mark.parametrize("stream", STREAMED)
def test_a_tool_of_a_namespace_is_called_as_the_responses_api_calls_it(stream: bool) -> None:
    tools = (ToolSpec(f"mcp__files{NAMESPACE}write"), ToolSpec("write"))
    request = replace(ASKED, tools=tools, stream=stream)
    model = ScriptedModel([Call("mcp__files__write"), Call("write")], wire="openai-responses")
    calls = message_of(end_of(model, request)).calls
    assert [(call.namespace, call.name) for call in calls] == [("mcp__files", "write"), ("", "write")]
