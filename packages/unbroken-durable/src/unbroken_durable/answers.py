"""Answers to the calls that a run waits for: checked and stored as JSON, and read again when the run is driven."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, cast

from unbroken.errors import UserError
from unbroken.tools.approval import Allow, Approval, Deny, Edit
from unbroken.tools.results import to_parts
from unbroken.trajectory.lines import approval_fields, read_approval
from unbroken_durable.database import already_answered
from unbroken_durable.records import RunRow
from unbroken_wires.messages import ToolResult
from unbroken_wires.transcript.saved import read_result, write_result

NOBODY_ANSWERED = "nobody answered in time"
NEEDS_APPROVAL = "approval"
NEEDS_RESULT = "result"


def encode_answers(row: RunRow, answers: Mapping[str, object], before: Collection[str]) -> dict[int, tuple[str, str]]:
    """The answers by the numbers of the calls, each with the call's id, as JSON. `before`: the ids that have been
    answered."""
    if not isinstance(answers, Mapping) or not answers:  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        raise UserError("journal.answer: the answers are a dict by call id, for example {call_id: Allow()}")
    pending = {str(call["id"]): call for call in row.pending}
    encoded: dict[int, tuple[str, str]] = {}
    for id, answer in answers.items():
        call = pending.get(id)
        if call is None:
            if id in before:
                raise already_answered(row.run_id, id)
            known = ", ".join(f"`{each}` ({call['name']})" for each, call in pending.items()) or "none"
            raise UserError(f"run `{row.run_id}` ({row.state}): no call `{id}` waits for an answer; waiting: {known}")
        encoded[call["call"]] = id, json.dumps(_encode(row, call, answer))
    return encoded


def _encode(row: RunRow, call: dict[str, Any], answer: object) -> dict[str, Any]:
    needs_result = call.get("needs") == NEEDS_RESULT
    wanted = "the result of the call, or Deny()" if needs_result else "Allow(), Deny() or Edit({…})"
    if isinstance(answer, ToolResult):
        # Of a call that may have run before its process died, somebody can find out what it did.
        if needs_result or call.get("uncertain"):
            return {"result": write_result(answer)}
        raise UserError(
            f"run `{row.run_id}`: call `{call['id']}` ({call['name']}) waits for an approval, and its result comes "
            f"from its tool: use {wanted}"
        )
    if isinstance(answer, Deny) or (isinstance(answer, Allow | Edit) and not needs_result):
        return approval_fields(answer)
    if needs_result and not isinstance(answer, Allow | Edit):
        return {"result": write_result(ToolResult(call["id"], to_parts(cast("Any", answer)), name=call["name"]))}
    raise UserError(
        f"run `{row.run_id}`: {answer!r} is no answer to call `{call['id']}` ({call['name']}): use {wanted}"
    )


def read_answers(pending: Collection[dict[str, Any]], given: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """The answers to these calls, by their ids."""
    return {str(call["id"]): _read(given[call["call"]]) for call in pending if call["call"] in given}


def _read(saved: dict[str, Any]) -> Approval | ToolResult:
    return read_result(saved["result"]) if "result" in saved else read_approval(saved)


def expired_answers(pending: Collection[dict[str, Any]]) -> dict[str, Any]:
    """For calls whose time is over."""
    return {str(call["id"]): Deny(NOBODY_ANSWERED) for call in pending}
