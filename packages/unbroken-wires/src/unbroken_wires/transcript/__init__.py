"""The chain of calls and results: growing it (`Transcript`), checking, repairing, shortening and saving it.

With `History` and `apply` other formats of a history, such as a wire's raw messages, are repaired by the same edits.
"""

from __future__ import annotations

from unbroken_wires.transcript.histories import History, Piece, apply, links, repair, repair_with
from unbroken_wires.transcript.repairs import NO_RESULT, Drop, HistoryEdit, Insert, Link, Move, Place, Rename, repairs
from unbroken_wires.transcript.saved import from_json, to_json
from unbroken_wires.transcript.shorten import shorten
from unbroken_wires.transcript.transcript import ChainStatus, Transcript, own_status, status_of

__all__ = [
    "NO_RESULT",
    "ChainStatus",
    "Drop",
    "History",
    "HistoryEdit",
    "Insert",
    "Link",
    "Move",
    "Piece",
    "Place",
    "Rename",
    "Transcript",
    "apply",
    "from_json",
    "links",
    "own_status",
    "repair",
    "repair_with",
    "repairs",
    "shorten",
    "status_of",
    "to_json",
]
