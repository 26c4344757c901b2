"""What the recording of a gateway holds beyond that of a run: which client sent the request, which model answered it,
which calls it holds, and what was changed or lost on the way between their APIs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unbroken.trajectory.recording import Recording
from unbroken_viewer.picture_data import CallLane, Turn, flag, inner, words

AGENT = "gateway"
"""The agent's name in these recordings."""
HELD = "the client takes one call at a time: this one follows when the one before has its result"
_HEADERS = {
    "x-unbroken-repairs": "history repaired",
    "x-unbroken-turn": "held calls",
    "x-unbroken-reasoning": "reasoning",
    "x-unbroken-dropped": "dropped fields",
}
"""The headers with which the gateway reports a change to the client, in words."""


@dataclass(frozen=True, slots=True)
class GatewayTurn:
    """One request of a client."""

    user_agent: str
    key: str
    """The name of its gateway key."""
    client_wire: str
    upstream_wire: str
    alias: str
    """The model that the client asked for."""
    model: str
    """The model behind the alias."""
    answered_by: str
    """The model that answered, which may be a fallback; empty if none did."""
    stream: bool
    serial: bool
    """The client gets one call at a time."""
    held: int
    """Calls of the answer that are held until the one before has its result."""
    changes: tuple[tuple[str, str], ...]
    """What was repaired, lost or dropped: the kind, and what."""


def gateway_turn(recording: Recording, turns: Sequence[Turn]) -> GatewayTurn | None:
    """None if it is not a recording of a gateway. Marks the calls that its client has, and those that are held."""
    settings = recording.settings
    if recording.agent_name != AGENT or not words(settings, "client"):
        return None
    serial = flag(settings, "serial")
    held = _mark(turns, serial)
    answered = [attempt for turn in turns for attempt in turn.attempts if attempt.ended is not None]
    last = answered[-1] if answered and not answered[-1].broken else None
    reported = inner(settings, "headers")
    return GatewayTurn(
        words(settings, "user_agent"),
        words(settings, "key"),
        words(settings, "client"),
        words(settings, "upstream"),
        words(recording.head, "model"),
        words(settings, "model"),
        (last.model or words(settings, "model")) if last is not None else "",
        flag(settings, "stream"),
        serial,
        held,
        tuple((shown, words(reported, name)) for name, shown in _HEADERS.items() if words(reported, name)),
    )


def _mark(turns: Sequence[Turn], serial: bool) -> int:
    """The client has all calls of an answer; in serial mode it has the first, and the others follow one by one. Returns
    how many of them are held."""
    held = 0
    for turn in turns:
        calls: list[CallLane] = [call for call in turn.calls if call.state == "handed"]
        for place, call in enumerate(calls):
            call.state = "held" if serial and place else "sent"
            if call.state == "held":
                held += 1
                call.notes.append(HELD)
    return held
