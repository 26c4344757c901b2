"""What can go wrong with a durable run, besides the run itself."""

from __future__ import annotations

from unbroken.errors import RecordingFailed, RunTaken, UnbrokenError, UserError


class UnknownRun(UserError):
    """The journal has no run with this id."""


class UnknownAgent(UserError):
    """The run is of an agent that is not among those given: this driver may be older or newer than the run."""


class RunExists(UserError):
    """A run with this id was started before, with another question, agent, tenant or limit."""


class Busy(RunTaken):
    """Another driver has the run, and is alive."""


class Superseded(RunTaken):
    """Another driver took the run over: nothing more of this one enters the journal."""


class AlreadyAnswered(UserError):
    """The call has an answer already: the first one counts."""


class AnswerTooLate(AlreadyAnswered):
    """The time for an answer (`answer_within`) is over: the calls that have none are denied."""


class DriversDied(UnbrokenError):
    """The run has failed, because the processes that drove it died, also when they drove nothing else. It is not driven
    again until `Journal.retry`."""


class JournalUnavailable(RecordingFailed):
    """The database cannot be reached, or refuses to store anything. What was stored before is safe: drive the run again
    later."""
