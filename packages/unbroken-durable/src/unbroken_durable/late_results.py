"""Results that a driver learned when it had lost its run: of calls that were running when another driver took it over.

They lie beside the run, where no token is needed, until its driver uses them. Once the model was told that an outcome
is unknown, they are not used any more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from unbroken.events import CallStarted, CallWritten
from unbroken.trajectory.lines import Line, encode
from unbroken.trajectory.recording import Recording
from unbroken_durable.database import Database
from unbroken_wires.messages import ToolResult
from unbroken_wires.transcript.saved import read_result


def results_in(data: bytes) -> dict[str, bytes]:
    """The results among these lines of a recording, by the idempotency keys of their calls."""
    lines: list[Line] = [json.loads(line) for line in data.splitlines() if b'"result"' in line]
    return {line["key"]: encode(line) for line in lines if line["line"] == "result" and _says_what_happened(line)}


def _says_what_happened(line: Line) -> bool:
    return bool(line["key"]) and line["result"].get("outcome") not in ("unknown", "cancelled", "running")


def read_late(line: bytes) -> ToolResult:
    """Without the id and the name of its call, which its line may leave out."""
    return read_result({"call_id": "", **json.loads(line)["result"]})


def open_results(recording: Recording, late: Mapping[str, bytes]) -> bytes:
    """Lines with those of these results whose calls have started and have no result, for the end of the recording."""
    known = {line["key"] for line in recording.of("result")}
    written = {event.call: event for event in recording.events if isinstance(event, CallWritten)}
    started = {event.call: written.get(event.call) for event in recording.events if isinstance(event, CallStarted)}
    now = recording.lines[-1].get("at", 0.0)
    lines: list[Line] = [json.loads(line) for key, line in late.items() if key not in known]
    open_lines = ((line, call) for line in lines if (call := started.get(line["call"])) is not None)
    return b"".join(encode(_complete(line, call, now)) + b"\n" for line, call in open_lines)


def _complete(line: Line, call: CallWritten, now: float) -> Line:
    """The line as any reader understands it, wherever it stands."""
    result = {"call_id": call.call_id, "name": call.name, **line["result"]}
    return {**line, "at": now, "turn": call.turn, "call_id": call.call_id, "result": result}


def hand_in(database: Database, run: int, results: Mapping[str, bytes]) -> None:
    """Stores results for the driver of the run, unless it has ended. A run that waits for somebody who knows whether a
    call took effect is ready then."""
    with database.transaction():
        statement = f"SELECT state, pending FROM unbroken_runs WHERE number = ?{database.for_update}"
        for state, pending in database.query(statement, run):
            if state in ("answered", "cancelled"):
                return
            for key, line in results.items():
                database.change(
                    "INSERT INTO unbroken_late_results (run, key, line) VALUES (?, ?, ?) "
                    "ON CONFLICT (run, key) DO NOTHING",
                    run,
                    key,
                    line,
                )
            if state == "waiting" and any(call.get("uncertain") for call in json.loads(pending)):
                database.change("UPDATE unbroken_runs SET state = 'ready' WHERE number = ?", run)
            database.notify([run])


def find(database: Database, run: int, key: str) -> bytes | None:
    with database.transaction(writes=False):
        rows = database.query("SELECT line FROM unbroken_late_results WHERE run = ? AND key = ?", run, key)
    return bytes(rows[0][0]) if rows else None


def forget(database: Database, run: int, keys: Collection[str]) -> None:
    """They are in the recording now, or came too late."""
    with database.transaction():
        for key in keys:
            database.change("DELETE FROM unbroken_late_results WHERE run = ? AND key = ?", run, key)
