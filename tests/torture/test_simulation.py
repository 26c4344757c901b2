"""A small simulation of gateways on a sharded store, on virtual time. `make simulate` has 200 gateways and up to a
million conversations. A check that cannot fail is worthless: gateways and servers with a planted mistake are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from torture.pieces import Piece, Plan, describe, read_piece, write_piece
from torture.simulated_world import Server
from torture.simulation import run_simulation
from unbroken_gateway.relay import responder
from unbroken_gateway.stores.store import NOTHING, MemoryStore
from unbroken_gateway.turns import turn_store
from unbroken_gateway.turns.serial import Decision, Found, ReleaseCall, decide
from unbroken_gateway.turns.turn import Listed

SMALL = Plan(conversations=80, gateways=6, servers=4, providers=3, seconds=40.0)


def test_no_promise_is_broken_while_servers_providers_and_gateways_fail(tmp_path: Path) -> None:
    report, faults = run_simulation(SMALL, tmp_path / "progress.log")
    assert report.violations == []
    assert report.counts["start"] == report.counts["end"] == SMALL.conversations
    assert report.counts["ok"] > 3 * SMALL.conversations
    assert report.counts["fail"] > 0
    assert sum(faults.values()) > 5
    check_pieces(tmp_path, Piece(SMALL, report, faults, 2.5))


def test_a_wrong_clock_does_not_make_a_new_store_look_emptied() -> None:
    """Gateways whose clocks differ by seconds meet a store in which nothing was ever stored."""
    report, _ = run_simulation(replace(SMALL, conversations=120, gateways=20, seconds=1.0, faults=False))
    assert report.violations == []


def check_pieces(folder: Path, piece: Piece) -> None:
    """A piece is read as it was written, and the sum shows what is missing or broken."""
    assert read_piece(folder, SMALL) is None
    write_piece(folder, piece)
    assert read_piece(folder, SMALL) == piece
    assert read_piece(folder, replace(SMALL, gateways=7)) is None
    text = StringIO()
    printed = Console(file=text, width=200)
    assert describe([piece, piece], 3, printed) == 0
    assert "2 of 3 pieces" in text.getvalue()
    assert "160 conversations" in text.getvalue()
    assert describe([replace(piece, plan=replace(SMALL, conversations=81))], 1, printed) == 1
    piece.report.add("lost", "a conversation", "a call is missing", {"op": "ok"})
    write_piece(folder, piece)
    found = read_piece(folder, SMALL)
    assert found is not None
    assert describe([found], 1, printed) == 1
    assert "a call is missing" in text.getvalue()


def skip_a_call(patch: pytest.MonkeyPatch) -> None:
    """Of three calls, the third is released after the first."""

    def decided(*given: Any, **more: Any) -> Decision:
        decision = decide(*given, **more)
        if isinstance(decision, ReleaseCall) and decision.position + 1 < len(decision.turn.message.calls):
            return replace(decision, position=decision.position + 1)
        return decision

    patch.setattr(responder, "decide", decided)


def release_twice(patch: pytest.MonkeyPatch) -> None:
    """The call that was just answered is released once more."""

    def decided(*given: Any, **more: Any) -> Decision:
        decision = decide(*given, **more)
        return replace(decision, position=decision.position - 1) if isinstance(decision, ReleaseCall) else decision

    patch.setattr(responder, "decide", decided)


def forget_what_was_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A server that confirms what it does not store."""

    async def put(
        self: Server, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING
    ) -> None:
        kept = {key: value for key, value in entries.items() if not key.startswith("hold:")}
        await MemoryStore.put(self, kept, ttl, append)

    patch.setattr(Server, "put", put)


def ignore_the_context(patch: pytest.MonkeyPatch) -> None:
    """A turn of any conversation with the same words will do."""

    def agreeing(found: Found, at: int, listed: Sequence[Listed], complete: bool, context: bytes) -> list[str]:
        return [listed[-1].key] if listed else []

    patch.setattr(turn_store, "_agreeing", agreeing)


@pytest.mark.parametrize(
    ("plant", "kinds", "plan"),
    [
        (skip_a_call, {"lost", "disordered"}, SMALL),
        (release_twice, {"doubled"}, SMALL),
        (forget_what_was_confirmed, {"lost"}, SMALL),
        # Of 80 conversations, none may have the words of another one at the same time.
        pytest.param(
            ignore_the_context,
            {"another's", "mixed"},
            replace(SMALL, conversations=300, seconds=20.0),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_mistake_is_found(plant: Any, kinds: set[str], plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    report, _ = run_simulation(replace(plan, faults=False))
    assert kinds & report.by_kind.keys(), report.by_kind
    assert all(violation.excerpt for violation in report.violations)
