"""What the Open Responses specification asks of a server, with models of all four wires: every response and every
event conforms to its schemas, and the behaviours of its compliance suite."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from gateway_client import Client, Reply, run, serving, settings_for, stage
from gateway_upstreams import Told, telling
from open_responses import NEEDS_SCHEMAS, assert_compaction, assert_response, assert_stream, events_of

from unbroken_testing import Break, Call, Cut, End, Say, Step, Think, Uses
from unbroken_wires.messages import System, User
from unbroken_wires.wires import WIRES

Object = dict[str, Any]
Answer = str | list[str | Step]
RESPONSES = "openai-responses"
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
UPSTREAM = pytest.mark.parametrize("upstream_wire", WIRES)
ACROSS = pytest.mark.parametrize("upstream_wire", [wire for wire in WIRES if wire != RESPONSES])
"""Where the gateway writes the response. On the same wire it is the provider's own, as that wrote it."""

pytestmark = NEEDS_SCHEMAS

WEATHER: Object = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)


def message(role: str, content: Any, **more: Any) -> Object:
    return {"type": "message", "role": role, "content": content, **more}


async def post(url: str, stream: bool, **body: Any) -> Reply:
    return await Client(url, RESPONSES, stream, parallel=None).post({"model": "m", "stream": stream, **body})


def conforming(reply: Reply, stream: bool) -> Object:
    """The response, after the check that all of it conforms."""
    assert reply.status == 200, reply.data
    if stream:
        return assert_stream(events_of(reply.data))
    assert_response(reply.body)
    return reply.body


async def answered(upstream_wire: str, stream: bool, answer: Answer, **body: Any) -> Object:
    async with stage(upstream_wire, answer) as at:
        return conforming(await post(at.url, stream, **body), stream)


HISTORIES: dict[str, Any] = {
    "a text": "Say hello.",
    "a user message": [message("user", "Say hello in exactly three words.")],
    "a system message": [message("system", "You are a pirate."), message("user", "Say hello.")],
    "an image": [
        message("user", [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PIXEL}])
    ],
    "several turns": [
        message("user", "My name is Alice."),
        message("assistant", "Hello Alice!"),
        message("user", "What is my name?"),
    ],
    "phases": [
        message("user", "Count the legs."),
        message("assistant", "I should look at the number.", phase="commentary"),
        message("assistant", "The number is four.", phase="final_answer"),
        message("user", "Repeat only the number."),
    ],
}


@STREAMED
@UPSTREAM
@pytest.mark.parametrize("history", HISTORIES)
def test_a_text_answer_conforms(history: str, upstream_wire: str, stream: bool) -> None:
    answer: Answer = [Say("Ahoy there, mate."), Uses(10, 4, cached=2)]
    response = run(lambda: answered(upstream_wire, stream, answer, input=HISTORIES[history]))
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["message"]
    assert response["output"][0]["content"][0]["text"] == "Ahoy there, mate."


@STREAMED
@UPSTREAM
def test_calls_conform(upstream_wire: str, stream: bool) -> None:
    answer: Answer = [
        Say("Let me look."),
        Call("get_weather", place="San Francisco"),
        Call("get_weather", place="Oslo"),
        Uses(10, 4),
    ]
    response = run(lambda: answered(upstream_wire, stream, answer, input="The weather?", tools=[WEATHER]))
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
    arguments = [json.loads(item["arguments"]) for item in response["output"][1:]]
    assert arguments == [{"place": "San Francisco"}, {"place": "Oslo"}]


def test_a_streamed_call_has_events_for_its_arguments() -> None:
    async def story() -> list[Object]:
        async with stage("gemini", [Call("get_weather", place="Oslo")]) as at:
            return events_of((await post(at.url, True, input="The weather?", tools=[WEATHER])).data)

    kinds = [event["type"] for event in run(story)]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


@STREAMED
@UPSTREAM
def test_reasoning_conforms(upstream_wire: str, stream: bool) -> None:
    answer: Answer = [Think("Four, or five?"), Say("Four."), Uses(10, 4, reasoning=3)]
    response = run(lambda: answered(upstream_wire, stream, answer, input="How many?"))
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]


@STREAMED
@ACROSS
@pytest.mark.parametrize(
    ("end", "reason"),
    [(End("length"), "max_output_tokens"), (End("refused"), "content_filter")],
    ids=["cut", "refused"],
)
def test_an_incomplete_answer_conforms(end: End, reason: str, upstream_wire: str, stream: bool) -> None:
    response = run(lambda: answered(upstream_wire, stream, [Say("Four is"), Uses(10, 2), end], input="How many?"))
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": reason}


@UPSTREAM
def test_an_answer_that_breaks_off_ends_as_failed(upstream_wire: str) -> None:
    response = run(lambda: answered(upstream_wire, True, [Say("Four is"), Break()], input="How many?"))
    assert (response["status"], response["completed_at"]) == ("failed", None)
    assert response["error"]["code"]


def test_an_answer_with_half_a_call_ends_as_incomplete() -> None:
    cut: Answer = [Say("Let me look."), Cut("get_weather", '{"place": "San Fr')]
    response = run(lambda: answered("openai-chat", True, cut, input="The weather?", tools=[WEATHER]))
    assert (response["status"], [item["type"] for item in response["output"]]) == ("incomplete", ["message"])


SETTINGS: Object = {
    "instructions": "Be brief.",
    "max_output_tokens": 500,
    "max_tool_calls": 3,
    "metadata": {"team": "blue"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "k1",
    "safety_identifier": "u1",
    "service_tier": "flex",
    "store": False,
    "temperature": 0.5,
    "top_p": 0.9,
    "tool_choice": "required",
    "truncation": "auto",
}
DEFAULTS: Object = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "tool_choice": "auto",
    "truncation": "disabled",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "background": False,
    "previous_response_id": None,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None, "summary": None},
    "tools": [],
    "error": None,
    "incomplete_details": None,
}


@STREAMED
@ACROSS
def test_a_response_repeats_what_the_request_said(upstream_wire: str, stream: bool) -> None:
    more: Object = {
        "tools": [WEATHER],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}, "verbosity": "low"},
    }
    response = run(lambda: answered(upstream_wire, stream, "{}", input="Go.", **SETTINGS, **more))
    assert {name: response[name] for name in SETTINGS} == SETTINGS
    assert response["tools"] == [{**WEATHER, "strict": None}]
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["text"]["format"]["name"] == "x"
    assert response["text"]["verbosity"] == "low"


@STREAMED
@ACROSS
def test_what_the_request_leaves_out_has_its_default(upstream_wire: str, stream: bool) -> None:
    async def story() -> tuple[Object, int]:
        async with stage(upstream_wire, [Say("Yes."), Uses(3, 2)]) as at:
            return conforming(await post(at.url, stream, input="Go."), stream), int(at.clock.time)

    response, now = run(story)
    assert {name: response[name] for name in DEFAULTS} == DEFAULTS
    assert (response["created_at"], response["completed_at"]) == (now, now)
    assert (response["usage"]["input_tokens"], response["usage"]["total_tokens"]) == (3, 5)


@ACROSS
def test_the_first_events_have_every_field_too(upstream_wire: str) -> None:
    async def story() -> list[Object]:
        async with stage(upstream_wire, "Yes.") as at:
            return events_of((await post(at.url, True, input="Go.", temperature=0.5)).data)

    created = run(story)[0]["response"]
    assert (created["status"], created["temperature"], created["completed_at"]) == ("in_progress", 0.5, None)


# Compaction


async def compact(url: str, **body: Any) -> tuple[int, Object]:
    async with aiohttp.ClientSession(url) as session, session.post("/v1/responses/compact", json=body) as answer:
        return answer.status, json.loads(await answer.read())


LAUNCH = [
    message("user", "We launch on Tuesday."),
    message("assistant", "Understood."),
    {"type": "function_call", "call_id": "c1", "name": "book", "arguments": '{"room": 7}'},
    {"type": "function_call_output", "call_id": "c1", "output": "Booked."},
]


@ACROSS
def test_a_history_is_compacted_to_a_summary_that_any_model_continues_from(upstream_wire: str) -> None:
    async def story() -> None:
        summary: Answer = [Say("Launch on Tuesday, room 7 is booked."), Uses(50, 9)]
        async with stage(upstream_wire, summary, "Tuesday.") as at:
            status, made = await compact(
                at.url, model="m", input=LAUNCH, prompt_cache_key="k", instructions="Be brief."
            )
            assert status == 200, made
            assert_compaction(made)
            assert [item["type"] for item in made["output"]] == ["compaction"]
            assert made["usage"]["total_tokens"] == 59
            (asked,) = at.asked
            assert isinstance(asked[0], System)
            assert isinstance(asked[1], User)
            for part in ("We launch on Tuesday.", "Understood.", '{"room": 7}', "Booked."):
                assert part in asked[1].text
            reply = await post(at.url, False, input=[*made["output"], message("user", "When?")])
            assert conforming(reply, False)["output"][0]["content"][0]["text"] == "Tuesday."
            assert "Launch on Tuesday, room 7 is booked." in str(at.asked[1][0])

    run(story)


def test_a_provider_of_the_same_wire_compacts_itself() -> None:
    theirs: Object = {"id": "resp_9", "object": "response.compaction", "created_at": 1, "output": [], "usage": {}}

    async def story() -> None:
        async with telling(Told(json.dumps(theirs).encode())) as upstream:
            async with serving(settings_for(upstream.settings(RESPONSES))) as url:
                assert await compact(url, model="m", input=LAUNCH, x_more=1) == (200, theirs)
            (asked,) = upstream.asked
            assert asked.path == "/v1/responses/compact"
            assert asked.body == {"model": "big-model", "input": LAUNCH, "x_more": 1}

    run(story)


def test_a_provider_of_the_same_wire_that_cannot_compact_is_asked_for_a_summary() -> None:
    answer = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Tuesday."}]}],
    }

    async def story() -> None:
        missing, found = Told(b'{"error": {"message": "no such path"}}', 404), Told(json.dumps(answer).encode())
        async with telling(missing, found) as upstream:
            async with serving(settings_for(upstream.settings(RESPONSES))) as url:
                status, made = await compact(url, model="m", input=LAUNCH)
                assert (status, made["output"][0]["type"]) == (200, "compaction")
                await post(url, False, input=[*made["output"], message("user", "When?")])
            assert [asked.path for asked in upstream.asked] == ["/v1/responses/compact", *["/v1/responses"] * 2]
            first, second = upstream.asked[2].body["input"]
            assert (first["role"], first["content"].endswith("Tuesday.")) == ("user", True)
            assert second == message("user", "When?")

    run(story)


@UPSTREAM
def test_a_stored_conversation_can_be_compacted(upstream_wire: str) -> None:
    async def story() -> None:
        async with stage(upstream_wire, "Understood.", "Launch on Tuesday.") as at:
            made = conforming(await post(at.url, False, input="We launch on Tuesday."), False)
            status, _ = await compact(at.url, model="m", previous_response_id=made["id"])
            assert status == 200
            assert "We launch on Tuesday." in str(at.upstream.bodies[-1])
            status, answer = await compact(at.url, model="m", previous_response_id="resp_unknown")
            assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")

    run(story)


@UPSTREAM
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("background", True, "`background` is not supported"),
        ("conversation", "conv_1", "`conversation` is stored by a provider"),
        ("prompt", {"id": "pmpt_1"}, "`prompt` is stored by a provider"),
    ],
)
def test_a_compaction_is_refused_what_a_response_is_refused(
    upstream_wire: str, field: str, value: Any, words: str
) -> None:
    async def story() -> None:
        async with stage(upstream_wire) as at:
            status, answer = await compact(at.url, model="m", input=LAUNCH, **{field: value})
            assert (status, answer["error"]["message"].startswith(words)) == (400, True), answer
            assert not at.upstream.requests

    run(story)


def test_a_compaction_without_a_model_or_a_complete_summary_is_an_error() -> None:
    async def story() -> None:
        async with stage("openai-chat", [Say("Launch on"), End("length")]) as at:
            status, answer = await compact(at.url, input=LAUNCH)
            assert (status, "`model`" in answer["error"]["message"]) == (400, True)
            status, answer = await compact(at.url, model="m", input=LAUNCH)
            assert (status, "summary" in answer["error"]["message"]) == (502, True)

    run(story)
