"""Hold and release: several calls of one turn, handed to a client one at a time, and put together again. Pure.

`decide` looks at a client's history and at the turns that were found for it, and says what to do: hand out the next
call, or ask the model with the complete turn. Nothing is counted between requests (see `turns`); the only thing beside
the history is a `Hold`: until when a turn's next call may be handed out, and whether its rest was given up.

The cases, by the names that docs/gateway.md has for them:

    retry         the same request again: the same call again
    unknown id    a result of no call is no result: the repairs drop it, the model is asked
    several       results that come together are taken together
    out of order  results are put in call order
    interrupted   the user speaks instead of returning a result: the rest is answered "not run", the model is asked
    edited        a call that the client changed is the client's own: nothing more is handed out, nothing is put back
    compacted     a turn that is no longer in the history is not rebuilt
    undone        a history that goes back gets the same next call
    branched      each branch is a history of its own
    expired       a result that comes too late is plain history: what was not handed out never was
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import is_not
from typing import TypeAlias, cast

from unbroken.gateway.settings import OnToolError
from unbroken.gateway.turns import Hold, Turn, is_retold, same_call, words
from unbroken.messages import Assistant, Json, Message, ToolCall, ToolMessage, ToolResult

SPOKEN = "Error: not run: the conversation went on before its turn came"
FAILED = "Error: not run: an earlier call of this message failed"


@dataclass(frozen=True, slots=True)
class HandOut:
    """The call at `position` of `turn` is next."""

    turn: Turn
    position: int

    @property
    def call(self) -> ToolCall:
        return replace(self.turn.message.calls[self.position], id=self.turn.ids[self.position])


@dataclass(frozen=True, slots=True)
class AskModel:
    messages: tuple[Message, ...]
    """As the models said them themselves, every turn complete."""
    closed: tuple[Turn, ...] = ()
    """Turns whose rest is answered "not run" from now on."""
    changed: bool = False
    """They are not the client's own."""


Decision: TypeAlias = HandOut | AskModel
Fields: TypeAlias = dict[str, Json]


@dataclass(slots=True)
class Fold:
    """All that a client's history has of one turn: its parts, their results, and what was said in between."""

    turn: Turn
    start: int
    end: int = 0
    text: str = ""
    positions: dict[str, int] = field(default_factory=dict[str, int])
    """Of the calls that the client has, by the ids that it has for them."""
    results: list[tuple[int, ToolResult]] = field(default_factory=list[tuple[int, ToolResult]])
    between: list[Message] = field(default_factory=list[Message])

    @property
    def present(self) -> set[int]:
        return set(self.positions.values())

    @property
    def waiting(self) -> range:
        """Positions of the calls that were not handed out: those behind the last that the client has. One before it
        was, and is gone from the history by the client's own will."""
        return range(max(self.positions.values(), default=-1) + 1, len(self.turn.message.calls))

    @property
    def answered(self) -> set[int]:
        return {at for at, _ in self.results}


def fold_turns(messages: Sequence[Message], turns: Mapping[int, Turn]) -> list[Fold]:
    """The turns of a history; `turns` says at which positions one begins. One that the client changed is none."""
    folds: list[Fold] = []
    changed: set[str] = set()
    at = 0
    while at < len(messages):
        turn = turns.get(at)
        fold = None if turn is None or turn.key in changed else _fold(messages, at, turn, turns)
        if fold is not None:
            _take_text_before(fold, messages, folds[-1].end if folds else 0)
            folds.append(fold)
            at = fold.end
            continue
        if turn is not None:
            changed.add(turn.key)
        at += 1
    return folds


def decide(
    messages: Sequence[Message],
    folds: Sequence[Fold],
    holds: Mapping[str, Hold | None],
    now: float,
    *,
    ends_in_result: bool,
    on_tool_error: OnToolError = "continue",
    wire: str = "",
    origin: str = "",
) -> Decision:
    """What to do. `holds` are those of the folds with calls that wait, by the turn's key; `ends_in_result` says whether
    the client's last message brings a result: then whatever text stands beside it only comes with it. `wire` is
    the client's, `origin` who is asked: what another has signed does not stay as it is."""
    rebuilt: list[Message] = []
    closed: list[Turn] = []
    own_ids: dict[str, str] = {}
    at = 0
    for fold in folds:
        rebuilt += _with_own_ids(messages[at : fold.start], own_ids)
        at = fold.end
        turn, rest = fold.turn, ""
        hold = holds.get(turn.key) if turn.held and fold.waiting else None
        alive = hold is not None and now <= hold.until
        if hold is not None and (alive or hold.closed) and not _goes_on_changed(fold, messages, folds):
            stop = on_tool_error == "stop" and any(_failed(result) for _, result in fold.results)
            last = not any(_says_something(message) for message in messages[fold.end :])
            if alive and last and ends_in_result and fold.present <= fold.answered and not stop:
                return HandOut(turn, fold.waiting[0])
            rest = FAILED if stop else SPOKEN
            if not hold.closed:
                closed.append(turn)
        said = messages[fold.start : fold.end]
        rebuilt += said if _says_it_all(fold, said, wire, origin) else _rebuild(fold, rest)
        own_ids |= {id: turn.message.calls[place].id for id, place in fold.positions.items()}
    rebuilt += _with_own_ids(messages[at:], own_ids)
    changed = len(rebuilt) != len(messages) or any(map(is_not, rebuilt, messages))
    return AskModel(tuple(rebuilt), tuple(closed), changed)


def _fold(messages: Sequence[Message], start: int, turn: Turn, turns: Mapping[int, Turn]) -> Fold | None:
    """The parts of a turn from `start` on; None if the first is no longer what the model said."""
    fold = Fold(turn, start)
    at, by_id = start, False
    while at < len(messages):
        part = messages[at]
        positions = _positions(fold, part, by_id)
        # Without ids to go by, a message that was found to be of another turn is of that one.
        another = not by_id and turns.get(at, turn).key != turn.key
        if positions is None or another or not isinstance(part, Assistant):
            break
        by_id = by_id or not positions.keys().isdisjoint(turn.ids)
        if at > fold.end > 0:
            fold.between += messages[fold.end : at]
        fold.positions |= positions
        fold.text = fold.text or part.text
        at += 1
        while at < len(messages) and isinstance(message := messages[at], ToolMessage):
            fold.results += [_placed(fold, result) for result in message.results]
            at += 1
        fold.end = at
        while at < len(messages) and not isinstance(messages[at], (Assistant, ToolMessage)):
            at += 1
    return fold if fold.end else None


def _take_text_before(fold: Fold, messages: Sequence[Message], since: int) -> None:
    """Some clients keep the words of an answer and its calls as two messages."""
    before = messages[fold.start - 1] if fold.start > since else None
    if fold.text or not isinstance(before, Assistant) or before.calls:
        return
    if before.text.strip() and words(before.text) == words(fold.turn.text):
        fold.start -= 1
        fold.text = before.text


def _positions(fold: Fold, part: Message, by_id: bool) -> dict[str, int] | None:
    """For each call of this part, by the id that the client has for it, its position in the turn; None if it is no part
    of it. A client that keeps ids (`by_id`) is taken at its word; one that rewrites them is known by what it calls."""
    turn, taken = fold.turn, fold.present
    # What is handed out later comes without words: those that stand there are the client's own.
    if not isinstance(part, Assistant) or (taken and (not part.calls or part.text.strip())):
        return None
    positions: dict[str, int] = {}
    for call in part.calls:
        free = [(at, own) for at, own in enumerate(turn.message.calls) if at not in taken]
        named = (at for at, own in free if turn.ids[at] == call.id and (same_call(own, call) or is_retold(own, call)))
        alike = () if by_id else (at for at, own in free if same_call(own, call))
        place = next(chain(named, alike), None)
        if place is None:
            return None
        taken.add(place)
        positions[call.id] = place
    return positions


def _placed(fold: Fold, result: ToolResult) -> tuple[int, ToolResult]:
    """A result under the id that the model gave its call; a stray one comes last and keeps its id, for the repairs."""
    turn = fold.turn
    at = fold.positions.get(result.call_id)
    if at is None and result.call_id in turn.ids:
        at = turn.ids.index(result.call_id)
    if at is None:
        return len(turn.ids), result
    own = turn.message.calls[at]
    return at, replace(result, call_id=own.id, name=own.name)


def _goes_on_changed(fold: Fold, messages: Sequence[Message], folds: Sequence[Fold]) -> bool:
    """Does the client have more of this turn, but not as it was handed out? Then it is the client's own. (Other turns
    may have the same ids.)"""
    ids = {fold.turn.ids[at] for at in fold.waiting}
    others = {at for other in folds for at in range(other.start, other.end)}
    later = [message for at, message in enumerate(messages) if at >= fold.end and at not in others]
    return any(isinstance(message, Assistant) and any(call.id in ids for call in message.calls) for message in later)


def _with_own_ids(messages: Sequence[Message], ids: Mapping[str, str]) -> list[Message]:
    """Results that do not follow their turn find their calls all the same: the repairs put them where they belong."""
    return [
        ToolMessage(tuple(replace(result, call_id=ids.get(result.call_id, result.call_id)) for result in said.results))
        if isinstance(said, ToolMessage) and any(result.call_id in ids for result in said.results)
        else said
        for said in messages
    ]


def _says_it_all(fold: Fold, said: Sequence[Message], wire: str, origin: str) -> bool:
    """Does the client's own history say all that the model said, under the model's own ids?"""
    message, turn = said[0], fold.turn
    if not isinstance(message, Assistant) or sum(isinstance(part, Assistant) for part in said) > 1:
        return False
    own = turn.message
    if [call.id for call in message.calls] != [call.id for call in own.calls] or message.text != own.text:
        return False
    if own.native is None:
        return True
    if own.native.source not in ("", origin):
        return False
    if not own.native.value:  # only its ids are out of the ordinary, and the same wire carries them as they are
        return own.native.wire == wire
    native = message.native
    return native is not None and native.wire == own.native.wire and _covers(native.value, own.native.value)


def _covers(said: Json, own: Json) -> bool:
    """Is all of `own` in what was `said`? Clients add marks of their own, for caching say."""
    if isinstance(own, dict) and isinstance(said, dict):
        fields = cast("dict[str, Json]", said)
        return all(name in fields and _covers(fields[name], value) for name, value in cast("Fields", own).items())
    if isinstance(own, list) and isinstance(said, list):
        items, others = cast("list[Json]", own), cast("list[Json]", said)
        return len(items) == len(others) and all(map(_covers, others, items))
    return bool(said == own)


def _rebuild(fold: Fold, rest: str) -> list[Message]:
    """The turn as its model said it. `rest`: what calls that were never handed out are answered with; if empty, they
    are left out."""
    turn, message = fold.turn, fold.turn.message
    said = words(fold.text)
    if said and said != words(turn.text):
        message = replace(message, text=fold.text, native=None)  # the client's own words now, and nobody signed them
    results, kept = fold.results, fold.present
    if rest:
        calls = message.calls
        results = [*results, *((at, ToolResult.of(calls[at], rest, error=True)) for at in fold.waiting)]
        kept = kept | set(fold.waiting)
    if len(kept) < len(message.calls):
        message = replace(message, calls=tuple(call for at, call in enumerate(message.calls) if at in kept))
    ordered = tuple(result for _, result in sorted(results, key=lambda entry: entry[0]))
    return [message, *([ToolMessage(ordered)] if ordered else []), *fold.between]


def _says_something(message: Message) -> bool:
    return isinstance(message, Assistant) and bool(message.calls or message.text.strip())


def _failed(result: ToolResult) -> bool:
    """Not every wire has a place for it; then the text says so, as ours does and those of many tools."""
    return result.error or result.text.lstrip().startswith("Error:")
