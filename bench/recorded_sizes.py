"""How long recordings are, by the kind of run: model and tools are scripted, so that every checkout records the same.

`recording.py` and `durable.py` print these numbers. As a program it prints the bytes of each kind as JSON, so that
`recording.py --against CHECKOUT` can run it with the library of that checkout.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unbroken import Agent, Allow, Limits, Output, RetryingModel, ScriptedModel, tool
from unbroken.models.scripted import Answer, Break, Call, Say, Think, Uses
from unbroken_durable import drive, open_journal
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Assistant, Request, ToolCall, User
from unbroken_wires.transcript import to_json

PARAGRAPH = (
    "Nothing in this sentence is said twice anywhere else, so that it stands for what a model or a tool returns. "
)
REPEATED = 12
"""Runs of one kind in a journal: a database grows by pages."""


@tool(effect="read")
async def look(city: str, days: int = 3) -> str:
    """How the weather will be in a city."""
    return f"sunny in {city} for {days} days"


@tool
async def write(path: str, text: str) -> str:
    """Writes a file."""
    return f"wrote {len(text)} characters to {path}"


@tool(effect="read")
async def read(path: str) -> str:
    """Reads a file."""
    return f"{path}: {PARAGRAPH * 80}"


@tool(background=0.0)
async def watch(city: str) -> str:
    """Waits until the weather changes in a city."""
    await asyncio.sleep(0.01)
    return f"rain in {city}"


@tool(approve=True)
async def pay(amount: int, account: str) -> str:
    """Pays."""
    return f"paid {amount} to {account}"


def allow(call: ToolCall) -> Allow:
    return Allow()


@dataclass
class Report:
    """A typed answer."""

    city: str
    days: list[int]
    summary: str


class AtOnce:
    """A model whose answers are not streamed."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.name = model.name

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        return self.model.stream(replace(request, stream=False))


THREE = [
    Say("Let me look at all three of them. "),
    *(Call("look", city=city, pieces=6) for city in ("Reykjavik", "Montevideo", "Ulaanbaatar")),
    Uses(420, 61),
]
CLOSE = [Say("It is sunny in all three of them and will stay so."), Uses(530, 14)]
FILES = [
    [Say("First I read them. "), *(Call("read", path=f"src/part_{n}.py", pieces=4) for n in range(2))],
    [
        Say("Now I write them. "),
        *(Call("write", path=f"out/part_{n}.py", text=PARAGRAPH * 60, pieces=120) for n in range(2)),
    ],
    [Say("Both files are written.")],
]


def by_history(*answers: Answer) -> ScriptedModel:
    """Its next answer depends on how many it has given, and on nothing else. It waits for calls in the background."""

    def answer(request: Request) -> Answer:
        given = sum(isinstance(message, Assistant) for message in request.messages)
        return answers[min(given, len(answers) - 1)]

    return ScriptedModel(answer)


def many_rounds(rounds: int) -> ScriptedModel:
    def answer(request: Request) -> Answer:
        given = sum(isinstance(message, Assistant) for message in request.messages)
        if given == rounds:
            return [Say("That was all.")]
        calls = [Call("look", city=f"City number {given}", days=n, id=f"call_{given}_{n}") for n in (1, 2)]
        return [Say("Two more. "), *calls, Uses(500 + 90 * given, 40)]

    return ScriptedModel(answer)


def teams() -> ScriptedModel:
    def answer(request: Request) -> Answer:
        given = sum(isinstance(message, Assistant) for message in request.messages)
        inner = any(isinstance(message, User) and "Rain or sun" in message.text for message in request.messages)
        steps: Sequence[Answer] = (
            [THREE, CLOSE]
            if inner
            else [[Call("forecast", task="Rain or sun in these cities?", pieces=4)], [Say("Sun in all of them.")]]
        )
        return steps[given]

    return ScriptedModel(answer)


def breaking() -> RetryingModel[ScriptedModel]:
    asked = 0

    def answer(request: Request) -> Answer:
        nonlocal asked
        asked += 1
        whole = THREE if not any(isinstance(message, Assistant) for message in request.messages) else CLOSE
        return [*whole[: asked % 3], Break()] if asked % 3 else whole

    return RetryingModel(ScriptedModel(answer), jitter=lambda: 0.001)


def team(**options: Any) -> Agent[Any, Any]:
    inner = Agent(teams(), [look], "You are a weather service.", name="forecaster")
    return Agent(teams(), [inner.as_tool("forecast", "Forecasts the weather.")], "Be short.", **options)


MANY_TOOLS = [
    replace(look, spec=replace(look.spec, name=f"look_{n}", description=f"{PARAGRAPH}Kind {n}.")) for n in range(40)
]
SPOKEN = [Think(PARAGRAPH * 4, chunks=80), Say(PARAGRAPH * 20, chunks=400), Uses(40, 480)]

Make = Callable[..., Agent[Any, Any]]


def _with(model: Callable[[], Any], *tools: Any, **given: Any) -> Make:
    def make(**options: Any) -> Agent[Any, Any]:
        return Agent(model(), tools, "You are a weather service. Answer in one sentence.", **given, **options)

    return make


KINDS: dict[str, Make] = {
    "streamed": _with(lambda: by_history(THREE, CLOSE), look),
    "not streamed": _with(lambda: AtOnce(by_history(THREE, CLOSE)), look),
    "one short call": _with(lambda: by_history([Call("look", city="Rome")], "Mild."), look),
    "only text": _with(lambda: by_history("It is mild.")),
    "long text, by words": _with(lambda: by_history(SPOKEN)),
    "long arguments, results": _with(lambda: by_history(*FILES), read, write),
    "long, not streamed": _with(lambda: AtOnce(by_history(*FILES)), read, write),
    "40 rounds": _with(lambda: many_rounds(40), look, limits=Limits(rounds=None)),
    "40 tools": _with(lambda: by_history([Call("look_7", city="Rome")], "Mild."), *MANY_TOOLS),
    "background": _with(
        lambda: by_history([Call("watch", city="Rome"), Call("look", city="Oslo")], "It rains."), watch, look
    ),
    "inner agent": team,
    "approvals": _with(
        lambda: by_history([Call("pay", amount=n, account="12-345") for n in (5, 7)], "Paid."),
        pay,
        on_approval=allow,
    ),
    "broken streams": _with(breaking, look),
    "typed output": _with(
        lambda: by_history(
            THREE,
            [Call("final_answer", city="Rome", days=[1, 2, 3], summary=PARAGRAPH, pieces=20)],
        ),
        look,
        output=Output(Report),
    ),
}
QUESTION = "How is the weather there?"


async def recorded(make: Make, folder: Path) -> tuple[int, int]:
    """The bytes of the history as JSON, and of the recording."""
    path = folder / "one.jsonl"
    result = await make(record=path).run(QUESTION)
    return len(json.dumps(to_json(result.messages), separators=(",", ":")).encode()), path.stat().st_size


async def stored(make: Make, folder: Path) -> float:
    """The bytes of a run in a journal."""
    path = folder / "runs.db"
    async with await open_journal(f"sqlite:///{path}") as journal:
        agent = make()
        await journal.work(lambda database: database.query("PRAGMA wal_checkpoint(TRUNCATE)"))
        empty = used(path)
        for _ in range(REPEATED):
            outcome = await drive({"weather": agent}, journal, await journal.start("weather", QUESTION))
            assert outcome.result is not None, outcome
        await journal.work(lambda database: database.query("PRAGMA wal_checkpoint(TRUNCATE)"))
    return (used(path) - empty) / REPEATED


def used(path: Path) -> int:
    """The bytes of the pages that hold something."""
    with sqlite3.connect(path) as database:
        (size,), (count,), (free,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "page_count", "freelist_count")
        )
    database.close()
    return size * (count - free)


def of_recordings() -> dict[str, tuple[int, int]]:
    """For each kind the bytes of the history alone, as JSON, and of a recording."""
    found: dict[str, tuple[int, int]] = {}
    for kind, make in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[kind] = asyncio.run(recorded(make, Path(folder)))
    return found


def of_journals() -> dict[str, tuple[float, float]]:
    """For each kind the bytes of a recording, and of all that a journal stores of a run."""
    found: dict[str, tuple[float, float]] = {}
    for kind, make in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            _, recording = asyncio.run(recorded(make, Path(folder)))
            found[kind] = recording, asyncio.run(stored(make, Path(folder)))
    return found


def overall(sizes: Iterable[tuple[float, float]]) -> float:
    """How much longer the second ones are: the geometric mean, so that long runs do not count for more."""
    return statistics.geometric_mean(other / one for one, other in sizes)


if __name__ == "__main__":
    print(json.dumps(of_recordings()))
