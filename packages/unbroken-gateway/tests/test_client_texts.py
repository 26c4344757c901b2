"""`check_input` at the gateway sees every text that a client writes, on every wire; redaction covers names of tools and
the texts of errors."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from gateway_client import WEATHER, path_of, run, serving, settings_for, stage
from gateway_upstreams import Told, telling

from unbroken.errors import ProviderError, RequestRefused
from unbroken.guardrails import Veto
from unbroken_gateway.guards.client_texts import texts_of, with_texts
from unbroken_gateway.settings import GuardrailSettings
from unbroken_testing import Fail, Say, Uses
from unbroken_wires.messages import (
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
from unbroken_wires.wires import WIRES

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
    assert texts_of(result) == ["r", "T\nC\nD", "s", "C"]
    changed = with_texts(result, [None, "x", None, None])
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


WORDS = "The password is 1234."
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
RESPONSE = {"name": "f", "response": {"x": "y"}}


def in_base64(text: str, change: Callable[[str], str] = str) -> str:
    return change(b64encode(text.encode()).decode())


def chat_file(data: str, name: str = "a.txt") -> Any:
    return {
        "messages": [{"role": "user", "content": [{"type": "file", "file": {"filename": name, "file_data": data}}]}]
    }


def gemini_parts(*parts: Any) -> Any:
    return {"contents": [{"role": "user", "parts": [{"text": "Hi"}, *parts]}]}


def gemini_file(data: str, mime: str = "text/plain") -> Any:
    return gemini_parts({"inlineData": {"mimeType": mime, "data": data}})


def anthropic_part(part: Any) -> Any:
    return {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, part]}]}


def bedrock_part(part: Any) -> Any:
    return {"messages": [{"role": "user", "content": [{"text": "Hi"}, part]}]}


HI = [{"role": "user", "content": "Hi"}]
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tea"}}
FOUND = {"type": "web_search_result", "url": "https://x.example", "title": WORDS, "encrypted_content": "aGk="}
RAN = {"type": "mcp_call", "id": "mcp_1", "server_label": "l", "name": "f", "arguments": "{}", "output": WORDS}
REFUSED = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": WORDS}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "description": WORDS}}}


def after(*items: Any, wire: str) -> tuple[str, Any]:
    """A request whose last answer has these items, as its client says."""
    if wire == "openai-responses":
        return wire, {"input": [*HI, *items, *HI]}
    if wire == "gemini":
        hi = {"role": "user", "parts": [{"text": "Hi"}]}
        return wire, {"contents": [hi, {"role": "model", "parts": [*items]}, hi]}
    hi = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    return wire, {"max_tokens": 9, "messages": [hi, {"role": "assistant", "content": [*items]}, hi]}


def answered_as(field: str, wire: str, **value: Any) -> tuple[str, Any]:
    """A request that describes its answer."""
    body = {"input": "Hi"} if wire == "openai-responses" else {"messages": HI}
    if wire == "gemini":
        body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    return wire, {**body, field: value, **({"max_tokens": 9} if wire == "anthropic-messages" else {})}


HIDDEN: dict[str, tuple[str, Any]] = {
    "in what a search found": after(
        SEARCH,
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]},
        wire="anthropic-messages",
    ),
    "in the output of a program that ran there": after(
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": WORDS}},
        wire="gemini",
    ),
    "in the result of an MCP server": after(RAN, wire="openai-responses"),
    "in the reason of an approval": after({**RAN, "output": "x"}, REFUSED, wire="openai-responses"),
    "in an unknown item": after({"type": "rumour", "text": WORDS}, wire="openai-responses"),
    "in the schema of a chat's answer": answered_as(
        "response_format", "openai-chat", type="json_schema", json_schema={"name": "x", "schema": SCHEMA}
    ),
    "in the description of a chat's answer": answered_as(
        "response_format",
        "openai-chat",
        type="json_schema",
        json_schema={"name": "x", "description": WORDS, "schema": {}},
    ),
    "in the schema of a response": answered_as(
        "text", "openai-responses", format={"type": "json_schema", "name": "x", "schema": SCHEMA}
    ),
    "in the schema of a message": answered_as(
        "output_config", "anthropic-messages", format={"type": "json_schema", "schema": SCHEMA}
    ),
    "in the schema of Gemini": answered_as(
        "generationConfig", "gemini", responseMimeType="application/json", responseSchema=SCHEMA
    ),
    "in lines": ("gemini", gemini_file(in_base64(WORDS, lambda data: f"{data[:8]}\n{data[8:]}"))),
    "without padding": ("gemini", gemini_file(in_base64(WORDS + "!", lambda data: data.rstrip("=")))),
    "for addresses": ("gemini", gemini_file(in_base64(WORDS + ">>>>???", lambda data: data.replace("+", "-")))),
    "in UTF-16": ("gemini", gemini_file(b64encode(WORDS.encode("utf-16")).decode())),
    "as a program": ("gemini", gemini_file(in_base64(WORDS), "application/x-python")),
    "as bytes": ("openai-chat", chat_file(f"data:application/octet-stream;base64,{in_base64(WORDS)}")),
    "in an upper-case address": ("openai-chat", chat_file(f"DATA:text/plain;base64,{in_base64(WORDS)}")),
    "in an address without base64": ("openai-chat", chat_file("data:text/plain,The%20password%20is%201234.")),
    "in the name of a PDF": ("openai-chat", chat_file("data:application/pdf;base64,AAAA", "password.pdf")),
    "in the title of a PDF": (
        "anthropic-messages",
        anthropic_part({**PDF, "title": WORDS}),
    ),
    "beside a PDF": ("anthropic-messages", anthropic_part({**PDF, "context": WORDS})),
    "in a part without a type": ("openai-chat", {"messages": [{"role": "user", "content": [{"text": WORDS}]}]}),
    "in a part of Bedrock": ("bedrock-converse", bedrock_part({"guardContent": {"text": {"text": WORDS}}})),
    "in the output of a program": ("gemini", gemini_parts({"codeExecutionResult": {"output": WORDS}})),
    "in a file of a result": (
        "gemini",
        {
            "contents": [
                {"role": "user", "parts": [{"text": "Hi"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
                {
                    "role": "user",
                    "parts": [
                        {
                            "functionResponse": {
                                **RESPONSE,
                                "parts": [{"inlineData": {"mimeType": "text/plain", "data": in_base64(WORDS)}}],
                            }
                        }
                    ],
                },
            ]
        },
    ),
    "in documents": ("cohere-v2", {"messages": HI, "documents": [{"data": {"text": WORDS}}]}),
    "in a document of a result": (
        "cohere-v2",
        {
            "messages": [
                *HI,
                {"role": "assistant", "tool_calls": CALLS},
                {
                    "role": "tool",
                    "tool_call_id": "call_1",
                    "content": [{"type": "document", "document": {"id": "1", "data": WORDS}}],
                },
            ]
        },
    ),
    "in a prediction": ("openai-chat", {"messages": HI, "prediction": {"type": "content", "content": WORDS}}),
    "in a variable": (
        "openai-responses",
        {"input": "Hi", "prompt": {"id": "pmpt_123456", "variables": {"x": WORDS}}},
    ),
}


def is_readable(sent: str) -> bool:
    """Does a request have the text, in any spelling?"""
    encoded = re.findall(r"[A-Za-z0-9+/=_-]{16,}", sent.replace("\\n", ""))
    texts = [sent, *(b64decode(f"{each}===", altchars="-_").decode("latin-1").replace("\0", "") for each in encoded)]
    return any("password" in text for text in texts)


@pytest.mark.parametrize("place", HIDDEN)
@pytest.mark.parametrize("guardrail", ["check_input", "redact"])
def test_a_text_is_found_however_a_client_writes_it(place: str, guardrail: str) -> None:
    wire, body = HIDDEN[place]
    redacts = GuardrailSettings("redact", pattern="password", by="[x]")
    guard = redacts if guardrail == "redact" else GuardrailSettings("check_input", veto="password", message="Refused.")

    async def story() -> None:
        async with telling(Told(b'{"error": {"message": "no"}}', 400)) as upstream:
            model = upstream.settings(wire, guardrails=(guard,))
            async with serving(settings_for(model)) as url, aiohttp.ClientSession(url) as session:
                asked = {**body, "model": "m"} if wire not in ("gemini", "bedrock-converse") else body
                async with session.post(path_of(wire), json=asked) as answer:
                    text = await answer.text()
            if guardrail == "check_input":
                assert (upstream.asked, "Refused." in text) == ([], True)
            else:
                (sent,) = upstream.asked
                assert not is_readable(sent.data.decode())

    run(story)


def test_documents_are_replaced_where_they_are_and_settings_are_no_texts() -> None:
    CHECKED.clear()
    documents = [{"id": "1", "data": {"text": "Bob is in."}}, "Ann is in."]

    async def story() -> None:
        async with telling(Told(b'{"message": "no"}', 400)) as upstream:
            model = upstream.settings("cohere-v2", guardrails=(CHECK,))
            async with serving(settings_for(model)) as url, aiohttp.ClientSession(url) as session:
                body = {"model": "m", "messages": HI, "documents": documents, "safety_mode": "STRICT"}
                async with session.post(path_of("cohere-v2"), json=body) as answer:
                    assert answer.status == 400
            (sent,) = upstream.asked
            assert sent.body["documents"] == [{"id": "1", "data": {"text": "[name] is in."}}, "Ann is in."]
            assert sent.body["safety_mode"] == "STRICT"

    run(story)
    assert CHECKED == ["Hi", "1", "Bob is in.", "Ann is in."]


def test_an_image_keeps_its_content_if_its_name_is_replaced_and_marks_are_no_texts() -> None:
    marked = Native("anthropic-messages", {"type": "image", "cache_control": {"type": "ephemeral", "ttl": "5m"}})
    image = Media("image/png", "AAAA", name="Bob.png", native=marked)
    assert texts_of(User.of("Hi", image)) == ["Hi", "Bob.png"]
    changed = with_texts(User.of("Hi", image), [None, "[name].png"])
    assert changed == User.of("Hi", "[name].png", Media("image/png", "AAAA"))
    file = Native("openai-chat", {"type": "file", "file": {"file_id": "file-abc123"}})
    assert texts_of(User.of("Hi", Media(native=file))) == ["Hi"]


def test_what_a_model_wrote_is_no_text_of_the_client_and_a_refused_result_of_a_search_leaves_with_its_call() -> None:
    items = [{"type": "text", "text": "The password?"}, SEARCH, {"type": "web_search_tool_result", "content": [FOUND]}]
    said = Assistant("The password?", native=Native("anthropic-messages", items))
    assert texts_of(said) == [f"https://x.example\n{WORDS}"]
    assert with_texts(said, ["[removed]"]) == Assistant("The password?")
    assert with_texts(replace(said, text=""), ["[removed]"]) == Assistant("[removed]")
    assert texts_of(Assistant("The password?", native=Native("anthropic-messages", items[:2]))) == []
