"""Durable runs: they outlive processes and machines. A journal holds them, and `drive` carries them on."""

from unbroken_durable.driving import Outcome, drive
from unbroken_durable.errors import (
    AlreadyAnswered,
    AnswerTooLate,
    Busy,
    DriversDied,
    JournalUnavailable,
    RunExists,
    Superseded,
    UnknownAgent,
    UnknownRun,
)
from unbroken_durable.journal import Journal, open_journal
from unbroken_durable.records import RunRow
from unbroken_durable.worker import Progress, Worker

__all__ = [
    "AlreadyAnswered",
    "AnswerTooLate",
    "Busy",
    "DriversDied",
    "Journal",
    "JournalUnavailable",
    "Outcome",
    "Progress",
    "RunExists",
    "RunRow",
    "Superseded",
    "UnknownAgent",
    "UnknownRun",
    "Worker",
    "drive",
    "open_journal",
]
