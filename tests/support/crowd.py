"""Many runs of the scenario at once behind one server, each with its own faults, for cuts at every byte and soak tests.

The server identifies a run by the name of its model. The caller chooses what breaks, attempt by attempt.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from unbroken.models.retrying import RetryingModel
from unbroken.models.scripted import Answer, steps_of
from unbroken_testing.faults import FAULTS, Fault
from unbroken_testing.faulty import FaultyServer
from unbroken_testing.matrix import FIRST_WAIT, PATIENCE, ignore_sent, open_model, until_over
from unbroken_testing.scenario import Evidence, answer_scenario, problems_of, reword, run_scenario
from unbroken_wires.messages import Assistant, Request
from unbroken_wires.wires import WIRES

Breaks: TypeAlias = Callable[[int, int, Request], Fault | None]
"""The number of the requested answer, the number of the attempt, both from 0, and the request."""

AT_ONCE = 20
ONE_SERVER = 250
"""Runs that share one server, which keeps all requests."""


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    wire: str
    breaks: Breaks
    reworded: bool = False
    """A retried answer gets a different text."""
    stream: bool = True
    silence: float = PATIENCE


@dataclass(frozen=True, slots=True)
class Done:
    job: Job
    run: Evidence
    problems: tuple[str, ...]


class Crowd:
    """`async for done in Crowd(jobs).run()`, in the order in which they end."""

    def __init__(self, jobs: Iterable[Job], at_once: int = AT_ONCE) -> None:
        self._jobs = iter(jobs)
        self._at_once = at_once
        self._known: dict[str, Job] = {}
        self._tries: Counter[tuple[str, int]] = Counter()

    async def run(self) -> AsyncIterator[Done]:
        while jobs := list(islice(self._jobs, ONE_SERVER)):
            for done in await self._serve(jobs):
                yield done

    async def _serve(self, jobs: Sequence[Job]) -> list[Done]:
        self._known = {job.name: job for job in jobs}
        self._tries.clear()
        free = asyncio.Semaphore(self._at_once)

        async def one(job: Job) -> Done:
            async with free:
                return await self._play(job, server)

        async with FaultyServer(self._tell, plan=self._plan, on_sent=ignore_sent) as server:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(job)) for job in jobs]
            return [task.result() for task in tasks]

    async def _play(self, job: Job, server: FaultyServer) -> Done:
        begun = len(server.sent)
        http = open_model(job.wire, server.base_url(job.wire), job.stream, job.silence, job.name)
        run = await run_scenario(RetryingModel(http, first_wait=FIRST_WAIT))
        own = [sent for sent in server.sent[begun:] if sent.model == job.name]
        run.sent, run.requests = own, [server.requests[sent.number] for sent in own]
        await until_over(run)
        return Done(job, run, tuple(problems_of(run, any(sent.fault.startswith("leaked") for sent in own))))

    def _plan(self, number: int, request: Request) -> Fault | None:
        answer = _answers_in(request)
        attempt = self._tries[request.model, answer]
        self._tries[request.model, answer] += 1
        return self._known[request.model].breaks(answer, attempt, request)

    def _tell(self, request: Request) -> Answer:
        again = self._tries[request.model, _answers_in(request)] > 1
        said = answer_scenario(request)
        return reword(steps_of(said)) if again and self._known[request.model].reworded else said


def _answers_in(request: Request) -> int:
    return sum(isinstance(message, Assistant) for message in request.messages)


# Jobs for a crowd whose responses break at random, the same for the same seed.


BROKEN = 0.3
"""How likely each response is to break."""
SILENCE = 0.5
_ANYWHERE = ("close", "reset", "stall", "garbage")
_FURTHEST = 4000
_MANY = [fault for fault in FAULTS.values() if fault.longest is None]
_NO_STALLS = [fault for fault in _MANY if not fault.name.startswith("stall")]


def random_jobs(seed: int, count: int, likely: float = BROKEN, *, stalls: bool = True) -> Iterator[Job]:
    """Each on some wire, streamed or not; a retried answer with the same text, or a different one. Without `stalls`
    nothing is silent, and how a run ends does not depend on the speed of the machine."""
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        wire = chance.choice(list(WIRES))
        breaks = _at_random(f"{seed}-{number}", wire, likely, _MANY if stalls else _NO_STALLS)
        silence = SILENCE if stalls else PATIENCE
        yield Job(f"run-{number}", wire, breaks, chance.random() < 0.5, chance.random() < 0.8, silence)


def _at_random(seed: str, wire: str, likely: float, faults: Sequence[Fault]) -> Breaks:
    def breaks(answer: int, attempt: int, request: Request) -> Fault | None:
        # Depends only on its own position: the order in which runs take turns must not matter.
        chance = random.Random(f"{seed}-{answer}-{attempt}")
        if chance.random() >= likely:
            return None
        fault = chance.choice([fault for fault in faults if fault.fits(wire, request.stream)])
        return fault.at(after=chance.randrange(_FURTHEST)) if fault.name in _ANYWHERE else fault

    return breaks
