"""What clients do to a turn that is released call by call, over HTTP: each case by its name in docs/gateway.md."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import valkey_server
from gateway_client import (
    CITIES,
    QUESTION,
    SOME_PAIRS,
    THREE_CALLS,
    Client,
    Reply,
    plain,
    result_of,
    run,
    serving,
    settings_for,
    stage,
    upstream_settings,
)

from unbroken.errors import ProviderError
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.settings import ClientProfile
from unbroken_gateway.turns.serial import FAILED, SPOKEN
from unbroken_testing import Break, Call, Fail, Raw, Say, ScriptedServer, Step, Think
from unbroken_wires.messages import Assistant, Message, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript import NO_RESULT
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.jsontext import dumps

CHAT, ANTHROPIC, RESPONSES, GEMINI = "openai-chat", "anthropic-messages", "openai-responses", "gemini"

OLLAMA, COHERE, BEDROCK = "ollama", "cohere-v2", "bedrock-converse"

UPSTREAM = {
    CHAT: CHAT,
    ANTHROPIC: ANTHROPIC,
    RESPONSES: ANTHROPIC,
    GEMINI: CHAT,
    OLLAMA: OLLAMA,
    COHERE: BEDROCK,
    BEDROCK: BEDROCK,
}
"""One upstream wire for each client wire: four pairs forward bodies unchanged, three translate."""

every_client = pytest.mark.parametrize("wire", list(UPSTREAM))
every_upstream = pytest.mark.parametrize("upstream", list(WIRES))
some_pairs = pytest.mark.parametrize(("wire", "upstream"), SOME_PAIRS)
streamed_and_whole = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

HELD: dict[str, Any] = {"serial": True}
"""Set by the alias: some wires cannot express it."""
SUNNY = [f"Sunny in {city}." for city in CITIES]


def calls(*cities: str, mark: str = "A", text: str = "Let me look.", name: str = "get_weather") -> list[str | Step]:
    """A turn with its own ids, which `mark` distinguishes from other turns."""
    said: list[str | Step] = [Say(text)] if text else []
    made = [Call(name, city=city, id=f"call_{mark}{at:02}q7Zp2mX91aKd") for at, city in enumerate(cities)]
    return [*said, *made]


def cities(reply: Reply) -> list[str]:
    return [(call.arguments or {})["city"] for call in reply.response.calls]


def all_cities(replies: Sequence[Reply]) -> list[str]:
    return [city for reply in replies for city in cities(reply)]


def turns(messages: Sequence[Message]) -> list[list[tuple[str, str]]]:
    """For each assistant message with calls: the cities, and the texts of their results."""
    found: list[list[tuple[str, str]]] = []
    for at, message in enumerate(messages):
        if isinstance(message, Assistant) and message.calls:
            after = messages[at + 1]
            assert isinstance(after, ToolMessage)
            texts = {result.call_id: result.text for result in after.results}
            found.append([((call.arguments or {})["city"], texts[call.id]) for call in message.calls])
    return found


def sunny(*cities: str) -> list[tuple[str, str]]:
    return [(city, f"Sunny in {city}.") for city in cities]


ALL_SUNNY = sunny(*CITIES)


# Retries


@every_client
def test_a_released_call_that_is_requested_again_is_the_same_call(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            second = await client.answer_calls()
            again = [await client.again() for _ in range(3)]
            assert [(reply.calls, reply.ids) for reply in again] == [(second.calls, second.ids)] * 3
            assert [reply.headers["x-unbroken-turn"] for reply in again] == ["handed 2/3"] * 3
            assert len(on.asked) == 1
            await client.answer_calls()
            await client.answer_calls()
            assert turns(on.asked[1]) == [ALL_SUNNY]

    run(story)


@streamed_and_whole
@every_client
def test_a_repeated_first_request_gets_the_same_answer_and_the_model_is_asked_once(wire: str, stream: bool) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire, stream)
            first = await client.ask(User.of(QUESTION))
            on.clock.time += 59
            again = await client.again()
            assert (again.response.text, again.calls, again.ids) == ("Let me look.", first.calls, first.ids)
            assert again.headers["x-unbroken-turn"] == "handed 1/3"
            assert again.response.usage is None or again.response.usage.total_tokens == 0
            assert len(on.asked) == 1
            for _ in CITIES:
                await client.answer_calls()
            assert turns(on.asked[1]) == [ALL_SUNNY]

    run(story)


@every_client
def test_a_repeated_first_request_after_a_while_is_a_new_question(wire: str) -> None:
    async def story() -> None:
        other = calls("Oslo", "Rome", mark="B", text="")
        async with stage(UPSTREAM[wire], THREE_CALLS, other, "Done.", retry_window=5.0, **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            on.clock.time += 6
            assert cities(await client.again()) == ["Oslo"]
            assert len(on.asked) == 2

    run(story)


def test_a_call_that_is_requested_again_is_waited_for_again() -> None:
    async def story() -> None:
        async with stage(CHAT, THREE_CALLS, "Done.", hold_timeout=50.0) as on:
            client = on.client(CHAT)
            await client.ask(User.of(QUESTION))
            on.clock.time += 40
            assert cities(await client.again()) == ["Beijing"]
            on.clock.time += 40
            assert cities(await client.answer_calls()) == ["Shanghai"]

    run(story)


@every_client
def test_a_question_that_ends_a_held_turn_is_retried_as_the_same_question(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", "Done again.", **HELD) as on:
            client = on.client(wire)
            await client.converse()
            assert (await client.again()).response.text == "Done again."
            assert on.asked[1] == on.asked[2]

    run(story)


def test_the_same_body_for_another_model_is_another_request() -> None:
    async def story() -> None:
        async with ScriptedServer(calls("Oslo", "Rome"), calls("Lima", "Cairo", mark="B")) as upstream:
            rows = [upstream_settings(upstream, CHAT, alias=alias, serial=True) for alias in ("one", "two")]
            async with serving(settings_for(*rows)) as url:
                assert cities(await Client(url, GEMINI, model="one").ask(User.of(QUESTION))) == ["Oslo"]
                assert cities(await Client(url, GEMINI, model="two").ask(User.of(QUESTION))) == ["Lima"]

    run(story)


# Invalid results


@every_client
def test_a_result_of_an_unknown_id_is_dropped_and_the_model_is_asked(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Hm.", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            reply = await client.ask(ToolMessage((ToolResult.of(ToolCall("nobody", "look", {}), "?"),)))
            assert reply.response.text == "Hm."
            assert reply.headers["x-unbroken-repairs"] == "insert-missing, drop-orphan"
            assert turns(on.asked[1]) == [list(zip(CITIES, [NO_RESULT, SPOKEN, SPOKEN], strict=True))]

    run(story)


@every_client
def test_a_strict_gateway_refuses_a_result_of_an_unknown_id(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, strict=True, **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            reply = await client.ask(ToolMessage((ToolResult.of(ToolCall("nobody", "look", {}), "?"),)))
            assert reply.status == 400
            assert "a call has no result" in reply.data.decode()
            assert len(on.asked) == 1

    run(story)


@every_client
def test_several_results_out_of_order_are_used_in_call_order(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            second = await client.answer_calls()
            both = [*first.response.calls, *second.response.calls]
            client.messages = [
                User.of(QUESTION),
                Assistant("Let me look.", tuple(both)),
                ToolMessage(tuple(result_of(call) for call in reversed(both))),
            ]
            third = await client.ask()
            assert cities(third) == ["Guangzhou"]
            await client.answer_calls()
            assert turns(on.asked[1]) == [ALL_SUNNY]

    run(story)


@every_client
def test_a_result_that_the_client_lost_is_reported_as_lost(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            await client.answer_calls()
            await client.answer_calls()
            del client.messages[2]
            reply = await client.answer_calls()
            assert reply.status == 200
            assert "insert-missing" in reply.headers["x-unbroken-repairs"]
            assert turns(on.asked[1]) == [list(zip(CITIES, [NO_RESULT, *SUNNY[1:]], strict=True))]

    run(story)


# User messages


@every_client
def test_a_user_message_instead_of_a_result_is_passed_on(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Sorry.", "Bye.", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            reply = await client.ask(User.of("Stop."))
            assert (reply.response.text, reply.calls) == ("Sorry.", [])
            not_run = [list(zip(CITIES, [NO_RESULT, SPOKEN, SPOKEN], strict=True))]
            assert turns(on.asked[1]) == not_run
            assert on.asked[1][-1] == User.of("Stop.")
            await client.ask(User.of("Thanks."))
            assert turns(on.asked[2]) == not_run
            assert on.asked[2][: len(on.asked[1])] == on.asked[1]

    run(story)


@pytest.mark.parametrize("wire", [CHAT, RESPONSES])
def test_a_user_message_after_a_result_is_passed_on(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Sorry.", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            await client.ask(ToolMessage((result_of(first.response.calls[0]),)), User.of("Stop."))
            assert turns(on.asked[1]) == [list(zip(CITIES, [SUNNY[0], SPOKEN, SPOKEN], strict=True))]
            assert on.asked[1][-1] == User.of("Stop.")

    run(story)


def in_one_message(body: dict[str, Any]) -> dict[str, Any]:
    """Text is in the message of the result before it, as the wire requires."""
    field, parts = ("messages", "content") if "messages" in body else ("contents", "parts")
    together: list[dict[str, Any]] = []
    for message in body[field]:
        if together and message["role"] == together[-1]["role"]:
            said = message[parts] if isinstance(message[parts], list) else [{"type": "text", "text": message[parts]}]
            together[-1] = {**together[-1], parts: [*together[-1][parts], *said]}
        else:
            together.append(message)
    return body | {field: together}


@pytest.mark.parametrize("wire", [ANTHROPIC, GEMINI])
@every_upstream
def test_text_next_to_a_result_comes_after_all_results(wire: str, upstream: str) -> None:
    async def story() -> None:
        async with stage(upstream, THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            reply = await client.ask(User.of(QUESTION))
            for words in ("Hurry.", "Please.", ""):
                client.messages.append(ToolMessage((result_of(reply.response.calls[0]),)))
                client.messages += [User.of(words)] if words else []
                reply = await client.post(in_one_message(client.body()))
                client.messages.append(Assistant("", reply.response.calls))
            assert all_cities([reply]) == []
            assert turns(on.asked[1]) == [ALL_SUNNY]
            words = [part for message in on.asked[1][3:] if isinstance(message, User) for part in message.parts]
            assert words == [Text("Hurry."), Text("Please.")]

    run(story)


# Edited, compacted, undone, branched


@every_client
def test_an_edited_call_belongs_to_the_client(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            edited = replace(first.response.calls[0], arguments={"city": "Tianjin"}, raw='{"city": "Tianjin"}')
            client.messages[1] = Assistant("Let me look.", (edited,))
            reply = await client.answer_calls()
            assert reply.response.text == "Done."
            assert turns(on.asked[1]) == [sunny("Tianjin")]

    run(story)


@every_client
def test_edited_text_reaches_the_model_with_the_complete_turn(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            client.messages[1] = Assistant("I shall look.", first.response.calls)
            for _ in CITIES:
                await client.answer_calls()
            assert turns(on.asked[1]) == [ALL_SUNNY]
            assistant = on.asked[1][1]
            assert isinstance(assistant, Assistant)
            assert assistant.text == "I shall look."

    run(story)


@every_client
def test_an_edited_question_changes_nothing_if_ids_identify_the_turn(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            client.messages[0] = User.of("The weather, please.")
            for _ in CITIES:
                await client.answer_calls()
            assert on.asked[1][0] == User.of("The weather, please.")
            assert turns(on.asked[1]) == [ALL_SUNNY]

    run(story)


@every_client
def test_a_summary_instead_of_old_messages_is_all_that_the_model_gets(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", "Also sunny.", **HELD) as on:
            client = on.client(wire)
            await client.converse()
            client.messages = [User.of("So far: it is sunny in three cities.")]
            client.messages += [Assistant("Done."), User.of("And tomorrow?")]
            reply = await client.ask()
            assert reply.response.text == "Also sunny."
            assert [plain(message) for message in on.asked[2]] == client.messages[:-1]

    run(story)


@every_client
def test_a_summary_in_the_middle_of_a_held_turn_repeats_no_call(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            await client.answer_calls()
            client.messages = [User.of("So far: it is sunny in Beijing."), client.messages[-1]]
            third = await client.answer_calls()
            assert cities(third) == ["Guangzhou"]
            await client.answer_calls()
            assert turns(on.asked[1]) == [sunny("Shanghai", "Guangzhou")]

    run(story)


@every_client
def test_a_summary_after_which_the_next_call_is_alone_goes_to_the_model(wire: str) -> None:
    """The released call is compacted away with everything before it; its result is still sent."""

    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Hm.", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            client.messages = [User.of("So far: the weather was asked for.")]
            reply = await client.ask(ToolMessage((result_of(first.response.calls[0]),)))
            assert reply.response.text == "Hm."
            assert "drop-orphan" in reply.headers["x-unbroken-repairs"]

    run(story)


@every_client
def test_a_history_that_goes_back_gets_the_same_calls_again(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", "Done again.", **HELD) as on:
            client = on.client(wire)
            await client.converse()
            client.messages = client.messages[:3]
            assert cities(await client.ask()) == ["Shanghai"]
            await client.answer_calls()
            last = await client.answer_calls()
            assert last.response.text == "Done again."
            assert on.asked[1] == on.asked[2]

    run(story)


@every_client
def test_two_branches_of_one_point_each_get_their_calls(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", "Done too.", **HELD) as on:
            one = on.client(wire)
            await one.ask(User.of(QUESTION))
            two = one.branch()
            for _ in CITIES:
                await one.answer_calls()
                call = two.messages[-1]
                assert isinstance(call, Assistant)
                await two.ask(ToolMessage((result_of(call.calls[0], "Rain."),)))
            assert [turns(messages) for messages in on.asked[1:]] == [
                [ALL_SUNNY],
                [[(city, "Rain.") for city in CITIES]],
            ]
            assert [client.messages[-1] for client in (one, two)] == [Assistant("Done."), Assistant("Done too.")]

    run(story)


@every_client
def test_a_branch_that_was_not_interrupted_still_gets_its_calls(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Sorry.", "Done.", **HELD) as on:
            one = on.client(wire)
            await one.ask(User.of(QUESTION))
            two = one.branch()
            await one.ask(User.of("Stop."))
            for city in CITIES[1:]:
                assert cities(await two.answer_calls()) == [city]
            await two.answer_calls()
            assert turns(on.asked[2]) == [ALL_SUNNY]

    run(story)


@every_client
def test_two_answers_with_the_same_beginning_do_not_mix(wire: str) -> None:
    """The same question twice: one client regenerates, or two ask the same."""

    async def story() -> None:
        answers = [calls("Oslo", "Rome"), calls("Oslo", "Lima", mark="B"), "Done.", "Done."]
        async with stage(UPSTREAM[wire], *answers, retry_window=0.0, **HELD) as on:
            one, two = on.client(wire), on.client(wire)
            await one.ask(User.of(QUESTION))
            await two.ask(User.of(QUESTION))
            assert cities(await one.answer_calls()) == ["Rome"]
            assert cities(await two.answer_calls()) == ["Lima"]
            await one.answer_calls()
            await two.answer_calls()
            assert [turns(messages) for messages in on.asked[2:]] == [[sunny("Oslo", "Rome")], [sunny("Oslo", "Lima")]]

    run(story)


@every_client
def test_a_single_call_that_begins_like_a_held_turn_is_not_part_of_it(wire: str) -> None:
    async def story() -> None:
        answers = [calls("Oslo", "Rome"), calls("Oslo", mark="B"), "Done."]
        async with stage(UPSTREAM[wire], *answers, retry_window=0.0, **HELD) as on:
            await on.client(wire).ask(User.of(QUESTION))
            replies = await on.client(wire).converse()
            assert [cities(reply) for reply in replies] == [["Oslo"], []]
            assert turns(on.asked[2]) == [sunny("Oslo")]

    run(story)


def test_a_client_that_takes_several_calls_gets_no_call_of_anothers_turn() -> None:
    async def story() -> None:
        async with stage(CHAT, calls("Oslo", "Rome"), calls("Oslo", mark="B"), "Done.") as on:
            await on.client(CHAT).ask(User.of(QUESTION))
            replies = await on.client(CHAT, parallel=None).converse()
            assert [cities(reply) for reply in replies] == [["Oslo"], []]

    run(story)


@every_client
def test_the_same_result_sent_twice_at_once_gets_the_same_call_twice(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            twins = [client.branch() for _ in range(5)]
            replies = await asyncio.gather(*(twin.answer_calls() for twin in twins))
            assert [cities(reply) for reply in replies] == [["Shanghai"]] * 5
            assert len({tuple(reply.ids) for reply in replies}) == 1
            assert len(on.asked) == 1

    run(story)


@every_client
def test_a_complete_turn_is_not_lost_when_the_model_fails(wire: str) -> None:
    async def story() -> None:
        failure = Fail(ProviderError("overloaded", status=503))
        async with stage(UPSTREAM[wire], THREE_CALLS, failure, "Done.", **HELD) as on:
            client = on.client(wire)
            *_, failed = await client.converse()
            assert failed.status == 503
            again = await client.ask()
            assert again.response.text == "Done."
            assert on.asked[1] == on.asked[2]
            assert turns(on.asked[2]) == [ALL_SUNNY]

    run(story)


@pytest.mark.parametrize(
    ("heard", "told"),
    [("Let me ", "Let me look."), ("I think", "I think\n\nLet me look.")],
    ids=["goes on", "other words"],
)
@every_client
def test_calls_of_an_answer_that_broke_off_and_was_retried_are_held(wire: str, heard: str, told: str) -> None:
    async def story() -> None:
        upstream = UPSTREAM[wire]
        async with ScriptedServer([Say(heard), Break()], THREE_CALLS, "Done.") as server:
            row = upstream_settings(server, upstream, serial=True)
            async with serving(settings_for(row)) as url:
                replies = await Client(url, wire, stream=True).converse()
            assert [cities(reply) for reply in replies] == [[city] for city in CITIES] + [[]]
            assert replies[0].response.text == told
            assistant = server.requests[-1].messages[1]
            assert isinstance(assistant, Assistant)
            assert assistant.text == "Let me look."  # the model's own text
            assert turns(server.requests[-1].messages) == [ALL_SUNNY]

    run(story)


# Replicas, restarts, time


@pytest.mark.parametrize("store", ["sqlite", "valkey"])
@every_client
def test_two_replicas_that_share_a_store_release_one_turn(wire: str, store: str, tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'kept.db'}" if store == "sqlite" else valkey_server.empty_url()

    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream, AsyncExitStack() as replicas:
            settings = settings_for(upstream_settings(upstream, UPSTREAM[wire], serial=True), store=address)
            urls = [await replicas.enter_async_context(serving(settings)) for _ in range(2)]
            client = Client(urls[0], wire)
            replies = [await client.ask(User.of(QUESTION))]
            for turn in range(3):
                client.url = urls[(turn + 1) % 2]
                replies.append(await client.answer_calls())
            assert [cities(reply) for reply in replies] == [["Beijing"], ["Shanghai"], ["Guangzhou"], []]
            assert turns(upstream.requests[1].messages) == [ALL_SUNNY]
            assert len(upstream.requests) == 2

    run(story)


@pytest.mark.parametrize("store", ["sqlite", "valkey"])
def test_a_retry_of_the_first_request_at_another_replica_gets_the_same_answer(store: str, tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'kept.db'}" if store == "sqlite" else valkey_server.empty_url()

    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream, AsyncExitStack() as replicas:
            settings = settings_for(upstream_settings(upstream, CHAT), store=address)
            urls = [await replicas.enter_async_context(serving(settings)) for _ in range(2)]
            client = Client(urls[0], CHAT)
            first = await client.ask(User.of(QUESTION))
            client.url = urls[1]
            assert (await client.again()).ids == first.ids
            assert len(upstream.requests) == 1

    run(story)


@every_client
def test_a_gateway_that_is_restarted_continues_where_it_stopped(wire: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            row = upstream_settings(upstream, UPSTREAM[wire], serial=True)
            settings = settings_for(row, store=f"sqlite:{tmp_path / 'kept.db'}")
            client = Client("", wire)
            async with serving(settings) as client.url:
                await client.ask(User.of(QUESTION))
            for _ in CITIES:
                async with serving(settings) as client.url:
                    await client.answer_calls()
            assert client.messages[-1] == Assistant("Done.")
            assert turns(upstream.requests[1].messages) == [ALL_SUNNY]
            assert len(upstream.requests) == 2

    run(story)


@some_pairs
def test_a_late_result_is_ordinary_history(wire: str, upstream: str) -> None:
    async def story() -> None:
        answers = [[Think("Three cities."), *THREE_CALLS], "Late.", "Bye."]
        async with stage(upstream, *answers, hold_timeout=60.0, **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            on.clock.time += 59
            assert cities(await client.answer_calls()) == ["Shanghai"]
            on.clock.time += 61
            late = await client.answer_calls()
            assert (late.status, late.response.text) == (200, "Late.")
            assert turns(on.asked[1]) == [sunny("Beijing", "Shanghai")]
            await client.ask(User.of("Thanks."))
            assert turns(on.asked[2]) == [sunny("Beijing", "Shanghai")]

    run(story)


@some_pairs
def test_without_its_state_a_turn_is_ordinary_history(wire: str, upstream: str) -> None:
    async def story() -> None:
        answers = [[Think("Three cities."), *THREE_CALLS], "Late."]
        async with stage(upstream, *answers, ttl=1000.0, hold_timeout=5000.0, **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            on.clock.time += 500
            assert cities(await client.answer_calls()) == ["Shanghai"]
            on.clock.time += 501
            late = await client.answer_calls()
            assert (late.status, late.response.text) == (200, "Late.")
            assert [told for turn in turns(on.asked[1]) for told in turn] == sunny("Beijing", "Shanghai")

    run(story)


# Failed results


def failed(call: ToolCall) -> ToolMessage:
    return ToolMessage((ToolResult.of(call, "Error: no such city", error=True),))


@every_client
def test_after_a_failed_result_the_next_call_is_released(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Done.", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            assert cities(await client.ask(failed(first.response.calls[0]))) == ["Shanghai"]
            await client.answer_calls()
            await client.answer_calls()
            results = on.asked[1][2]
            assert isinstance(results, ToolMessage)
            assert [result.text for result in results.results] == ["Error: no such city", *SUNNY[1:]]
            assert results.results[0].error is (wire == ANTHROPIC)  # no other of these wires has a field for it

    run(story)


@every_client
def test_a_failed_result_can_stop_the_release(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Oh.", "Bye.", on_tool_error="stop", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            reply = await client.ask(failed(first.response.calls[0]))
            assert reply.response.text == "Oh."
            assert turns(on.asked[1]) == [list(zip(CITIES, ["Error: no such city", FAILED, FAILED], strict=True))]

    run(story)


@every_client
def test_a_release_that_a_failed_result_stopped_stays_stopped(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Oh.", "Bye.", on_tool_error="stop", **HELD) as on:
            client = on.client(wire)
            first = await client.ask(User.of(QUESTION))
            await client.ask(failed(first.response.calls[0]))
            await client.ask(User.of("Go on."))
            assert on.asked[2][: len(on.asked[1])] == on.asked[1]

    run(story)


@every_client
def test_a_later_failed_result_stops_the_release_too(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], THREE_CALLS, "Oh.", on_tool_error="stop", **HELD) as on:
            client = on.client(wire)
            await client.ask(User.of(QUESTION))
            second = await client.answer_calls()
            await client.ask(failed(second.response.calls[0]))
            assert turns(on.asked[1]) == [list(zip(CITIES, [SUNNY[0], "Error: no such city", FAILED], strict=True))]

    run(story)


# Clients that change things each time


def rewrite_ids(messages: list[Message]) -> list[Message]:
    """Its own ids, in the order of the calls."""
    names: dict[str, str] = {}
    rewritten: list[Message] = []
    for message in messages:
        if isinstance(message, Assistant):
            for call in message.calls:
                names[call.id] = f"own{len(names)}"
            made = tuple(replace(call, id=names[call.id]) for call in message.calls)
            rewritten.append(replace(message, calls=made))
        elif isinstance(message, ToolMessage):
            told = tuple(replace(result, call_id=names[result.call_id]) for result in message.results)
            rewritten.append(ToolMessage(told))
        else:
            rewritten.append(message)
    return rewritten


def strip_text(messages: list[Message]) -> list[Message]:
    """Text next to calls is lost."""
    return [
        replace(message, text="") if isinstance(message, Assistant) and message.calls else message
        for message in messages
    ]


def fill_text(messages: list[Message]) -> list[Message]:
    """litellm does so for Anthropic, which refuses an empty text."""
    filler = "[System: Empty message content sanitised to satisfy protocol]"
    return [
        replace(message, text=filler) if isinstance(message, Assistant) and not message.text else message
        for message in messages
    ]


TWO_TURNS = [[Think("Hm."), *THREE_CALLS], calls("Oslo", "Rome", mark="B", text="Two more."), "Done."]


@some_pairs
@pytest.mark.parametrize("habit", [rewrite_ids, strip_text, fill_text])
def test_a_client_that_changes_its_history_gets_all_calls_of_both_turns(wire: str, habit: Any, upstream: str) -> None:
    async def story() -> None:
        async with stage(upstream, *TWO_TURNS, **HELD) as on:
            client = on.client(wire, habit=habit)
            replies = await client.converse()
            assert [cities(reply) for reply in replies] == [[city] for city in (*CITIES, "Oslo", "Rome")] + [[]]
            assert turns(on.asked[2]) == [ALL_SUNNY, sunny("Oslo", "Rome")]
            assistant = on.asked[2][1]
            assert isinstance(assistant, Assistant)
            assert assistant.text == "Let me look."
            assert [call.id for call in assistant.calls] == [step.id for step in THREE_CALLS if isinstance(step, Call)]

    run(story)


def without_ids(contents: list[dict[str, Any]]) -> None:
    for content in contents:
        for part in content["parts"]:
            for field in ("functionCall", "functionResponse"):
                part.get(field, {}).pop("id", None)


@every_upstream
def test_a_gemini_client_without_ids_gets_all_calls_of_both_turns(upstream: str) -> None:
    async def story() -> None:
        async with stage(upstream, *TWO_TURNS, **HELD) as on:
            client = on.client(GEMINI)
            client.messages = [User.of(QUESTION)]
            given: list[str] = []
            for _ in range(6):
                body = client.body()
                without_ids(body["contents"])
                reply = await client.post(body)
                given += cities(reply)
                client.messages.append(Assistant(reply.response.text, reply.response.calls))
                client.messages.append(ToolMessage(tuple(map(result_of, reply.response.calls))))
            assert given == [*CITIES, "Oslo", "Rome"]
            assert turns(on.asked[2]) == [ALL_SUNNY, sunny("Oslo", "Rome")]

    run(story)


@pytest.mark.parametrize("spelled", ["call_{}", "functions.get_weather:{}", "{}", "call_q7Zp2mX91aKd{}"])
@every_client
def test_repeated_ids_in_another_conversation_never_mix(wire: str, spelled: str) -> None:
    def counted(*cities: str) -> list[Step]:
        return [Call("get_weather", city=city, id=spelled.format(at)) for at, city in enumerate(cities)]

    async def story() -> None:
        answers = [counted("Oslo", "Rome"), counted("Lima", "Cairo"), "Done.", "Done."]
        async with stage(UPSTREAM[wire], *answers, **HELD) as on:
            one, two = on.client(wire), on.client(wire)
            await one.ask(User.of("The north?"))
            await two.ask(User.of("The south?"))
            assert cities(await one.answer_calls()) == ["Rome"]
            assert cities(await two.answer_calls()) == ["Cairo"]
            await two.answer_calls()
            await one.answer_calls()
            assert [turns(messages) for messages in on.asked[2:]] == [
                [sunny("Lima", "Cairo")],
                [sunny("Oslo", "Rome")],
            ]

    run(story)


@every_client
def test_ids_that_count_from_0_in_each_turn_of_one_conversation_never_mix(wire: str) -> None:
    def counted(*cities: str) -> list[Step]:
        return [Call("get_weather", city=city, id=f"call_{at}") for at, city in enumerate(cities)]

    async def story() -> None:
        answers = [counted("Oslo", "Rome"), counted("Lima", "Rome", "Oslo"), "Done."]
        async with stage(UPSTREAM[wire], *answers, **HELD) as on:
            replies = await on.client(wire).converse()
            assert all_cities(replies) == ["Oslo", "Rome", "Lima", "Rome", "Oslo"]
            assert turns(on.asked[2]) == [sunny("Oslo", "Rome"), sunny("Lima", "Rome", "Oslo")]

    run(story)


# Clients that get one call at a time


SPELLED: dict[str, dict[str, Any]] = {
    CHAT: {"parallel_tool_calls": False},
    RESPONSES: {"parallel_tool_calls": False},
    ANTHROPIC: {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    **{each: dict[str, Any]() for each in (GEMINI, OLLAMA, COHERE, BEDROCK)},
}


@every_upstream
@pytest.mark.parametrize("wire", [CHAT, ANTHROPIC, RESPONSES])
def test_a_client_that_asks_for_it_gets_one_call_and_the_model_is_asked_in_its_own_format(
    wire: str, upstream: str
) -> None:
    async def story() -> None:
        async with stage(upstream, THREE_CALLS) as on:
            client = on.client(wire, parallel=None)
            body = client.body([User.of(QUESTION)]) | SPELLED[wire]
            reply = await client.post(body)
            assert cities(reply) == ["Beijing"]
            told = on.upstream.bodies[0]
            assert {name: told.get(name) for name in SPELLED[upstream]} == SPELLED[upstream]
            if not SPELLED[upstream]:
                assert not {"parallel_tool_calls", "tool_choice"} & told.keys()

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("asked", [{}, {"parallel_tool_calls": True}], ids=["nothing", "true"])
@pytest.mark.parametrize("wire", [CHAT, RESPONSES])
def test_a_client_that_does_not_ask_for_one_call_gets_all_at_once(
    wire: str, asked: dict[str, bool], stream: bool
) -> None:
    async def story() -> None:
        async with stage(CHAT, THREE_CALLS) as on:
            client = on.client(wire, stream, parallel=None)
            reply = await client.post(client.body([User.of(QUESTION)]) | asked)
            assert cities(reply) == list(CITIES)
            assert "x-unbroken-turn" not in reply.headers

    run(story)


def test_a_forced_tool_choice_is_kept() -> None:
    async def story() -> None:
        async with stage(ANTHROPIC, THREE_CALLS) as on:
            client = on.client(CHAT)
            choice = {"type": "function", "function": {"name": "get_weather"}}
            reply = await client.post(client.body([User.of(QUESTION)]) | {"tool_choice": choice})
            assert cities(reply) == ["Beijing"]
            assert on.upstream.bodies[0]["tool_choice"] == {
                "type": "tool",
                "name": "get_weather",
                "disable_parallel_tool_use": True,
            }

    run(story)


@some_pairs
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_alias_that_requires_one_call_at_a_time_asks_its_model_for_all(
    wire: str, upstream: str, stream: bool
) -> None:
    async def story() -> None:
        async with stage(upstream, THREE_CALLS, "Done.", serial=True) as on:
            client = on.client(wire, stream, parallel=None)
            replies = [await client.ask(User.of(QUESTION))]
            while replies[-1].calls:
                replies.append(await client.answer_calls())
            assert [cities(reply) for reply in replies] == [["Beijing"], ["Shanghai"], ["Guangzhou"], []]
            assert len(on.upstream.bodies) == 2
            for told in on.upstream.bodies:
                assert "parallel_tool_calls" not in told
                assert "disable_parallel_tool_use" not in (told.get("tool_choice") or {})

    run(story)


@some_pairs
def test_an_alias_can_ask_its_model_for_one_call_at_a_time_too(wire: str, upstream: str) -> None:
    async def story() -> None:
        async with stage(upstream, THREE_CALLS, serial=True, alias={"all_calls": False}) as on:
            reply = await on.client(wire, parallel=None).ask(User.of(QUESTION))
            assert cities(reply) == ["Beijing"]
            told = on.upstream.bodies[0]
            assert {name: told.get(name) for name in SPELLED[upstream]} == SPELLED[upstream]

    run(story)


def test_what_a_client_of_a_serial_alias_says_itself_is_passed_on() -> None:
    async def story() -> None:
        async with stage(CHAT, THREE_CALLS, serial=True) as on:
            client = on.client(CHAT, parallel=False)
            assert cities(await client.ask(User.of(QUESTION))) == ["Beijing"]
            assert on.upstream.bodies[0]["parallel_tool_calls"] is False

    run(story)


@every_upstream
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", [CHAT, ANTHROPIC, RESPONSES])
def test_a_model_may_return_all_calls_at_once_to_a_client_that_gets_one_at_a_time(
    wire: str, upstream: str, stream: bool
) -> None:
    """The client asks for one call at a time itself; the model does not hear of it, and is asked twice in all."""

    async def story() -> None:
        async with stage(upstream, THREE_CALLS, "Done.", alias={"all_calls": True}) as on:
            client = on.client(wire, stream, parallel=False)
            replies = [await client.ask(User.of(QUESTION))]
            while replies[-1].calls:
                replies.append(await client.answer_calls())
            assert [cities(reply) for reply in replies] == [["Beijing"], ["Shanghai"], ["Guangzhou"], []]
            assert replies[-1].response.text == "Done."
            assert len(on.upstream.bodies) == 2
            for told in on.upstream.bodies:
                assert {name: told.get(name) for name in SPELLED[upstream]} != SPELLED[upstream] or not SPELLED[
                    upstream
                ]

    run(story)


@pytest.mark.parametrize(
    ("profile", "alias", "told"),
    [
        (None, None, {}),
        (False, None, {"parallel_tool_calls": False}),
        (None, False, {"parallel_tool_calls": False}),
        (True, False, {}),
        (False, True, {"parallel_tool_calls": False}),
    ],
    ids=["neither", "the profile", "the alias", "not the profile", "only the profile"],
)
def test_a_profile_decides_before_the_alias_what_the_model_is_asked_for(
    profile: bool | None, alias: bool | None, told: dict[str, bool]
) -> None:
    async def story() -> None:
        pi = ClientProfile("pi", user_agent="pi/", all_calls=profile)
        async with stage(CHAT, THREE_CALLS, clients=(pi,), alias={"all_calls": alias}) as on:
            client = on.client(CHAT, parallel=None)
            client.headers["User-Agent"] = "pi/1.0"
            assert cities(await client.ask(User.of(QUESTION))) == ["Beijing"]
            assert {name: on.upstream.bodies[0][name] for name in told} == told
            assert told or "parallel_tool_calls" not in on.upstream.bodies[0]

    run(story)


def test_a_client_can_be_recognised_by_its_header_or_user_agent() -> None:
    profiles = (
        ClientProfile("marked", header="X-Client: simple"),
        ClientProfile("old", user_agent="OldTool/"),
        ClientProfile("both", header="X-Team", user_agent="curl"),
    )
    known: list[tuple[dict[str, str], int]] = [
        ({"X-Client": "simple"}, 1),
        ({"X-Client": "clever"}, 3),
        ({"User-Agent": "oldtool/2.1 (linux)"}, 1),
        ({"User-Agent": "NewTool/1"}, 3),
        ({"User-Agent": "curl/8", "X-Team": "any"}, 1),
        ({"User-Agent": "curl/8"}, 3),
        ({}, 3),
    ]

    async def story() -> None:
        async with stage(CHAT, *[THREE_CALLS] * len(known), clients=profiles) as on:
            for headers, given in known:
                client = on.client(CHAT, parallel=None, headers=headers)
                assert len((await client.ask(User.of(QUESTION))).calls) == given

    run(story)


@every_client
def test_a_client_can_be_recognised_by_its_key(wire: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secrets = {name: create_key(keys, GatewayKey(name)) for name in ("simple", "clever")}
    profiles = (ClientProfile("one at a time", key="simple"),)

    async def story() -> None:
        answers = [THREE_CALLS, THREE_CALLS]
        async with stage(UPSTREAM[wire], *answers, clients=profiles, keys=True, keys_file=str(keys)) as on:
            given: list[int] = []
            for name in ("simple", "clever"):
                headers = {"Authorization": f"Bearer {secrets[name]}"}
                reply = await on.client(wire, parallel=None, headers=headers).ask(User.of(QUESTION))
                given.append(len(reply.calls))
            assert given == [1, 3]

    run(story)


def test_a_profile_can_override_the_alias() -> None:
    async def story() -> None:
        profiles = (ClientProfile("clever", user_agent="clever", serial=False),)
        async with stage(CHAT, THREE_CALLS, clients=profiles, serial=True) as on:
            client = on.client(CHAT, parallel=None, headers={"User-Agent": "clever"})
            assert len((await client.ask(User.of(QUESTION))).calls) == 3

    run(story)


def test_calls_held_for_one_key_are_not_found_by_another(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secrets = [create_key(keys, GatewayKey(name)) for name in ("one", "two")]

    async def story() -> None:
        async with stage(CHAT, THREE_CALLS, "Hm.", keys=True, keys_file=str(keys)) as on:
            client = on.client(CHAT, headers={"Authorization": f"Bearer {secrets[0]}"})
            await client.ask(User.of(QUESTION))
            client.headers = {"Authorization": f"Bearer {secrets[1]}"}
            assert (await client.answer_calls()).response.text == "Hm."
            assert turns(on.asked[1]) == [sunny("Beijing")]

    run(story)


# Turns of all sizes


@streamed_and_whole
@every_client
def test_a_single_call_is_simply_passed_on(wire: str, stream: bool) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], calls("Oslo"), "Done.", **HELD) as on:
            replies = await on.client(wire, stream).converse()
            assert [cities(reply) for reply in replies] == [["Oslo"], []]
            assert ["x-unbroken-turn" in reply.headers for reply in replies] == [False, False]
            assert turns(on.asked[1]) == [sunny("Oslo")]

    run(story)


@streamed_and_whole
@every_client
def test_a_second_turn_with_several_calls_is_released_too(wire: str, stream: bool) -> None:
    async def story() -> None:
        answers = [THREE_CALLS, calls("Oslo", "Rome", mark="B", text="Two more."), calls("Lima", mark="C"), "Done."]
        async with stage(UPSTREAM[wire], *answers, **HELD) as on:
            replies = await on.client(wire, stream).converse()
            assert all_cities(replies) == [*CITIES, "Oslo", "Rome", "Lima"]
            assert [reply.response.text for reply in replies] == [
                "Let me look.",
                "",
                "",
                "Two more.",
                "",
                "Let me look.",
                "Done.",
            ]
            assert turns(on.asked[3]) == [ALL_SUNNY, sunny("Oslo", "Rome"), sunny("Lima")]
            assert len(on.asked) == 4

    run(story)


@every_client
def test_a_turn_of_twenty_calls_is_released_to_its_end(wire: str) -> None:
    async def story() -> None:
        many = [f"City {at}" for at in range(20)]
        async with stage(UPSTREAM[wire], calls(*many), "Done.", **HELD) as on:
            replies = await on.client(wire).converse(most=30)
            assert all_cities(replies) == many
            assert [reply.headers.get("x-unbroken-turn") for reply in replies[:20]] == [
                f"handed {at}/20" for at in range(1, 21)
            ]
            assert turns(on.asked[1]) == [sunny(*many)]

    run(story)


@pytest.mark.parametrize("habit", [None, rewrite_ids])
@every_client
def test_identical_calls_of_one_turn_are_released_separately(wire: str, habit: Any) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], calls("Oslo", "Oslo", "Oslo"), "Done.", **HELD) as on:
            client = on.client(wire, habit=habit)
            reply = await client.ask(User.of(QUESTION))
            ids: list[str] = []
            for roll in range(3):
                ids += reply.ids
                reply = await client.ask(ToolMessage((result_of(reply.response.calls[0], f"roll {roll}"),)))
            assert len(set(ids)) == 3
            assert reply.response.text == "Done."
            assert turns(on.asked[1]) == [[("Oslo", "roll 0"), ("Oslo", "roll 1"), ("Oslo", "roll 2")]]

    run(story)


@every_client
def test_calls_without_text_are_released(wire: str) -> None:
    async def story() -> None:
        async with stage(UPSTREAM[wire], calls("Oslo", "Rome", text=""), "Done.", **HELD) as on:
            replies = await on.client(wire).converse()
            assert [cities(reply) for reply in replies] == [["Oslo"], ["Rome"], []]
            assert [reply.response.text for reply in replies] == ["", "", "Done."]

    run(story)


FINISHES = {CHAT: b'"finish_reason":"tool_calls"', ANTHROPIC: b'"stop_reason":"tool_use"'}


@streamed_and_whole
@pytest.mark.parametrize("wire", list(FINISHES))
def test_each_released_call_ends_its_response_like_a_call(wire: str, stream: bool) -> None:
    async def story() -> None:
        async with stage(wire, THREE_CALLS, "Done.") as on:
            replies = await on.client(wire, stream).converse()
            assert [FINISHES[wire] in reply.data.replace(b'": "', b'":"') for reply in replies] == [True] * 3 + [False]

    run(story)


def test_a_client_that_changes_the_model_in_the_middle_keeps_its_turn() -> None:
    async def story() -> None:
        signed = [Think("Three cities."), *THREE_CALLS]
        async with ScriptedServer(signed, "Done.") as upstream:
            rows = [upstream_settings(upstream, ANTHROPIC, "one"), upstream_settings(upstream, CHAT, "two")]
            async with serving(settings_for(*rows)) as url:
                client = Client(url, CHAT, model="one")
                await client.ask(User.of(QUESTION))
                client.model = "two"
                for _ in CITIES:
                    await client.answer_calls()
            assert client.messages[-1] == Assistant("Done.")
            assert upstream.wires == [ANTHROPIC, CHAT]
            assert turns(upstream.requests[1].messages) == [ALL_SUNNY]

    run(story)


def test_twenty_conversations_at_once_each_get_their_own_calls() -> None:
    def answer(request: Any) -> list[str | Step]:
        name = request.messages[0].text
        if len(request.messages) > 1:
            return [f"{name} done."]
        return calls(f"{name} 1", f"{name} 2", f"{name} 3", mark=name, text="")

    async def story() -> None:
        async with stage(CHAT, answer) as on:
            clients = [on.client(CHAT, stream=at % 2 == 0) for at in range(20)]
            talks = await asyncio.gather(*(client.converse(f"N{at:02}") for at, client in enumerate(clients)))
            for at, replies in enumerate(talks):
                name = f"N{at:02}"
                assert all_cities(replies) == [f"{name} 1", f"{name} 2", f"{name} 3"]
                assert replies[-1].response.text == f"{name} done."
            assert len(on.asked) == 40

    run(story)


# Responses


@streamed_and_whole
def test_a_held_turn_is_continued_by_the_previous_response_id(stream: bool) -> None:
    async def story() -> None:
        async with stage(CHAT, THREE_CALLS, "Done.") as on:
            client = on.client(RESPONSES, stream)
            reply = await client.post(client.body([User.of(QUESTION)]))
            given = cities(reply)
            for _ in CITIES:
                body = client.body([ToolMessage((result_of(reply.response.calls[0]),))])
                reply = await client.post(body | {"previous_response_id": response_id(reply)})
                given += cities(reply)
            assert given == list(CITIES)
            assert reply.response.text == "Done."
            assert turns(on.asked[1]) == [ALL_SUNNY]
            assert len(on.asked) == 2

    run(story)


def test_two_requests_that_continue_from_one_response_each_get_their_calls() -> None:
    async def story() -> None:
        async with stage(CHAT, THREE_CALLS, "Done.", "Done too.") as on:
            client = on.client(RESPONSES)
            first = await client.post(client.body([User.of(QUESTION)]))
            replies = [first, first]
            for _ in CITIES:
                for branch, weather in enumerate(("Sun.", "Rain.")):
                    before = replies[branch]
                    body = client.body([ToolMessage((result_of(before.response.calls[0], weather),))])
                    replies[branch] = await client.post(body | {"previous_response_id": response_id(before)})
            assert [reply.response.text for reply in replies] == ["Done.", "Done too."]
            assert [turns(messages) for messages in on.asked[1:]] == [
                [[(city, weather) for city in CITIES]] for weather in ("Sun.", "Rain.")
            ]

    run(story)


def response_id(reply: Reply) -> str:
    data = reply.data.decode()
    start = data.index('"resp_') + 1
    return data[start : data.index('"', start)]


@streamed_and_whole
def test_calls_of_custom_tools_are_released_on_responses(stream: bool) -> None:
    patches = ["*** Begin Patch\n+one", "*** Begin Patch\n+two"]
    items = [
        {
            "type": "custom_tool_call",
            "id": f"ctc_{at}",
            "call_id": f"call_p{at}Zq81mKx02Ls",
            "name": "patch",
            "input": patch,
            "status": "completed",
        }
        for at, patch in enumerate(patches)
    ]
    whole = {"id": "resp_1", "object": "response", "status": "completed", "model": "big-model", "output": items}
    answer = Raw(dumps(whole))

    async def story() -> None:
        async with stage(RESPONSES, [answer], "Done.") as on:
            client = on.client(RESPONSES, stream)
            tools = {"tools": [{"type": "custom", "name": "patch", "description": "Applies a patch."}]}
            client.messages = [User.of("Patch it.")]
            for at, patch in enumerate(patches):
                reply = await client.post(client.body() | tools)
                (call,) = reply.response.calls
                assert (call.kind, call.name, call.raw) == ("custom", "patch", patch)
                client.messages += [Assistant("", (call,)), ToolMessage((ToolResult.of(call, f"applied {at}"),))]
            assert (await client.post(client.body() | tools)).response.text == "Done."
            items = [item for item in on.upstream.bodies[1]["input"] if "call_id" in item]
            assert [(item["type"], item.get("input") or item.get("output")) for item in items] == [
                ("custom_tool_call", patches[0]),
                ("custom_tool_call", patches[1]),
                ("custom_tool_call_output", "applied 0"),
                ("custom_tool_call_output", "applied 1"),
            ]

    run(story)


def test_the_image_of_a_result_in_a_separate_message_is_not_an_interruption() -> None:
    """openai-chat has no field for images in results: they follow in a user message."""

    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, "Done.") as on:
            client = on.client("openai-chat")
            await client.ask(User.of(QUESTION))
            body = client.body([*client.messages, ToolMessage(tuple(map(result_of, last_calls(client))))])
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
            body["messages"].append({"role": "user", "content": [image]})
            assert cities(await client.post(body)) == [CITIES[1]]
            body["messages"][-1] = {"role": "user", "content": [image, {"type": "text", "text": "Stop, please."}]}
            assert (await client.post(body)).response.text == "Done."

    run(story)


def last_calls(client: Client) -> tuple[ToolCall, ...]:
    last = client.messages[-1]
    assert isinstance(last, Assistant)
    return last.calls
