"""The tables of a journal, and how an older one becomes a current one. `?` stands for a value in every statement."""

from __future__ import annotations

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS unbroken_version (version INTEGER NOT NULL)"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # One row for each run. `token` is the number of its drivers so far: only the last one may write;
        # `driver` is the journal that has it.
        """CREATE TABLE unbroken_runs (
            number {serial},
            run_id TEXT NOT NULL UNIQUE,
            agent TEXT NOT NULL,
            tenant TEXT NOT NULL,
            state TEXT NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            updated DOUBLE PRECISION NOT NULL,
            question TEXT NOT NULL,
            input TEXT NOT NULL,
            pending TEXT NOT NULL DEFAULT '[]',
            expires DOUBLE PRECISION,
            error TEXT NOT NULL DEFAULT '',
            token BIGINT NOT NULL DEFAULT 0,
            driver TEXT NOT NULL DEFAULT '',
            chunks BIGINT NOT NULL DEFAULT 0,
            supersessions BIGINT NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX unbroken_runs_by_state ON unbroken_runs (state)",
        "CREATE INDEX unbroken_runs_by_tenant ON unbroken_runs (tenant, state)",
        # The lines of the recordings, a few at a time. `large` says which of their texts are in the next table.
        """CREATE TABLE unbroken_chunks (
            run BIGINT NOT NULL,
            position BIGINT NOT NULL,
            token BIGINT NOT NULL,
            data {bytes} NOT NULL,
            large TEXT,
            PRIMARY KEY (run, position)
        )""",
        "CREATE TABLE unbroken_values (hash TEXT PRIMARY KEY, data {bytes} NOT NULL){without_rowid}",
        # The answers to calls that a run waited for, by the number of the call.
        """CREATE TABLE unbroken_answers (
            run BIGINT NOT NULL,
            call BIGINT NOT NULL,
            call_id TEXT NOT NULL,
            answer TEXT NOT NULL,
            given DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (run, call)
        ){without_rowid}""",
    ),
    (
        # Tool calls that run on other machines, by their idempotency keys, until their run has ended. `token` counts
        # the workers that have taken it: only the last one may store a result.
        """CREATE TABLE unbroken_jobs (
            key TEXT PRIMARY KEY,
            run BIGINT NOT NULL,
            tenant TEXT NOT NULL,
            queue TEXT NOT NULL,
            tool TEXT NOT NULL,
            call {bytes} NOT NULL,
            state TEXT NOT NULL DEFAULT 'waiting',
            token BIGINT NOT NULL DEFAULT 0,
            driver TEXT NOT NULL DEFAULT '',
            cancelled BIGINT NOT NULL DEFAULT 0,
            result {bytes}
        )""",
        "CREATE INDEX unbroken_jobs_by_run ON unbroken_jobs (run)",
        "CREATE INDEX unbroken_jobs_by_queue ON unbroken_jobs (queue, state)",
        """CREATE TABLE unbroken_progress (
            run BIGINT NOT NULL,
            key TEXT NOT NULL,
            position BIGINT NOT NULL,
            message TEXT NOT NULL,
            done DOUBLE PRECISION,
            PRIMARY KEY (run, key, position)
        ){without_rowid}""",
    ),
    # The span that the drives of a run belong to.
    ("ALTER TABLE unbroken_runs ADD COLUMN trace TEXT NOT NULL DEFAULT ''",),
    # The journal's own id: an engine may serve several journals, with runs of the same id.
    ("ALTER TABLE unbroken_version ADD COLUMN journal TEXT NOT NULL DEFAULT ''",),
    # How many drivers of a run have died: all, and the last ones in a row. When an engine was sent a task for it last.
    (
        "ALTER TABLE unbroken_runs ADD COLUMN deaths BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE unbroken_runs ADD COLUMN fruitless BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE unbroken_runs ADD COLUMN sent DOUBLE PRECISION NOT NULL DEFAULT 0",
    ),
    (
        # Results of calls that ended when their driver had lost the run, as lines of its recording, by the idempotency
        # keys of the calls; until the driver that has the run uses them.
        """CREATE TABLE unbroken_late_results (
            run BIGINT NOT NULL,
            key TEXT NOT NULL,
            line {bytes} NOT NULL,
            PRIMARY KEY (run, key)
        ){without_rowid}""",
    ),
)
"""The statements that lead from each version to the next. Never change one that was released: add another."""
