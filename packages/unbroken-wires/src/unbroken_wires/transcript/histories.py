"""A history in any format, taken apart for `repairs` and put together again with its edits applied.

One algorithm for all formats; a format implements `History` to take its messages apart. What no edit touches stays the
very same object, and what moves keeps every unknown field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any, Protocol, TypeVar, cast

from unbroken_wires.errors import UserError
from unbroken_wires.messages import Assistant, Message, Text, ToolCall, ToolMessage, ToolResult
from unbroken_wires.transcript.repairs import Drop, HistoryEdit, Insert, Kind, Link, Move, Place, Rename, repairs

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a message: what it is for the chain, and its `value` in the format of the history."""

    kind: Kind
    value: Any
    id: str | None = ""
    name: str = ""


class History(Protocol[M]):
    """One format of a history."""

    unique: bool
    """Must ids be unique in the complete history?"""

    def run(self, message: M) -> str:
        """Adjacent messages with the same run are one turn; "" is always a turn of its own."""
        ...

    def pieces(self, message: M) -> list[Piece]:
        """The parts of a message, at least one."""
        ...

    def build(self, message: M, values: list[Any]) -> M:
        """The message with other parts, at least one."""
        ...

    def holds(self, message: M) -> bool:
        """May results be put in front of the parts of this message?"""
        ...

    def wrap(self, results: list[Any]) -> list[M]:
        """Results as messages of their own."""
        ...

    def error(self, call: Any, text: str) -> Any:
        """A result that reports an error."""
        ...

    def renamed(self, piece: Piece, id: str) -> Any: ...


def links(history: History[M], messages: Sequence[M]) -> list[Link]:
    return [link for link, _ in _apart(history, messages)]


def apply(history: History[M], messages: Sequence[M], edits: Sequence[HistoryEdit]) -> list[M]:
    """The history with the edits of `repairs` applied. The messages that came in are not changed."""
    if not edits:
        return list(messages)
    return _Applying(history, messages, edits).messages()


def repair_with(
    history: History[M], messages: Sequence[M], *, answer_open: bool = True, whole: bool = True
) -> tuple[list[M], list[HistoryEdit]]:
    edits = repairs(links(history, messages), answer_open=answer_open, whole=whole, unique=history.unique)
    return apply(history, messages, edits), edits


def repair(messages: Iterable[Message], *, answer_open: bool = True) -> tuple[tuple[Message, ...], list[HistoryEdit]]:
    """The history as `Transcript` accepts it, and what had to be changed for that.

    `answer_open=False` does not touch calls that are open at the very end: they may still be run.
    """
    repaired, edits = repair_with(_OWN, tuple(messages), answer_open=answer_open)
    return tuple(repaired), edits


def _apart(history: History[M], messages: Sequence[M]) -> Iterable[tuple[Link, Piece]]:
    turn, previous = -1, ""
    for position, message in enumerate(messages):
        run = history.run(message)
        if not run or run != previous:
            turn += 1
        previous = run
        for part, piece in enumerate(history.pieces(message)):
            yield Link(piece.kind, piece.id, Place(position, part), turn, piece.name), piece


class _Applying:
    """Edits sorted by what they do, then one pass over the turns."""

    def __init__(self, history: History[M], messages: Sequence[M], edits: Sequence[HistoryEdit]) -> None:
        self._history: History[Any] = history
        self._raw: Sequence[Any] = messages
        apart = list(_apart(history, messages))
        self._turns = [list(turn) for _, turn in groupby((link for link, _ in apart), key=lambda link: link.turn)]
        self._values: dict[Place, Any] = {link.place: piece.value for link, piece in apart}
        self._renamed: set[Place] = set()
        self._gone: set[Place] = set()
        self._due: defaultdict[int, list[tuple[int, Any]]] = defaultdict(list)
        try:
            self._sort(edits, {link.place: (link, piece) for link, piece in apart})
        except KeyError as error:
            raise UserError(f"an edit speaks of {error.args[0]}, which this history does not have") from None

    def _sort(self, edits: Sequence[HistoryEdit], pieces: dict[Place, tuple[Link, Piece]]) -> None:
        for edit in edits:
            if isinstance(edit, Rename):
                self._values[edit.place] = self._history.renamed(pieces[edit.place][1], edit.to)
                self._renamed.add(edit.place)
        for edit in edits:
            match edit:
                case Drop():
                    self._gone.add(edit.place)
                case Move():
                    self._gone.add(edit.place)
                    self._due[pieces[edit.call][0].turn].append((edit.index, self._values[edit.place]))
                case Insert():
                    error = self._history.error(self._values[edit.place], edit.text)
                    self._due[pieces[edit.place][0].turn].append((edit.index, error))
                case Rename():
                    pass

    def messages(self) -> list[Any]:
        out: list[Any] = []
        due: list[tuple[int, Any]] = []
        for turn in self._turns:
            out.extend(self._turn(turn, due))
            due = self._due.get(turn[0].turn, [])
        if due:
            out.extend(self._history.wrap(_woven([], due)))
        return out

    def _turn(self, turn: list[Link], due: list[tuple[int, Any]]) -> Iterable[Any]:
        """The messages of one turn, with the results in front that are due after the turn before."""
        links = [link for link in turn if link.place not in self._gone]
        front: list[Any] = []
        if due:
            heads = list(takewhile(lambda link: link.kind == "result", links))
            front = _woven([self._values[link.place] for link in heads], due)
            links = links[len(heads) :]
        kept: defaultdict[int, list[Place]] = defaultdict(list)
        for link in links:
            kept[link.place.message].append(link.place)
        for position, parts in groupby(turn, key=lambda link: link.place.message):
            message = self._raw[position]
            values = [self._values[place] for place in kept[position]]
            if front:
                if self._history.holds(message):
                    yield self._history.build(message, front + values)
                    front = []
                    continue
                yield from self._history.wrap(front)
                front = []
            count = sum(1 for _ in parts)
            if len(values) == count and self._renamed.isdisjoint(kept[position]):
                yield message
            elif values:
                yield self._history.build(message, values)


def _woven(staying: list[Any], due: list[tuple[int, Any]]) -> list[Any]:
    """Results in their final order: those due at their index, those that stay in between."""
    woven: list[Any] = []
    taken = 0
    for index, value in sorted(due, key=lambda entry: entry[0]):
        upto = max(taken, taken + index - len(woven))
        woven.extend(staying[taken:upto])
        woven.append(value)
        taken = upto
    return woven + staying[taken:]


class _OwnHistory:
    """Our own messages."""

    unique = False

    def run(self, message: Message) -> str:
        return ""

    def pieces(self, message: Message) -> list[Piece]:
        match message:
            case Assistant(calls=(_, *_)):
                return [Piece("call", call, call.id, call.name) for call in message.calls]
            case ToolMessage(results=()):
                return [Piece("result", None)]  # answers nothing: dropped, and the message with it
            case ToolMessage():
                return [Piece("result", result, result.call_id, result.name) for result in message.results]
            case _:
                return [Piece("speech", message)]

    def build(self, message: Message, values: list[Any]) -> Message:
        if isinstance(message, ToolMessage):
            return ToolMessage(tuple(values))
        if not isinstance(message, Assistant):
            return message
        calls = cast("tuple[ToolCall, ...]", tuple(values))
        native = message.native
        if native is not None and native.ids == tuple(call.id for call in message.calls):
            native = replace(native, ids=tuple(call.id for call in calls))
        return replace(message, calls=calls, native=native)

    def holds(self, message: Message) -> bool:
        return isinstance(message, ToolMessage)

    def wrap(self, results: list[Any]) -> list[Message]:
        return [ToolMessage(tuple(results))]

    def error(self, call: ToolCall, text: str) -> ToolResult:
        return ToolResult(call.id, (Text(text),), error=True, name=call.name)

    def renamed(self, piece: Piece, id: str) -> ToolCall | ToolResult:
        value = cast("ToolCall | ToolResult", piece.value)
        return replace(value, id=id) if isinstance(value, ToolCall) else replace(value, call_id=id)


_OWN = _OwnHistory()
