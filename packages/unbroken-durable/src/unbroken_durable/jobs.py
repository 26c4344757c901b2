"""Jobs: tool calls that run on other machines. The journal's database holds the call, its progress and its result, and
decides which worker may run it; an engine carries only the job's key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from unbroken.errors import UserError
from unbroken.tools.caller import ToolErrors
from unbroken.tools.context import CallContext
from unbroken.trajectory.lines import read_usage
from unbroken_durable.database import Database, storable
from unbroken_wires.messages import ToolCall, ToolResult, Usage
from unbroken_wires.transcript.saved import read_call, read_result, write_call, write_result


@dataclass(frozen=True, slots=True)
class JobLimits:
    """How many jobs of a queue may run at the same time, on all machines together; None: any number.

    - `per_queue`: of the queue.
    - `per_tool`: of each tool, or of the tools that are named: `{"render": 2}`.
    - `per_tenant`: of each tenant.
    """

    per_queue: int | None = None
    per_tool: int | Mapping[str, int] | None = None
    per_tenant: int | None = None

    def __post_init__(self) -> None:
        named = self.per_tool.values() if isinstance(self.per_tool, Mapping) else (self.per_tool,)
        for limit in (self.per_queue, self.per_tenant, *named):
            if limit is not None and limit < 1:
                raise UserError(f"a limit of {limit} jobs: nothing would run; give 1 or more, or None for no limit")

    def of_tool(self, tool: str) -> int | None:
        return self.per_tool.get(tool) if isinstance(self.per_tool, Mapping) else self.per_tool


@dataclass(frozen=True, slots=True)
class Job:
    """A call, and what its tool may know about it. `deps` and `store` stay where the run is driven."""

    key: str
    """The idempotency key of the call."""
    queue: str
    run: str
    call: ToolCall
    turn: int = 0
    fingerprint: str = ""
    nth: int = 1
    attempt: int = 0
    number: int = -1
    timeout: float | None = None
    limit: int = 0
    """Maximum characters of the result."""
    errors: ToolErrors = "full"
    tenant: str = ""

    @staticmethod
    def of(queue: str, call: ToolCall, context: CallContext[Any], timeout: float | None, limit: int) -> Job:
        about = {name: getattr(context, name) for name in _CONTEXT}
        return Job(context.key, queue, context.run, call, timeout=timeout, limit=limit, **about)

    def context(self, deps: object) -> CallContext[Any]:
        """The context of the call at the worker."""
        about = {name: getattr(self, name) for name in _CONTEXT}
        return CallContext(self.run, call_id=self.call.id, name=self.call.name, deps=deps, **about)

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in (*_CONTEXT, "timeout", "limit", "errors")}
        return json.dumps({**fields, "run": self.run, "call": write_call(self.call)}).encode()

    @staticmethod
    def decode(key: str, queue: str, tenant: str, data: bytes) -> Job:
        fields: dict[str, Any] = json.loads(data)
        fields["call"] = read_call(fields["call"])
        return Job(key=key, queue=queue, tenant=tenant, **fields)


_CONTEXT = ("turn", "fingerprint", "nth", "attempt", "number")


@dataclass(frozen=True, slots=True)
class JobClaim:
    """A worker's right to run a job and to store its result, as long as nobody has a higher token."""

    job: Job
    run: int
    """The number of the run in the journal."""
    token: int

    @property
    def was_lost(self) -> bool:
        """Another worker had started it, and did not finish."""
        return self.token > 1


Refusal: TypeAlias = Literal["full", "done"]
Progress: TypeAlias = tuple[int, str, float | None]
"""Its number from 1, the message, and which part is done."""


def add_job(database: Database, job: Job) -> Job:
    """Stores the job, unless there is one with its key. Returns it with its tenant."""
    with database.transaction():
        rows = database.query("SELECT number, tenant FROM unbroken_runs WHERE run_id = ?", job.run)
        if not rows:
            raise UserError(
                f"tool `{job.call.name}` has a queue, and run `{job.run}` is not in {database.url}: only durable runs "
                f"send calls to other machines; start it with journal.start, or leave out the middleware"
            )
        database.change(
            "INSERT INTO unbroken_jobs (key, run, tenant, queue, tool, call) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (key) DO NOTHING",
            job.key,
            rows[0][0],
            rows[0][1],
            job.queue,
            job.call.name,
            job.encode(),
        )
    return replace(job, tenant=str(rows[0][1]))


def look(database: Database, key: str, after: int) -> tuple[list[Progress], bytes | None]:
    """The progress after this number, and the result if there is one."""
    with database.transaction(writes=False):
        rows = database.query("SELECT run, state FROM unbroken_jobs WHERE key = ?", key)
        if not rows:
            raise UserError(f"job `{key}` was removed: its run has ended")
        run, state = rows[0]
        progress = database.query(
            "SELECT position, message, done FROM unbroken_progress WHERE run = ? AND key = ? AND position > ? "
            "ORDER BY position",
            run,
            key,
            after,
        )
        result = None
        if state == "done":
            result = bytes(database.query("SELECT result FROM unbroken_jobs WHERE key = ?", key)[0][0])
    return [(int(place), str(message), done) for place, message, done in progress], result


def claim_job(database: Database, key: str, limits: JobLimits) -> JobClaim | Refusal:
    """Makes the caller the job's worker. `full`: as many as may are running. `done`: there is nothing to do."""
    with database.transaction():
        database.hold_lock()
        rows = database.query(
            "SELECT run, tenant, queue, tool, call, state, token FROM unbroken_jobs WHERE key = ?"
            + database.for_update,
            key,
        )
        if not rows:
            return "done"
        run, tenant, queue, tool, call, state, token = rows[0]
        if state == "done":
            return "done"
        if state == "waiting" and _is_full(database, limits, str(queue), str(tool), str(tenant)):
            return "full"
        database.change(
            "UPDATE unbroken_jobs SET state = 'running', token = token + 1, driver = ? WHERE key = ?",
            database.driver,
            key,
        )
    return JobClaim(Job.decode(key, queue, tenant, bytes(call)), int(run), int(token) + 1)


def _is_full(database: Database, limits: JobLimits, queue: str, tool: str, tenant: str) -> bool:
    wanted: list[tuple[int | None, str, list[Any]]] = [
        (limits.per_queue, "", []),
        (limits.of_tool(tool), " AND tool = ?", [tool]),
        (limits.per_tenant, " AND tenant = ?", [tenant]),
    ]
    given = [(limit, where, values) for limit, where, values in wanted if limit is not None]
    if given:
        database.serialize(f"queue {queue}")
    for limit, where, values in given:
        statement = f"SELECT COUNT(*) FROM unbroken_jobs WHERE queue = ? AND state = 'running'{where}"
        if int(database.query(statement, queue, *values)[0][0]) >= limit:
            return True
    return False


def orphaned_jobs(database: Database, queue: str) -> list[tuple[str, int, str]]:
    """The jobs of a queue whose workers have died: key, token and tenant."""
    with database.transaction(writes=False):
        rows = database.query(
            "SELECT key, token, tenant, driver FROM unbroken_jobs WHERE queue = ? AND state = 'running'", queue
        )
        others = {str(row[3]) for row in rows} - {database.driver}
        dead = {driver for driver in others if not database.is_locked(driver)}
    return [(str(key), int(token), str(tenant)) for key, token, tenant, driver in rows if driver in dead]


def is_wanted(database: Database, claim: JobClaim) -> bool:
    """Is it still this worker's, and has nobody cancelled it or its run?"""
    with database.transaction(writes=False):
        rows = database.query(
            "SELECT j.token, j.cancelled, r.state FROM unbroken_jobs j JOIN unbroken_runs r ON r.number = j.run "
            "WHERE j.key = ?",
            claim.job.key,
        )
    return bool(rows) and (int(rows[0][0]), int(rows[0][1])) == (claim.token, 0) and rows[0][2] != "cancelled"


def add_progress(database: Database, claim: JobClaim, progress: Sequence[Progress]) -> None:
    with database.transaction():
        for position, message, done in progress:
            database.change(
                "INSERT INTO unbroken_progress (run, key, position, message, done) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (run, key, position) DO NOTHING",
                claim.run,
                claim.job.key,
                position,
                storable(message),
                done,
            )
        database.notify([claim.run])


def finish_job(database: Database, claim: JobClaim, result: ToolResult, usage: Usage | None) -> bool:
    """Stores the result. False if another worker has taken the job over."""
    saved = _encode_result(result, usage)
    with database.transaction():
        stored = database.change(
            "UPDATE unbroken_jobs SET state = 'done', result = ? WHERE key = ? AND token = ? AND state = 'running'",
            saved,
            claim.job.key,
            claim.token,
        )
        database.notify([claim.run])
    return bool(stored)


def _encode_result(result: ToolResult, usage: Usage | None) -> bytes:
    used = {} if usage is None else {"usage": usage.to_json(), "cost": usage.cost}
    return json.dumps({"result": write_result(result), **used}).encode()


def read_finished(data: bytes) -> tuple[ToolResult, Usage | None]:
    saved = json.loads(data)
    return read_result(saved["result"]), read_usage(saved.get("usage"), saved.get("cost"))


def cancel_job(database: Database, key: str, result: ToolResult) -> None:
    """A job that has not started never does, and has this result. The worker of one that runs stops it."""
    with database.transaction():
        database.change("UPDATE unbroken_jobs SET cancelled = 1 WHERE key = ? AND state = 'running'", key)
        database.change(
            "UPDATE unbroken_jobs SET state = 'done', result = ? WHERE key = ? AND state = 'waiting'",
            _encode_result(result, None),
            key,
        )
