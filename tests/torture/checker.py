"""Reads the histories of a torture test and reports what broke a promise. Pure: records in, violations out.

Strategy. The model's history has what was really answered, to whom, with which calls, and `story` finds it behind each
answer of a client. Then each promise is a comparison. Ownership follows from marks alone: a mark that appears in two
conversations is a violation, wherever it appears.

A client that was told has lost nothing: an HTTP error, a stream that ends with an error, or `x-unbroken-turn: lost; …`
excuses what is missing. But a client that only answers its calls, and keeps their ids, is never told so while the store
has everything it was given.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, TypeAlias, cast, get_args

from torture.history import ACCOUNT, TURN, Record
from torture.story import Place, Story, is_told
from unbroken.errors import UnbrokenError
from unbroken_wires.messages import Assistant, Message, ToolMessage
from unbroken_wires.transcript import from_json
from unbroken_wires.wires import find_wire

Kind: TypeAlias = Literal[
    "another's",
    "mixed",
    "lost",
    "doubled",
    "disordered",
    "shortened",
    "swapped",
    "invalid",
    "stale",
    "malformed",
    "stuck",
    "hung",
    "unhealthy",
    "crashed",
    "reopened",
    "locked out",
    "ran twice",
    "unanswered",
    "invented",
    "unfinished",
    "damaged",
    "torn",
    "unreadable",
    "unusable",
    "overrun",
    "harmed",
    "endless",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

MESSAGES = "messages"
"""Stands for the wire of a model without one: the body is a list of our messages."""
ALL_KNOW = 3.0
"""Seconds after which every gateway knows what one of them has refused."""
SLOWEST_HEALTH = 8.0
"""Seconds: the test machine may be busy with other things."""


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    where: str
    """The conversation, or the process."""
    words: str
    excerpt: tuple[Record, ...] = ()
    """The records that show it, reduced to what is needed."""


@dataclass(slots=True)
class Report:
    violations: list[Violation] = field(default_factory=list[Violation])
    counts: Counter[str] = field(default_factory=Counter[str])
    slowest_health: float = 0.0

    def add(self, kind: Kind, where: str, words: str, *excerpt: Record) -> None:
        """The first of its kind in each conversation: consequences of it are not counted again."""
        if any(known.kind == kind and known.where == where for known in self.violations):
            return
        self.violations.append(Violation(kind, where, words, tuple(_short(record) for record in excerpt)))

    @property
    def by_kind(self) -> Counter[str]:
        return Counter(violation.kind for violation in self.violations)


def check(records: Sequence[Record]) -> Report:
    """All that broke a promise, the first of each kind in each conversation."""
    report = Report()
    story = Story(records)
    report.counts.update(record["op"] for record in records)
    report.counts.update(f"end: {end['ending']}" for end in records if end["op"] == "end")
    _check_owners(story, report)
    _check_answers(story, report)
    _check_requests(story, report)
    _check_processes(story, report)
    _check_keys(story, report)
    return report


# Ownership


def _check_owners(story: Story, report: Report) -> None:
    """Every mark belongs to one conversation."""
    owners = {turn["mark"]: {turn["account"]} - {""} for turn in story.turns.values()}
    said = {turn["mark"]: turn for turn in story.turns.values()}
    observations = [*story.turns.values(), *story.outcomes, *(r for r in story.records if r["op"] == "refused")]
    for record in sorted(observations, key=lambda one: one["t"]):
        to_client = "conversation" in record
        text = record.get("data", "") if to_client else record.get("sent") or json.dumps(record["body"])
        accounts = set(ACCOUNT.findall(text))
        here = story.account(record["conversation"]) if to_client else next(iter(sorted(accounts)), "")
        kind: Kind = "another's" if to_client else "mixed"
        where = record["conversation"] if to_client else story.conversation(here)
        if foreign := accounts - {here}:
            report.add(kind, where, f"account {min(foreign)} turns up where {here} belongs", record)
            continue
        for mark in sorted(set(TURN.findall(text)) & owners.keys()) if here else ():
            if not owners[mark] or story.is_nobodys(said[mark], where, record["request"] if to_client else ""):
                owners[mark].add(here)
            if here not in owners[mark]:
                words = f"{mark} was said to {min(owners[mark])} and turns up for {here}"
                report.add(kind, where, words, said[mark], record)


# What clients were given


def _check_answers(story: Story, report: Report) -> None:
    for request, answer in story.answers.items():
        if answer.get("malformed"):
            report.add("malformed", answer["conversation"], answer["malformed"], answer)
        place = story.place(request)
        if place is not None:
            _check_content(story, report, answer, place)
            _check_repeated(story, report, answer, place)
        if is_told(answer):
            report.counts["told"] += 1
            _check_needless(story, report, answer)
        else:
            _check_next(story, report, answer, place)


def _check_content(story: Story, report: Report, answer: Record, place: Place) -> None:
    """All calls of the model's answer, or the one whose turn it is."""
    turn = story.turns[place.turn]
    serial = story.habits(answer["conversation"])["serial"]
    wanted = turn["calls"][place.position :][:1] if serial else turn["calls"]
    if answer["calls"] != wanted:
        words = f"of answer {place.turn} with {len(turn['calls'])} calls the client was given {answer['calls']}"
        report.add("shortened", answer["conversation"], words, turn, answer)


def _check_repeated(story: Story, report: Report, answer: Record, place: Place) -> None:
    request = answer["request"]
    invoke = story.invokes[request]
    handed = [part for _, part in story.handed(request) if part.turn == place.turn]
    if answer["calls"] and any(part.position == place.position for part in handed):
        words = f"call {place.position} of answer {place.turn} is in the client's history already"
        report.add("doubled", answer["conversation"], words, invoke, answer)
    elif place.position and not any(part.position == place.position - 1 for part in handed) and story.knows(request):
        words = f"call {place.position} of answer {place.turn} was handed out, and not the one before it"
        report.add("disordered", answer["conversation"], words, invoke, answer)
    if invoke["kind"] == "regenerate" and not place.position:
        earlier = [
            one
            for one, other in story.answers.items()
            if other["t"] < invoke["t"]
            and story.invokes[one]["body"] == invoke["body"]
            and story.invokes[one]["conversation"] == invoke["conversation"]
            and story.place(one) == place
        ]
        if earlier:
            words = f"a second answer was asked for, and answer {place.turn} came again"
            report.add("stale", answer["conversation"], words, story.answers[earlier[0]], invoke, answer)


def _check_next(story: Story, report: Report, answer: Record, place: Place | None) -> None:
    """A client that answered a call gets the next one of its turn, if there is one."""
    request = answer["request"]
    before = story.continued(request)
    if before is None or not story.habits(answer["conversation"])["serial"] or before.turn in story.edited(request):
        return
    calls = story.turns[before.turn]["calls"]
    if before.position + 1 >= len(calls) or place == Place(before.turn, before.position + 1):
        return
    words = f"call {before.position + 1} of {len(calls)} of answer {before.turn} did not come after the one before it"
    given = story.answers[story.invokes[request]["view"][-2][1]]
    report.add("lost", answer["conversation"], words, story.turns[before.turn], given, story.invokes[request], answer)


def _check_needless(story: Story, report: Report, answer: Record) -> None:
    """Calls may be abandoned only for a reason; consequences of the first time are not checked."""
    said, habits = answer["headers"]["x-unbroken-turn"], story.habits(answer["conversation"])
    if story.lost_store or "expired" in said or story.first_told[answer["conversation"]] != answer["request"]:
        return
    if not habits["wild"] and habits["ids"] == "keep":
        words = f"a client that only answers was told {said!r}"
        report.add("lost", answer["conversation"], words, story.invokes[answer["request"]], answer)


# What the model was sent


def _check_requests(story: Story, report: Report) -> None:
    asking = _by_last_result(story)
    for record in story.records:
        if record["op"] == "refused":
            report.add("invalid", f"{record['wire']} request", "; ".join(record["problems"]), record)
        if record["op"] != "turn":
            continue
        messages = _messages(record)
        _check_pairs(story, report, record, messages)
        under_way = [one for one in asking.get(_last_result(messages), ()) if story.is_under_way(one, record["t"])]
        _check_complete(story, report, record, messages, under_way)


def _by_last_result(story: Story) -> dict[str, list[str]]:
    """Requests of clients by the last result in them, which no other step has."""
    found: dict[str, list[str]] = defaultdict(list)
    for request, invoke in story.invokes.items():
        results = [item for item in invoke["view"] if item[0] == "results"]
        if results and results[-1][1]:
            found[results[-1][1][-1]].append(request)
    return found


def _messages(turn: Record) -> Sequence[Message]:
    if turn["wire"] == MESSAGES:
        return from_json(turn["body"])
    try:
        return find_wire(turn["wire"]).decode_request(turn["body"]).messages
    except UnbrokenError:
        return ()


def _last_result(messages: Sequence[Message]) -> str:
    texts = [result.text for message in messages if isinstance(message, ToolMessage) for result in message.results]
    return next((text for text in reversed(texts) if text.startswith(("Result of", "Error: Result of"))), "")


def _check_pairs(story: Story, report: Report, turn: Record, messages: Sequence[Message]) -> None:
    """Each result is next to its own call."""
    where = story.conversation(turn["account"])
    seen: set[str] = set()
    for at, message in enumerate(messages):
        if not isinstance(message, Assistant) or not message.calls:
            continue
        after = messages[at + 1] if at + 1 < len(messages) else None
        texts = [result.text for result in after.results] if isinstance(after, ToolMessage) else []
        for call, text in zip(message.calls, texts, strict=False):
            ref = (call.arguments or {}).get("ref", "")
            if "edited" in (call.arguments or {}):
                continue
            if "Result of" in text and f"Result of {ref or call.name} " not in text:
                report.add("swapped", where, f"{ref or call.name} is answered {text!r}", turn)
            if ref in seen:
                report.add("doubled", where, f"the model was sent {ref} twice", turn)
            seen |= {ref} if ref else set()


def _check_complete(
    story: Story, report: Report, turn: Record, messages: Sequence[Message], requests: Sequence[str]
) -> None:
    """Every turn that the client's history has from its first call on is sent with all its calls. `requests` are those
    that the model may have been asked for."""
    sent = {(call.arguments or {}).get("ref", "") for m in messages if isinstance(m, Assistant) for call in m.calls}
    cut = [_cut_turn(story, request, sent) for request in requests]
    if not cut or None in cut:
        return
    number, missing = cast("tuple[int, list[str]]", cut[0])
    invoke = story.invokes[requests[0]]
    words = f"answer {number} was sent back to the model without {', '.join(missing)}"
    report.add("shortened", invoke["conversation"], words, story.turns[number], invoke, turn)


def _cut_turn(story: Story, request: str, sent: set[str]) -> tuple[int, list[str]] | None:
    """The first turn in this client's history of which calls are missing in what was sent, without a report to the
    client."""
    conversation = story.invokes[request]["conversation"]
    if not story.habits(conversation)["serial"]:
        return None
    excused = story.edited(request) | story.told[conversation]
    if story.habits(conversation)["ids"] != "keep":  # then nobody knows that there was more of what it interrupted
        excused |= story.interrupted(request)
    for number in sorted({place.turn for _, place in story.handed(request) if not place.position} - excused):
        refs = [call[1]["ref"] for call in story.turns[number]["calls"] if "ref" in call[1]]
        if missing := [ref for ref in refs if ref not in sent]:
            return number, missing
    return None


# Processes


def _check_processes(story: Story, report: Report) -> None:
    """Nothing is late on a machine that gives the test itself no time."""
    starved = any(record["op"] == "starved" for record in story.records)
    for record in story.records:
        if starved and (record["op"] == "health" or record.get("problem") == "timeout"):
            continue
        if record["op"] == "info" and record["problem"] == "timeout":
            report.add("hung", record["conversation"], "no answer in time", story.invokes[record["request"]], record)
        elif record["op"] == "crashed":
            report.add("crashed", record["where"], f"it ended with {record['code']}", record)
        elif record["op"] == "health":
            report.slowest_health = max(report.slowest_health, record["seconds"])
            if record["problem"] or record["seconds"] > SLOWEST_HEALTH:
                words = record["problem"] or f"/healthz took {record['seconds']} s"
                report.add("unhealthy", f"gateway {record['gateway']}", words, record)
        elif record["op"] == "end" and record["ending"] == "gave up":
            habits = story.habits(record["conversation"])
            forgotten = habits["chained"] and story.lost_store
            if habits["ids"] == "keep" and (habits["chained"] or not habits["wild"]) and not forgotten:
                last = [one for one in story.outcomes if one["conversation"] == record["conversation"]][-1:]
                words = f"the client could not finish: {last[0].get('data', '')[:200] if last else ''}"
                report.add("stuck", record["conversation"], words, *last)


def _check_keys(story: Story, report: Report) -> None:
    """Whatever happens to the store, known keys are admitted, and spent and revoked ones are not."""
    refused: dict[str, float] = {}
    for record in (each for each in story.records if each["op"] == "key"):
        state, status, where = record["state"], record["status"], f"gateway {record['gateway']}"
        if state == "known" and status in (401, 402, 403):
            report.add("locked out", where, f"a known key was refused with {status}", record)
        elif state != "known" and status in (401, 402):
            refused.setdefault(state, record["t"])
        elif status == 200 and record["t"] > refused.get(state, inf) + ALL_KNOW:
            report.add("reopened", where, f"a key that is {state} was admitted", record)


def _short(record: Record) -> Record:
    """Without long texts."""
    kept: Record = {}
    for name, value in record.items():
        text = value if isinstance(value, str) else json.dumps(value)
        long = len(text) > 600
        kept[name] = f"{text[:600]}…" if long else cast("Any", value)
    return kept
