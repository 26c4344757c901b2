"""The fault matrix: every fault on every wire, streamed and not, against our own agent over real HTTP.

Each case is one run of the scenario behind a server that breaks one response (or all of them), and is judged by how it
ended and by everything that must be true of such a run (`scenario`). The faults define what is expected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken.models.retrying import RetryingModel
from unbroken_testing.faults import FAULTS, Fault, Mode, Outcome
from unbroken_testing.faulty import FaultyServer
from unbroken_testing.scenario import Evidence, Sent, answer_scenario, problems_of, reword, run_scenario
from unbroken_testing.server import ScriptedServer
from unbroken_wires.messages import Message, Request
from unbroken_wires.wires import WIRES, find_wire

When: TypeAlias = Literal["once", "reworded", "last", "always"]
"""Which responses are broken: the first; the first, and the retry has a different text; the last; all of them."""

AT_ONCE = 12
"""Cases that run at the same time: most of them wait for something."""
LONG_RESULT = 25_000
SILENCE = 0.4
"""Seconds after which a stalled response is abandoned."""
PATIENCE = 10.0
"""The same if nothing stalls: no response is abandoned because the machine is slow."""
FIRST_WAIT = 0.01
STRICTEST = {"anthropic-messages": "claude-fable-5-2"}
"""The model with the most rules, where a wire has one: it accepts thinking only behind what it was written behind, also
after retries, shortened results and continued histories."""


@dataclass(frozen=True, slots=True)
class Case:
    fault: Fault
    wire: str
    mode: Mode
    when: When = "once"

    @property
    def expected(self) -> Outcome:
        # A fault that only streams have cannot happen to a retry without streaming.
        heals = self.fault.damages and self.mode == "streamed" and not self.fault.fits(self.wire, stream=False)
        return self.fault.lasting if self.when == "always" and not heals else self.fault.outcome

    def __str__(self) -> str:
        return f"{self.fault.name}, {self.wire}, {self.mode}, {self.when}"


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a case: its outcome, and everything that is wrong."""

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
    modes: Sequence[Mode] = ("streamed", "unstreamed"),
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
    """A response that can be decoded is not retried, and a fault of calls cannot happen to an answer without calls."""
    match when:
        case "reworded":
            return fault.damages or fault.keeps_answer
        case "last":
            return fault.damages and fault.longest is None and fault.rewrite is None
        case _:
            return True


async def tasks_left(before: set[asyncio.Task[Any]]) -> list[str]:
    """Tasks that did not exist before, and do not end by themselves."""
    new = asyncio.all_tasks() - before
    if new:
        await asyncio.wait(new, timeout=1.0)
    return [repr(task.get_coro()) for task in new if not task.done()]


async def play_case(case: Case) -> Ended:
    fault = case.fault
    stalls = fault.name.startswith("stall")
    too_long = fault.longest is not None

    def plan(number: int, request: Request) -> Fault | None:
        """For a history that has to be shortened, and is then still too long."""
        return fault.at(longest=1) if number else None

    server = FaultyServer(
        answer_scenario,
        fault=None if too_long and case.when == "always" else fault,
        plan=plan if too_long and case.when == "always" else None,
        times=None if case.when == "always" else 1,
        on=(1,) if case.when == "last" else None,
        differs=reword if case.when == "reworded" else False,
        on_sent=ignore_sent,
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
            problems.append(f"{len(run.sent)} requests were sent, but two are enough")
    if run.error is not None and (problem := await continue_from(case.wire, run.messages)):
        problems.append(problem)
    return Ended(case, run.outcome, case.expected, tuple(problems))


async def play(
    chosen: Sequence[Case],
    on_ended: Callable[[Ended], None] | None = None,
    play_one: Callable[[Case], Awaitable[Ended]] = play_case,
    at_once: int = AT_ONCE,
) -> list[Ended]:
    """Runs all cases, several at a time, and returns the results in order."""
    free = asyncio.Semaphore(at_once)

    async def one(case: Case) -> Ended:
        async with free:
            ended = await play_one(case)
        if on_ended is not None:
            on_ended(ended)
        return ended

    before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in chosen]
    ended = [task.result() for task in tasks]
    left = await tasks_left(before)
    if left and ended:
        ended[-1] = replace(ended[-1], problems=(*ended[-1].problems, f"tasks were left: {', '.join(left)}"))
    return ended


async def continue_from(wire: str, messages: Sequence[Message]) -> str:
    """What is wrong with a run that continues after another one failed, with a good provider; empty if nothing."""
    async with ScriptedServer(answer_scenario) as server:
        run = await run_scenario(open_model(wire, server.base_url(wire)), history=messages)
    return "" if run.outcome == "answered" else f"the history cannot be continued: {run.outcome}: {run.error}"


def open_model(wire: str, base_url: str, stream: bool = True, silence: float = PATIENCE, name: str = "") -> HTTPModel:
    """The model without retries."""
    connected = connect(
        f"{find_wire(wire).http.provider}:{name or STRICTEST.get(wire, 'm')}",
        base_url=base_url,
        api_key="not-a-key",
        wire=wire,
        stream=stream,
        idle=silence,
        first_byte=silence,
        max_tokens=1000,
    )
    return connected.model


def ignore_sent(sent: Sent) -> None:
    """A callback that does nothing: a server tracks ended responses only if it has one."""


async def until_over(run: Evidence) -> None:
    """Waits until the server has noticed that its client has gone."""
    for _ in range(200):
        if all(sent.over for sent in run.sent):
            return
        await asyncio.sleep(0.005)


# docs/faults.md is generated from the outcomes of the matrix: `unbroken faults run --write docs/faults.md`. Nothing in
# it depends on the speed of the machine, so it is always the same if everything ends as expected.


_HEAD = """\
# Faults

<!-- Made by `unbroken faults run --write docs/faults.md` (`make faults`), from the outcome of each case. -->

What can go wrong between a provider and its clients, and how an agent of Unbroken copes with it. Each row is a fault
that real servers have. In each case an agent runs over HTTP against the faulty server of this package
([testing](testing.md)): the model writes reasoning, text and three calls (two reads, one write), gets their results,
and answers.

```
unbroken faults run                                # everything, with a table; exit code 1 if anything is unexpected
unbroken faults run --fault reset --wire gemini    # a part of it
unbroken faults serve --fault reset                # only the server, for your own client
unbroken faults run --target "python mine.py"      # your program instead of our agent
```

How to read the tables:

- **answered**: the run ends with the answer, as if nothing had happened. **reported**: the model gets an error as the
  result of the call and continues. **typed: NAME**: the caller gets this error, with the history in `error.messages`
  (valid, every call answered) and the outcome of each attempt in `error.verdicts`.
- If a cell has two words, they are for streamed / non-streaming responses; a single word is for both. - means that
  the fault cannot happen there.
- Each fault happens to the first response. The retried answer has the same text, or a different one with another read
  beside the same write. A fault that destroys a response is also tried on the last one.
- The last column is the outcome if **every** response has the fault.

In all cases these are checked too: what was shown equals the history and what was sent, character by character, with
nothing repeated. The write ran exactly once and each read at most once. Every call has one result, in call order. The
server, which is as strict as the strictest provider, refused nothing: on the Messages wire it accepts thinking only
behind what it was written behind, as Claude does since 5.1. No task and no connection is left.

## Your own program

`--target CMD` runs your program once for each fault, with `OPENAI_BASE_URL`, `OPENAI_API_KEY` (and those of other
providers), `UNBROKEN_MODEL`, `UNBROKEN_PROMPT`, `UNBROKEN_FAULT` and `UNBROKEN_WIRE` in its environment;
`{base_url}`, `{model}` and `{prompt}` in CMD are filled in. Your program must send the prompt to the model, offer the
tools `get_weather(city, days)`, `now()` and `save_note(text)`, print the answer and exit with 0. (If it offers other
tools, two of them are called.) `examples/faults_target.py` is an example.

A program of Unbroken needs no other address: `Agent("openai:" + os.environ["UNBROKEN_MODEL"], …)` and `unbroken run`
read `OPENAI_BASE_URL`. It waits 120 seconds for the first byte of an answer and 60 for the next, longer than a program
may take here by default: shorten that with `connect(…, first_byte=5, idle=5)`, or give `--timeout 150`.

```
unbroken faults run --timeout 150 --target "unbroken run '{prompt}' --tools tools.py --yes --model openai:{model}"
```

It first runs once with nothing broken. If it sends no request, uses another wire than `--wire` (by default
openai-chat) or already fails, one line reports that and the test ends (exit code 2). This run also shows whether your
program streams: if it does not, it is tested only with the faults of non-streaming responses, and a line reports how
many others are left out.

The outcome depends on what the server sees and on what your program prints:

| outcome | what it means |
|---|---|
| answered | every call has its result, once and in order, and the answer is printed, once |
| gave up | an exit code other than 0; expected if the table below has a typed error |
| hung | not done within `--timeout` seconds |
| lost calls, repeated calls | a call never got its result, or more than one call of it did |
| results out of order | not in the order of the calls |
| no answer, text twice | the model's text was not printed, or more than once |
| sent no request, offered no tools | the program did not ask the model, or asked it without tools |

An outcome followed by (!) has another problem, for example that the fault did not happen; the lines below the table
describe it.
"""

_ROWS = {
    1: ("Several calls in one response", "All of them run, however they are split into pieces."),
    2: ("No index, no type", "Calls are distinguished by the fields that are present."),
    3: (
        "One index for several calls",
        "They are distinguished by their ids, then by a new name after a closed object.",
    ),
    4: ("Unusual indexes", "The order of the calls is kept."),
    5: ("Ids and names repeated or empty", "The first value is used."),
    6: ("No ids, or duplicate ids", "The run assigns its own ids, unique in the history."),
    7: (
        "Arguments in another form",
        "Empty arguments mean `{}` if the stream ended properly; JSON within JSON is parsed again.",
    ),
    8: (
        "Arguments that are cut off",
        "They never run. If the token limit cut them off, the model reads an error; otherwise the request is retried.",
    ),
    9: (
        "Text after the arguments",
        "A call whose arguments continue after their end does not run: the model reads an error.",
    ),
    10: (
        "Wrong finish reasons",
        "The reason is one of three signals, next to the arguments of the calls and the token count.",
    ),
    11: (
        "The response ends too early",
        "It is retried, without streaming if something was already shown.",
    ),
    12: ("Silence", "After `idle` (in the middle) or `first_byte` (before) it is retried."),
    13: ("An error inside a 200", "Retried if that may help; a permanent error is raised to the caller."),
    14: ("Nothing, or nothing but white space", "Retried. White space before a call is not an answer."),
    15: ("Text before a call", "It is not the answer: the run continues."),
    16: ("Calls written as text", "Recognised in each dialect, for tools that were offered, and not shown as text."),
    17: ("Tools that the provider runs", "Never run here."),
    18: ("Frames and bytes", "Decoded; what cannot be read is retried."),
    19: ("No response", "Retried, after `Retry-After` or with increasing waits; then the provider's error is raised."),
    35: ("The context is too long", "The largest old results are cut once, and the request is retried."),
    36: ("Half an emoji", "The halves are joined."),
    37: ("Integers beyond 64 bits", "They arrive exactly."),
}


def make_page(ended: Iterable[Ended] | None = None) -> str:
    """The page. Without outcomes, the page as it is if everything ends as expected."""
    table = Table(expected() if ended is None else ended)
    page = f"{_HEAD.rstrip()}\n\n"
    for row, (title, words) in _ROWS.items():
        faults = [fault for fault in FAULTS.values() if fault.row == row]
        if not faults:
            continue
        page += f"## {row}. {title}\n\n{words}\n\n"
        page += _line("fault", "what happens", *table.heads)
        page += _line(*["---"] * (len(table.heads) + 2))
        for fault in faults:
            page += _line(f"`{fault.name}`", fault.title, *table.cells(fault))
        page += "\n"
    return page.rstrip("\n") + "\n"


def expected() -> list[Ended]:
    return [Ended(case, case.expected, case.expected) for case in cases()]


Choice: TypeAlias = Callable[[Case], bool]


class Table:
    """Outcomes by fault: a cell for each wire that was run, what was expected, and the outcome if every response is
    broken."""

    def __init__(self, ended: Iterable[Ended]) -> None:
        self._ended: dict[str, list[Ended]] = {}
        for each in ended:
            self._ended.setdefault(each.case.fault.name, []).append(each)
        run = [each.case for ended in self._ended.values() for each in ended]
        self._wires = [wire for wire in WIRES if any(case.wire == wire for case in run)]
        self._modes = [mode for mode in ("streamed", "unstreamed") if any(case.mode == mode for case in run)]
        self._lasting = any(case.when == "always" for case in run)
        self.title = " / ".join(self._modes)
        self.heads = [
            *(WIRES[wire].http.short_name for wire in self._wires),
            "expected",
            *(["if it lasts"] if self._lasting else []),
        ]

    @property
    def faults(self) -> list[Fault]:
        return [ended[0].case.fault for ended in self._ended.values()]

    def cells(self, fault: Fault) -> list[str]:
        cells = [self._cell(fault, wire) for wire in self._wires]
        cells.append(in_words(self._ended[fault.name][0].expected))
        if self._lasting:
            cells.append(self._words(fault, lambda case: case.when == "always"))
        return cells

    def _cell(self, fault: Fault, wire: str) -> str:
        def words(mode: str) -> str:
            return self._words(fault, lambda case: (case.wire, case.mode) == (wire, mode) and case.when != "always")

        return " / ".join(dict.fromkeys(map(words, self._modes)))

    def _words(self, fault: Fault, chosen: Choice) -> str:
        ended = [each for each in self._ended[fault.name] if chosen(each.case)]
        words = dict.fromkeys(in_words(each.outcome) + (" (!)" if each.problems else "") for each in ended)
        return ", ".join(words) or "-"


def in_words(outcome: Outcome) -> str:
    return outcome.replace(":", ": ", 1) if outcome.startswith("typed:") else outcome


def wrong_in_words(ended: Ended) -> str:
    """One line about a case that did not end as it should."""
    said = "; ".join([*ended.problems, *([ended.note] if ended.note else [])])
    other = "" if ended.outcome == ended.expected else f", expected {in_words(ended.expected)}"
    return f"{ended.case}: {in_words(ended.outcome)}{other}{f': {said}' if said else ''}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
