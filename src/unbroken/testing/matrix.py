"""The fault matrix: every fault on every wire, streamed and whole, against our own agent over real HTTP.

Each case is one run of the scenario behind a server that breaks one response (or all of them), and is judged by how it
ended and by everything that must be true of such a run (`scenario`). What is expected stands in the faults themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from unbroken.messages import Message, Request
from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken.models.retrying import RetryingModel
from unbroken.testing.faults import FAULTS, Fault, Mode, Outcome
from unbroken.testing.faulty import FaultyServer
from unbroken.testing.reply import Sent
from unbroken.testing.scenario import Evidence, problems_of, run_scenario, tell, tell_otherwise
from unbroken.testing.server import ScriptedServer
from unbroken.wires import WIRES, find_wire

When: TypeAlias = Literal["once", "reworded", "last", "always"]
"""The first response is broken; the same, and the second answer says it in other words; the last response is broken;
all of them are."""

AT_ONCE = 12
"""Cases that run at the same time: most of them wait for something."""
LONG_RESULT = 25_000
SILENCE = 0.4
"""Seconds after which a response that stalls is given up."""
PATIENCE = 10.0
"""The same where nothing stalls: nobody is to be given up because the machine is slow."""
FIRST_WAIT = 0.01


@dataclass(frozen=True, slots=True)
class Case:
    fault: Fault
    wire: str
    mode: Mode
    when: When = "once"

    @property
    def expected(self) -> Outcome:
        # What befalls streams only is over when the answer is asked for whole.
        heals = self.fault.damages and self.mode == "streamed" and not self.fault.fits(self.wire, stream=False)
        return self.fault.lasting if self.when == "always" and not heals else self.fault.outcome

    def __str__(self) -> str:
        return f"{self.fault.name}, {self.wire}, {self.mode}, {self.when}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a case came to: its outcome, and whatever was not as it has to be."""

    case: Case
    outcome: Outcome
    expected: Outcome
    problems: tuple[str, ...] = ()
    note: str = ""

    @property
    def good(self) -> bool:
        return not self.problems and self.outcome == self.expected


def cases(
    faults: Iterable[Fault] = tuple(FAULTS.values()),
    wires: Sequence[str] = tuple(WIRES),
    modes: Sequence[Mode] = ("streamed", "whole"),
    whens: Sequence[When] = ("once", "reworded", "last", "always"),
) -> list[Case]:
    return [
        Case(fault, wire, mode, when)
        for fault in faults
        for wire in WIRES
        if wire in wires
        for mode in modes
        if fault.fits(wire, mode == "streamed")
        for when in whens
        if _happens(fault, when)
    ]


def _happens(fault: Fault, when: When) -> bool:
    """Who is understood is not asked again; and what befalls calls does not befall an answer without them."""
    match when:
        case "reworded":
            return fault.damages or fault.keeps_answer
        case "last":
            return fault.damages and fault.longest is None and fault.rewrite is None
        case _:
            return True


async def tasks_left(before: set[asyncio.Task[Any]]) -> list[str]:
    """Tasks that were not there before, and do not end by themselves at once."""
    new = asyncio.all_tasks() - before
    if new:
        await asyncio.wait(new, timeout=1.0)
    return [repr(task.get_coro()) for task in new if not task.done()]


async def play_case(case: Case) -> Ended:
    fault = case.fault
    stalls = fault.name.startswith("stall")
    too_long = fault.longest is not None

    def plan(number: int, request: Request) -> Fault | None:
        """A history that has to be shortened, and then is too long all the same."""
        return fault.at(longest=1) if number else None

    server = FaultyServer(
        tell,
        fault=None if too_long and case.when == "always" else fault,
        plan=plan if too_long and case.when == "always" else None,
        times=None if case.when == "always" else 1,
        on=(1,) if case.when == "last" else None,
        differs=tell_otherwise if case.when == "reworded" else False,
        on_sent=unheard,
    )
    async with server:
        silence = SILENCE if stalls else PATIENCE
        http = open_model(case.wire, server.base_url(case.wire), case.mode == "streamed", silence)
        run = await run_scenario(RetryingModel(http, first_wait=FIRST_WAIT), LONG_RESULT if too_long else 0)
        run.requests, run.sent = server.requests, server.sent
        await until_over(run)
        problems = problems_of(run, calls_as_text=fault.row == 16)
        if not server.broken:
            problems.append("the fault did not happen")
        if not fault.damages and fault.outcome == "answered" and len(run.sent) != 2:
            problems.append(f"{len(run.sent)} requests were sent, and two would do")
    if run.error is not None and (problem := await go_on(case.wire, run.messages)):
        problems.append(problem)
    return Ended(case, run.outcome, case.expected, tuple(problems))


async def play(
    chosen: Sequence[Case],
    told: Callable[[Ended], None] | None = None,
    play_one: Callable[[Case], Awaitable[Ended]] = play_case,
    at_once: int = AT_ONCE,
) -> list[Ended]:
    """All of them, several at a time, in their order."""
    free = asyncio.Semaphore(at_once)

    async def one(case: Case) -> Ended:
        async with free:
            ended = await play_one(case)
        if told is not None:
            told(ended)
        return ended

    before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in chosen]
    ended = [task.result() for task in tasks]
    left = await tasks_left(before)
    if left and ended:
        ended[-1] = replace(ended[-1], problems=(*ended[-1].problems, f"tasks were left: {', '.join(left)}"))
    return ended


async def go_on(wire: str, messages: Sequence[Message]) -> str:
    """What is wrong with a run that goes on from where another failed, with a provider that is well."""
    async with ScriptedServer(tell) as server:
        run = await run_scenario(open_model(wire, server.base_url(wire)), history=messages)
    return "" if run.outcome == "answered" else f"the history cannot be continued: {run.outcome}: {run.error}"


def open_model(wire: str, base_url: str, stream: bool = True, silence: float = PATIENCE, name: str = "m") -> HTTPModel:
    """The bare model: it tries once."""
    connected = connect(
        f"{find_wire(wire).http.provider}:{name}",
        base_url=base_url,
        api_key="not-a-key",
        wire=wire,
        stream=stream,
        idle=silence,
        first_byte=silence,
        max_tokens=1000,
    )
    return connected.model


def unheard(sent: Sent) -> None:
    """A server notes what is over only if somebody wants to hear it."""


async def until_over(run: Evidence) -> None:
    """A server hears a little later that its client has gone."""
    for _ in range(200):
        if all(sent.over for sent in run.sent):
            return
        await asyncio.sleep(0.005)
