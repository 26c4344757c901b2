"""A large simulation in pieces: what one of them simulates, the file with its outcome, and the sum of all.

Pieces are independent: each has gateways, a store and a seed of its own. So a million conversations can be simulated by
several processes or machines, one after the other or after an interruption.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from torture.checker import Report, Violation

PER_SECOND = 278.0
"""New conversations in a virtual second: a million in an hour."""
SHOWN = 12
"""Violations that are printed."""


@dataclass(frozen=True, slots=True)
class Plan:
    conversations: int = 2000
    gateways: int = 200
    servers: int = 16
    providers: int = 4
    seed: int = 1
    seconds: float = 60.0
    """Virtual seconds in which conversations begin, at least."""
    faults: bool = True

    @property
    def lasting(self) -> float:
        return max(self.seconds, self.conversations / PER_SECOND)


@dataclass(frozen=True, slots=True)
class Piece:
    plan: Plan
    report: Report
    faults: Counter[str]
    """How often each fault happened."""
    cpu: float
    """Seconds."""


def write_piece(folder: Path, piece: Piece) -> None:
    """Complete, or not at all."""
    content = {
        "plan": asdict(piece.plan),
        "counts": piece.report.counts,
        "faults": piece.faults,
        "cpu": round(piece.cpu, 1),
        "violations": [asdict(violation) for violation in piece.report.violations],
    }
    path = _path(folder, piece.plan)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.rename(path)


def read_piece(folder: Path, plan: Plan) -> Piece | None:
    """None: it was not simulated yet, or with another plan."""
    path = _path(folder, plan)
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    if Plan(**content["plan"]) != plan:
        return None
    violations = [
        Violation(each["kind"], each["where"], each["words"], tuple(each["excerpt"])) for each in content["violations"]
    ]
    report = Report(violations, Counter(content["counts"]))
    return Piece(plan, report, Counter(content["faults"]), content["cpu"])


def _path(folder: Path, plan: Plan) -> Path:
    return folder / f"piece-{plan.seed}.json"


def describe(pieces: Sequence[Piece], of: int, console: Console) -> int:
    """Prints the sum. Returns the exit code: 1 if anything is broken or a conversation is missing."""
    report, faults = Report(), Counter[str]()
    for piece in pieces:
        report.violations += piece.report.violations
        report.counts += piece.report.counts
        faults += piece.faults
    counts, plans = report.counts, [piece.plan for piece in pieces]
    console.print(f"{len(pieces)} of {of} pieces, {sum(plan.lasting for plan in plans):,.0f} s of virtual time")
    for plan in {(plan.gateways, plan.servers): plan for plan in plans}.values():
        console.print(f"{plan.gateways} gateways, {plan.servers} servers of the store")
    asked = f"{counts['invoke']:,} requests, {counts['turn']:,} answers of models"
    console.print(f"{counts['start']:,} conversations, {asked}")
    told = f"{counts['info']:,} broken off, {counts['told']:,} told"
    console.print(f"{counts['ok']:,} ok, {counts['fail']:,} errors, {told}")
    endings = [f"{n:,} {name[5:]}" for name, n in sorted(counts.items()) if name.startswith("end:")]
    console.print(f"endings: {', '.join(endings)}")
    console.print(f"faults: {', '.join(f'{n:,} {name}' for name, n in sorted(faults.items()))}")
    cpu, conversations = sum(piece.cpu for piece in pieces), sum(plan.conversations for plan in plans)
    console.print(f"CPU {cpu:,.0f} s, {1000 * cpu / max(conversations, 1):.1f} ms a conversation")
    found = ", ".join(f"{n} {kind}" for kind, n in sorted(report.by_kind.items())) or "nothing"
    console.print(f"broken: {found}")
    for violation in report.violations[:SHOWN]:
        console.print(f"{violation.kind}: {violation.where}: {violation.words}")
        for record in violation.excerpt:
            console.print(f"    {record}")
    is_complete = counts["start"] == counts["end"] == conversations
    if not is_complete:
        console.print(f"{counts['start']:,} of {conversations:,} conversations began, {counts['end']:,} ended")
    return 0 if is_complete and not report.violations else 1
