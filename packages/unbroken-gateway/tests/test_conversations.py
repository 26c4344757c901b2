"""Similar conversations never mix: a held call or stored reasoning goes to the conversation it was made for, or to
none, and a client that does not get the rest of its calls can see that."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from gateway_client import (
    CITIES,
    QUESTION,
    THREE_CALLS,
    Client,
    Clock,
    Inside,
    Reply,
    result_of,
    run,
    serving,
    settings_for,
    stage,
    upstream_settings,
)

from unbroken.models.scripted import ScriptedModel
from unbroken_gateway.settings import ClientProfile
from unbroken_gateway.stores import open_store
from unbroken_gateway.stores.store import MemoryStore
from unbroken_testing import Call, Raw, ScriptedServer, Step, Think
from unbroken_wires.deltas import Ended, TextDelta, Verdict
from unbroken_wires.messages import Assistant, Message, Request, System, ToolCall, ToolMessage, User
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.writer import ResponseWriter

SERIAL = (ClientProfile("serial", header="x-serial", serial=True),)
ONE_BY_ONE = {"x-serial": "yes"}
every_client = pytest.mark.parametrize("wire", list(WIRES))
without_ids = pytest.mark.parametrize("wire", ["gemini", "ollama"])
"""Wires whose clients drop ids."""


def counted(number: int, at: int) -> str:
    return f"call_{at}"


def short(number: int, at: int) -> str:
    return f"call_{'qzjwkxvb'[number]}7f3{'mntrslpd'[at]}9c2"


def long_and_derived(number: int, at: int) -> str:
    return "call_3f2a9c1d8b7e6f5a4c3d2e1f" if at == 0 else f"call_3f2a9c1d8b7e6f5a4c3d2{number}{at}f"


def none(number: int, at: int) -> str:
    return ""


every_id = pytest.mark.parametrize("spell", [counted, short, long_and_derived, none])


class Bank:
    """A model that pays from the account that the system prompt of its request names."""

    def __init__(self, spell: Callable[[int, int], str]) -> None:
        self.spell = spell
        self.bodies: list[Any] = []
        self.requests: list[Request] = []

    def speak(self, request: Request) -> list[str | Step]:
        self.requests.append(request)
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return ["Paid."]
        number = len(self.requests)
        account = account_of(request.messages)
        return [
            Think(f"The secret of {account}."),
            Call("balance", {"of": "me"}, id=self.spell(number, 0)),
            Call("pay", {"from_account": account}, id=self.spell(number, 1)),
        ]


def account_of(messages: Sequence[Message]) -> str:
    text = "".join(message.text for message in messages if isinstance(message, System))
    return text.removeprefix("Account ").split(".", maxsplit=1)[0]


def drop_ids(messages: list[Message]) -> list[Message]:
    """As the clients of Gemini and of Ollama do."""
    return [
        replace(message, calls=tuple(replace(call, id="") for call in message.calls))
        if isinstance(message, Assistant)
        else ToolMessage(tuple(replace(result, call_id="") for result in message.results))
        if isinstance(message, ToolMessage)
        else message
        for message in messages
    ]


def at_the_bank(url: str | Inside, wire: str, account: str, **more: Any) -> Client:
    client = Client(url, wire, parallel=None, headers=ONE_BY_ONE, **more)
    client.messages = [System.of(f"Account {account}.")]
    return client


async def two_users(bank: Bank, wire: str, **more: Any) -> list[list[Reply]]:
    """Both send the same, get the same first call, and only then return its result."""
    async with open_bank(bank) as gateway:
        users = [at_the_bank(gateway, wire, account, **more) for account in ("111", "222")]
        replies = [[await user.ask(User.of("Pay the rent."))] for user in users]
        for _ in range(2):
            for user, got in zip(users, replies, strict=True):
                got.append(await user.answer_calls())
        return replies


class open_bank:
    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    async def __aenter__(self) -> Inside:
        self._store = open_store("memory:")
        model = ScriptedModel(self._bank.speak, wire="anthropic-messages", loop_last=True)
        return Inside({"m": model}, self._store, clients=SERIAL)

    async def __aexit__(self, *_: object) -> None:
        await self._store.aclose()


@every_id
@every_client
def test_each_user_is_charged_separately(wire: str, spell: Callable[[int, int], str]) -> None:
    async def story() -> None:
        bank = Bank(spell)
        for account, replies in zip(("111", "222"), await two_users(bank, wire), strict=True):
            assert [reply.calls for reply in replies[:2]] == [
                [("balance", {"of": "me"})],
                [("pay", {"from_account": account})],
            ]
            assert replies[2].response.text == "Paid."
        for request in bank.requests[2:]:
            account = account_of(request.messages)
            (turn,) = [message for message in request.messages if isinstance(message, Assistant)]
            assert [call.arguments for call in turn.calls] == [{"of": "me"}, {"from_account": account}]
            assert f"secret of {account}" in repr(turn)

    run(story)


@without_ids
def test_gemini_users_without_ids_are_charged_separately(wire: str) -> None:
    async def story() -> None:
        replies = await two_users(Bank(none), wire, habit=drop_ids)
        assert [got[1].calls for got in replies] == [
            [("pay", {"from_account": "111"})],
            [("pay", {"from_account": "222"})],
        ]

    run(story)


@every_client
def test_reasoning_is_not_mixed_if_all_calls_are_given_at_once(wire: str) -> None:
    async def story() -> None:
        bank = Bank(counted)
        async with open_bank(bank) as gateway:
            users = [at_the_bank(gateway, wire, account) for account in ("111", "222")]
            for user in users:
                user.headers = {}
                await user.ask(User.of("Pay the rent."))
            for user in users:
                assert (await user.answer_calls()).response.text == "Paid."
        for request, own, other in zip(bank.requests[2:], ("111", "222"), ("222", "111"), strict=True):
            assert f"secret of {own}" in repr(request.messages)
            assert f"secret of {other}" not in repr(request.messages)

    run(story)


class Dice:
    """A model whose answers all differ, although they begin the same way."""

    def __init__(self, *, wire: str = "anthropic-messages", thinks: bool = False) -> None:
        self.answers = 0
        self.thinks = thinks
        self.model = ScriptedModel(self.speak, wire=wire, loop_last=True)

    def speak(self, request: Request) -> list[str | Step]:
        if isinstance(request.messages[-1], ToolMessage):
            return ["Rolled."]
        self.answers += 1
        thought: list[str | Step] = [Think(f"Roll {self.answers}.")] if self.thinks else []
        return [*thought, *(Call("roll", {"die": die}, id=f"call_{die}") for die in ("first", f"{self.answers}"))]


def last_call(client: Client) -> ToolCall:
    message = client.messages[-1]
    assert isinstance(message, Assistant)
    return message.calls[-1]


def test_two_answers_to_the_same_question_are_distinguished_by_ids_of_the_gateway() -> None:
    async def story() -> None:
        dice = Dice()
        gateway = Inside({"m": dice.model}, open_store("memory:"), clients=SERIAL)
        players = [Client(gateway, "openai-chat", headers=ONE_BY_ONE) for _ in range(3)]
        for player in players:
            await player.ask(User.of("Roll."))
        assert len({last_call(player).id for player in players}) == 3
        assert [(await player.answer_calls()).calls for player in players] == [
            [("roll", {"die": str(number)})] for number in (1, 2, 3)
        ]
        await players[0].answer_calls()
        asked = dice.model.requests[-1].messages
        assert [call.id for message in asked if isinstance(message, Assistant) for call in message.calls] == [
            "call_first",
            "call_1",
        ]

    run(story)


@without_ids
def test_ambiguous_answers_are_given_to_nobody_and_a_header_reports_it(
    caplog: pytest.LogCaptureFixture, wire: str
) -> None:
    async def story() -> None:
        dice = Dice()
        gateway = Inside({"m": dice.model}, open_store("memory:"), clients=SERIAL)
        players = [Client(gateway, wire, headers=ONE_BY_ONE, habit=drop_ids) for _ in range(2)]
        for player in players:
            await player.ask(User.of("Roll."))
        for player in players:
            reply = await player.answer_calls()
            assert reply.headers["x-unbroken-turn"] == "lost; ambiguous"
            assert reply.response.text == "Rolled."
            (turn,) = [message for message in dice.model.requests[-1].messages if isinstance(message, Assistant)]
            assert [call.arguments for call in turn.calls] == [{"die": "first"}]

    with caplog.at_level(logging.WARNING, "unbroken.gateway"):
        run(story)
    assert "serial_lost session=- calls=0 reason=ambiguous" in caplog.text


def test_an_active_player_is_identified_by_the_game_so_far() -> None:
    async def story() -> None:
        def speak(request: Request) -> list[str | Step]:
            if len(request.messages) > 1:
                return ["Done."]
            game = len(model.requests)
            return [Call("roll", {"die": f"{die}"}) for die in (0, 10 * game, 10 * game + 1)]

        model = ScriptedModel(speak, loop_last=True)
        gateway = Inside({"m": model}, open_store("memory:"), clients=SERIAL)
        early, late = (Client(gateway, "gemini", headers=ONE_BY_ONE, habit=drop_ids) for _ in range(2))
        await early.ask(User.of("Roll."))
        assert (await early.answer_calls()).calls == [("roll", {"die": "10"})]
        await late.ask(User.of("Roll."))
        assert (await early.answer_calls()).calls == [("roll", {"die": "11"})]
        assert (await late.answer_calls()).headers["x-unbroken-turn"] == "lost; ambiguous"

    run(story)


def test_the_same_calls_with_other_reasoning_are_released_without_the_reasoning() -> None:
    async def story() -> None:
        thoughts = iter(range(10))
        said = [Call("roll", {"die": die}) for die in ("first", "second")]
        model = ScriptedModel(
            lambda request: (
                ["Done."]
                if isinstance(request.messages[-1], ToolMessage)
                else [Think(f"Thought {next(thoughts)}."), *said]
            ),
            wire="anthropic-messages",
            loop_last=True,
        )
        gateway = Inside({"m": model}, open_store("memory:"), clients=SERIAL)
        players = [Client(gateway, "gemini", headers=ONE_BY_ONE, habit=drop_ids) for _ in range(2)]
        for player in players:
            await player.ask(User.of("Roll."))
        for player in players:
            assert (await player.answer_calls()).calls == [("roll", {"die": "second"})]
            await player.answer_calls()
            assert "Thought" not in repr(model.requests[-1].messages)

    run(story)


FIRST = ToolCall("", "roll", {"die": "first"})
ROLLED = ToolMessage((result_of(FIRST, "It shows 4."),))


def keep_later_ids(messages: list[Message]) -> list[Message]:
    """A client that keeps the ids of its last answer alone."""
    return [*drop_ids(messages[:-2]), *messages[-2:]]


@without_ids
@pytest.mark.parametrize("then", ["a call", "a text"])
def test_a_shortened_history_that_begins_like_another_gets_nothing_of_it(wire: str, then: str) -> None:
    """The late player has dropped its first messages, and what is left begins with the question and the first call of
    the early one. What it was given next shows that it is not the early one."""

    async def story() -> None:
        dice = Dice(thinks=True)
        gateway = Inside({"m": dice.model}, open_store("memory:"), clients=SERIAL)
        early, late = (Client(gateway, wire, headers=ONE_BY_ONE, habit=drop_ids) for _ in range(2))
        await early.ask(User.of("Roll."))
        late.messages = [User.of("Roll."), Assistant("", (FIRST,)), ROLLED]
        if then == "a call":
            reply = await late.ask(Assistant("", (ToolCall("", "roll", {"die": "mine"}),)), ROLLED)
        else:
            reply = await late.ask(Assistant("It was 4."), User.of("And now?"))
        assert reply.headers["x-unbroken-reasoning"] == "not restored; unmatched"
        asked = dice.model.requests[-1].messages
        assert "Roll 1." not in repr(asked)
        first = next(message for message in asked if isinstance(message, Assistant))
        assert [call.arguments for call in first.calls] == [{"die": "first"}]
        assert (await early.answer_calls()).calls == [("roll", {"die": "1"})]

    run(story)


def rolling() -> ScriptedModel:
    """A model that rolls again and again."""

    def speak(request: Request) -> list[str | Step]:
        game = len(model.requests)
        return [Think(f"Roll {game}."), *(Call("roll", {"die": die}) for die in ("first", f"{game}"))]

    model = ScriptedModel(speak, wire="anthropic-messages", loop_last=True)
    return model


def test_an_id_that_proves_the_next_answer_does_not_prove_the_one_before_it() -> None:
    async def story() -> None:
        model = rolling()
        gateway = Inside({"m": model}, open_store("memory:"), clients=SERIAL)
        early = Client(gateway, "gemini", headers=ONE_BY_ONE, habit=drop_ids)
        late = Client(gateway, "gemini", headers=ONE_BY_ONE, habit=keep_later_ids)
        await early.ask(User.of("Roll."))
        await late.ask(User.of("Roll two."), Assistant("", (FIRST,)), ROLLED)
        late.messages[0] = User.of("Roll.")
        assert (await late.answer_calls()).calls == [("roll", {"die": "2"})]
        await late.answer_calls()
        assert "Roll 1." not in repr(model.requests[-1].messages)

    run(story)


@pytest.mark.parametrize("said", ["Stop. Roll another.", ""])
def test_a_player_without_ids_who_interrupted_or_failed_finds_its_own_turn_later(said: str) -> None:
    async def story() -> None:
        model = rolling()
        gateway = Inside({"m": model}, open_store("memory:"), clients=SERIAL, on_tool_error="stop")
        player = Client(gateway, "gemini", headers=ONE_BY_ONE, habit=drop_ids)
        await player.ask(User.of("Roll."))
        if said:
            await player.ask(User.of(said))
        else:
            await player.ask(ToolMessage((result_of(last_call(player), "Error: the die is gone."),)))
        for _ in range(2):
            await player.answer_calls()
        turns = [message for message in model.requests[-1].messages if isinstance(message, Assistant)]
        assert [[call.arguments for call in turn.calls] for turn in turns] == [
            [{"die": "first"}, {"die": "1"}],
            [{"die": "first"}, {"die": "2"}],
        ]
        assert "Roll 1." in repr(turns)

    run(story)


class Flushed(MemoryStore):
    def flush(self) -> None:
        MemoryStore.__init__(self)


def test_after_the_store_was_emptied_an_answer_that_only_looks_the_same_is_given_to_nobody() -> None:
    """The answer for the early player is gone; that of the late one is not mistaken for it."""

    async def story() -> None:
        dice = Dice(thinks=True)
        store = Flushed()
        gateway = Inside({"m": dice.model}, store, clients=SERIAL)
        early, late = (Client(gateway, "gemini", headers=ONE_BY_ONE, habit=drop_ids) for _ in range(2))
        await early.ask(User.of("Roll."))
        store.flush()
        await late.ask(User.of("Roll."))
        for player in (early, late):  # it is unknown which of them got it
            reply = await player.answer_calls()
            assert reply.headers["x-unbroken-turn"] == "lost; ambiguous"
            assert "Roll 2." not in repr(dice.model.requests[-1].messages)

    run(story)


def test_a_player_who_keeps_ids_continues_after_others_lost_theirs_with_the_store() -> None:
    async def story() -> None:
        store = Flushed()
        gateway = Inside({"m": Dice().model}, store, clients=SERIAL)
        early, late = (Client(gateway, "gemini", headers=ONE_BY_ONE) for _ in range(2))
        await early.ask(User.of("Roll."))
        store.flush()
        await late.ask(User.of("Roll."))
        assert (await late.answer_calls()).calls == [("roll", {"die": "2"})]
        assert (await early.answer_calls()).headers["x-unbroken-turn"].startswith("lost; ")

    run(story)


def test_a_player_who_sends_a_message_instead_of_a_result_learns_that_the_rest_was_lost_with_the_store() -> None:
    async def story() -> None:
        store = Flushed()
        gateway = Inside({"m": Dice().model}, store, clients=SERIAL)
        player = Client(gateway, "gemini", headers=ONE_BY_ONE)
        await player.ask(User.of("Roll."))
        store.flush()
        reply = await player.ask(User.of("Stop that, and roll another."))
        assert reply.headers["x-unbroken-turn"].startswith("lost; ")

    run(story)


def test_an_hour_after_the_store_was_emptied_text_alone_is_enough_again() -> None:
    async def story() -> None:
        store, clock = Flushed(), Clock()
        gateway = Inside({"m": Dice().model}, store, clock, clients=SERIAL, hold_timeout=3600.0)

        async def play() -> Reply:
            player = Client(gateway, "gemini", headers=ONE_BY_ONE, habit=drop_ids)
            await player.ask(User.of(f"Roll at {clock()}."))
            return await player.answer_calls()

        assert (await play()).calls == [("roll", {"die": "1"})]
        store.flush()
        assert (await play()).headers["x-unbroken-turn"] == "lost; ambiguous"
        clock.time += 3601.0
        assert (await play()).calls == [("roll", {"die": "3"})]

    run(story)


def test_a_history_with_ids_of_another_answer_does_not_get_this_one() -> None:
    """The client's own answer was never seen here; one with the same beginning was."""

    async def story() -> None:
        ids = iter(["call_a7f3m9c2", "call_b7f3m9c2"])
        said = [Think("A secret."), Call("roll", {"die": "first"}, id=next(ids))]
        model = ScriptedModel(said, "Done.", wire="openai-chat")
        gateway = Inside({"m": model}, open_store("memory:"))
        owner = Client(gateway, "openai-chat", parallel=None)
        await owner.ask(User.of("Roll."))
        owner.messages[-1] = Assistant("", (replace(last_call(owner), id=next(ids)),))
        reply = await owner.answer_calls()
        assert "secret" not in repr(model.requests[-1].messages)
        assert reply.headers["x-unbroken-reasoning"] == "not restored; unmatched"

    run(story)


@every_client
def test_a_client_that_changes_its_system_prompt_still_gets_its_calls_by_id(wire: str) -> None:
    async def story() -> None:
        async with open_bank(Bank(counted)) as gateway:
            user = at_the_bank(gateway, wire, "111")
            await user.ask(User.of("Pay the rent."))
            user.messages[0] = System.of("Account 111. It is 12:01.")
            assert (await user.answer_calls()).calls == [("pay", {"from_account": "111"})]

    run(story)


def test_without_ids_a_changed_system_prompt_is_another_conversation() -> None:
    async def story() -> None:
        async with open_bank(Bank(none)) as gateway:
            user = at_the_bank(gateway, "gemini", "111", habit=drop_ids)
            await user.ask(User.of("Pay the rent."))
            user.messages[0] = System.of("Account 222.")
            reply = await user.answer_calls()
            assert reply.headers["x-unbroken-turn"] == "lost; unmatched"
            assert reply.calls == []

    run(story)


# Clients that rewrite some of the ids


def rewriting(which: str, spelled: str = "mine-") -> Callable[[list[Message]], list[Message]]:
    """Rewrites the ids of these calls, counted from 0, and of their results; those after `|` in results only."""
    calls, _, results = which.partition("|")

    def habit(messages: list[Message]) -> list[Message]:
        order: dict[str, str] = {}
        rewritten: list[Message] = []
        for message in messages:
            if isinstance(message, Assistant):
                for call in message.calls:
                    order[call.id] = str(len(order))
                renamed = [replace(call, id=_new(call.id, order, calls, spelled)) for call in message.calls]
                message = replace(message, calls=tuple(renamed))
            elif isinstance(message, ToolMessage):
                told = [
                    replace(result, call_id=_new(result.call_id, order, calls + results, spelled))
                    for result in message.results
                ]
                message = ToolMessage(tuple(told))
            rewritten.append(message)
        return rewritten

    return habit


def _new(id: str, order: dict[str, str], which: str, spelled: str) -> str:
    return f"{spelled}{order[id]}" if order.get(id, "-") in which else id


@pytest.mark.parametrize("which", ["", "0", "1", "2", "01", "02", "12", "012", "|0", "|1", "|2", "0|1", "1|2"])
@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages"])
@pytest.mark.parametrize("ids", ["random", "counted"])
def test_a_client_that_rewrites_ids_gets_all_its_calls_or_a_header_with_the_reason(
    ids: str, wire: str, which: str
) -> None:
    async def story() -> None:
        spelled = [f"call_{at}q7Zp2mX91aKd" if ids == "random" else f"call_{at}" for at in range(3)]
        said = [Call("get_weather", city=city, id=id) for city, id in zip(CITIES, spelled, strict=True)]
        async with stage("openai-chat", said, "Done.", "Done.", "Done.", serial=True) as on:
            client = on.client(wire, habit=rewriting(which))
            replies = await client.converse()
            given = [arguments["city"] for reply in replies for _, arguments in reply.calls]
            told = [header for reply in replies[1:] if "lost" in (header := reply.headers.get("x-unbroken-turn", ""))]
            assert given == list(CITIES[: len(given)])
            assert len(given) == 3 or told
            if "|" not in which:
                assert len(given) == 3

    run(story)


@pytest.mark.parametrize("which", ["0", "1", "2", "01", "02", "12", "012"])
@pytest.mark.parametrize("then", ["answer", "interrupt"])
def test_rewritten_ids_that_look_unique_repeat_no_call(which: str, then: str) -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, "Done.", "Done.", "Done.", serial=True) as on:
            client = on.client("openai-chat", habit=rewriting(which, "own_cc1663bd7"))
            replies = [await client.ask(User.of(QUESTION))]
            while replies[-1].calls:
                replies.append(await client.answer_calls())
            if then == "interrupt":
                replies.append(await client.ask(User.of("And now?")))
            given = [arguments["city"] for reply in replies for _, arguments in reply.calls]
            lost = [reply for reply in replies if "lost" in reply.headers.get("x-unbroken-turn", "")]
            assert given == list(CITIES[: len(given)])
            assert len(given) == 3 or lost
            for request in on.upstream.requests:
                calls = [c for m in request.messages if isinstance(m, Assistant) for c in m.calls]
                read = [str(call.arguments) for call in calls]
                assert len(read) == len(set(read)), read

    run(story)


def give_all_the_same_id(messages: list[Message]) -> list[Message]:
    return [
        replace(message, calls=tuple(replace(call, id="mine") for call in message.calls))
        if isinstance(message, Assistant)
        else ToolMessage(tuple(replace(result, call_id="mine") for result in message.results))
        if isinstance(message, ToolMessage)
        else message
        for message in messages
    ]


@pytest.mark.parametrize("upstream_wire", ["openai-chat", "anthropic-messages"])
@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages"])
def test_a_client_that_uses_one_id_for_all_calls_loses_no_result_that_it_returned(
    wire: str, upstream_wire: str
) -> None:
    async def story() -> None:
        async with stage(upstream_wire, THREE_CALLS, "Done.", "Done.", serial=True) as on:
            client = on.client(wire, habit=give_all_the_same_id)
            replies = await client.converse()
            given = [arguments["city"] for reply in replies for _, arguments in reply.calls]
            assert given == list(CITIES[: len(given)])
            assert len(given) == 3 or "lost" in replies[-1].headers["x-unbroken-turn"]
            read = [
                call.arguments["city"]
                for message in on.upstream.requests[1].messages
                if isinstance(message, Assistant)
                for call in message.calls
                if call.arguments
            ]
            assert read == given
            told = str(on.asked[-1])
            assert all(f"in {city}" in told for city in given), told

    run(story)


@pytest.mark.parametrize(
    ("own", "ran", "released"),
    [
        ({"path": "a"}, {"path": "a", "dry_run": True}, True),
        ({}, {"all": True}, True),
        ({"code": "  x = 1"}, {"code": "x = 1"}, True),
        ({"n": 1}, {"n": True}, False),
        ({"n": 0}, {"n": False}, False),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, False),
    ],
)
def test_the_model_reads_the_arguments_that_a_client_ran(
    own: dict[str, Any], ran: dict[str, Any], released: bool
) -> None:
    def edit(messages: list[Message]) -> list[Message]:
        return [
            replace(message, calls=tuple(_edited(call, own, ran) for call in message.calls))
            if isinstance(message, Assistant)
            else message
            for message in messages
        ]

    async def story() -> None:
        calls = [Call("look", own, id="call_0"), Call("look", {"then": 1}, id="call_1")]
        async with stage("openai-chat", calls, "Done.", "Done.", serial=True) as on:
            client = on.client("openai-chat", habit=edit)
            replies = await client.converse()
            assert (len([call for reply in replies for call in reply.calls]) == 2) is released
            assert released or replies[-1].headers["x-unbroken-turn"] == "lost; edited"
            assistant = on.upstream.requests[1].messages[1]
            assert isinstance(assistant, Assistant)
            assert str(assistant.calls[0].arguments) == str(ran)

    run(story)


def _edited(call: ToolCall, own: dict[str, Any], ran: dict[str, Any]) -> ToolCall:
    return replace(call, arguments=ran, raw=json.dumps(ran)) if call.arguments == own else call


# What distinguishes two conversations


def parts(text: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": text}, part]}]}


DIFFERENCES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "a file": ("openai-chat", lambda who: parts("x", {"type": "file", "file": {"file_id": f"file-{who}"}})),
    "an unknown part": ("openai-chat", lambda who: parts("x", {"type": "video_url", "video_url": {"url": who}})),
    "a name": ("openai-chat", lambda who: {"messages": [{"role": "user", "name": who, "content": "x"}]}),
    "a user": ("openai-chat", lambda who: {"messages": [{"role": "user", "content": "x"}], "user": who}),
    "white space": ("openai-chat", lambda who: {"messages": [{"role": "user", "content": f"x{' ' * len(who)}"}]}),
    "a document": (
        "anthropic-messages",
        lambda who: parts("x", {"type": "document", "source": {"type": "file", "file_id": f"file_{who}"}}),
    ),
    "a title": (
        "anthropic-messages",
        lambda who: parts(
            "x", {"type": "document", "title": who, "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
        ),
    ),
    "a server": (
        "anthropic-messages",
        lambda who: {
            "messages": [{"role": "user", "content": "x"}],
            "mcp_servers": [{"type": "url", "url": f"https://{who}.example", "name": "s"}],
        },
    ),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_reasoning_is_never_given_to_a_different_question(difference: str) -> None:
    """The second user's answer has no reasoning, so nothing is kept for it."""
    wire, ask = DIFFERENCES[difference]

    async def story() -> None:
        async with (
            ScriptedServer([Think("The secret of ann."), "Done."], "Done.", "Bye.", strict=False) as upstream,
            serving(settings_for(upstream_settings(upstream, wire, options={"attempts": 1}))) as url,
        ):
            client = Client(url, wire, parallel=None)
            for who in ("ann", "bernard"):
                body: dict[str, Any] = {"model": "m", "max_tokens": 100, **ask(who)}
                assert (await client.post(body)).status == 200
            more = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
            assert (await client.post({**body, "messages": [*body["messages"], *more]})).status == 200
            assert "secret" not in str(upstream.bodies[-1])

    run(story)


@pytest.mark.parametrize("shown", ["call_7", "toolu_01AbCdEfGh7", "call_Q7wErTyUiOpAsDfGhJkLzXc9", "fc_7"])
def test_an_id_that_a_provider_may_have_made_is_not_mistaken_for_a_rewritten_one(shown: str) -> None:
    """The second user got this call elsewhere, and requests one call at a time only now."""

    async def story() -> None:
        private = [Call("look", id="call_0"), Call("pay", {"from_account": "111"}, id="call_1")]
        async with stage("openai-chat", private, "Done.", "Done.", serial=True) as on:
            await on.client("openai-chat").ask(User.of(QUESTION))
            made = ToolCall(shown, "look", {}, "{}")
            other = on.client("openai-chat")
            reply = await other.ask(User.of(QUESTION), Assistant("", (made,)), ToolMessage((result_of(made),)))
            assert not reply.calls
            assert reply.headers["x-unbroken-turn"] == "lost; unmatched"

    run(story)


def test_digest_ids_release_no_held_call_to_a_client_that_takes_several_at_once() -> None:
    async def story() -> None:
        id = "dGhlIGRpZ2VzdA0"
        private = [Call("look", id=id), Call("pay", {"from_account": "111"}, id="dGhlIG90aGVyMQ0")]
        async with stage("openai-chat", private, [Call("look", id=id)], "Done.", clients=SERIAL) as on:
            await on.client("openai-chat", parallel=None, headers=ONE_BY_ONE).ask(User.of("What do I owe?"))
            other = on.client("openai-chat", parallel=None)
            await other.ask(User.of("Something else."))
            assert not (await other.answer_calls()).calls

    run(story)


def test_identical_turns_with_different_reasoning_learn_that_nothing_was_restored() -> None:
    async def story() -> None:
        answers = [[Think(f"The secret of {who}."), Call("look", id="call_0")] for who in ("ann", "bob")]
        async with stage("anthropic-messages", *answers, "Done.") as on:
            clients = [on.client("openai-chat", parallel=None) for _ in range(2)]
            for client in clients:
                await client.ask(User.of(QUESTION))
            reply = await clients[0].answer_calls()
            assert reply.headers["x-unbroken-reasoning"] == "not restored; ambiguous"
            assert "secret" not in str(on.asked[-1])

    run(story)


# Calls that are not released


@pytest.mark.parametrize("answered", [1, 2])
@pytest.mark.parametrize("users", [1, 2])
@without_ids
def test_a_client_without_ids_that_stops_asking_for_one_call_at_a_time_learns_that_calls_are_lost(
    wire: str, users: int, answered: int
) -> None:
    async def story() -> None:
        answers = [[*THREE_CALLS[:-2], Call("get_weather", city=f"of {user}")] for user in range(users)]
        async with stage("openai-chat", *answers, "Done.", "More.", clients=SERIAL) as on:
            clients = [on.client(wire, parallel=None, headers=ONE_BY_ONE, habit=drop_ids) for _ in range(users)]
            for client in clients:
                await client.ask(User.of(QUESTION))
            client = clients[0]
            for _ in range(1, answered if users == 1 else 1):
                await client.answer_calls()
            client.headers = {}
            reply = await client.answer_calls()
            assert reply.headers["x-unbroken-turn"] == f"lost; {'unmatched' if users == 1 else 'ambiguous'}"
            assert "x-unbroken-turn" not in (await client.ask(User.of("And now?"))).headers

    run(story)


def test_a_random_id_proves_only_the_turn_that_has_it() -> None:
    """The first call's id is a digest of its arguments, which another user's call has too; the second is rewritten."""

    def rewrite_second(messages: list[Message]) -> list[Message]:
        *before, assistant, results = messages
        assert isinstance(assistant, Assistant)
        assert isinstance(results, ToolMessage)
        other = "3b241101-e2bb-4255-8caf-4136c566a962"
        calls = (assistant.calls[0], replace(assistant.calls[1], id=other))
        told = (results.results[0], replace(results.results[1], call_id=other))
        return [*before, replace(assistant, calls=calls), ToolMessage(told)]

    async def story() -> None:
        ids = ("call_3f2a9c1d8b7e6f5a4c3d2e1f", "call_8b7e6f5a4c3d2e1f3f2a9c1d")
        calls = [Call("get_weather", city=city, id=id) for city, id in zip(CITIES[:2], ids, strict=True)]
        async with stage("anthropic-messages", [Think("The secret of 111."), *calls], calls, "Done.") as on:
            for account in ("111", "222"):
                client = on.client("openai-chat", parallel=None, messages=[System.of(f"Account {account}.")])
                await client.ask(User.of(QUESTION))
            client.habit = rewrite_second
            await client.answer_calls()
            assert "secret" not in str(on.asked[-1])

    run(story)


def test_calls_that_waited_too_long_are_reported_in_a_header_a_log_line_and_a_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, "Done.", "More.", serial=True, hold_timeout=50.0) as on:
            client = on.client("openai-chat")
            await client.ask(User.of(QUESTION))
            on.clock.time += 51
            reply = await client.answer_calls()
            assert reply.headers["x-unbroken-turn"] == "lost; expired; 2 calls"
            again = await client.ask(User.of("And now?"))
            assert "x-unbroken-turn" not in again.headers
            metrics = await _read(f"{on.url}/metrics")
            assert 'unbroken_lost_turns_total{alias="m",reason="expired"} 1.0' in metrics

    with caplog.at_level(logging.WARNING, "unbroken.gateway"):
        run(story)
    assert "calls=2 reason=expired" in caplog.text


def test_lost_calls_are_also_reported_next_to_a_new_held_turn() -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, THREE_CALLS, serial=True, hold_timeout=50.0) as on:
            client = on.client("openai-chat")
            await client.ask(User.of(QUESTION))
            on.clock.time += 51
            reply = await client.answer_calls()
            assert reply.headers["x-unbroken-turn"] == "lost; expired; 2 calls, handed 1/3"

    run(story)


def test_a_strict_gateway_refuses_a_history_whose_calls_it_cannot_release() -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, serial=True, strict=True, hold_timeout=50.0) as on:
            client = on.client("openai-chat")
            await client.ask(User.of(QUESTION))
            on.clock.time += 51
            reply = await client.answer_calls()
            assert reply.status == 400
            assert "expired; 2 calls" in reply.body["error"]["message"]
            assert len(on.asked) == 1

    run(story)


class Forgetful(MemoryStore):
    """A store that loses, or damages, the values of keys with this prefix."""

    def __init__(self, kind: str, damage: Callable[[bytes], bytes | None]) -> None:
        super().__init__()
        self._kind, self._damage = kind, damage

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        values = await super().get(keys)
        return [
            self._damage(value) if value is not None and key.startswith(self._kind) else value
            for key, value in zip(keys, values, strict=True)
        ]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "lost": lambda value: None,
    "empty": lambda value: b"",
    "cut": lambda value: value[: len(value) // 2],
    "other JSON": lambda value: b'{"v": 2}',
    "one byte": lambda value: value.replace(b"get_weather", b"get_weathes").replace(b"until", b"untio"),
    "no text": lambda value: bytes(255 - byte for byte in value),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["turn:", "hold:", "call:", "said:"])
def test_lost_or_damaged_data_in_a_store_is_reported_and_never_an_error_of_the_gateway(kind: str, damage: str) -> None:
    async def story() -> None:
        store = Forgetful(kind, DAMAGES[damage])
        clock = Clock()
        model = ScriptedModel(THREE_CALLS, "Done.", "Done.")
        client = Client("", "openai-chat", headers=ONE_BY_ONE)
        client.url = Inside({"m": model}, store, clock, clients=SERIAL)
        await client.ask(User.of(QUESTION))
        client.url = Inside({"m": model}, store, clock, clients=SERIAL)
        reply = await client.answer_calls()
        assert reply.status == 200
        if kind == "said:" or (kind == "call:" and damage != "no text"):  # the one list makes up for the other
            assert reply.calls == [("get_weather", {"city": "Shanghai"})]
        else:
            assert reply.headers["x-unbroken-turn"].startswith("lost; ")
            assert reply.response.text == "Done."

    run(story)


async def _read(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


def test_a_response_id_that_a_provider_used_twice_identifies_no_conversation() -> None:
    async def story() -> None:
        answer = ResponseWriter("openai-responses", "big", "resp_1")
        answer.feed(TextDelta("Noted."))
        answer.feed(Ended(Verdict("whole")))
        async with ScriptedServer(*[[Raw(answer.body())]] * 2) as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-responses"))
            async with serving(settings) as url:
                users = [Client(url, "openai-responses", parallel=None) for _ in range(2)]
                for user, secret in zip(users, ("111", "222"), strict=True):
                    assert (await user.ask(User.of(f"I am {secret}."))).body["id"] == "resp_1"
                body = {"model": "m", "input": "Who am I?", "previous_response_id": "resp_1"}
                reply = await users[0].post(body)
                assert reply.status == 400
                assert len(upstream.requests) == 2

    run(story)


def test_a_result_stays_with_its_call_even_if_an_earlier_turn_has_the_same_ids() -> None:
    def rename(messages: list[Message]) -> list[Message]:
        return [
            replace(message, calls=tuple(replace(call, id=f"own_{call.id}") for call in message.calls))
            if isinstance(message, Assistant)
            else ToolMessage(tuple(replace(result, call_id=f"own_{result.call_id}") for result in message.results))
            if isinstance(message, ToolMessage)
            else message
            for message in messages
        ]

    async def story() -> None:
        first = [Think("Hm."), *(Call("get_weather", city=f"A{at}", id=f"call_{at}") for at in (0, 1))]
        second = [Call("get_weather", city=f"B{at}", id=f"call_{at}") for at in (0, 1)]
        async with stage("openai-chat", first, second, "Done.") as on:
            client = on.client("openai-chat", parallel=None, habit=rename)
            await client.ask(User.of("How is the weather?"))
            await client.ask(User.of("Wait, stop."))
            await client.answer_calls()
            pairs = [
                ((call.arguments or {})["city"], result.text)
                for said, told in zip(on.asked[-1], on.asked[-1][1:], strict=False)
                if isinstance(said, Assistant) and isinstance(told, ToolMessage)
                for call, result in zip(said.calls, told.results, strict=True)
            ]
            assert pairs[2:] == [("B0", "Sunny in B0."), ("B1", "Sunny in B1.")]
            assert not any("Sunny" in text for _, text in pairs[:2])

    run(story)
