"""Guardrails of an alias: what the provider gets, what the client gets, on every pair of wires, streamed and serial."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import CITIES, QUESTION, SOME_PAIRS, THREE_CALLS, Client, Stage, run, stage

from unbroken.guardrails import Retry, Veto
from unbroken.middleware import Ask, Middleware
from unbroken_gateway.settings import DeploymentSettings, GuardrailSettings, UpstreamSettings
from unbroken_gateway.upstreams.catalog import Catalog
from unbroken_testing import Call, Say, Think, Uses
from unbroken_wires.deltas import Delta, TextDelta
from unbroken_wires.messages import (
    Assistant,
    Media,
    Request,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)

HEADER = "x-unbroken-guardrails"
SECRET = "4111 1111 1111 1111"
CARD = GuardrailSettings("redact", "cards", pattern=r"\d{4}( \d{4}){3}", by="[card]", arguments=True)
NO_SHANGHAI = GuardrailSettings("check_calls", "cities", veto="Shanghai", message="not that city")
HERE = __name__
CSV = f"data:text/csv;base64,{b64encode(SECRET.encode()).decode()}"


def guarded(*guardrails: GuardrailSettings, **more: Any) -> dict[str, Any]:
    return {"alias": {"guardrails": guardrails, **more}}


async def metrics(on: Stage) -> str:
    return await read(on, "/metrics")


async def read(on: Stage, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{on.url}{path}") as answer:
        return await answer.text()


@pytest.mark.parametrize(("wire", "upstream"), SOME_PAIRS)
def test_what_matches_reaches_neither_the_provider_nor_the_client(wire: str, upstream: str) -> None:
    """Every pair of wires, streamed and not, plain and serial: a secret in the system text, the question, a result, the
    answer and the arguments of a call."""

    async def story(stream: bool, serial: bool) -> None:
        calls = [Call("get_weather", city=f"{city} {SECRET}") for city in CITIES]
        first = [Say("Card 4111 1111"), Say(" 1111 1111, let me look."), *calls, Uses(10, 2)]
        async with stage(upstream, first, f"Done with {SECRET}.", serial=serial, **guarded(CARD)) as on:
            client = on.client(wire, stream, parallel=False if serial else None)
            if wire != "openai-responses":  # a response of that wire repeats its client's own instructions
                client.messages = [System.of(f"The card is {SECRET}.")]
            replies = [await client.ask(User.of(f"My card is {SECRET}."))]
            said = replies[0].response
            assert said.text == "Card [card], let me look."
            while replies[-1].response.calls:
                seen = replies[-1].response.calls
                assert len(seen) == (1 if serial else 3)
                results = [ToolResult.of(call, f"Paid with {SECRET}.") for call in seen]
                replies.append(await client.ask(ToolMessage(tuple(results))))
            assert replies[-1].response.text == "Done with [card]."
            assert all(SECRET.encode() not in reply.data for reply in replies)
            assert replies[-1].headers[HEADER] == "cards changed"
            assert len(on.asked) == 2
            assert all(SECRET not in str(asked) for asked in on.asked)
            last = on.asked[-1]
            assert len([each for said in last if isinstance(said, ToolMessage) for each in said.results]) == 3
            given = [call.arguments for said in last if isinstance(said, Assistant) for call in said.calls]
            assert given == [{"city": f"{city} [card]"} for city in CITIES]

    async def stories() -> None:
        for stream in (False, True):
            for serial in (False, True):
                await story(stream, serial)

    run(stories)


@pytest.mark.parametrize(("wire", "upstream"), SOME_PAIRS)
def test_a_call_that_is_refused_reaches_no_client_and_the_model_answers_again(wire: str, upstream: str) -> None:
    async def story(stream: bool, serial: bool) -> None:
        second = [Say("Only one then."), Call("get_weather", city="Beijing"), Uses(20, 5)]
        async with stage(upstream, THREE_CALLS, second, "Sunny.", serial=serial, **guarded(NO_SHANGHAI)) as on:
            client = on.client(wire, stream, parallel=False if serial else None)
            reply = await client.ask(User.of(QUESTION))
            assert (reply.response.text, reply.calls) == ("Only one then.", [("get_weather", {"city": "Beijing"})])
            assert reply.headers[HEADER] == "cities vetoed"
            assert b"Shanghai" not in reply.data
            done = await client.answer_calls()
            assert done.response.text == "Sunny."
            again = on.asked[1]
            results = [each for said in again if isinstance(said, ToolMessage) for each in said.results]
            assert [each.text for each in results] == [
                "Error: not executed: another call of this message was refused",
                "Error: not executed: not that city",
                "Error: not executed: another call of this message was refused",
            ]
            usage = reply.response.usage
            assert usage is not None
            assert (usage.input_tokens, usage.output_tokens) == (120, 25)  # both answers were paid for

    async def stories() -> None:
        for stream in (False, True):
            for serial in (False, True):
                await story(stream, serial)

    run(stories)


# What a check is given, and what becomes of its decision


def no_passwords(text: str) -> str | None:
    if "password" in text:
        raise Veto("Please do not send passwords.")
    return text.replace("Bob", "[name]") if "Bob" in text else None


def of_ann(context: Any, text: str) -> None:
    if context.deps.key or context.deps.alias != "m" or not context.deps.request_id:
        raise ValueError(f"unexpected {text}")


async def polite(message: Assistant) -> str | None:
    if "damn" in message.text:
        raise Retry("Be polite.")
    if "never" in message.text:
        raise Veto("No answer.")
    return None


def a_sentence(text: str) -> str:
    if not text.endswith("."):
        raise Retry("Write a sentence.")
    return text.upper()


def at_most_100(call: ToolCall) -> dict[str, Any] | None:
    assert call.arguments is not None
    if call.arguments["amount"] > 1000:
        raise Veto("Payments are closed.", to="user")
    return {"amount": 100} if call.arguments["amount"] > 100 else None


def breaks(value: object) -> None:
    raise KeyError(SECRET)


def hangs(value: object) -> None:
    time.sleep(0.3)


class Shouting(Middleware):
    """A user's own middleware, which changes the text as it streams."""

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        async for deltas in call_next(request):
            yield [TextDelta(delta.text.upper()) if isinstance(delta, TextDelta) else delta for delta in deltas]


PAY = ToolSpec("pay", "Pays.", {"type": "object", "properties": {"amount": {"type": "integer"}}})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["openai-chat", "anthropic-messages", "openai-responses"])
def test_a_prompt_that_is_refused_is_answered_by_the_veto_and_not_shown_to_the_model_later(
    wire: str, stream: bool
) -> None:
    async def story() -> None:
        check = GuardrailSettings("check_input", check=f"{HERE}:no_passwords")
        async with stage("openai-chat", "Hello Bob.", "Fine.", spend=True, **guarded(check)) as on:
            client = on.client(wire, stream)
            reply = await client.ask(User.of("My password is 1234"))
            assert "unbroken_uncounted_answers_total{" not in await metrics(on)  # nothing was asked, nothing is to pay
            assert (reply.status, reply.response.text) == (200, "Please do not send passwords.")
            assert reply.response.verdict.whole
            assert reply.headers[HEADER] == "check_input vetoed"
            assert '"guardrails":["check_input vetoed"]' in (await read(on, "/status.json")).replace(": ", ":")
            assert on.asked == []
            assert (await client.ask(User.of("I am Bob."))).response.text == "Hello Bob."
            assert [said.text for said in on.asked[0] if isinstance(said, User)] == [
                "[A message that was refused is not shown.]",
                "I am [name].",
            ]
            await client.ask(User.of("How are you?"))
            assert [said.text for said in on.asked[1] if isinstance(said, User)][1] == "I am [name]."
            counted = await metrics(on)
            assert 'unbroken_guardrails_total{alias="m",guardrail="check_input",outcome="vetoed"} 1.0' in counted

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_and_outputs_are_checked_replaced_and_requested_again(stream: bool) -> None:
    async def story() -> None:
        answers = GuardrailSettings("check_answers", check=f"{HERE}:polite")
        output = GuardrailSettings("check_output", check=f"{HERE}:a_sentence", retries=1)
        context = GuardrailSettings("check_input", check=f"{HERE}:of_ann")
        said = ["damn", "Hello", "Good day."]
        async with stage("openai-chat", *said, "never", **guarded(context, answers, output)) as on:
            client = on.client("anthropic-messages", stream)
            reply = await client.ask(User.of("Hi"))
            assert reply.response.text == "GOOD DAY."
            assert "Be polite." in str(on.asked[1])
            assert "Write a sentence." in str(on.asked[2])
            assert (await client.ask(User.of("Hm"))).response.text == "No answer."
        async with stage("openai-chat", "damn", "damn", **guarded(answers)) as on:
            reply = await on.client("openai-chat", stream).ask(User.of("Hi"))
            assert reply.status == 502
            assert "`check_answers` accepted none" in reply.body["error"]["message"]

    run(story)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("serial", [False, True])
def test_a_check_of_calls_may_change_their_arguments_or_end_the_answer(stream: bool, serial: bool) -> None:
    async def story() -> None:
        check = GuardrailSettings("check_calls", check=f"{HERE}:at_most_100", tools=("pay",))
        calls = [Call("pay", amount=50), Call("pay", amount=500)]
        async with stage("anthropic-messages", calls, "Paid.", [Call("pay", amount=5000)], **guarded(check)) as on:
            client = on.client("openai-chat", stream, parallel=False if serial else None, tools=(PAY,))
            replies = await client.converse("Pay.")
            given = [arguments for reply in replies for _, arguments in reply.calls]
            assert given == [{"amount": 50}, {"amount": 100}]
            # The model reads the calls as the client ran them.
            read = [call.arguments for said in on.asked[1] if isinstance(said, Assistant) for call in said.calls]
            assert read == given
            vetoed = await client.ask(User.of("Pay more."))
            assert (vetoed.response.text, vetoed.calls) == ("Payments are closed.", [])

    run(story)


def test_a_model_that_repeats_a_refused_call_ends_with_the_reason() -> None:
    async def story() -> None:
        async with stage("gemini", THREE_CALLS, THREE_CALLS, THREE_CALLS, **guarded(NO_SHANGHAI)) as on:
            reply = await on.client("openai-chat").ask(User.of(QUESTION))
            assert (reply.response.text, reply.calls) == ("not that city", [])
            assert len(on.asked) == 3

    run(story)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("use", ["check_input", "check_answers", "check_calls", "check_output"])
@pytest.mark.parametrize("function", ["breaks", "hangs"])
def test_a_guardrail_that_fails_refuses_the_request_without_content(
    use: str, function: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        check = GuardrailSettings(use, "mine", check=f"{HERE}:{function}")
        said: Any = [Call("get_weather", city="Oslo")] if use == "check_calls" else "Hello."
        async with stage("openai-chat", said, said, **guarded(check, hook_timeout=0.1)) as on:
            reply = await on.client("openai-chat", stream).ask(User.of(f"My card is {SECRET}"))
            assert reply.status == 500
            kind = "KeyError" if function == "breaks" else "TimeoutError"
            words = f"the guardrail `mine` of this model failed ({kind}), so the request was refused"
            assert reply.body["error"]["message"] == words
            assert reply.headers[HEADER] == "mine failed"
            assert 'guardrail="mine",outcome="failed"} 1.0' in await metrics(on)

    with caplog.at_level(logging.DEBUG, "unbroken"):
        run(story)
    assert SECRET not in caplog.text


def test_middleware_of_a_program_streams_what_it_changes() -> None:
    async def story() -> None:
        own = GuardrailSettings(f"python:{HERE}:Shouting")
        async with stage("gemini", [Say("Hel"), Say("lo.")], **guarded(own)) as on:
            assert (await on.client("openai-chat", stream=True).ask(User.of("Hi"))).response.text == "HELLO."

    run(story)


# What else could carry a secret past a redaction


def test_no_part_of_a_request_carries_a_secret_past_a_redaction() -> None:
    async def story() -> None:
        async with stage("openai-chat", "One.", "Two.", **guarded(CARD)) as on:
            client = on.client("openai-chat")
            body = deepcopy(client.body([User.of("Hi")]))
            body["metadata"] = {"card": SECRET, SECRET: "card"}
            body["user"] = SECRET
            body["stop"] = [SECRET]
            custom = {"id": "b", "type": "custom", "custom": {"name": "note", "input": SECRET}}
            body["unknown"] = [{"deep": [SECRET]}]
            body["tools"][0]["function"]["description"] = SECRET
            body["tools"][0]["function"]["parameters"]["properties"]["city"]["enum"] = [SECRET]
            body["messages"] += [
                {"role": "assistant", "content": "Yes", "reasoning_content": SECRET, "own": SECRET},
                {"role": "assistant", "tool_calls": [tool_call("a", SECRET)]},
                {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": SECRET}]},
                {"role": "assistant", "tool_calls": [custom]},
                {"role": "tool", "tool_call_id": "b", "content": "noted"},
                {"role": "user", "name": SECRET, "content": [{"type": "text", "text": SECRET, "own": SECRET}]},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"http://x/{SECRET}"}}]},
                {"role": "user", "content": [{"type": "file", "file": {"filename": "a.csv", "file_data": CSV}}]},
            ]
            reply = await client.post(body)
            assert (reply.status, reply.response.text) == (200, "One.")
            assert SECRET not in str(on.upstream.bodies[0])
            assert str(on.upstream.bodies[0]).count("[card]") >= 9
            anthropic = on.client("anthropic-messages")
            body = anthropic.body([User.of("Hi")])
            thought = {"type": "thinking", "thinking": SECRET, "signature": "c2ln"}
            body["messages"] += [
                {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes"}]},
                {"role": "user", "content": [text_document(SECRET), {"type": "text", "text": f"data: {SECRET}"}]},
            ]
            body["metadata"] = {"user_id": f"data:{SECRET}"}
            assert (await anthropic.post(body)).status == 200
            for sent in on.upstream.bodies:
                assert SECRET not in str(sent)
                files = re.findall(r"base64,([A-Za-z0-9+/=]+)", str(sent))
                assert all(SECRET not in b64decode(file).decode("utf-8", "replace") for file in files)
            assert (
                b64encode(b"[card]").decode() in str(on.upstream.bodies) or str(on.upstream.bodies[1]).count("card") > 1
            )

    run(story)


def text_document(text: str) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}


def tool_call(id: str, city: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_secret_is_found_across_pieces_in_reasoning_and_among_other_characters(stream: bool) -> None:
    async def story() -> None:
        name = GuardrailSettings("redact", pattern="Зоя|👩‍🔬", by="X")
        pieces = [Say(each) for each in ["Hello З", "о", "я and 👩", "\u200d", "🔬."]]
        long = "Зоя " * 5_000
        async with stage("anthropic-messages", [Think("Зоя?"), *pieces], long, **guarded(name)) as on:
            client = on.client("anthropic-messages", stream)
            reply = await client.ask(User.of(long))
            assert (reply.response.text, reply.response.message.reasoning) == ("Hello X and X.", "X?")
            assert (await client.ask(User.of("Зоя"))).response.text == "X " * 5_000
            assert "Зоя" not in str(on.asked)

    run(story)


@pytest.mark.parametrize("wire", ["openai-chat", "anthropic-messages", "gemini"])
def test_a_secret_is_found_across_the_parts_of_a_message(wire: str) -> None:
    async def story() -> None:
        parts = (Text("a 4111 1111"), Text(" 1111 "), Text("1111"), Media(url="https://x.example/a.png"), Text("b"))
        async with stage("openai-chat", "One.", **guarded(CARD)) as on:
            client = on.client(wire)
            reply = await client.post(client.body([User(parts)]))
            assert (reply.status, reply.headers[HEADER]) == (200, "cards changed")
            assert "a [card]" in str(on.upstream.bodies)
            assert "1111" not in str(on.upstream.bodies)

    run(story)


def test_a_veto_finds_what_json_escapes_and_names_of_arguments_are_redacted() -> None:
    async def story() -> None:
        no_rm = GuardrailSettings("check_calls", veto=r"rm\s+-rf", message="no")
        escaped = [Call("get_weather", city="rm\t-rf /"), Uses(1, 1)]
        arguments: dict[str, Any] = {"city": "Oslo", SECRET: [SECRET]}
        named = [Call("get_weather", **arguments)]
        async with stage("openai-chat", escaped, "Fine.", named, **guarded(no_rm, CARD)) as on:
            client = on.client("anthropic-messages", parallel=None)
            assert (await client.ask(User.of("Hi"))).response.text == "Fine."
            reply = await client.ask(User.of("And?"))
            assert reply.calls == [("get_weather", {"city": "Oslo", "[card]": ["[card]"]})]

    run(story)


async def on_this_loop(text: str) -> None:
    await asyncio.sleep(0)
    LOOPS.append(asyncio.get_running_loop())


LOOPS: list[asyncio.AbstractEventLoop] = []


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_request_is_guarded_too_and_async_checks_run_on_the_loop_of_the_server(stream: bool) -> None:
    async def story() -> None:
        check = GuardrailSettings("check_input", check=f"{HERE}:on_this_loop")
        async with stage("openai-chat", f"Card {SECRET}.", **guarded(check, CARD, NO_SHANGHAI)) as on:
            LOOPS.clear()
            long = f"{SECRET} " * 60_000
            reply = await on.client("anthropic-messages", stream).ask(User.of(long))
            assert (reply.status, reply.response.text) == (200, "Card [card].")
            assert on.asked[0][-1] == User.of("[card] " * 60_000)
            assert [asyncio.get_running_loop()] == LOOPS

    run(story)


def test_requests_at_the_same_time_do_not_share_what_guardrails_found() -> None:
    def answer(request: Request) -> str:
        (said,) = [message.text for message in request.messages if isinstance(message, User)]
        return f"You said {said}."

    async def story() -> None:
        async with stage("openai-chat", *[answer] * 20, **guarded(CARD, NO_SHANGHAI)) as on:

            async def ask(number: int) -> None:
                secret, shown = (f" {SECRET}", " [card]") if number % 2 else ("", "")
                reply = await Client(on.url, "openai-chat", bool(number % 3)).ask(User.of(f"{number}{secret}"))
                assert reply.response.text == f"You said {number}{shown}."
                assert reply.headers.get(HEADER, "") == ("cards changed" if secret else "")

            await asyncio.gather(*map(ask, range(20)))

    run(story)


def test_what_guardrails_do_not_see_is_not_passed_through() -> None:
    async def story() -> None:
        summary = f"A summary of {SECRET}."
        async with stage("openai-responses", summary, **guarded(CARD)) as on, aiohttp.ClientSession() as session:
            body: dict[str, Any] = {"model": "m", "input": SECRET}
            async with session.post(f"{on.url}/v1/embeddings", json=body) as answer:
                assert answer.status == 403
                assert "has guardrails" in (await answer.json())["error"]["message"]
            async with session.post(f"{on.url}/v1/responses/input_tokens", json=body) as answer:
                assert answer.headers["x-unbroken-estimated"] == "true"
            assert on.upstream.bodies == []
            body |= {"instructions": f"Know {SECRET}."}
            async with session.post(f"{on.url}/v1/responses/compact", json=body) as answer:
                assert (answer.status, answer.headers[HEADER]) == (200, "cards changed")
                assert SECRET not in await answer.text()
            assert SECRET not in str(on.upstream.bodies)

    run(story)


def test_a_recording_holds_what_the_provider_got_and_the_client_received(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage("openai-chat", f"It is {SECRET}.", record=str(tmp_path), **guarded(CARD)) as on:
            await on.client("openai-chat").ask(User.of(f"My card is {SECRET}."))

    run(story)
    (file,) = tmp_path.glob("*.jsonl")
    recorded = file.read_text("utf-8")
    assert SECRET not in recorded
    assert "It is [card]." in recorded


def test_all_deployments_and_all_names_of_a_star_have_the_guardrails() -> None:
    deployments = tuple(DeploymentSettings("openai-chat:m", name, base_url="http://127.0.0.1:1") for name in "ab")
    pooled = UpstreamSettings("pooled", "openai-chat:m", deployments=deployments, guardrails=(CARD,))
    starred = UpstreamSettings("any-*", "openai-chat:*", base_url="http://127.0.0.1:1", guardrails=(CARD,))
    catalog = Catalog([pooled, starred, UpstreamSettings("plain", "demo")])
    for name in ("pooled", "any-model"):
        for _ in range(8):  # any of the deployments
            found = catalog.find(name, None, {"messages": []}, "messages")
            assert found.guards is not None
            assert not found.passes("openai-chat")
    assert catalog.find("plain", None).guards is None
