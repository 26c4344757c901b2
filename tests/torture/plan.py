"""What a torture test does, drawn from its seed: which rounds with which faults, and which conversations in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from torture.upstream import ID_STYLES
from unbroken_wires.wires import WIRES

StoreKind: TypeAlias = Literal["valkey", "sqlite", "full disk"]
FaultKind: TypeAlias = Literal[
    "kill gateway", "pause gateway", "pause upstream", "pause store", "flush store", "lose store", "fill disk"
]


SETTLING = 3.0
"""Seconds until the gateways have written back what an emptied store held, and read it again. What is spent in between
is lost if it is emptied again."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """`at` seconds into its round, `lasting` so many seconds; `target` is the number of a gateway."""

    at: float
    kind: FaultKind
    lasting: float
    target: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    name: str
    about: str
    store: StoreKind
    faults: tuple[FaultKind, ...] = ()
    skew: tuple[float, float] = (0.0, 0.0)
    """How wrong the clock of each gateway is, in seconds."""
    hold_timeout: float = 3600.0
    keys: int = 0
    """So many gateway keys, each shared by many; 0: none is asked for."""
    keys_in_store: bool = False
    """Keys and budgets are in the store, and are written back if it comes back empty."""
    seconds: float = 20.0
    plan: tuple[FaultPlan, ...] = field(default=())


ROUNDS = (
    Round("calm", "nothing breaks", "valkey"),
    Round("keys", "nothing breaks, two shared keys", "sqlite", keys=2),
    Round("killed", "gateways are killed", "valkey", ("kill gateway",)),
    Round("killed-sqlite", "gateways are killed, SQLite", "sqlite", ("kill gateway", "pause gateway")),
    Round("pause-store", "Valkey is paused", "valkey", ("pause store",)),
    Round("lose-store", "Valkey is killed, and starts empty", "valkey", ("lose store",)),
    Round("flush", "Valkey is emptied", "valkey", ("flush store",)),
    Round(
        "emptied",
        "Valkey with the keys and the budgets is emptied",
        "valkey",
        ("flush store", "lose store"),
        keys=2,
        keys_in_store=True,
    ),
    Round("paused", "gateways and the model are paused", "valkey", ("pause gateway", "pause upstream")),
    Round("skew", "clocks differ by five minutes", "valkey", ("kill gateway",), (-150.0, 150.0)),
    Round("skew-sqlite", "clocks differ by ten minutes, SQLite", "sqlite", ("pause gateway",), (0.0, 600.0)),
    Round("expired", "results come after hold_timeout", "valkey", hold_timeout=2.0),
    Round("full-disk", "the disk of SQLite and the recordings is full", "full disk", ("fill disk",)),
    Round(
        "everything",
        "all of it at once",
        "valkey",
        ("kill gateway", "pause gateway", "pause upstream", "pause store", "flush store", "lose store"),
        (-150.0, 150.0),
    ),
)


def plan_rounds(seed: int, seconds: float, only: Sequence[str] = (), rounds: Sequence[Round] = ROUNDS) -> list[Round]:
    """The rounds, each with its share of the time and the faults that happen in it."""
    chosen = [one for one in rounds if not only or one.name in only]
    share = seconds / len(chosen)
    return [replace(one, seconds=share, plan=tuple(_plan_faults(f"{seed}/{one.name}", one, share))) for one in chosen]


def _plan_faults(seed: str, one: Round, seconds: float) -> list[FaultPlan]:
    """One after another, with a short time without faults in between."""
    dice = random.Random(seed)
    faults: list[FaultPlan] = []
    at = 0.5
    kinds = list(one.faults)
    while kinds and at < seconds - 1.5:
        kind = kinds[len(faults) % len(kinds)]
        longest = max(0.3, min(6.0, seconds / 3, seconds - at - 1.0))
        lasting = 0.2 if kind in ("kill gateway", "flush store") else dice.uniform(min(1.0, longest), longest)
        faults.append(FaultPlan(at, kind, lasting, dice.randrange(2)))
        at += lasting + dice.uniform(0.4, 1.5) + (SETTLING if one.keys_in_store else 0.0)
    return faults


# Conversations

IdHabit: TypeAlias = Literal["keep", "drop", "rewrite", "rewrite part"]
RetryHabit: TypeAlias = Literal["header", "key", "none"]


@dataclass(frozen=True, slots=True)
class Habits:
    """What kind of client holds a conversation."""

    wire: str
    stream: bool
    serial: bool
    alias: str
    account_in: Literal["system", "result"]
    """Where the account is first seen: in the system prompt, or in the result of the first call."""
    ids: IdHabit
    keeps_reasoning: bool
    retry: RetryHabit
    """How it marks a request that it sends a second time."""
    gateways: Literal["one", "alternate", "any"]
    wild: bool
    """It does not only answer calls: it branches, goes back, edits, and so on."""
    chained: bool = False
    """It sends only what is new, and names the response before it (`previous_response_id`)."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def aliases() -> list[tuple[str, str]]:
    """Names of models, each with its wire."""
    styles = {wire: ID_STYLES if wire in ("openai-chat", "gemini", "ollama") else ID_STYLES[:-1] for wire in WIRES}
    return [(f"{wire}-{style}", wire) for wire in WIRES for style in styles[wire]]


def draw_habits(dice: random.Random) -> Habits:
    wire = dice.choice(list(WIRES))
    chained = wire == "openai-responses" and dice.random() < 0.3
    names = aliases()
    own = [alias for alias, spoken in names if spoken == wire]
    ids: list[IdHabit] = ["keep", "keep", "keep", "rewrite", "rewrite part"]
    return Habits(
        wire,
        stream=dice.random() < 0.5,
        serial=dice.random() < 0.7,
        alias=dice.choice(own if dice.random() < 0.5 else [alias for alias, _ in names]),
        account_in="system" if dice.random() < 0.8 else "result",
        ids="keep" if chained else dice.choice([*ids, "drop", "drop", "drop"] if wire in ("gemini", "ollama") else ids),
        keeps_reasoning=dice.random() < 0.5,
        retry=dice.choice(["header", "header", "key", "none"]),
        gateways=dice.choice(["one", "alternate", "any"]),
        wild=dice.random() < 0.6,
        chained=chained,
    )
