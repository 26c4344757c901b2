"""The scorers that need no model: the exact answer, texts in it, calls in order, and a type that it must have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from unbroken.agent.output import ANSWER, Output
from unbroken.agent.result import Result
from unbroken.agent.run_state import CallRecord
from unbroken.errors import UserError
from unbroken.tools.schema import ArgumentsDoNotFit
from unbroken_testing.evals.cases import Case, ExpectedCall, Score, Scorer, as_scorer
from unbroken_wires.messages import Json
from unbroken_wires.validation import checked

_QUOTED = 200
"""Characters of an answer that a reason quotes."""
_LISTED = 12
"""Calls that a reason lists."""


def scorers_of(case: Case) -> list[Scorer]:
    """All scorers of a case, those for its `tools` first."""
    expected = [called(*case.tools)] if case.tools else []
    return [*expected, *map(as_scorer, case.scorers)] or [_ANSWERED]


async def _ends_with_an_answer(case: Case, result: Result[Any]) -> Score:
    if result.stop_reason != "waiting" and not result.cut_off:
        return Score(1.0)
    return Score(0.0, f"the run ended as {result.stop_reason} without an answer")


_ANSWERED = Scorer(_ends_with_an_answer, name="answered")


@checked
def exact(expected: Any, *, ignore_case: bool = False) -> Scorer:
    """The answer is this text, without blanks around it. If `expected` is not a text, it is compared with the
    structured answer (`output=`), or with the answer read as JSON."""

    async def score(case: Case, result: Result[Any]) -> Score:
        if not isinstance(expected, str):
            answer = _value(result)
            return _yes_or_no(answer == to_jsonable_python(expected), f"the answer is {_quoted(_shown(answer))}")
        answer, wanted = result.text.strip(), expected.strip()
        if ignore_case:
            answer, wanted = answer.casefold(), wanted.casefold()
        return _yes_or_no(answer == wanted, f"the answer is {_quoted(result.text)}")

    return Scorer(score, name=f"exact {_quoted(_shown(expected))}{_ignoring(ignore_case)}")


@checked
def contains(*texts: str, ignore_case: bool = False) -> Scorer:
    """The answer contains each of these texts. The value is the share of them that it contains."""
    if not texts or not all(texts):
        raise UserError("contains(): give at least one text, and no empty one")

    async def score(case: Case, result: Result[Any]) -> Score:
        answer = result.text.casefold() if ignore_case else result.text
        missing = [text for text in texts if (text.casefold() if ignore_case else text) not in answer]
        if not missing:
            return Score(1.0)
        words = f"{', '.join(map(_quoted, missing))} not in {_quoted(result.text)}"
        return Score((len(texts) - len(missing)) / len(texts), words)

    return Scorer(score, name=f"contains {', '.join(map(_quoted, texts))}{_ignoring(ignore_case)}")


@checked
def called(*calls: ExpectedCall, only: bool = False) -> Scorer:
    """The run makes these calls in this order, with any others between them, or with `only` no others:
    `called("search", {"book": {"seat": 3}})`. The value is the share of the calls that were found in order."""
    if not calls and not only:
        raise UserError("called(): name the tools; called(only=True) passes if there are no calls at all")
    wanted = [_expected(call) for call in calls]

    async def score(case: Case, result: Result[Any]) -> Score:
        found = 0
        others: list[CallRecord] = []
        calls = made_calls(result)
        for record in calls:
            if found < len(wanted) and _is_call(record, *wanted[found]):
                found += 1
            else:
                others.append(record)
        if found < len(wanted):
            after = f" after {_call(*wanted[found - 1])}" if found else ""
            return Score(found / len(wanted), f"{_call(*wanted[found])} was not called{after}; {_made(calls)}")
        if only and others:
            return Score(0.0, f"{_call(others[0].name, others[0].arguments)} was called too; {_made(calls)}")
        return Score(1.0)

    names = ", ".join(_call(*each) for each in wanted) or "nothing"
    return Scorer(score, name=f"called {names}{' and nothing else' if only and wanted else ''}")


@checked
def fits(kind: Any) -> Scorer:
    """The answer is, or holds as JSON, a value of this type: a pydantic model, a dataclass, or types made of them."""
    try:
        wanted = Output[Any].of(kind)
    except UserError as error:
        raise UserError(str(error).replace("output=", "fits: ", 1)) from error.__cause__

    async def score(case: Case, result: Result[Any]) -> Score:
        try:
            text = json.dumps(_value(result)) if _is_typed(result) else result.text
            wanted.read_text(text)
        except ArgumentsDoNotFit as error:
            words = str(error).partition("; call `")[0]
            return Score(0.0, f"{words}: {_quoted(result.text)}")
        return Score(1.0)

    return Scorer(score, name=f"fits {getattr(kind, '__name__', repr(kind))}")


def _expected(call: ExpectedCall) -> tuple[str, Mapping[str, Json]]:
    if isinstance(call, str):
        return call, {}
    if len(call) != 1:
        raise UserError(f"called(): {dict(call)} is not one call: write {{name: {{argument: value}}}}")
    return next(iter(call.items()))


def _yes_or_no(yes: bool, reason: str) -> Score:
    return Score(1.0) if yes else Score(0.0, reason)


def _is_typed(result: Result[Any]) -> bool:
    return result.output is not None and (result.structured or not isinstance(result.output, str))


def _value(result: Result[Any]) -> Json:
    """The structured answer, or the answer read as JSON, or its text."""
    if _is_typed(result):
        return to_jsonable_python(result.output)
    try:
        return json.loads(result.text)
    except (ValueError, RecursionError):
        return result.text


def made_calls(result: Result[Any]) -> list[CallRecord]:
    """The calls of a run, without the one that gives a structured answer."""
    return [call for call in result.calls if call.name != ANSWER]


def _is_call(record: CallRecord, name: str, arguments: Mapping[str, Json]) -> bool:
    return record.name == name and all(
        argument in record.arguments and record.arguments[argument] == value for argument, value in arguments.items()
    )


def call_text(name: str, arguments: Mapping[str, Json]) -> str:
    """`book(seat=3)`"""
    inside = ", ".join(f"{argument}={_shown(value, True)}" for argument, value in arguments.items())
    return f"{name}({_cut(inside)})"


def _call(name: str, arguments: Mapping[str, Json]) -> str:
    return f"`{call_text(name, arguments) if arguments else name}`"


def _made(calls: Sequence[CallRecord]) -> str:
    if not calls:
        return "no tool was called"
    listed = ", ".join(call_text(call.name, call.arguments) for call in calls[:_LISTED])
    return f"the calls were {listed}{f' and {len(calls) - _LISTED} more' if len(calls) > _LISTED else ''}"


def _shown(value: Any, quoted: bool = False) -> str:
    if isinstance(value, str) and not quoted:
        return value
    return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)


def _quoted(text: str) -> str:
    return f'"{_cut(" ".join(text[: 4 * _QUOTED].split()))}"'


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 1]}…"


def _ignoring(ignore_case: bool) -> str:
    return " in any case" if ignore_case else ""
