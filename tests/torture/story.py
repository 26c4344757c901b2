"""The histories of a torture test, combined: which answer of the model is behind each answer of a client.

An answer is traced by the tokens that it reports (the number of the model's answer), by the `ref` in a call, by the
header of a held turn, or by the answer that it continues.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from torture.history import Record


@dataclass(frozen=True, slots=True)
class Place:
    """A call of an answer of the model."""

    turn: int
    position: int


class Story:
    """The records by what they belong to."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.starts = {record["conversation"]: record for record in records if record["op"] == "start"}
        self._conversations = {start["account"]: name for name, start in self.starts.items()}
        self.turns = {record["number"]: record for record in records if record["op"] == "turn"}
        self.invokes = {record["request"]: record for record in records if record["op"] == "invoke"}
        self.answers = {record["request"]: record for record in records if record["op"] == "ok"}
        self.outcomes = [record for record in records if record["op"] in ("ok", "fail", "info")]
        self.lost_store = any(r["op"] == "fault" and r["kind"] in ("flush store", "lose store") for r in records)
        """Then a client that continues a response by its id is rightly refused."""
        self._ended = {outcome["request"]: outcome["t"] for outcome in self.outcomes}
        self.by_ref = {
            call[1]["ref"]: Place(number, at)
            for number, turn in self.turns.items()
            for at, call in enumerate(turn["calls"])
            if "ref" in call[1]
        }
        bodies = Counter((invoke["body"], invoke["conversation"]) for invoke in self.invokes.values())
        self._repeated = {body for body, count in Counter(body for body, _ in bodies).items() if count > 1}
        """Bodies that several conversations have sent."""
        self._retried = {
            invoke["conversation"]
            for invoke in self.invokes.values()
            if invoke["kind"] == "retry"
            and invoke["body"] in self._repeated
            and self.habits(invoke["conversation"])["retry"] == "header"
        }
        """Conversations that marked one of these as a retry. They come from one address: nothing distinguishes them."""
        self._retried |= self._joined()
        self._places: dict[str, Place | None] = {}
        self.told: dict[str, set[int]] = defaultdict(set)
        """By conversation, the turns in the history of requests whose answers reported something missing."""
        self.first_told: dict[str, str] = {}
        for outcome in self.outcomes:
            if is_told(outcome):
                self.first_told.setdefault(outcome["conversation"], outcome["request"])
                self.told[outcome["conversation"]] |= {place.turn for _, place in self.handed(outcome["request"])}

    def _joined(self) -> set[str]:
        """Conversations that sent one of these, without a mark, while another was answered: one that is in flight is
        taken for a first attempt of the same client."""
        asked: dict[str, list[Record]] = defaultdict(list)
        for invoke in self.invokes.values():
            if invoke["body"] in self._repeated:
                asked[invoke["body"]].append(invoke)
        return {
            one["conversation"]
            for alike in asked.values()
            for one in alike
            if self.habits(one["conversation"]).get("retry") == "none"
            and any(
                self.is_under_way(other["request"], one["t"])
                for other in alike
                if other["conversation"] != one["conversation"]
            )
        }

    def account(self, conversation: str) -> str:
        return self.starts[conversation]["account"]

    def conversation(self, account: str) -> str:
        return self._conversations.get(account, "a conversation")

    def habits(self, conversation: str) -> Record:
        return self.starts[conversation]["habits"]

    def place(self, request: str) -> Place | None:
        """The model's answer behind an answer of the gateway, and the first of its calls that was given; None if it
        cannot be known."""
        if request not in self._places:
            self._places[request] = None  # a circle cannot be: an answer stands on earlier ones
            self._places[request] = self._find(self.answers[request])
        return self._places[request]

    def _find(self, answer: Record) -> Place | None:
        for at, call in enumerate(answer["calls"]):
            arguments: Record = call[1] or {}
            if (place := self.by_ref.get(arguments.get("ref", ""))) is not None:
                return Place(place.turn, place.position - at)
        if answer["answer"] in self.turns:
            return Place(answer["answer"], 0)
        handed = re.search(r"handed (\d+)/(\d+)", answer["headers"].get("x-unbroken-turn", ""))
        if handed is None:
            return None
        position, count = int(handed[1]) - 1, int(handed[2])
        before = self.continued(answer["request"])
        if before is not None and before.position + 1 == position:
            following = self.turns[before.turn]["calls"][position:][:1]
            return Place(before.turn, position) if following == answer["calls"] else None
        return self._find_repeated(answer, count) if not position else None

    def _find_repeated(self, answer: Record, count: int) -> Place | None:
        """The first call of a turn of so many, given a second time to a client that marked its request as a retry."""
        account = self.account(answer["conversation"])
        alike = [
            number
            for number, turn in self.turns.items()
            if turn["account"] == account
            and turn["t"] < answer["t"]
            and len(turn["calls"]) == count
            and (turn["text"], turn["calls"][:1]) == (answer["text"], answer["calls"])
        ]
        return Place(alike[0], 0) if len(alike) == 1 else None

    def continued(self, request: str) -> Place | None:
        """The last call in the client's history, if this request brings its result and nothing else was said."""
        view = self.invokes[request]["view"]
        if len(view) < 2 or view[-1][0] != "results" or view[-2][0] != "answer" or view[-2][1] not in self.answers:
            return None
        return self.place(view[-2][1])

    def handed(self, request: str) -> list[tuple[str, Place]]:
        """The answers in a client's history at this request, each with its place, as far as it is known."""
        parts = [item for item in self.invokes[request]["view"] if item[0] == "answer" and item[1] in self.answers]
        return [(item[1], place) for item in parts if (place := self.place(item[1])) is not None]

    def is_under_way(self, request: str, at: float) -> bool:
        return self.invokes[request]["t"] <= at <= self._ended.get(request, inf)

    def is_nobodys(self, turn: Record, conversation: str, request: str = "") -> bool:
        """Whether this was the answer to a request without an account, and this client has sent the same bytes. Then it
        is no leak that it gets the same answer, like a retry. If it marked one as a retry, it continues with what it
        got."""
        if turn["account"]:
            return False
        return conversation in self._retried or (bool(request) and self.invokes[request]["body"] in self._repeated)

    def knows(self, request: str) -> bool:
        """Whether the origin of all answers in the client's history is known."""
        view = self.invokes[request]["view"]
        return all(item[1] in self.answers and self.place(item[1]) for item in view if item[0] == "answer")

    def interrupted(self, request: str) -> set[int]:
        """The turns after which the user wrote without giving a result."""
        view = self.invokes[request]["view"]
        cut = [item[1] for item, after in pairwise(view) if item[0] == "answer" and after[0] == "user"]
        return {place.turn for one in cut if one in self.answers and (place := self.place(one)) is not None}

    def edited(self, request: str) -> set[int]:
        """The turns that the client changed in its history."""
        changed = [item[1] for item in self.invokes[request]["view"] if item[0] == "answer" and item[2]]
        return {place.turn for one in changed if one in self.answers and (place := self.place(one)) is not None}


def is_told(outcome: Record) -> bool:
    """Whether this outcome reported to the client that something is missing."""
    if outcome["op"] != "ok":
        return True
    return "lost" in outcome["headers"].get("x-unbroken-turn", "")
