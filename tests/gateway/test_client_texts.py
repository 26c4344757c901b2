"""`check_input` at the gateway sees every text that a client writes, on every wire; redaction covers names of tools and
the texts of errors."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from gateway_client import WEATHER, run, stage

from unbroken.errors import ProviderError, RequestRefused
from unbroken.gateway.guards.client_texts import texts_of, with_texts
from unbroken.gateway.settings import GuardrailSettings
from unbroken.guardrails import Veto
from unbroken.messages import (
    Assistant,
    Media,
    Message,
    Native,
    Request,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)
from unbroken.testing import Fail, Say, Uses
from unbroken.wires import WIRES

HEADER = "x-unbroken-guardrails"
SECRET = "4111 1111 1111 1111"
CARD = GuardrailSettings("redact", "cards", pattern=r"\d{4}[ _]\d{4}[ _]\d{4}[ _]\d{4}", by="[card]")
CALL = ToolCall("call_1", "get_weather", {"city": "Beijing"}, '{"city": "Beijing"}')
PLACES: dict[str, tuple[Message, ...]] = {
    "system": (System.of("The password is 1234."), User.of("Hi")),
    "prompt": (User.of("The password is 1234."),),
    "file": (User.of("Hi", Media("text/plain", b64encode(b"The password is 1234.").decode(), name="a.txt")),),
    "result": (User.of("Hi"), Assistant("", (CALL,)), ToolMessage((ToolResult.of(CALL, "The password is 1234."),))),
}
CHECKED: list[str] = []


def no_passwords(text: str) -> str | None:
    CHECKED.append(text)
    if "password" in text:
        raise Veto("Please do not send passwords.")
    return text.replace("Bob", "[name]") if "Bob" in text else None


CHECK = GuardrailSettings("check_input", check=f"{__name__}:no_passwords")


def guarded(*guardrails: GuardrailSettings) -> dict[str, Any]:
    return {"alias": {"guardrails": guardrails}}


def carries(wire: str, place: str) -> bool:
    return place != "file" or wire not in ("ollama", "cohere-v2")  # these have no files


@pytest.mark.parametrize("wire", WIRES)
def test_a_refused_text_reaches_no_model_wherever_a_client_writes_it(wire: str) -> None:
    async def story() -> None:
        async with stage("openai-chat", "Fine.", **guarded(CHECK)) as on:
            for place, messages in PLACES.items():
                if carries(wire, place):
                    client = on.client(wire, False, parallel=None)
                    reply = await client.post(client.body(list(messages)))
                    found = (reply.status, reply.response.text, reply.headers.get(HEADER))
                    assert found == (200, "Please do not send passwords.", "check_input vetoed"), place
            assert on.asked == []

    run(story)


def test_texts_are_replaced_in_place_and_a_system_text_that_passed_is_checked_once() -> None:
    CHECKED.clear()
    file = Media("text/plain", b64encode(b"Dear Bob").decode(), name="a.txt")

    async def story() -> None:
        async with stage("openai-chat", "Fine.", "Fine.", **guarded(CHECK)) as on:
            for _ in range(2):
                client = on.client("anthropic-messages", False, parallel=None)
                call = ToolMessage((ToolResult.of(CALL, "Bob is in."),))
                said = [System.of("You help Bob."), User.of("I am Bob.", file), Assistant("", (CALL,)), call]
                assert (await client.post(client.body(said))).headers[HEADER] == "check_input changed"
            asked = str(on.asked)
            assert "Bob" not in asked
            assert "RGVhciBCb2I" not in asked  # in the file
            for text in ("You help [name].", "I am [name].", "Dear [name]", "[name] is in."):
                assert asked.count(text) == 2

    run(story)
    assert [CHECKED.count(text) for text in ("You help Bob.", "a.txt\nDear Bob", "Bob is in.")] == [1, 1, 1]


def test_what_a_client_writes_beside_a_document_is_checked_with_it() -> None:
    native = Native("anthropic-messages", {"type": "document", "context": "C"})
    file = Media("text/plain", b64encode(b"D").decode(), name="T", native=native)
    image = Media("image/png", "AAAA")
    prompt = User((Text("a"), file, Text("b"), image))
    assert texts_of(prompt) == ["ab", "T\nC\nD"]
    assert with_texts(prompt, [None, None]) == prompt
    assert with_texts(prompt, [None, "x"]) == User((Text("a"), Text("x"), Text("b"), image))
    assert with_texts(prompt, ["y", "x"]) == User((Text("y"), Text("x"), image))
    result = ToolMessage(
        (ToolResult("1", (Text("r"), file), native=native), ToolResult("2", (Text("s"),), native=native))
    )
    assert texts_of(result) == ["r", "T\nC\nD", "s"]
    changed = with_texts(result, [None, "x", None])
    assert changed == ToolMessage((ToolResult("1", (Text("r"), Text("x"))), result.results[1]))
    assert (texts_of(System.of("a", "b")), texts_of(Assistant("a"))) == (["ab"], [])


@pytest.mark.parametrize("where", ["tool", "history"])
def test_a_tool_whose_name_matches_is_refused_because_it_cannot_be_renamed(where: str) -> None:
    name = "pay_" + SECRET.replace(" ", "_")

    async def story() -> None:
        async with stage("openai-chat", "Fine.", **guarded(CARD)) as on:
            tool = ToolSpec(name, "Pays.", {"type": "object", "properties": {}})
            client = on.client("openai-chat", False, parallel=None, tools=(tool,) if where == "tool" else (WEATHER,))
            call = ToolCall("call_1", name if where == "history" else "get_weather", {}, "{}")
            said = [User.of("Hi"), Assistant("", (call,)), ToolMessage((ToolResult.of(call, "x"),)), User.of("And?")]
            reply = await client.post(client.body(list[Message](said)))
            assert reply.status == 400
            assert b"the name of a tool matches" in reply.data
            assert SECRET.replace(" ", "_").encode() not in reply.data
            assert on.asked == []

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_provider_quotes_in_an_error_is_redacted(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(request: Request) -> list[Any]:
        return [Fail(RequestRefused(f"no: {SECRET}", status=400))]

    async def story() -> None:
        late = [Say("Hello"), Fail(ProviderError(f"broken at {SECRET}")), Uses(1, 1)]
        async with stage("openai-chat", refuse, late, late, late, **guarded(CARD)) as on:
            reply = await on.client("openai-chat", stream, parallel=None).ask(User.of("Hi"))
            assert reply.status == 400
            assert b"no: [card]" in reply.data
            broken = await on.client("openai-chat", stream, parallel=None).ask(User.of("Hi"))
            assert SECRET.encode() not in broken.data
            assert broken.status != 200 or b"[card]" in broken.data

    run(story)
    assert SECRET not in caplog.text
