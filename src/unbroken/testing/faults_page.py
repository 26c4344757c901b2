"""docs/faults.md, made from what the cases of the matrix came to: `unbroken faults run --write docs/faults.md`.

Only words: nothing in it depends on how fast a machine is, so it is the same wherever all ends as expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from unbroken.testing.faults import FAULTS, Fault, Outcome
from unbroken.testing.matrix import Case, Ended, cases
from unbroken.wires import WIRES

_HEAD = """\
# Faults

<!-- Made by `unbroken faults run --write docs/faults.md` (`make faults`), from the outcome of each case. -->

What goes wrong between a provider and its clients, and what an agent of Unbroken makes of it. Each row is a fault
that was seen in the field; each case is a run over HTTP against the faulty server that the package brings
([testing](testing.md)): reasoning, text and three calls (two reads, one write), their results, then the answer.

```
unbroken faults run                                # all of it, with a table; exit code 1 if anything ends otherwise
unbroken faults run --fault reset --wire gemini    # a part of it
unbroken faults serve --fault reset                # the server alone, for a client of yours
unbroken faults run --target "python mine.py"      # your program in place of our agent
```

- **answered**: the run ends with the answer, as if nothing had happened. **told**: the model gets an error as the
  result of the call, and goes on. **typed: NAME**: the caller gets this error, with the history in `error.messages`
  (valid, every call answered) and what each try came to in `error.verdicts`.
- Two words in a cell are for streamed / whole responses, one is for both; - means that it cannot happen there.
- Each fault befalls the first response, and the answer that is then asked for again comes in the same words or in
  others (with another read beside the same write). What breaks a response altogether befalls the last one, too.
- The last column is what it comes to if **every** response is so.
- In all cases: what was shown equals the history and what was sent, character by character, with nothing said twice;
  the write ran exactly once and each read at most once; every call has one result, in call order; the server, which
  is as strict as the strictest provider, refused nothing; no task and no connection is left.

## Somebody else's program

`--target CMD` runs a program of yours once for each fault, with `OPENAI_BASE_URL`, `OPENAI_API_KEY` (and the like of
other providers), `UNBROKEN_MODEL`, `UNBROKEN_PROMPT`, `UNBROKEN_FAULT` and `UNBROKEN_WIRE` in its environment;
`{base_url}`, `{model}` and `{prompt}` in CMD are filled in. It is expected to ask the model the prompt, to offer the
tools `get_weather(city, days)`, `now()` and `save_note(text)` (with others, two of them are called), to print the
answer and to exit with 0. `examples/faults_target.py` is one.

First it is run once with nothing broken. If it asks nothing, asks on another wire than `--wire` says (openai-chat
unless told otherwise) or fails already then, one line says so and nothing is judged (exit code 2). Whether it streams
is seen from this run: a program that asks for whole responses meets the faults that befall these, and a line says how
many others are left out.

It is judged by what the server sees and by what it prints:

| outcome | |
|---|---|
| answered | every call has its result, once and in order, and the answer is printed, once |
| gave up | another exit code than 0; expected where the table below has a typed error |
| hung | not done within `--timeout` seconds |
| lost calls, repeated calls | a call never got its result, or more than one call of it did |
| results out of order | not in the order of the calls |
| no answer, text twice | what the model said is not in what was printed, or is there more than once |
| asked nothing, offered no tools | as it says |

An outcome with (!) behind it has something else that must not be, such as that the fault did not happen; the lines
below the table say what.
"""

_ROWS = {
    1: ("Several calls in one response", "All of them run, in whatever pieces they come."),
    2: ("No index, no type", "Calls are told apart by what is there."),
    3: ("One index for several calls", "Kept apart by their ids, then by a new name after a closed object."),
    4: ("Odd indexes", "The order of the calls is kept."),
    5: ("Ids and names again, or empty", "The first value stands."),
    6: ("No ids, or ids twice", "The run gives ids of its own, unique in the history."),
    7: (
        "Arguments in another shape",
        "Nothing means `{}` where the stream ended well; JSON within JSON is read once more.",
    ),
    8: ("Arguments that are cut", "They never run. Cut by the token limit the model is told, else it is asked again."),
    9: ("Text after the arguments", "A call whose arguments go on after their end does not run: the model is told."),
    10: (
        "Finish reasons that lie",
        "The reason is one witness among three, beside the balance of calls and the tokens.",
    ),
    11: (
        "The response ends before its end",
        "It is asked for again, without streaming if something was shown already.",
    ),
    12: ("Silence", "After `idle` (in the middle) or `first_byte` (before) it is asked for again."),
    13: ("An error inside a 200", "Asked again if another try may do; an error that will stay is the caller's."),
    14: ("Nothing, or nothing but white space", "Asked again. White space before a call is no answer."),
    15: ("Text before a call", "It is not the answer: the run goes on."),
    16: ("Calls written as text", "Recognised in each dialect, for tools that were offered, and not shown as text."),
    17: ("Tools that the provider runs", "Never run here."),
    18: ("Frames and bytes", "Decoded; what cannot be read is asked for again."),
    19: ("No response", "Tried again, after `Retry-After` or with longer and longer waits; then the provider's error."),
    35: ("The context is too long", "The largest old results are cut once, and the request is made again."),
    36: ("Half an emoji", "The halves are joined."),
    37: ("Integers beyond 64 bits", "They arrive exactly."),
}


def make_page(ended: Iterable[Ended] | None = None) -> str:
    """Without outcomes: the page as it is if all ends as expected."""
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
    """Outcomes by fault: a cell for each wire that was run, what was expected, and what comes of it if it lasts."""

    def __init__(self, ended: Iterable[Ended]) -> None:
        self._ended: dict[str, list[Ended]] = {}
        for each in ended:
            self._ended.setdefault(each.case.fault.name, []).append(each)
        run = [each.case for ended in self._ended.values() for each in ended]
        self._wires = [wire for wire in WIRES if any(case.wire == wire for case in run)]
        self._modes = [mode for mode in ("streamed", "whole") if any(case.mode == mode for case in run)]
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
