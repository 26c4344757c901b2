"""A response that is cut after byte 1, 2, 3, …: never accepted as complete before its end, and always recovered.

Without I/O at every byte; over HTTP at the end of each event and a little around it, with resets at random bytes. `make
faults` sets UNBROKEN_TESTS=all: then over HTTP at every byte too.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterable

import pytest
from crowd import Crowd, Done, Job
from thorough import ALL

from unbroken.models.scripted import play_bytes
from unbroken_testing.faults import Fault, close, reset
from unbroken_testing.matrix import tasks_left
from unbroken_testing.scenario import ANNOUNCED, ANSWERED, ASKED, CALLS, THOUGHT, answer_scenario
from unbroken_wires.decoding import Decoder
from unbroken_wires.decoding.decoder import Response
from unbroken_wires.messages import Assistant, Request, Text, ToolCall, ToolMessage, ToolResult, ToolSpec, User
from unbroken_wires.wires import WIRES

RESETS = 400 if ALL else 12
"""For each wire and each of its two responses."""

TOOLS = tuple(ToolSpec(name, "") for name in ("get_weather", "now", "save_note"))
CALLED = Assistant(ANNOUNCED, tuple(ToolCall(f"call_r0c{n}", c.name, json.loads(c.raw)) for n, c in enumerate(CALLS)))
RESULTS = ToolMessage(tuple(ToolResult(call.id, (Text("fine"),), name=call.name) for call in CALLED.calls))
FIRST = Request((User.of(ASKED),), tools=TOOLS)
SECOND = Request((User.of(ASKED), CALLED, RESULTS), tools=TOOLS)

WANTED = [(call.name, json.loads(call.raw)) for call in CALLS]

NAME = 16
"""The length of model names: they are in the events, and shift what follows."""

SIGNS = {
    "openai-chat": (b'"finish_reason":"', b'"finish_reason": "'),
    "openai-responses": (b'"type":"response.completed"', b'"type": "response.completed"'),
    "anthropic-messages": (b'"stop_reason":"', b'"stop_reason": "'),
    "gemini": (b'"finishReason":"', b'"finishReason": "'),
    "ollama": (b'"done":true', b'"done": true'),
    "cohere-v2": (b'"finish_reason":"', b'"finish_reason": "'),
    "bedrock-converse": (b'{"stopReason":"',),
}
"""The event that marks the response as complete."""


def body(wire: str, request: Request) -> bytes:
    return b"".join(data for _, data in play_bytes(answer_scenario(request), wire, request))


def end_of_sign(wire: str, data: bytes) -> int:
    """Up to here nothing marks the end of the response."""
    at = next(at for sign in SIGNS[wire] if (at := data.find(sign)) >= 0)
    if wire == "bedrock-converse":
        return data.index(b"}", at) + 5  # the checksum of its frame
    return data.index(b"\n", at)


@pytest.mark.parametrize("wire", WIRES)
def test_a_response_is_complete_from_its_end_mark_on_and_not_before(wire: str) -> None:
    for request in (FIRST, SECOND):
        data = body(wire, request)
        end = end_of_sign(wire, data)
        for n in range(len(data) + 1):
            response = cut(wire, data[:n])
            assert response.verdict.whole == (n >= end), n
            assert (ANNOUNCED if request is FIRST else ANSWERED).startswith(response.text), n
            assert THOUGHT.startswith(response.reasoning), n
            calls = [(call.name, call.arguments) for call in response.calls if call.complete]
            assert calls == WANTED[: len(calls)], n
            assert n < end or len(calls) == (len(WANTED) if request is FIRST else 0), n


def cut(wire: str, data: bytes) -> Response:
    decoder = Decoder(wire, request=FIRST)
    decoder.feed(data)
    decoder.end("the connection was lost", how="lost")
    return decoder.response()


def job(wire: str, fault: Fault, answer: int) -> Job:
    """For every other one, the retry has a different text."""
    after = fault.after or 0

    def breaks(asked: int, attempt: int, request: Request) -> Fault | None:
        return fault if asked == answer and attempt == 0 else None

    return Job(f"{fault.name}-{answer}-{after:06d}".rjust(NAME, "-"), wire, breaks, reworded=after % 2 == 0)


def well_done(asked: int, attempt: int, request: Request) -> None:
    pass


def cuts(data: bytes) -> Iterable[int]:
    if ALL:
        return range(1, len(data) + 1)
    ends = [n + 2 for n in range(len(data)) if data[n : n + 2] == b"\n\n"]
    return sorted({n + more for n in ends for more in (-1, 0, 7) if 0 < n + more <= len(data)})


async def play(jobs: Iterable[Job]) -> list[Done]:
    before = asyncio.all_tasks()
    done = [done async for done in Crowd(jobs).run()]
    assert await tasks_left(before) == []
    return done


def check(done: Done, answer: int, end: int) -> None:
    """The same answer and results as without faults, unless the retry differed."""
    name, run = done.job.name, done.run
    assert done.problems == (), name
    assert run.outcome == "answered", (name, run.error)
    broken = [sent for sent in run.sent if sent.fault]
    assert [sent.number for sent in broken] == [run.sent[answer].number], name
    again = len(run.sent) == 3
    if broken[0].fault == "close":
        assert again == (len(broken[0].data) < end), name
    else:  # what was not read when the reset came is lost
        assert again or len(broken[0].data) >= end, name
    reworded = [again and done.job.reworded and answer == number for number in (0, 1)]
    assert [message.text for message in run.messages if isinstance(message, Assistant)] == [
        f"Well: {ANNOUNCED}" if reworded[0] else ANNOUNCED,
        f"Well: {ANSWERED}" if reworded[1] else ANSWERED,
    ]
    city = "Bergen" if reworded[0] else "Oslo 🌧"
    assert [
        text_of(each) for message in run.messages if isinstance(message, ToolMessage) for each in message.results
    ] == [
        f"rain in {city} for 3 days",
        "12:00",
        "saved",
    ]
    ran = [each.name for each in run.tool_log.ran]
    assert (ran.count("now"), ran.count("save_note")) == (1, 1), name
    assert ran.count("get_weather") <= (2 if reworded[0] else 1), name


def text_of(result: ToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, Text))


async def mended(wire: str, faults: Callable[[bytes], Iterable[Fault]]) -> None:
    """Each of these faults, in the first response and in the second."""
    well = (await play([Job("well".rjust(NAME, "-"), wire, well_done)]))[0]
    for answer, sent in enumerate(well.run.sent):
        data = bytes(sent.data)
        jobs = (job(wire, fault, answer) for fault in faults(data))
        for done in await play(jobs):
            check(done, answer, end_of_sign(wire, data))


@pytest.mark.parametrize("wire", WIRES)
def test_a_connection_that_is_closed_at_any_byte_is_recovered(wire: str) -> None:
    asyncio.run(mended(wire, lambda data: map(close, cuts(data))))


@pytest.mark.parametrize("wire", WIRES)
def test_a_connection_that_is_reset_at_any_byte_is_recovered(wire: str) -> None:
    chosen = random.Random(4)
    asyncio.run(mended(wire, lambda data: map(reset, chosen.sample(range(1, len(data)), min(RESETS, len(data) - 1)))))
