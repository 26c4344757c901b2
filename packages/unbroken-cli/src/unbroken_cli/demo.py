"""`unbroken demo`: one job, three schedules, and a chart of when each call ran.

The model is a script, because a real one needs a key. Everything else is real: the script arrives as streamed bytes at
the speed of a model, the agent decodes them like those of a provider, and the tools work.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.rule import Rule
from rich.table import Table

from unbroken import Agent, Request, Result, Schedule, ToolMessage
from unbroken.models.scripted import Call, Line, Say, ScriptedModel, Step, Uses, steps_of
from unbroken_cli import demo_tools
from unbroken_cli.timeline import Timeline, Watch, legend

PROMPT = "Is the package unbroken installed completely?"
ARGUMENTS = f'run "{PROMPT}" --model openai:gpt-5 --tools unbroken_cli.demo_tools --timeline'
SCALE = 8.0
"""Seconds that all charts show, so that they can be compared."""
WIDEST = 120

MEANING = {
    Schedule.SEQUENTIAL: "One call after another, when the response has ended",
    Schedule.PARALLEL: "All calls at once, when the response has ended",
    Schedule.EAGER: "Each read as soon as it is written; the other calls in call order",
}


def answer(request: Request) -> list[Say | Uses]:
    """The last answer of the script quotes what the tools really returned."""
    said = {result.call_id: result.text for m in request.messages if isinstance(m, ToolMessage) for result in m.results}
    text = (
        f"It is complete: {said['lines']}, and it runs here with {said['aiohttp']} and {said['pydantic']}. "
        f"In aiohttp, `DeprecationWarning` is {said['deprecated']}."
    )
    return [Say(text, after=0.15, over=0.3), Uses(2400, 48)]


SCRIPT = [
    [
        Say("I will read its description and check its size.", after=0.15, over=0.15),
        Call("installed_version", package="aiohttp", id="aiohttp", after=0.02, over=0.2),
        Call("describe_package", package="unbroken", id="summary", after=0.02, over=0.2),
        Call("list_requirements", package="unbroken", id="needs", after=0.02, over=0.2),
        Call("count_lines", package="unbroken", id="lines", after=0.02, over=0.2),
        Uses(410, 96),
    ],
    [
        Say("Is anything that it needs deprecated?", after=0.15, over=0.1),
        Call("search_source", package="aiohttp", text="DeprecationWarning", id="deprecated", after=0.02, over=0.2),
        Call("search_source", package="rich", text="DeprecationWarning", id="deprecated-rich", after=0.02, over=0.2),
        Call("count_lines", package="aiohttp", id="lines-aiohttp", after=0.02, over=0.2),
        Call("count_lines", package="pydantic", id="lines-pydantic", after=0.02, over=0.2),
        Uses(1350, 88),
    ],
    [
        Call("installed_version", package="pydantic", id="pydantic", after=0.2, over=0.2),
        Call("describe_package", package="pydantic", id="pydantic-summary", after=0.02, over=0.2),
        Call("remember", note="The installation is checked.", id="note", after=0.02, over=0.2),
        Uses(1980, 61),
    ],
    answer,
]


def demo_command(
    pace: Annotated[float, typer.Option(metavar="FACTOR", help="0.5 takes half the time.", min=0.01, max=10)] = 1.0,
) -> None:
    """One job in three schedules, with a picture of when each call was written, started and ended.

    The model is a script, so it needs no key; the streamed bytes, the tools and the times are real."""
    asyncio.run(show(pace))


def paced(line: Line, pace: float) -> Line:
    """The same line at another speed."""
    if callable(line):
        return lambda request: [_paced(step, pace) for step in steps_of(line(request))]
    return [_paced(step, pace) for step in steps_of(line)]


def _paced(step: Step, pace: float) -> Step:
    match step:
        case Say():
            return replace(step, after=step.after * pace, over=step.over * pace)
        case Call():
            return Call(step.name, step.raw, id=step.id, after=step.after * pace, over=step.over * pace)
        case _:
            return step


async def show(pace: float) -> None:
    demo_tools.PACE.set(pace)
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    console.print(f"[bold]{PROMPT}[/]\n")
    console.print("One job, three schedules. The model is scripted: what it writes, and how fast, is fixed.")
    console.print("The streamed bytes, the tools and the times are real.\n")
    console.print(legend(console))
    runs: dict[Schedule, Result] = {}
    for schedule in Schedule:
        console.print(Rule(MEANING[schedule], align="left", style="dim"))
        runs[schedule] = await run(schedule, pace, console)
    console.print(Rule(style="dim"))
    console.print(f"\n{runs[Schedule.EAGER].text}\n")
    console.print(table(runs))
    console.print(same(runs))
    console.print("\nThe same with a real model, its key in OPENAI_API_KEY:")
    console.print(f"[bold]{program()} {ARGUMENTS}[/]", soft_wrap=True)


def program() -> str:
    """How this command can be called again: `make demo` runs it from an environment that is not on the path."""
    if shutil.which("unbroken"):
        return "unbroken"
    return sys.argv[0] if sys.argv[0].endswith("unbroken") else f"{sys.executable} -m unbroken"


async def run(schedule: Schedule, pace: float, console: Console) -> Result:
    watch, scale = Watch(), SCALE * pace
    model = ScriptedModel(*[paced(line, pace) for line in SCRIPT])
    agent = Agent(model, [demo_tools], schedule=schedule, middleware=[watch])
    with Live(
        get_renderable=lambda: Timeline(watch, scale, time.time()),
        console=console,
        transient=True,
        refresh_per_second=15,
    ):
        result = await agent.run(PROMPT)
    console.print(Timeline(watch, scale))
    return result


def table(runs: dict[Schedule, Result]) -> Table:
    slowest = runs[Schedule.SEQUENTIAL].seconds
    columns = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "rounds", "calls", "seconds", "saved"):
        columns.add_column(name, justify="left" if not name else "right")
    for schedule, result in runs.items():
        saved = slowest - result.seconds
        gained = f"[green]{saved:.2f} s, {saved / slowest:.0%}[/]" if schedule is not Schedule.SEQUENTIAL else ""
        numbers = (str(result.rounds), str(len(result.calls)), f"{result.seconds:.2f}")
        columns.add_row(f"[bold]{schedule.name}[/]", *numbers, gained)
    return columns


def same(runs: dict[Schedule, Result]) -> str:
    results = [[(record.id, record.result.text) for record in result.calls] for result in runs.values()]
    equal = all(one == results[0] for one in results)
    return f"Each call ran once; the results are {'the same, in the same order' if equal else '[red]not the same[/]'}."
