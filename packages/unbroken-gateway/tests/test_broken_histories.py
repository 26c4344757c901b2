"""Faults in the history that a client sends (rows 30 to 34 of the fault list), for all client wires and all upstream
wires (`make faults`: all pairs). Reasoning that a client lost (row 31) is tested in test_own_message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest
from gateway_client import (
    CITIES,
    RETRY,
    SAYS_ONE_CALL,
    SOME_PAIRS,
    THREE_CALLS,
    Client,
    error_in,
    plain,
    result_of,
    run,
    serving,
    settings_for,
    upstream_settings,
)
from gateway_upstreams import FIELDS

from unbroken_gateway.settings import ClientProfile, UpstreamSettings
from unbroken_gateway.turns.serial import SPOKEN
from unbroken_testing import Call, ScriptedServer
from unbroken_wires.messages import Assistant, Message, Request, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript.repairs import NO_RESULT
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.json_access import MISTRAL, fit

Object = dict[str, Any]
ONE_CALL_TO = "Oslo"


def asks(wire: str, text: str) -> list[Object]:
    match wire:
        case "gemini":
            return [{"role": "user", "parts": [{"text": text}]}]
        case "bedrock-converse":
            return [{"role": "user", "content": [{"text": text}]}]
        case _:
            return [{"role": "user", "content": text}]


def calls(wire: str, *ids: str) -> list[Object]:
    arguments = {"city": ONE_CALL_TO}
    match wire:
        case "openai-chat" | "cohere-v2":
            function = {"name": "get_weather", "arguments": json.dumps(arguments)}
            made = [{"id": id, "type": "function", "function": function} for id in ids]
            return [{"role": "assistant", "content": None, "tool_calls": made}]
        case "openai-responses":
            call = {"type": "function_call", "name": "get_weather", "arguments": json.dumps(arguments)}
            return [{**call, "call_id": id} for id in ids]
        case "anthropic-messages":
            block = {"type": "tool_use", "name": "get_weather", "input": arguments}
            return [{"role": "assistant", "content": [{**block, "id": id} for id in ids]}]
        case "ollama":
            function = {"name": "get_weather", "arguments": arguments}
            return [
                {"role": "assistant", "content": "", "tool_calls": [{"id": id, "function": function} for id in ids]}
            ]
        case "bedrock-converse":
            use = {"name": "get_weather", "input": arguments}
            return [{"role": "assistant", "content": [{"toolUse": {**use, "toolUseId": id}} for id in ids]}]
        case _:
            call = {"name": "get_weather", "args": arguments}
            return [{"role": "model", "parts": [{"functionCall": {**call, "id": id}} for id in ids]}]


def results(wire: str, *ids: str) -> list[Object]:
    match wire:
        case "openai-chat" | "cohere-v2":
            return [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in ids]
        case "ollama":
            named = {"role": "tool", "tool_name": "get_weather"}
            return [{**named, "tool_call_id": id, "content": f"of {id}"} for id in ids]
        case "bedrock-converse":
            told = [{"toolUseId": id, "content": [{"text": f"of {id}"}]} for id in ids]
            return [{"role": "user", "content": [{"toolResult": result} for result in told]}]
        case "openai-responses":
            return [{"type": "function_call_output", "call_id": id, "output": f"of {id}"} for id in ids]
        case "anthropic-messages":
            block = {"type": "tool_result"}
            return [{"role": "user", "content": [{**block, "tool_use_id": id, "content": f"of {id}"} for id in ids]}]
        case _:
            answers = [{"id": id, "name": "get_weather", "response": {"output": f"of {id}"}} for id in ids]
            return [{"role": "user", "parts": [{"functionResponse": answer} for answer in answers]}]


Q = User.of("What is the weather?")
ON = User.of("Go on.")


def called(times: int) -> Assistant:
    return Assistant("", tuple(ToolCall("", "get_weather", {"city": ONE_CALL_TO}) for _ in range(times)))


def told(*texts: str) -> ToolMessage:
    return ToolMessage(tuple(ToolResult("", (Text(text),), error=text == NO_RESULT) for text in texts))


Broken = Callable[[str], list[Object]]
BROKEN: dict[str, tuple[Broken, str, list[Message]]] = {
    "a call without its result": (
        lambda w: asks(w, Q.text) + calls(w, "a1", "b2") + results(w, "a1") + asks(w, ON.text),
        "insert-missing",
        [Q, called(2), told("of a1", NO_RESULT), ON],
    ),
    "a last call without its result": (
        lambda w: asks(w, Q.text) + calls(w, "a1"),
        "insert-missing",
        [Q, called(1), told(NO_RESULT)],
    ),
    "a result without its call": (
        lambda w: asks(w, Q.text) + results(w, "x9") + asks(w, ON.text),
        "drop-orphan",
        [Q, ON],
    ),
    "two results of one call": (
        lambda w: asks(w, Q.text) + calls(w, "a1") + results(w, "a1") + results(w, "a1"),
        "drop-doubled",
        [Q, called(1), told("of a1")],
    ),
    "results out of order": (
        lambda w: asks(w, Q.text) + calls(w, "a1", "b2") + results(w, "b2", "a1"),
        "move-misplaced",
        [Q, called(2), told("of a1", "of b2")],
    ),
    "a result that comes after the user spoke": (
        lambda w: asks(w, Q.text) + calls(w, "a1") + asks(w, ON.text) + results(w, "a1"),
        "move-misplaced",
        [Q, called(1), told("of a1"), ON],
    ),
}


def joined(messages: tuple[Message, ...]) -> list[Message]:
    """Without ids; consecutive user messages are one on some wires, and here. Wires without an error flag lose it: the
    text shows it."""
    heard: list[Message] = []
    for message in map(plain, messages):
        if isinstance(message, ToolMessage):
            message = told(*(result.text for result in message.results))
        if isinstance(message, User):
            before = heard.pop() if heard and isinstance(heard[-1], User) else User(())
            message = User.of("".join(part.text for part in (before, message) if isinstance(part, User)))
        heard.append(message)
    return heard


async def read(url: str, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
        return await answer.text()


def raw_body(client: Client, messages: list[Object]) -> Object:
    return {**client.body([Q]), FIELDS[client.wire]: messages}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("wire", WIRES)
def test_fault_30_is_repaired_counted_and_named(wire: str, fault: str) -> None:
    make, name, mended = BROKEN[fault]

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            aliases = [upstream_settings(upstream, other, alias=other) for other in WIRES]
            async with serving(settings_for(*aliases)) as url:
                for number, other in enumerate(WIRES, 1):
                    client = Client(url, wire, parallel=None, model=other)
                    reply = await client.post(raw_body(client, make(wire)))
                    assert (reply.status, reply.response.text) == (200, "Fine."), other
                    assert reply.headers["x-unbroken-repairs"] == name, other
                    assert joined(upstream.requests[-1].messages) == joined(tuple(mended)), other
                    counted = f'unbroken_repairs_total{{kind="{name}"}} {number}.0'
                    assert counted in await read(url, "/metrics"), other

    run(story)


def _given(value: Any, ids: tuple[str, ...], change: Callable[[Object, str], Object]) -> Any:
    if isinstance(value, list):
        return [_given(each, ids, change) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = {name: _given(each, ids, change) for name, each in cast("Object", value).items()}
    for name in ("id", "call_id", "tool_call_id", "tool_use_id", "toolUseId"):
        if fields.get(name) in ids:
            fields = change(fields, name)
    return fields


@pytest.mark.parametrize("how", ["empty", "absent"])
@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_fault_30_calls_and_results_without_ids_belong_together_in_order(
    client_wire: str, upstream_wire: str, how: str
) -> None:
    ids = ("a1", "b2", "c3")

    def change(fields: Object, name: str) -> Object:
        return {**fields, name: ""} if how == "empty" else {key: value for key, value in fields.items() if key != name}

    async def story() -> None:
        async with ScriptedServer("Fine.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire))) as url:
                client = Client(url, client_wire, parallel=None)
                history = asks(client_wire, Q.text) + calls(client_wire, *ids) + results(client_wire, *ids)
                reply = await client.post(raw_body(client, _given(history, ids, change)))
                assert reply.status == 200
            (request,) = upstream.requests
            assert joined(request.messages) == [Q, called(3), told("of a1", "of b2", "of c3")]

    run(story)


def test_fault_30_text_and_calls_of_the_model_in_two_contents_are_one_for_gemini() -> None:
    said = [{"role": "model", "parts": [{"text": "I look."}]}]
    history = asks("gemini", Q.text) + said + calls("gemini", "a1") + results("gemini", "a1")

    async def story() -> None:
        async with ScriptedServer("Fine.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, "gemini"))) as url:
                client = Client(url, "gemini", parallel=None)
                reply = await client.post(raw_body(client, history))
                assert reply.status == 200
            assert [content["role"] for content in upstream.bodies[0]["contents"]] == ["user", "model", "user"]
            assert upstream.bodies[0]["contents"][1]["parts"] == said[0]["parts"] + calls("gemini", "a1")[0]["parts"]

    run(story)


@pytest.mark.parametrize("wire", WIRES)
def test_fault_30_is_refused_by_a_strict_gateway_with_the_reason(wire: str) -> None:
    words = {
        "insert-missing": "a call has no result",
        "drop-orphan": "a result answers no call",
        "drop-doubled": "a call has two results",
        "move-misplaced": "a result does not follow its call",
    }

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            aliases = [upstream_settings(upstream, other, alias=other) for other in WIRES]
            async with serving(settings_for(*aliases, strict=True)) as url:
                for other in WIRES:
                    client = Client(url, wire, parallel=None, model=other)
                    for make, name, _ in BROKEN.values():
                        reply = await client.post(raw_body(client, make(wire)))
                        assert reply.status == 400
                        error = error_in(wire, reply.body, 400)
                        kind = error.get("status" if wire == "gemini" else "type")
                        assert kind in (None, "INVALID_ARGUMENT" if wire == "gemini" else "invalid_request_error")
                        assert words[name] in error["message"]
                    whole = asks(wire, Q.text) + calls(wire, "a1", "b2") + results(wire, "a1", "b2")
                    reply = await client.post(raw_body(client, whole))
                    assert (reply.status, reply.response.text) == (200, "Fine.")
            assert len(upstream.requests) == len(WIRES)  # refused requests have reached no upstream

    run(story)


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_a_strict_gateway_accepts_calls_that_it_held_itself(client_wire: str, upstream_wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            alias = upstream_settings(upstream, upstream_wire, serial=True)
            async with serving(settings_for(alias, strict=True)) as url:
                replies = await Client(url, client_wire).converse()
                assert [len(reply.calls) for reply in replies] == [1, 1, 1, 0]
                assert replies[-1].response.text == "Done."

    run(story)


# Row 32: the client does something else than returning the result


SERIAL = pytest.mark.parametrize("wire", WIRES)


@SERIAL
def test_fault_32_a_user_message_instead_of_a_result_is_answered(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "As you like.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, "anthropic-messages", serial=True))) as url:
                client = Client(url, wire)
                await client.ask(User.of("Three cities?"))
                await client.answer_calls()
                reply = await client.ask(User.of("Never mind."))
                assert reply.response.text == "As you like."
            _, turn, answered, spoken = upstream.requests[1].messages
            assert isinstance(turn, Assistant)
            assert len(turn.calls) == 3
            assert isinstance(answered, ToolMessage)
            assert [result.text for result in answered.results] == ["Sunny in Beijing.", NO_RESULT, SPOKEN]
            assert spoken == User.of("Never mind.")

    run(story)


@SERIAL
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_fault_32_a_retry_gets_the_same_answer(wire: str, stream: bool) -> None:
    async def story() -> None:
        async with (
            ScriptedServer(THREE_CALLS, "Done.") as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat", serial=True))) as url,
        ):
            client = Client(url, wire, stream)
            client.messages = [User.of("Three cities?")]
            for city in CITIES:
                first = await client.post(client.body())
                replies = [first, *[await client.post(client.body(), **RETRY) for _ in range(2)]]
                assert [reply.calls for reply in replies] == [[("get_weather", {"city": city})]] * 3
                assert len({reply.response.calls[0].id for reply in replies}) == 1
                call = replies[0].response.calls[0]
                said = Assistant(replies[0].response.text, (call,))
                client.messages += [said, ToolMessage((result_of(call),))]
            assert len(upstream.requests) == 1

    run(story)


@SERIAL
def test_fault_32_edited_compacted_undone_and_branched_histories_are_accepted(wire: str) -> None:
    async def story() -> None:
        script = [THREE_CALLS, *["Answered."] * 9]
        async with (
            ScriptedServer(*script) as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-responses", serial=True))) as url,
        ):
            client = Client(url, wire)
            await client.ask(User.of("Three cities?"))
            question, first = client.messages
            assert isinstance(first, Assistant)
            result = ToolMessage((result_of(first.calls[0]),))
            second = await client.ask(result)
            assert second.calls == [("get_weather", {"city": "Shanghai"})]
            history = list(client.messages)

            # undone, then another way: the same next call, whatever the result is
            other = ToolMessage((result_of(first.calls[0], "Rain."),))
            branched = await client.post(client.body([question, first, other]))
            assert branched.calls == second.calls

            # edited: a call of the client itself is sent to the model unchanged
            edited = replace(first, calls=(replace(first.calls[0], arguments={"city": "Lima"}, raw=""),))
            reply = await client.post(client.body([question, edited, ToolMessage((result_of(edited.calls[0]),))]))
            assert reply.response.text == "Answered."
            assert joined(upstream.requests[-1].messages)[1] == Assistant(
                "Let me look.", (ToolCall("", "get_weather", {"city": "Lima"}),)
            )

            # compacted: removed messages are not restored
            summary = User.of("You were asked for the weather; it is sunny.")
            reply = await client.post(client.body([summary]))
            assert reply.response.text == "Answered."
            assert upstream.requests[-1].messages == (summary,)

            # and the first history can still be continued
            client.messages = history
            third = await client.answer_calls()
            assert third.calls == [("get_weather", {"city": "Guangzhou"})]

    run(story)


# Row 33: one call at a time


def says_one_call(wire: str, body: Object) -> bool:
    if wire == "anthropic-messages":
        return bool(body.get("tool_choice", {}).get("disable_parallel_tool_use"))
    return body.get("parallel_tool_calls") is False


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_fault_33_one_call_at_a_time_is_requested_in_the_upstreams_own_format(
    client_wire: str, upstream_wire: str
) -> None:
    """By the client (Gemini's wire cannot express it), by its profile, by the alias. Never without tools: it would be
    refused."""

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            aliases = [
                upstream_settings(upstream, upstream_wire),
                upstream_settings(upstream, upstream_wire, alias="serial", serial=True, all_calls=False),
            ]
            profile = ClientProfile("careful", header="x-client: careful", all_calls=False)
            async with serving(settings_for(*aliases, clients=(profile,))) as url:
                asked: dict[str, Client] = {
                    "client": Client(url, client_wire, parallel=False),
                    "profile": Client(url, client_wire, parallel=None, headers={"x-client": "careful"}),
                    "alias": Client(url, client_wire, parallel=None, model="serial"),
                    "nobody": Client(url, client_wire, parallel=None),
                    "no tools": Client(url, client_wire, parallel=None, model="serial", tools=()),
                }
                for who, client in asked.items():
                    reply = await client.ask(User.of("Hello."))
                    assert reply.status == 200
                    said = says_one_call(upstream_wire, upstream.bodies[-1])
                    can_say = upstream_wire in SAYS_ONE_CALL and who not in ("nobody", "no tools")
                    assert said == (can_say and not (who == "client" and client_wire not in SAYS_ONE_CALL)), who

    run(story)


def test_fault_33_the_tool_choice_is_kept() -> None:
    async def story() -> None:
        async with (
            ScriptedServer("Fine.", loop_last=True) as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat"))) as url,
        ):
            client = Client(url, "anthropic-messages")
            choice = {"type": "any", "disable_parallel_tool_use": True}
            await client.post({**client.body([Q]), "tool_choice": choice})
            assert upstream.bodies[0]["tool_choice"] == "required"
            assert upstream.bodies[0]["parallel_tool_calls"] is False

    run(story)


# Row 34: ids

OWN_IDS = {
    "openai-chat": "functions.get_weather:0/x7Kqx7Kqx7Kqx7K_",
    "openai-responses": "call.get/" + "x7Kq" * 13 + "_:",
    "anthropic-messages": "toolu_" + "x7Kq" * 30,
    "gemini": "functions.get_weather:0/" + "x7Kq" * 30,
    "ollama": "functions.get_weather:0/" + "x7Kq" * 20,
    "cohere-v2": "get_weather:0/" + "x7Kq" * 10,
    "bedrock-converse": "tooluse_" + "x7Kq" * 13 + "_.:-",
}
"""Ids that one wire allows and others do not: by length, or by characters that Anthropic refuses."""


def own_ids(wire: str) -> list[str]:
    return [f"{OWN_IDS[wire][:-1]}{at}" for at in range(2)]


@pytest.mark.parametrize("serial", [False, True], ids=["at-once", "one-by-one"])
@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_fault_34_a_client_gets_ids_that_its_wire_allows_and_the_model_its_own(
    client_wire: str, upstream_wire: str, serial: bool
) -> None:
    ids = own_ids(upstream_wire)

    async def story() -> None:
        made = [Call("get_weather", city=city, id=id) for city, id in zip(CITIES, ids, strict=False)]
        async with ScriptedServer(made, "Fine.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire, serial=serial))) as url:
                client = Client(url, client_wire, parallel=None)
                replies = await client.converse()
            handed = [call.id for reply in replies for call in reply.response.calls]
            rule = find_wire(client_wire).id_rule
            assert handed == [fit(id, rule) if rule else id for id in ids]
            assistant, answered = upstream.requests[1].messages[1:]
            assert isinstance(assistant, Assistant)
            assert isinstance(answered, ToolMessage)
            assert [call.id for call in assistant.calls] == ids
            assert [result.call_id for result in answered.results] == ids

    run(story)


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_fault_34_foreign_ids_are_adapted_to_the_upstream_in_call_and_result(
    client_wire: str, upstream_wire: str
) -> None:
    """A history that began with another provider: its ids are not this one's."""
    ids = own_ids(client_wire)

    async def story() -> None:
        async with ScriptedServer("Fine.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire))) as url:
                client = Client(url, client_wire, parallel=None)
                made = tuple(ToolCall(id, "get_weather", {"city": "Oslo"}, index=at) for at, id in enumerate(ids))
                answered = ToolMessage(tuple(result_of(call) for call in made))
                reply = await client.ask(Q, Assistant("", made), answered)
                assert reply.response.text == "Fine."  # or the strict server would have refused it
            assistant, answered = upstream.requests[0].messages[1:]
            assert isinstance(assistant, Assistant)
            assert isinstance(answered, ToolMessage)
            rule = find_wire(upstream_wire).id_rule
            assert [call.id for call in assistant.calls] == [fit(id, rule) if rule else id for id in ids]
            assert [result.call_id for result in answered.results] == [call.id for call in assistant.calls]

    run(story)


@pytest.mark.parametrize("wire", WIRES)
def test_fault_34_mistral_gets_ids_of_nine_characters(wire: str) -> None:
    def check(request: Request) -> str:
        ids = [call.id for message in request.messages if isinstance(message, Assistant) for call in message.calls]
        answers = [result.call_id for m in request.messages if isinstance(m, ToolMessage) for result in m.results]
        assert ids == answers
        assert all(re.fullmatch(r"[A-Za-z0-9]{9}", id) for id in ids), ids
        return "Bien."

    async def story() -> None:
        async with ScriptedServer(check) as upstream:
            alias = UpstreamSettings("m", "mistral:large", base_url=upstream.base_url(), options={"attempts": 1})
            async with serving(settings_for(alias)) as url:
                client = Client(url, wire, parallel=None)
                made = ToolCall("toolu_01A09q90qw90lq917835", "get_weather", {"city": "Oslo"})
                reply = await client.ask(Q, Assistant("", (made,)), ToolMessage((result_of(made),)))
                assert reply.response.text == "Bien."

    run(story)


@pytest.mark.parametrize("wire", WIRES)
def test_fault_34_mistrals_own_ids_are_sent_back_to_it(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer([Call("get_weather", city="Oslo", id="D681PevKs")], "Bien.") as upstream:
            alias = UpstreamSettings("m", "mistral:large", base_url=upstream.base_url(), options={"attempts": 1})
            async with serving(settings_for(alias)) as url:
                client = Client(url, wire, parallel=None)
                first, last = await client.converse()
                assert first.response.calls[0].id == "D681PevKs"
                assert last.response.text == "Bien."
            assert fit("D681PevKs", MISTRAL) == "D681PevKs"
            assistant = upstream.requests[1].messages[1]
            assert isinstance(assistant, Assistant)
            assert assistant.calls[0].id == "D681PevKs"

    run(story)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "天气"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_name_that_a_model_wrote_and_its_provider_refuses_does_not_stop_the_conversation(
    wire: str, name: str
) -> None:
    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True, strict=True) as upstream:
            aliases = [upstream_settings(upstream, other, alias=other) for other in WIRES]
            async with serving(settings_for(*aliases)) as url:
                for other in WIRES:
                    client = Client(url, wire, parallel=None, model=other)
                    history = asks(wire, Q.text) + calls(wire, "a1") + results(wire, "a1")
                    named = json.loads(json.dumps(history).replace('"get_weather"', json.dumps(name)))
                    reply = await client.post(raw_body(client, named))
                    assert (reply.status, reply.response.text) == (200, "Fine."), reply.body

    run(story)
