"""Each wire reads back what it writes: responses in both forms, requests, settings, and across wires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SAMPLES
from strategies import answers, costly, histories

from unbroken import (
    Assistant,
    CallReady,
    Decoder,
    Ended,
    Request,
    Response,
    Sampling,
    Text,
    TextDelta,
    ToolCall,
    ToolMessage,
    Usage,
    User,
    Verdict,
    decode,
)
from unbroken.errors import CannotEncode, InvalidRequest
from unbroken_wires.deltas import (
    CallArguments,
    CallOpened,
    CallSpoiled,
    CallWithdrawn,
    Delta,
    ReasoningDelta,
    Restarted,
    UsageReported,
    VerdictKind,
)
from unbroken_wires.messages import Media, Message, OneTool, Part, ToolSpec
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.content_parts import foreign_text
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.writer import ResponseWriter

every_wire = pytest.mark.parametrize("wire", WIRES)

CANNOT_SAY: dict[str, set[str]] = {
    "gemini": {"parallel", "stream"},  # streaming and the model's name are in its URL
    "ollama": {"parallel", "choice", "effort", "cached"},
    "cohere-v2": {"parallel", "auto", "one"},
    "bedrock-converse": {"parallel", "stream", "none", "effort"},  # the effort depends on the family of the model
}
"""What has no place on a wire (docs/wires.md)."""


def can_say(wire: str, what: object) -> bool:
    return what not in CANNOT_SAY.get(wire, ())


def deltas_of(message: Assistant, finish: Verdict | None = None) -> list[Delta]:
    deltas: list[Delta] = []
    if message.reasoning:
        deltas.append(ReasoningDelta(message.reasoning))
    deltas += [TextDelta(half) for half in (message.text[:3], message.text[3:]) if half]
    for call in message.calls:
        deltas += [CallOpened(call.index, call.name, call.id), CallArguments(call.index, call.raw), CallReady(call)]
    deltas.append(UsageReported(Usage(11, 7, 5, 0, 3)))
    return [*deltas, Ended(finish or Verdict("whole"))]


def written(wire: str, deltas: list[Delta]) -> tuple[bytes, bytes]:
    """The same response as a stream and as one body."""
    writer = ResponseWriter(find_wire(wire), "model", "resp_1")
    stream = b"".join(writer.feed(delta) for delta in deltas)
    return stream, writer.body()


def read(wire: str, body: bytes, size: int = 4096) -> Response:
    decoder = Decoder(wire)
    for at in range(0, len(body), size):
        decoder.feed(body[at : at + size])
    return decoder.response()


@every_wire
@costly
@given(message=answers(), size=st.integers(1, 200))
def test_a_written_response_can_be_read_back(wire: str, message: Assistant, size: int) -> None:
    for body in written(wire, deltas_of(message)):
        response = read(wire, body, size)
        assert (response.text, response.reasoning) == (message.text, message.reasoning)
        assert [(c.id, c.name, c.arguments, c.complete) for c in response.calls] == [
            (c.id, c.name, c.arguments, True) for c in message.calls
        ]
        assert response.verdict.whole
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7)
        assert response.usage.cached_tokens == 5 or not can_say(wire, "cached")


@every_wire
@pytest.mark.parametrize("meaning", ["done", "length", "refused"])
def test_the_meaning_of_a_finish_reason_survives_the_wire(wire: str, meaning: Any) -> None:
    for body in written(wire, deltas_of(Assistant("hi"), Verdict("whole", meaning=meaning))):
        verdict = read(wire, body).verdict
        assert (verdict.meaning, verdict.kind) == (meaning, "whole")


@pytest.mark.parametrize(("wire", "body"), SAMPLES, ids=[wire for wire, _ in SAMPLES])
def test_a_response_of_any_wire_can_be_written_for_any_other(wire: str, body: bytes) -> None:
    decoder = Decoder(wire)
    deltas = decoder.feed(body) + decoder.end()
    first = decoder.response()
    for other in WIRES:
        for again in written(other, deltas):
            second = decode(again, wire=other)
            assert (second.text, second.reasoning) == (first.text, first.reasoning)
            assert [(c.id, c.name, c.arguments) for c in second.calls] == [
                (c.id, c.name, c.arguments) for c in first.calls
            ]
            assert second.verdict.whole


@every_wire
def test_a_body_omits_what_a_stream_could_not_take_back(wire: str) -> None:
    a, b = ToolCall("call_a", "f", {"x": 1}, '{"x": 1}', 0), ToolCall("call_b", "g", {}, "{}", 1)
    spoiled = replace(a, arguments=None, complete=False, problem="more text came")
    for undone in (CallSpoiled(spoiled), CallWithdrawn(0), Restarted(("call_a",))):
        deltas = [CallOpened(0, "f", "call_a"), CallReady(a), undone, CallOpened(1, "g", "call_b"), CallReady(b)]
        _, body = written(wire, [*deltas, Ended(Verdict("whole"))])
        assert [call.id for call in decode(body, wire=wire).calls] == ["call_b"]


@every_wire
@pytest.mark.parametrize("kind", ["error", "unfinished", "damaged"])
def test_a_failed_response_is_written_as_an_error(wire: str, kind: VerdictKind) -> None:
    for body in written(wire, [TextDelta("Let me"), Ended(Verdict(kind, "it broke", finish="stop"))]):
        verdict = decode(body, wire=wire).verdict
        assert (verdict.kind, "it broke" in verdict.reason) == ("error", True)


@every_wire
def test_an_incomplete_call_is_written_as_a_cut_off_answer(wire: str) -> None:
    for body in written(wire, [TextDelta("Let me"), Ended(Verdict("cut_call", meaning="done"))]):
        assert decode(body, wire=wire).verdict.meaning == "length"


def carried(message: Message, wire: str) -> Message:
    """A message without what the wire cannot express (docs/wires.md lists it)."""
    if isinstance(message, Assistant):
        return message
    if not isinstance(message, ToolMessage):
        parts = content_on(wire, message.parts) if wire in ("ollama", "bedrock-converse") else message.parts
        return replace(message, parts=parts)
    keeps_errors = wire in ("anthropic-messages", "gemini", "bedrock-converse")
    results = [replace(result, name="", error=result.error and keeps_errors) for result in message.results]
    return ToolMessage(tuple(replace(result, content=content_on(wire, result.content)) for result in results))


def content_on(wire: str, parts: Sequence[Part]) -> tuple[Any, ...]:
    if wire in ("ollama", "bedrock-converse"):  # an image by its address is none
        parts = [Text(foreign_text(part)) if isinstance(part, Media) and part.url else part for part in parts]
    if wire not in ("ollama", "cohere-v2", "gemini"):
        return tuple(parts)
    # One text, then the images.
    text = ("" if wire == "gemini" else "\n").join(part.text for part in parts if isinstance(part, Text))
    return (*((Text(text),) if text else ()), *(part for part in parts if isinstance(part, Media)))


def without_images_in_results(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(
        ToolMessage(
            tuple(
                replace(r, content=tuple(p for p in r.content if isinstance(p, Text)) or (Text("ok"),))
                for r in message.results
            )
        )
        if isinstance(message, ToolMessage)
        else message
        for message in messages
    )


@every_wire
@costly
@given(messages=histories())
def test_a_written_history_can_be_read_back(wire: str, messages: tuple[Message, ...]) -> None:
    if wire in ("openai-chat", "cohere-v2"):
        messages = without_images_in_results(messages)
    corner = find_wire(wire)
    again = corner.decode_request(corner.encode_request(Request(messages, model="claude")))
    assert [carried(m, wire) for m in again.messages] == [carried(m, wire) for m in messages]


@every_wire
@costly
@given(messages=histories())
def test_every_request_is_json(wire: str, messages: tuple[Message, ...]) -> None:
    assert dumps(find_wire(wire).encode_request(Request(messages, model="m")))


SETTINGS = [
    Request((User.of("hi"),), choice="auto"),
    Request((User.of("hi"),), choice="none"),
    Request((User.of("hi"),), choice="required"),
    Request((User.of("hi"),), choice=OneTool("get_weather")),
    Request((User.of("hi"),), choice="auto", parallel=False),
    Request((User.of("hi"),), choice="auto", parallel=True),
    Request((User.of("hi"),), reasoning="high", sampling=Sampling(max_tokens=30_000)),
    Request((User.of("hi"),), reasoning="none"),
    Request((User.of("hi"),), sampling=Sampling(max_tokens=100, temperature=0.5, top_p=0.9)),
    Request((User.of("hi"),), stream=False),
]


@every_wire
@pytest.mark.parametrize("request_", SETTINGS, ids=lambda r: f"{r.choice} {r.parallel} {r.reasoning} {r.stream}")
def test_written_settings_can_be_read_back(wire: str, request_: Request) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = (ToolSpec("get_weather", "The weather in a city.", schema), ToolSpec("get_news", "News."))
    given_ = replace(request_, tools=tools, model="m")
    corner = find_wire(wire)
    again = corner.decode_request(corner.encode_request(given_))
    if not (given_.choice == "none" and wire == "ollama"):
        offered = tools[:1] if isinstance(given_.choice, OneTool) and wire == "cohere-v2" else tools
        assert [(t.name, t.description, t.parameters) for t in again.tools] == [
            (t.name, t.description, t.parameters) for t in offered
        ]
    kind = "one" if isinstance(given_.choice, OneTool) else given_.choice
    if can_say(wire, "choice") and can_say(wire, kind):
        assert again.choice == given_.choice
    if can_say(wire, "effort"):
        assert again.reasoning == given_.reasoning
    assert again.sampling.temperature == given_.sampling.temperature
    assert again.sampling.top_p == given_.sampling.top_p
    if given_.sampling.max_tokens is not None:
        assert again.sampling.max_tokens == given_.sampling.max_tokens
    if can_say(wire, "stream"):
        assert again.stream == given_.stream
    if can_say(wire, "parallel") and given_.parallel is not None:
        assert again.parallel == given_.parallel


@every_wire
def test_the_final_request_keeps_its_tools_and_allows_no_calls(wire: str) -> None:
    request = Request((User.of("hi"),), tools=(ToolSpec("f"),), final=True, choice="required", model="m")
    corner = find_wire(wire)
    again = corner.decode_request(corner.encode_request(request))
    match wire:
        case "ollama":  # without a choice, only a request without tools
            assert (again.tools, again.choice) == ((), None)
        case "bedrock-converse":  # there is no such choice: the provider's profile adds a system line
            assert ([tool.name for tool in again.tools], again.choice) == (["f"], None)
        case _:
            assert ([tool.name for tool in again.tools], again.choice) == (["f"], "none")


@every_wire
def test_other_fields_go_through_extra(wire: str) -> None:
    body = find_wire(wire).encode_request(
        Request((User.of("hi"),), extra={"service_tier": "flex", "x": [1]}, model="m")
    )
    assert body["service_tier"] == "flex"
    assert find_wire(wire).decode_request(body).extra["x"] == [1]


@every_wire
def test_an_incomplete_call_is_sent_back_as_an_empty_object(wire: str) -> None:
    body = dict(SAMPLES)[wire]
    message = read(wire, body).message
    cut = replace(message, calls=(replace(message.calls[0], arguments=None, raw='{"ci', complete=False),))
    for candidate in (cut, replace(cut, native=None)):
        corner = find_wire(wire)
        again = corner.decode_request(corner.encode_request(Request((User.of("x"), candidate), model="m")))
        answer = again.messages[1]
        assert isinstance(answer, Assistant)
        assert [(c.name, c.arguments) for c in answer.calls] == [("get_weather", {})]
        assert b'{\\"ci' not in dumps(corner.encode_request(Request((User.of("x"), candidate), model="m")))


@every_wire
def test_half_a_surrogate_pair_does_not_break_a_request(wire: str) -> None:
    messages = (User.of("a \ud83d b", Media(mime="image/png", data="iVBORw0KGgo=")), Assistant("c \ude00"))
    body = dumps(find_wire(wire).encode_request(Request(messages, model="m")))
    assert "\ufffd" in body.decode()


@every_wire
@pytest.mark.parametrize("body", [[], None, "x", 5])
def test_a_request_that_is_not_an_object_is_refused_with_a_message(wire: str, body: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"reading a request of {wire} failed"):
        find_wire(wire).decode_request(body)


@every_wire
def test_an_unknown_message_is_refused_with_a_message(wire: str) -> None:
    odd: Any = User("plain text where parts should stand")  # pyright: ignore[reportArgumentType] - that is the point
    with pytest.raises(CannotEncode, match=f"writing a request for {wire} failed"):
        find_wire(wire).encode_request(Request((odd,), model="m"))


@every_wire
def test_a_number_beyond_floats_is_written_as_the_model_wrote_it(wire: str) -> None:
    raw = '{"n": 1e400, "m": 1180591620717411303425}'
    call = ToolCall("call_1", "pay", {"n": float("inf"), "m": 1180591620717411303425}, raw)
    stream, body = written(wire, [CallReady(call), Ended(Verdict("whole"))])
    request = dumps(find_wire(wire).encode_request(Request((User.of("Pay."), Assistant("", (call,))))))
    for data in (stream, body, request):
        assert b"1e400" in data
        assert b"1180591620717411303425" in data
        assert b'null,"m"' not in data
