"""Real clients, unmodified, through the gateway: `make test-clients`. Installs them, runs each through its trips,
prints a table, and with `--write` puts it into docs/clients.md. The exit code shows whether all installed clients
passed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median

from checkout import DOCS
from install import CannotInstall, Installed, install
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rows import CHAT, CLAUDE_CODE, CLIENTS, MESSAGES, Client
from story import Slow
from trip import Outcome, Trip, travel

PAGE = DOCS / "clients.md"
BEGIN, END = "<!-- Made by `make test-clients`. -->", "<!-- The end of what it makes. -->"
HEADS = (
    "client",
    "version",
    "wire",
    "plain",
    "one call at a time",
    "other upstream wires",
    "image and JSON answer",
    "seconds",
)


@dataclass(slots=True)
class Row:
    client: Client
    version: str = ""
    missing: str = ""
    """The reason why it is not installed."""
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    @property
    def failed(self) -> bool:
        return any(outcome.problems for outcome in self.outcomes)

    def cells(self) -> tuple[str, ...]:
        client = self.client
        if self.missing:
            return (client.name, "not installed", client.wire, "", "", "", "", "")
        plain, serial = (self._own(one_at_a_time) for one_at_a_time in (False, True))
        others = "; ".join(f"{wire}: {_told(self._with(wire))}" for wire in client.others)
        rich = _told([outcome for outcome in self.outcomes if outcome.trip.rich]) if client.unstreamed else ""
        seconds = f"{median(outcome.seconds for outcome in self.outcomes):.1f}" if self.outcomes else ""
        return (client.name, self.version, client.wire, _told(plain), _told(serial), others, rich, seconds)

    def _own(self, serial: bool) -> list[Outcome]:
        return [outcome for outcome in self._with(self.client.wire) if outcome.trip.serial == serial]

    def _with(self, wire: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.trip.upstream == wire and not outcome.trip.rich]


def _told(outcomes: list[Outcome]) -> str:
    if not outcomes:
        return "not tried"
    passed = sum(not outcome.problems for outcome in outcomes)
    if passed < len(outcomes):
        return f"{passed} of {len(outcomes)}"
    return "streamed and unstreamed" if any(not outcome.trip.stream for outcome in outcomes) else "streamed"


def trips_of(client: Client) -> list[Trip]:
    return [
        Trip(client, upstream, serial, stream, rich=rich)
        for rich in ((False, True) if client.unstreamed else (False,))
        for upstream in (client.wire, *client.others)
        for serial in (False, True)
        for stream in ((True, False) if client.unstreamed else (True,))
        if not (rich and serial and client.in_text)  # an agent that writes code is offered no tools
    ]


SLOW_WAYS: tuple[Slow, ...] = ("first call", "second call", "pings")
SLOW: tuple[tuple[str, Slow], ...] = (
    *((MESSAGES, slow) for slow in SLOW_WAYS),
    *((CHAT, slow) for slow in SLOW_WAYS if slow != "pings"),
)
SLOW_TRIPS = [Trip(CLAUDE_CODE, wire, serial, slow=slow) for wire, slow in SLOW for serial in (False, True)]


def try_slow(console: Console) -> int:
    """All at the same time: each takes six minutes, in which little happens."""
    outcomes = list(travel_all(SLOW_TRIPS, install(CLAUDE_CODE), at_once=len(SLOW_TRIPS)))
    for outcome in outcomes:
        _print(outcome, console)
    return int(any(outcome.problems for outcome in outcomes))


def _print(outcome: Outcome, console: Console) -> None:
    verdict = "FAILS" if outcome.problems else "ok   "
    console.print(f"{verdict} {outcome.trip} ({outcome.seconds:.1f} s)", markup=False)
    for problem in outcome.problems:
        console.print(f"      {problem}", markup=False)


def main() -> int:
    options = _options()
    console = Console(width=180, highlight=False)
    if options.slow:
        return try_slow(console)
    rows = [_try(client, options.latest, options.direct, console) for client in _chosen(options.only)]
    table = Table(*HEADS)
    for row in rows:
        table.add_row(*map(escape, row.cells()))
    console.print(table)
    for row in rows:
        if row.missing:
            console.print(f"{row.client.name}: not installed: {row.missing}", markup=False)
    if options.write:
        _write(rows)
    return int(any(row.failed for row in rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Real clients through the gateway.")
    parser.add_argument("only", nargs="*", help="how the names of clients begin; without: all")
    parser.add_argument("--latest", action="store_true", help="the newest versions instead of those that were seen")
    parser.add_argument("--direct", action="store_true", help="without the gateway: is the client as expected?")
    parser.add_argument("--write", action="store_true", help="put the table into docs/clients.md")
    parser.add_argument("--slow", action="store_true", help="only Claude Code, with calls that take six minutes")
    options = parser.parse_args()
    if options.write and (options.only or options.direct):
        parser.error("--write needs all clients, through the gateway")
    if not _chosen(options.only):
        parser.error(f"no client is called so: there are {'; '.join(client.name for client in CLIENTS)}")
    return options


def _chosen(beginnings: list[str]) -> list[Client]:
    words = tuple(word.lower() for word in beginnings) or ("",)
    return [client for client in CLIENTS if client.name.lower().startswith(words)]


def _try(client: Client, latest: bool, direct: bool, console: Console) -> Row:
    row = Row(client)
    try:
        installed: Installed = install(client, latest)
    except CannotInstall as error:
        row.missing = str(error)
        return row
    row.version = installed.version
    alone = [trip for trip in trips_of(client) if not trip.serial and trip.upstream == client.wire and client.alone]
    for outcome in travel_all(alone if direct else trips_of(client), installed, direct, at_once=3):
        row.outcomes.append(outcome)
        _print(outcome, console)
    return row


def travel_all(trips: list[Trip], installed: Installed, direct: bool = False, *, at_once: int) -> Iterator[Outcome]:
    def travel_one(trip: Trip) -> Outcome:
        return travel(trip, installed, direct)

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(travel_one, trips)


def _write(rows: list[Row]) -> None:
    lines = [HEADS, tuple("---" for _ in HEADS), *(row.cells() for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\nTried on {day}.\n\n{table}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
