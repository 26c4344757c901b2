"""Every fault that a stream can have, through the WebSocket: the player sees no text twice and no call without a
result, and the world is changed exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from command_client import Client, alone, problems_of, text_of

from command_agent.scripted import script
from command_agent.server import Game
from command_agent.upstream import FaultOnEachFirstAttempt, faults_named, faulty_server, open_model
from unbroken import RetryingModel, ScriptedModel, UserError, connect
from unbroken_testing import FAULTS, Fault, FaultyServer

WISH = "build a tower of 3 stone at 1 64 1"
TOWER = [f"/setblock 1 {y} 1 stone" for y in (64, 65, 66)]
ANSWER = "The tower stands. At its top, 1 66 1, there is stone."
SAID = f"A tower of 3 stone. Here it comes. {ANSWER}"
STREAMED = [
    fault
    for fault in FAULTS.values()
    if fault.fits("openai-chat", True) and fault.longest is None and fault.name != "big_integers"
]


async def grant_over(server: FaultyServer, fault: Fault) -> list[str]:
    """What is wrong with the run."""
    patience = 0.4 if "stall" in fault.name else 20
    http = connect(
        "deepseek:deepseek-chat",
        base_url=server.base_url(fault=fault.name),
        api_key="none",
        idle=patience,
        first_byte=patience,
    ).model
    async with alone(Game(RetryingModel(http, first_wait=0.01))) as client:
        events = await client.wish(WISH)
        problems = problems_of(events)
        if fault.outcome.startswith("typed:"):
            error = next((event.metadata["error"] for event in events if event.event_type == "error"), "none")
            problems += [] if f"typed:{error}" == fault.outcome else [f"the error is {error}"]
            problems += [f"commands ran: {client.commands}"] if client.commands else []
            return problems
        problems += [] if sorted(client.commands) == TOWER else [f"commands: {client.commands}"]
        problems += [] if events[-1].metadata["is_complete"] else ["it is not complete"]
        said = text_of(events)
        problems += [] if said.endswith(ANSWER) and said.count("Here it comes.") == 1 else [f"said: {said}"]
        if fault.damages and (fault.name not in server.broken.values()):
            problems.append("the fault did not happen")
    return problems


async def grant_over_all(faults: Sequence[Fault], reworded: bool) -> dict[str, list[str]]:
    at_once = asyncio.Semaphore(12)
    async with FaultyServer(script(), differs=reworded) as server:

        async def one(fault: Fault) -> tuple[str, list[str]]:
            async with at_once:
                return fault.name, await grant_over(server, fault)

        found = await asyncio.gather(*map(one, faults))
    return {name: problems for name, problems in found if problems}


def test_the_player_gets_a_good_end_after_every_fault_of_a_stream() -> None:
    assert len(STREAMED) > 80
    assert asyncio.run(grant_over_all(STREAMED, reworded=False)) == {}


def test_the_player_gets_a_good_end_if_a_retry_produces_different_text() -> None:
    damaging = [fault for fault in STREAMED if fault.damages and "status" not in fault.name]
    assert len(damaging) > 15
    assert asyncio.run(grant_over_all(damaging, reworded=True)) == {}


def test_the_world_refuses_huge_numbers_and_reports_it() -> None:
    async def main() -> None:
        async with FaultyServer(script(), fault="big_integers") as server:
            model = connect("deepseek:deepseek-chat", base_url=server.base_url(), api_key="none")
            async with alone(Game(model)) as client:
                events = await client.wish(WISH)
        assert problems_of(events) == []
        assert client.commands == []
        assert "18446744073709551617 is outside of the world: x and z are 0 to 15" in text_of(events)

    asyncio.run(main())


def test_if_every_response_of_several_wishes_breaks_nothing_is_lost() -> None:
    async def talk(client: Client) -> None:
        for wish in (WISH, "give me three diamonds", "make it night and tell everyone"):
            events = await client.wish(wish)
            assert problems_of(events) == []
            assert events[-1].metadata["is_complete"]
        assert sorted(client.commands[:3]) == TOWER
        assert client.commands[3:] == ["/give player1 diamond 3", "/time set night", "/say It is night now!"]

    async def main() -> None:
        names = ["reset", "cut_by_lost_connection", "html_inside", "leaked_deepseek", "cut_by_length", "empty_response"]
        plan = FaultOnEachFirstAttempt([FAULTS[name] for name in names])
        async with FaultyServer(script(), plan=plan) as server:
            model = connect("deepseek:deepseek-chat", base_url=server.base_url(), api_key="none")
            async with alone(Game(RetryingModel(model.model, first_wait=0.01))) as client:
                await talk(client)
        assert len(server.broken) >= 6

    asyncio.run(main())


def test_an_unknown_fault_is_refused_with_suggestions() -> None:
    assert len(faults_named("all")) > 80
    with pytest.raises(UserError, match=r"no stream fault 'rest'; use all, or a name .* such as reset"):
        faults_named("rest")
    with pytest.raises(UserError, match="no stream fault 'too_long_openai'"):  # no history here is that long
        faults_named("too_long_openai")


def test_the_list_of_all_faults_begins_with_the_visible_ones() -> None:
    damages = [fault.damages for fault in faults_named("all")]
    assert damages == sorted(damages, reverse=True)
    assert damages[0]


def test_a_faulty_server_keeps_nothing_of_what_it_sent() -> None:
    async def main() -> None:
        async with faulty_server("cut_by_lost_connection", pace=0) as server:
            model = connect("deepseek:deepseek-chat", base_url=server.base_url(), api_key="none")
            async with alone(Game(RetryingModel(model.model, first_wait=0.01))) as client:
                for _ in range(3):
                    await client.wish("give me a diamond")
        assert len(server.sent) > 9
        assert not any(sent.data or sent.steps for sent in server.sent)
        assert not any((*server.bodies, server.requests, server.headers, server.broken))

    asyncio.run(main())


def test_the_script_without_a_server_keeps_nothing_either() -> None:
    async def main() -> None:
        async with open_model(pace=0) as shipped:
            assert shipped.name == "scripted:wishes"
        model = ScriptedModel(script(), keep=1)
        async with alone(Game(RetryingModel(model))) as client:
            for _ in range(3):
                await client.wish("give me a diamond")
        assert len(model.requests) == len(model.bodies) == 1

    asyncio.run(main())


def test_faults_of_the_command_line_use_a_server_over_http() -> None:
    async def main() -> None:
        async with open_model(faults="cut_by_lost_connection", reworded=True, pace=0) as model:
            assert model.name == "deepseek:deepseek-chat"
            async with alone(Game(model)) as client:
                events = await client.wish("give me a diamond")
        assert events[-1].metadata["tool_fallback_used"]
        assert text_of(events).startswith("In other words: One moment")
        assert client.commands == ["/give player1 diamond 1"]

    asyncio.run(main())
