"""What four libraries do with five ordinary faults: `make compare` prints the table of the README.

Each program of this folder offers the same two tools to the same scripted server, with the defaults of its library and
a limit of four rounds, and streams. What it did is read from the ledger that the tools write, from what it printed, and
from its exit code. With `--check` the exit code is 1 if the table in README.md says something else.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unbroken import Request
from unbroken.models.scripted import Answer, Line
from unbroken_testing import Break, Call, Cut, Raw, Say, ScriptedServer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DONE = "All done."
TIMEOUT = 300.0
"""So long that only a program that really does not end reaches it, even on a machine with other work."""

PROGRAMS = {
    "Unbroken": ("with_unbroken.py", sys.executable),
    "LangChain": ("with_langchain.py", ".venv/moving-langgraph/bin/python"),
    "pydantic-ai": ("with_pydantic_ai.py", ".venv/moving-pydantic-ai/bin/python"),
    "openai-agents": ("with_openai_agents.py", ".venv/moving-openai-agents/bin/python"),
}
"""Each program, and the interpreter of the environment that has its library."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one program did in one case."""

    arguments: Sequence[str]
    """The argument of each call that ran."""
    end: str


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    answers: Sequence[Line]
    cell: Callable[[Outcome], str]


def if_deleted(outcome: Outcome) -> str:
    for path in outcome.arguments:
        return f"**deletes `{path}`**"
    return f"does not run it; {outcome.end}"


def how_many_ran_of(calls: int) -> Callable[[Outcome], str]:
    def describe(outcome: Outcome) -> str:
        ran = len(set(outcome.arguments))
        twice = ", **one twice**" if ran < len(outcome.arguments) else ""
        count = f"{ran} of {calls} ran"
        return f"{count if ran == calls else f'**{count}**'}{twice}; {outcome.end}"

    return describe


def how_it_ends(outcome: Outcome) -> str:
    return outcome.end


def chunk(delta: object, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    body = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "demo", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def without_index(*cities: str) -> Raw:
    """Calls without the field `index`, as several servers send them."""
    functions = [{"name": "get_weather", "arguments": json.dumps({"city": city})} for city in cities]
    calls = [{"id": f"call_{at}", "type": "function", "function": each} for at, each in enumerate(functions)]
    return Raw(
        b"".join([*(chunk({"tool_calls": [call]}) for call in calls), chunk({}, "tool_calls"), b"data: [DONE]\n\n"])
    )


def call_for_ever(request: Request) -> Answer:
    """Calls a tool as long as the request allows it."""
    return DONE if request.choice == "none" or not request.tools else Call("get_weather", city="Rome")


LOOK = [Say("Let me look."), Call("get_weather", city="Rome")]
THREE = [Call("get_weather", city=city) for city in ("Rome", "Atlantis", "Oslo")]
CASES = (
    Case(
        'A call is cut off at `{"path": "/srv/reports`; the model meant `/srv/reports/tmp`',
        [[Say("I clean up."), Cut("delete_folder", '{"path": "/srv/reports')], DONE],
        if_deleted,
    ),
    Case("The connection is lost after a call; a retry would work", [[*LOOK, Break()], LOOK, DONE], how_many_ran_of(1)),
    Case("Two calls come without `index`", [without_index("Rome", "Oslo"), DONE], how_many_ran_of(2)),
    Case("One of three tools raises `KeyError`", [THREE, DONE], how_it_ends),
    Case("The model calls a tool in every round; the limit is 4", [call_for_ever] * 9, how_it_ends),
)


async def run(program: str, case: Case) -> str:
    """The cell of the table for one program and one case."""
    script, python = PROGRAMS[program]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        ledger.touch()
        async with ScriptedServer(*case.answers, strict=False) as server:  # the most forgiving provider that there is
            address = {"OPENAI_BASE_URL": server.base_url(), "OPENAI_API_KEY": "none", "LEDGER": str(ledger)}
            process = await asyncio.create_subprocess_exec(
                str(ROOT / python),
                "-W",
                "ignore",
                str(HERE / script),
                env={**os.environ, **address},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                printed, errors = await asyncio.wait_for(process.communicate(), TIMEOUT)
                end = end_of(process.returncode or 0, printed.decode(), errors.decode())
            except TimeoutError:
                process.kill()
                end = "does not end"
        arguments = [argument for _, argument in map(json.loads, ledger.read_text("utf-8").splitlines())]
        return case.cell(Outcome(arguments, end))


def end_of(exit_code: int, printed: str, errors: str) -> str:
    if exit_code:
        names = re.findall(r"^(?:\w+\.)*(\w+)(?::|$)", errors, re.MULTILINE)
        return f"`{names[-1]}`"
    return "answer" if DONE in printed else "no answer"


async def rows(programs: Sequence[str]) -> list[str]:
    """The rows of the table, as they stand in the README."""
    found: list[str] = []
    for case in CASES:
        cells = [await run(program, case) for program in programs]
        found.append(f"| {' | '.join([case.title, *cells])} |")
        print(found[-1], flush=True)
    return found


def main() -> None:
    print(f"| {' | '.join(['', *PROGRAMS])} |\n|{'---|' * (len(PROGRAMS) + 1)}", flush=True)
    found = asyncio.run(rows(list(PROGRAMS)))
    text = (ROOT / "README.md").read_text("utf-8")
    missing = [row for row in found if row not in text]
    if "--check" in sys.argv and missing:
        sys.exit("README.md has other rows than these:\n" + "\n".join(missing))


if __name__ == "__main__":
    main()
