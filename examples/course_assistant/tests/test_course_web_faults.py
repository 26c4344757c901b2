"""What goes wrong on the way to the page: every fault of a stream, arguments that JSON libraries refuse, defects. Each
question has exactly one end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest
from course_web import Client, Told, served, texts

from course_assistant.assistant import Answered
from course_assistant.library import CourseLibrary
from course_assistant.tours import script, scripted_model
from course_assistant.web.page_events import page_events
from unbroken import CallStarted, Event, Model, Request, RetryingModel, ScriptedModel, User, connect
from unbroken_testing import FAULTS, Call, Fault, FaultyServer
from unbroken_wires.deltas import Delta

QUESTION = "What is prompt caching?"
ANSWER = "Prompt caching keeps the tool definitions, so that they are paid for once."
STREAMED = [fault for fault in FAULTS.values() if fault.fits("openai-chat", True) and fault.longest is None]


class ByFault:
    """A model for many questions at once: each question names the fault of its responses."""

    name = "by-fault"

    def __init__(self, server: FaultyServer) -> None:
        self._models = {fault.name: RetryingModel(over(server, fault), first_wait=0.01) for fault in STREAMED}

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        asked = next(message.text for message in request.messages if isinstance(message, User))
        return self._models[asked.removeprefix(QUESTION).strip()].stream(request)


def over(server: FaultyServer, fault: Fault) -> Model:
    patience = 0.4 if "stall" in fault.name else 20
    url = server.base_url(fault=fault.name)
    return connect("openai:tours", base_url=url, api_key="any", idle=patience, first_byte=patience).model


def problems_of(told: list[Told], fault: Fault) -> list[str]:
    """What no page may receive: no end, two ends, the wrong end, a call that never ends."""
    end = told[-1]
    ends = [one["event"] for one in told if one["event"] in ("answered", "failed")]
    problems = [] if ends == [end["event"]] else [f"it ends in {end}, its ends are {ends}"]
    began, ended = (
        {one["call_id"] for one in told if one["event"] == kind} for kind in ("call_started", "call_finished")
    )
    problems += [] if began <= ended else ["calls are open"]
    if fault.outcome.startswith("typed:"):
        fits = f"typed:{end.get('error')}" == fault.outcome
    else:
        told_off = fault.outcome == "reported" or fault.name == "big_integers"
        fits = ANSWER in end.get("text", "") or (
            told_off and end.get("text", "").startswith("I could not look this up")
        )
    return problems if fits else [*problems, f"it ends in {end}"]


def test_every_fault_of_a_stream_has_one_end_on_the_page(tmp_path: Path) -> None:
    async def main() -> dict[str, list[str]]:
        at_once = asyncio.Semaphore(12)

        async def ask(client: Client, fault: Fault) -> list[str]:
            async with at_once:
                return problems_of(await client.ask(f"{QUESTION} {fault.name}"), fault)

        async with FaultyServer(script()) as server, served(ByFault(server), tmp_path) as client:
            found = await asyncio.gather(*(ask(client, fault) for fault in STREAMED))
        return {fault.name: problems for fault, problems in zip(STREAMED, found, strict=True) if problems}

    assert len(STREAMED) > 80
    assert asyncio.run(main()) == {}


@pytest.mark.parametrize("number", [2**63, 2**64, -(10**22), 99999999999999999999999])
def test_a_huge_lesson_number_is_reported_and_answered(tmp_path: Path, number: int) -> None:
    async def main() -> None:
        call = Call("search_course_content", query="tools", lesson_number=number)
        async with served(ScriptedModel(call, "There is none."), tmp_path) as client:
            told = await client.ask("What does that lesson say?")
        started, finished = (
            next(one for one in told if one["event"] == f"call_{end}") for end in ("started", "finished")
        )
        assert started["arguments"]["lesson_number"] == number
        assert not finished["error"]
        assert told[-1]["text"] == texts(told) == "There is none."

    asyncio.run(main())


def test_the_scripted_model_takes_such_a_number_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(scripted_model(), tmp_path) as client:
            told = await client.ask("what does lesson 99999999999999999999999 say about tools")
        assert told[-1]["text"] == "I found nothing about this in the courses."

    asyncio.run(main())


async def told_of(library: CourseLibrary, *happening: Event | Answered | Exception) -> list[Told]:
    async def steps() -> AsyncGenerator[Event | Answered, None]:
        for step in happening:
            if isinstance(step, Exception):
                raise step
            yield step

    return [json.loads(body) async for body in page_events(steps(), library)]


def test_half_a_surrogate_pair_is_sent(library: CourseLibrary, caplog: pytest.LogCaptureFixture) -> None:
    started = CallStarted("run", 0, 0, 0.0, 0, "call_1", "search", {"query": "\ud83d", "n": 2**70})
    told = asyncio.run(told_of(library, started))
    assert told[0]["arguments"] == {"query": "\ud83d", "n": 2**70}
    assert caplog.records == []


@pytest.mark.parametrize(
    "defect",
    [
        ZeroDivisionError("a defect"),
        CallStarted("run", 0, 0, 0.0, 0, "call_1", "search", {"n": 2**70, "x": float("nan")}),
    ],
)
def test_a_defect_is_sent_as_the_end_and_logged(
    library: CourseLibrary, defect: Event | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "course_assistant.web"):
        told = asyncio.run(told_of(library, defect))
    assert [one["event"] for one in told] == ["failed"]
    assert told[-1]["error"] == "ServerError"
    assert "a defect" not in told[-1]["message"]
    assert caplog.records[0].exc_info
