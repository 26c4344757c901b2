"""What the load test reports if a gateway books something else than the providers have sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torture.booked import Line, check_booked, read_lines
from torture.history import Record
from unbroken_gateway.spending.report import Spend

FIRST, SECOND, CUT = 1000, 1001, 1002
"""The numbers of three answers: two were sent to their end, and the client of the third left."""


def records_of_three() -> list[Record]:
    starts = [{"op": "start", "t": 0.0, "conversation": name, "account": f"zq{name}"} for name in "ab"]
    turns = [
        {"op": "turn", "t": 1.0, "number": FIRST, "account": "zqa"},
        {"op": "turn", "t": 4.0, "number": SECOND, "account": "zqb"},
        {"op": "turn", "t": 6.0, "number": CUT, "account": "zqb"},
    ]
    return [
        *starts,
        *turns,
        {"op": "sent", "t": 2.0, "number": FIRST},
        {"op": "sent", "t": 5.0, "number": SECOND},
        {"op": "ok", "t": 2.1, "conversation": "a", "request": "a.1", "answer": FIRST},
        {"op": "invoke", "t": 5.9, "conversation": "b", "request": "b.2"},
        {"op": "info", "t": 7.0, "conversation": "b", "request": "b.2", "problem": "left"},
    ]


LINES = [Line(200, FIRST, 7), Line(200, SECOND, 7), Line(499, CUT, 1), Line(200, 0, 0)]


def spend_of(*lines: Line) -> Spend:
    input, output = sum(line.input for line in lines), sum(line.output for line in lines)
    count = sum(line.input > 0 for line in lines)
    return Spend(requests=count, input=input, output=output, cost=1000 * input + 2000 * output)


def test_answers_that_were_sent_are_exact_and_those_that_were_left_are_listed() -> None:
    booked = check_booked(records_of_three(), LINES, spend_of(*LINES))
    assert booked.broken == []
    assert (booked.sent, booked.early) == (2, {CUT: CUT})
    silent = [line for line in LINES if line.input != CUT]
    assert check_booked(records_of_three(), silent, spend_of(*silent)).early == {CUT: 0}


def test_an_attempt_that_failed_is_in_the_store_and_in_no_log() -> None:
    silent = [line for line in LINES if line.input != CUT]
    booked = check_booked(records_of_three(), silent, spend_of(*LINES))
    assert booked.broken == []
    assert booked.others == CUT


def test_what_a_provider_did_not_send_because_it_died_is_listed() -> None:
    stayed = [record for record in records_of_three() if record["op"] != "info"]
    assert check_booked(stayed, LINES, spend_of(*LINES), dead=range(CUT, CUT + 1)).broken == []
    assert "broken off" in check_booked(stayed, LINES, spend_of(*LINES)).broken[0]


@pytest.mark.parametrize(
    ("lines", "spend", "words"),
    [
        (LINES[1:], spend_of(*LINES[1:]), "answer 1000, sent to its end, is booked not"),
        ([Line(200, FIRST, 6), *LINES[1:]], spend_of(Line(200, FIRST, 6), *LINES[1:]), "with 6 output tokens"),
        ([*LINES, LINES[0]], spend_of(*LINES, LINES[0]), "booked 2 times"),
        ([*LINES, Line(200, 5000, 7)], spend_of(*LINES, Line(200, 5000, 7)), "no provider has sent"),
        (LINES, spend_of(*LINES, LINES[0]), "1,000 input tokens of 1 answers that no log has"),
        (LINES, spend_of(*LINES[1:]), "-1,000 input tokens"),
        (LINES, replace(spend_of(*LINES), cost=1), "do not cost"),
    ],
)
def test_a_difference_is_found(lines: list[Line], spend: Spend, words: str) -> None:
    assert any(words in each for each in check_booked(records_of_three(), lines, spend).broken)


def test_the_access_log_is_read_with_and_without_a_request_id() -> None:
    line = (
        "2026-11-18T18:18:40.855Z INFO unbroken.gateway: request key=- client=gemini alias=m status=200 seconds=9.1 "
        "calls=1 handed=1/3 repairs=- upstream=m/deployment-1 input=1001022 output=7 first=0.1 failed=-"
    )
    assert list(read_lines(f"{line}\n{line} [49a976672c0017b3]\nanother line\n")) == [Line(200, 1_001_022, 7)] * 2
