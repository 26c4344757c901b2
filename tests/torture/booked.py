"""Whether the gateways have booked what the providers sent: each answer once, to the token. Pure.

Providers write `turn` when an answer begins and `sent` when its last byte was written; each answer reports its own
number as its input tokens. The access log of a gateway has the tokens of each request, and the store has the sum of all
gateways.

An answer that was sent to its end is booked exactly once with all its tokens, unless its own client left. One that was
left early (its provider died, or its client did not wait) may have been reported in part or not at all: those are
listed, and what is booked for them is bounded by what they would have cost.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torture.history import Record
from torture.upstream import FIRST_NUMBER, OUTPUT
from unbroken_gateway.spending.report import Spend

_LINE = re.compile(r": request .*? status=(\d+) .*? input=(\d+) output=(\d+) ")
LATE = 60.0
"""Seconds: a provider on a busy machine begins to answer a request whose client has left."""
INPUT_PRICE, OUTPUT_PRICE = 1000, 2000
"""Nano-dollars for a token, as the gateways of `served` are configured."""


@dataclass(frozen=True, slots=True)
class Line:
    """A request in the access log of a gateway."""

    status: int
    input: int
    output: int


def read_lines(log: str) -> Iterator[Line]:
    return (Line(*map(int, found)) for found in _LINE.findall(log))


@dataclass(slots=True)
class Booked:
    broken: list[str] = field(default_factory=list[str])
    """What should not have been, in words."""
    sent: int = 0
    """Answers that were sent to their end and booked to the token."""
    early: dict[int, int] = field(default_factory=dict[int, int])
    """Answers that were left early, by number: the input tokens that are booked for each."""
    others: int = 0
    """Input tokens of attempts that failed before another one was passed on."""

    def describe(self) -> str:
        reported = [number for number, tokens in self.early.items() if tokens]
        words = f"{self.sent:,} answers were sent to their end, and booked to the token"
        if not self.early:
            return f"{words}; none was left early"
        words += f"; {len(self.early):,} were left early with {sum(self.early):,} input tokens"
        rest = f", and {self.others:,} for attempts that failed" if self.others else ""
        return f"{words}, of which {sum(self.early.values()):,} are booked for {len(reported):,} answers{rest}"


def check_booked(records: Sequence[Record], lines: Iterable[Line], spend: Spend, dead: range = range(0)) -> Booked:
    """`lines`: of all gateways. `spend`: the sum in their store. `dead`: the numbers of a provider that was killed."""
    found = Booked()
    begun = {record["number"]: record for record in records if record["op"] == "turn"}
    sent = {record["number"] for record in records if record["op"] == "sent"}
    seen = {record["answer"] for record in records if record["op"] == "ok" and record["answer"] >= FIRST_NUMBER}
    booked = [line for line in lines if line.input >= FIRST_NUMBER]
    times = Counter(line.input for line in booked)
    output = {line.input: line.output for line in booked}
    left = _left(records)
    for number, count in times.items():
        if number not in begun:
            found.broken.append(f"{number:,} input tokens are booked, and no provider has sent such an answer")
        elif count > 1:
            found.broken.append(f"answer {number} is booked {count} times")
    for number, turn in begun.items():
        if number in sent and output.get(number) == OUTPUT:
            found.sent += 1
            continue
        found.early[number] = number if number in times else 0
        died = number in dead and number not in sent
        if not died and not _was_left(turn, left):
            words = "sent to its end" if number in sent else "broken off"
            and_booked = f"with {output[number]} output tokens" if number in times else "not"
            found.broken.append(f"answer {number}, {words}, is booked {and_booked}, and its client did not leave")
    found.broken += [f"answer {number} reached its client, and is not booked" for number in sorted(seen - times.keys())]
    _check_sums(found, booked, spend)
    return found


def _left(records: Sequence[Record]) -> dict[str, list[tuple[float, float]]]:
    """By account: the requests whose client did not get an answer, each with the time in which a provider may have
    begun to answer it. What has no account may be of any of them."""
    accounts = {record["conversation"]: record["account"] for record in records if record["op"] == "start"}
    began = {record["request"]: record["t"] for record in records if record["op"] == "invoke"}
    left: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        if record["op"] == "info":
            for account in (accounts[record["conversation"]], ""):
                left[account].append((began[record["request"]], record["t"] + LATE))
    return left


def _was_left(turn: Record, left: dict[str, list[tuple[float, float]]]) -> bool:
    """Whether this is the answer to a request whose client left; each such request explains one answer."""
    account = turn["account"]
    found = next((each for each in left.get(account, ()) if each[0] <= turn["t"] <= each[1]), None)
    if found is not None and account:
        left[account].remove(found)
    return found is not None


def _check_sums(found: Booked, booked: Sequence[Line], spend: Spend) -> None:
    """The store has what the access logs have, and what attempts reported that failed before another was passed on."""
    found.others = spend.input - sum(line.input for line in booked)
    output = spend.output - sum(line.output for line in booked)
    attempts = spend.requests - len(booked)
    unknown = [number for number, tokens in found.early.items() if not tokens]
    if not 0 <= attempts <= len(unknown) or not 0 <= found.others <= sum(sorted(unknown)[len(unknown) - attempts :]):
        found.broken.append(f"the store has {found.others:,} input tokens of {attempts} answers that no log has")
    if not 0 <= output <= OUTPUT * attempts:
        found.broken.append(f"the store has {output:,} output tokens that no log has")
    if spend.cost != INPUT_PRICE * spend.input + OUTPUT_PRICE * spend.output or spend.unpriced:
        found.broken.append(f"{spend.input:,} and {spend.output:,} tokens do not cost {spend.cost:,} nano-dollars")
