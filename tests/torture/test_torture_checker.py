"""A check that cannot fail is worthless: every violation is planted in a history, and the checker reports just that."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torture.checker import KINDS, Report, check
from torture.history import Record, account_mark, turn_mark
from torture.overrun import BUDGET, CENT, MONEY, PER_MINUTE, TOKENS, check_overrun
from torture.poison_runs import check_poison, script
from torture.recorded_runs import check_runs
from unbroken import Agent, ScriptedModel, tool
from unbroken.tools.approval import OUTCOME_UNKNOWN
from unbroken_durable import drive, open_journal
from unbroken_wires.messages import Assistant, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript import to_json

MINE, YOURS = account_mark("mine"), account_mark("yours")
REFS = [f"{turn_mark(1000)}.1", f"{turn_mark(1000)}.2"]
LOOK = ["lookup", {"what": "bills"}]
CALLS = [LOOK, *(["pay", {"from_account": MINE, "ref": ref}] for ref in REFS)]
HABITS = {"serial": True, "wild": False, "ids": "keep", "chained": False}


def asked(*calls: list[Any], account: str = MINE) -> dict[str, Any]:
    """What the model was sent on openai-chat: the system prompt, the question, and these calls with their results."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"You pay from {account}."},
        {"role": "user", "content": "Please pay my bills."},
    ]
    if calls:
        made = [
            {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for at, (name, arguments) in enumerate(calls)
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": made})
        messages += [
            {"role": "tool", "tool_call_id": f"c{at}", "content": result_of(call)} for at, call in enumerate(calls)
        ]
    return {"model": "big", "messages": messages}


def result_of(call: list[Any]) -> str:
    return f"Result of {call[1].get('ref', call[0])} for {MINE}, number {CALLS.index(call)}."


def turn(number: int, calls: list[Any], body: dict[str, Any], account: str = MINE) -> Record:
    mark = turn_mark(number)
    fields: Record = {"number": number, "mark": mark, "account": account, "wire": "openai-chat", "body": body}
    return {"op": "turn", **fields, "text": "", "calls": calls}


def invoke(request: str, view: list[Any], kind: str = "answer") -> Record:
    fields: Record = {"conversation": "mine", "request": request, "kind": kind, "view": view}
    return {"op": "invoke", **fields, "body": json.dumps(view)}


def ok(request: str, calls: list[Any], answer: int = 0) -> Record:
    fields: Record = {"conversation": "mine", "request": request, "headers": {}, "calls": calls, "answer": answer}
    return {"op": "ok", **fields, "text": "", "malformed": "", "data": json.dumps(calls)}


def honest() -> list[Record]:
    """A held turn of three calls, released one at a time, and the model's last answer."""
    view: list[Any] = [["system", 0], ["user", "Please pay my bills."]]
    records: list[Record] = [
        {"op": "start", "conversation": "mine", "account": MINE, "habits": HABITS},
        {"op": "start", "conversation": "yours", "account": YOURS, "habits": HABITS},
        invoke("r0", view),
        turn(1000, CALLS, asked()),
        ok("r0", [CALLS[0]], 1000),
    ]
    for at in range(3):
        view = [*view, ["answer", f"r{at}", False], ["results", [result_of(CALLS[at])]]]
        records.append(invoke(f"r{at + 1}", view))
        if at < 2:
            records.append(ok(f"r{at + 1}", [CALLS[at + 1]]))
    records += [
        turn(1001, [], asked(*CALLS)),
        ok("r3", [], 1001),
        {"op": "end", "conversation": "mine", "ending": "finished"},
        {"op": "health", "gateway": 0, "seconds": 0.01, "problem": ""},
    ]
    return in_time(records)


def in_time(records: list[Record]) -> list[Record]:
    return [{**record, "t": float(at)} for at, record in enumerate(records)]


def find(records: list[Record], op: str, request: str) -> Record:
    return next(record for record in records if record["op"] == op and record.get("request") == request)


def turn_of(records: list[Record], number: int) -> Record:
    return next(record for record in records if record["op"] == "turn" and record["number"] == number)


# Each of these breaks one promise in an honest history.


def give_anothers_call(records: list[Record]) -> None:
    find(records, "ok", "r1")["data"] += YOURS


def give_anothers_reasoning(records: list[Record]) -> None:
    records.insert(2, turn(1002, [], asked(account=YOURS), YOURS) | {"t": 1.5})
    find(records, "ok", "r0")["data"] += turn_mark(1002)


def send_anothers_account(records: list[Record]) -> None:
    turn_of(records, 1001)["body"]["messages"].append({"role": "user", "content": YOURS})


def send_anothers_reasoning(records: list[Record]) -> None:
    records.insert(2, turn(1002, [], asked(account=YOURS), YOURS) | {"t": 1.5})
    turn_of(records, 1001)["body"]["messages"].append({"role": "user", "content": turn_mark(1002)})


def lose_the_rest(records: list[Record]) -> None:
    """After the first result the model is asked, and the client is not informed."""
    find(records, "ok", "r1").update(calls=[], answer=1001)
    del records[records.index(find(records, "invoke", "r2")) :]
    records.append(turn(1001, [], asked()) | {"t": 99.0})


def hand_out_twice(records: list[Record]) -> None:
    find(records, "ok", "r2").update(calls=[CALLS[1]])


def skip_one(records: list[Record]) -> None:
    find(records, "ok", "r1").update(calls=[CALLS[2]])


def send_back_less(records: list[Record]) -> None:
    turn_of(records, 1001)["body"] = asked(CALLS[0], CALLS[2])


def send_a_call_twice(records: list[Record]) -> None:
    turn_of(records, 1001)["body"]["messages"] += asked(CALLS[1])["messages"][2:]


def give_less(records: list[Record]) -> None:
    """A client that takes several calls gets two of three."""
    records[0]["habits"] = {**HABITS, "serial": False}
    find(records, "ok", "r0").update(calls=CALLS[:2])
    del records[records.index(find(records, "invoke", "r1")) :]


def swap_results(records: list[Record]) -> None:
    results = turn_of(records, 1001)["body"]["messages"][-2:]
    results[0]["content"], results[1]["content"] = results[1]["content"], results[0]["content"]


def refuse(records: list[Record]) -> None:
    records.append({"op": "refused", "t": 99.0, "wire": "openai-chat", "body": {}, "problems": ["no result"]})


def answer_a_regeneration_with_the_same(records: list[Record]) -> None:
    again = invoke("r9", find(records, "invoke", "r0")["view"], "regenerate") | {"t": 98.0}
    records += [again, ok("r9", [CALLS[0]], 1000) | {"t": 99.0}]


def malform(records: list[Record]) -> None:
    find(records, "ok", "r3")["malformed"] = "no finish_reason"


def give_up(records: list[Record]) -> None:
    next(record for record in records if record["op"] == "end")["ending"] = "gave up"


def hang(records: list[Record]) -> None:
    records.append({"op": "info", "t": 99.0, "conversation": "mine", "request": "r3", "problem": "timeout"})


def reopen(records: list[Record]) -> None:
    for status in (402, 503, 200):
        records.append({"op": "key", "gateway": 0, "state": "spent", "status": status, "t": 10.0 * len(records)})


def lock_out(records: list[Record]) -> None:
    records.append({"op": "key", "gateway": 1, "state": "known", "status": 401, "t": 100.0})


def fail_health(records: list[Record]) -> None:
    records[-1]["problem"] = "ClientConnectorError"


def be_slow(records: list[Record]) -> None:
    records[-1]["seconds"] = 20.0


def crash(records: list[Record]) -> None:
    records.append({"op": "crashed", "t": 99.0, "where": "clients", "code": 1})


PLANTED: dict[Callable[[list[Record]], None], str] = {
    give_anothers_call: "another's",
    give_anothers_reasoning: "another's",
    send_anothers_account: "mixed",
    send_anothers_reasoning: "mixed",
    lose_the_rest: "lost",
    hand_out_twice: "doubled",
    skip_one: "disordered",
    send_back_less: "shortened",
    send_a_call_twice: "doubled",
    give_less: "shortened",
    swap_results: "swapped",
    refuse: "invalid",
    answer_a_regeneration_with_the_same: "stale",
    malform: "malformed",
    give_up: "stuck",
    hang: "hung",
    reopen: "reopened",
    lock_out: "locked out",
    fail_health: "unhealthy",
    be_slow: "unhealthy",
    crash: "crashed",
}
OF_RUNS = {"ran twice", "unanswered", "invented", "unfinished"}
OF_POISON = {"harmed", "endless"}
OF_WRITES = {"damaged", "torn", "unreadable", "unusable"}


def test_an_honest_history_has_no_violations() -> None:
    report = check(honest())
    assert report.violations == []
    assert report.counts["ok"] == 4


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_reported_with_its_evidence(plant: Callable[[list[Record]], None]) -> None:
    records = copy.deepcopy(honest())
    plant(records)
    report = check(sorted(records, key=lambda record: record["t"]))
    found = [violation for violation in report.violations if violation.kind == PLANTED[plant]]
    assert found, report.violations
    assert found[0].excerpt
    assert found[0].words


def test_nothing_counts_as_late_on_an_overloaded_machine() -> None:
    records = copy.deepcopy(honest())
    be_slow(records)
    records.insert(0, {"op": "starved", "t": -1.0, "seconds": 5.0})
    assert check(records).violations == []


def test_every_kind_of_violation_is_planted() -> None:
    assert set(PLANTED.values()) | OF_RUNS | OF_POISON | OF_WRITES | {"overrun"} == set(KINDS)


@pytest.mark.parametrize("plant", [lose_the_rest, send_back_less], ids=lambda plant: plant.__name__)
def test_a_client_that_was_told_for_a_reason_has_lost_nothing(plant: Callable[[list[Record]], None]) -> None:
    records = copy.deepcopy(honest())
    plant(records)
    answer = find(records, "ok", "r1") if plant is lose_the_rest else find(records, "ok", "r3")
    answer["headers"] = {"x-unbroken-turn": "lost; expired"}
    assert check(records).violations == []
    answer["headers"] = {"x-unbroken-turn": "lost; unknown"}  # though nothing was lost, and the client kept its ids
    assert [violation.kind for violation in check(records).violations] == ["lost"]
    records.append({"op": "fault", "t": 0.5, "kind": "flush store"})
    assert check(records).violations == []


def test_an_answer_to_identical_bytes_is_not_a_leak() -> None:
    """Two users who have written nothing individual yet: one gets the answer to what both have asked."""
    records = copy.deepcopy(honest())
    shared = turn(1002, [], asked(account="nobody"), account="")
    same = {"body": "the same", "view": [["user", "Please pay my bills."]]}
    mine, yours = invoke("r8", []) | same, invoke("r9", []) | same | {"conversation": "yours"}
    given = ok("r9", [], 1002) | {"conversation": "yours", "data": turn_mark(1002)}
    records += in_time([shared, mine, yours, ok("r8", [], 1002) | {"data": turn_mark(1002)}, given])
    assert check(records).violations == []
    mine["body"] = "something else"
    records = [mine if record.get("request") == "r8" and record["op"] == "invoke" else record for record in records]
    assert [violation.kind for violation in check(records).violations] == ["another's"]


@pytest.mark.parametrize(("mark", "kinds"), [("header", []), ("none", ["another's"])])
def test_a_client_that_marked_identical_bytes_as_a_retry_continues_with_what_it_got(
    mark: str, kinds: list[str]
) -> None:
    records = copy.deepcopy(honest())
    records[1]["habits"] = HABITS | {"retry": mark}
    same = {"body": "the same", "view": [["user", "Please pay my bills."]]}
    yours: Record = {"conversation": "yours"}
    records += in_time(
        [
            turn(1002, [], asked(account="nobody"), account=""),
            invoke("r7", []) | same,
            ok("r7", [], 1002) | {"data": turn_mark(1002)},
            invoke("r8", [], "retry") | same | yours,
            ok("r8", []) | yours,
            invoke("r9", [["user", "More."]]) | yours,
            ok("r9", []) | yours | {"data": turn_mark(1002)},
        ]
    )
    assert [violation.kind for violation in check(records).violations] == kinds


def test_a_client_whose_unmarked_bytes_were_in_flight_already_continues_with_what_it_got() -> None:
    records = copy.deepcopy(honest())
    records[1]["habits"] = HABITS | {"retry": "none"}
    same = {"body": "the same", "view": [["user", "Please pay my bills."]]}
    yours: Record = {"conversation": "yours"}
    records += in_time(
        [
            turn(1002, [], asked(account="nobody"), account=""),
            invoke("r7", []) | same,
            invoke("r8", []) | same | yours,
            ok("r7", [], 1002) | {"data": turn_mark(1002)},
            ok("r8", []) | yours,
            invoke("r9", [["user", "More."]]) | yours,
            ok("r9", []) | yours | {"data": turn_mark(1002)},
        ]
    )
    assert check(records).violations == []


# Recorded runs


def run_history(results: dict[int, list[str]], *effects: tuple[str, int, str]) -> list[Record]:
    calls = [
        ToolCall(f"c{number}", "transfer", {"number": number}, raw=f'{{"number": {number}}}') for number in results
    ]
    given = [
        ToolResult(f"c{number}", ToolResult.of(calls[0], text).content)
        for number, texts in results.items()
        for text in texts
    ]
    messages = [User.of("Go."), Assistant("", tuple(calls)), ToolMessage(tuple(given)), Assistant("Paid.")]
    return in_time(
        [
            *({"op": "effect", "tool": tool, "number": number, "key": key} for tool, number, key in effects),
            {"op": "finished", "stop_reason": "answered", "messages": to_json(messages)},
        ]
    )


@pytest.mark.parametrize(
    ("records", "kinds"),
    [
        (run_history({1: ["done 1"]}, ("transfer", 1, "k1")), []),
        (run_history({1: ["Error: outcome unknown"]}, ("transfer", 1, "k1")), []),
        (run_history({1: ["done 1"]}, ("deposit", 1, "k1"), ("deposit", 1, "k1")), []),
        (run_history({1: ["done 1"]}, ("transfer", 1, "k1"), ("transfer", 1, "k1")), ["ran twice"]),
        (run_history({1: ["done 1"]}, ("deposit", 1, "k1"), ("deposit", 1, "k2")), ["ran twice"]),
        (run_history({1: []}, ("transfer", 1, "k1")), ["unanswered"]),
        (run_history({1: ["done 1", "done 1"]}, ("transfer", 1, "k1")), ["unanswered"]),
        (run_history({1: ["done 1"]}), ["invented"]),
        (run_history({1: ["done 2"]}, ("transfer", 1, "k1")), ["swapped"]),
        (in_time([{"op": "crashed", "where": "a process", "code": 1}]), ["crashed", "unfinished"]),
    ],
)
def test_the_ledger_and_the_history_of_a_run_are_compared(records: list[Record], kinds: list[str]) -> None:
    assert [violation.kind for violation in check_runs(records, "run").violations] == kinds


def test_a_bad_run_that_is_driven_for_ever_and_a_write_that_it_made_unknown_are_reported(tmp_path: Path) -> None:
    @tool
    async def transfer(number: int) -> str:
        """Its process died in it."""
        return OUTCOME_UNKNOWN

    async def main() -> Report:
        report = Report()
        report.counts["killed"] = 79
        async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
            await journal.start("bad-read", "Go.", run_id="bad-read")
            for name in ("run-0", "run-1"):
                await journal.start("payer", "Pay.", run_id=name)
            await drive({"payer": Agent(ScriptedModel(script), [transfer])}, journal, "run-0")
            await check_poison(report, journal, 3, known=True)
        return report

    found = {(violation.kind, violation.where) for violation in asyncio.run(main()).violations}
    assert found == {
        ("endless", "the workers"),
        ("endless", "bad-read"),
        ("unfinished", "run-1"),
        ("harmed", "the others"),
    }


# Budgets


def answers(model: str, count: int, at: float = 30.0) -> list[Record]:
    return [{"op": "answered", "t": at + number / 1000, "model": model, "tokens": 100} for number in range(count)]


def spent_at(at: float) -> list[Record]:
    return [{"op": "status", "t": at, "model": MONEY, "status": 402}]


FULL, MINUTELY = round(BUDGET / CENT), PER_MINUTE // 100


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([*answers(MONEY, FULL), *spent_at(40.0), *answers(TOKENS, MINUTELY), *answers(TOKENS, MINUTELY, 90.0)], []),
        ([*answers(MONEY, FULL + 1), *answers(TOKENS, MINUTELY + 1), *answers(TOKENS, 9, at=1.0)], []),
        (answers(MONEY, FULL + 2), ["1.02 USD of 1.00 USD were spent"]),
        (answers(TOKENS, MINUTELY + 2), ["4,200 tokens of 4,000 were used in minute 0"]),
        ([*answers(MONEY, FULL - 1), *spent_at(40.0)], ["the budget was reported as spent before it was"]),
    ],
)
def test_what_providers_answered_is_compared_with_what_was_allowed(records: list[Record], words: list[str]) -> None:
    report = check_overrun(records)
    assert [violation.words for violation in report.violations] == words
    assert {violation.kind for violation in report.violations} <= {"overrun"}
