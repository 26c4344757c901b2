"""Hold and release: several calls of one turn are released to a client one at a time and then reassembled. Pure.

`decide` takes a client's history and the turns that were found for it, and returns what to do: release the next call,
or ask the model with the complete turn. Nothing is counted between requests (see `turn`); the only state besides the
history is a `Hold`: until when a turn's next call may be released, and whether the rest was given up.

The cases, with their names in docs/gateway.md:

    retry         the same request again: the same call again
    unknown id    a result without a call: the repairs drop it, the model is asked
    several       results that come together are taken together
    out of order  results are put in call order
    interrupted   a user message instead of a result: the rest is answered "not run", the model is asked
    edited        the client changed a call: nothing more of the turn is released or restored
    compacted     a turn that is no longer in the history is not rebuilt
    undone        a history that was rewound gets the same next call
    branched      each branch is a history of its own
    expired       the result is too late: the turn is plain history, and held calls are dropped
    forgotten     the store has lost the turn or its hold: as expired
    ambiguous     two turns match the client's history: neither is used
    unmatched     a turn matches in part (other ids, another system text, other tools, another answer after it): it is
                  not used
    unknown       nothing is known of the calls in the client's history

The last five lose calls that the client did not receive. Each is reported (`AskModel.lost`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_not
from typing import Literal, TypeAlias, cast

from unbroken_gateway.settings import OnToolError
from unbroken_gateway.turns.call_ids import agrees, is_named, is_ours, may_be_rewritten
from unbroken_gateway.turns.turn import Hold, Turn, is_retold, same_call, words
from unbroken_wires.messages import Assistant, Json, Message, ToolCall, ToolMessage, ToolResult, User

SPOKEN = "Error: not run: the conversation went on before its turn came"
FAILED = "Error: not run: an earlier call of this message failed"


Reason: TypeAlias = Literal[
    "ambiguous", "edited", "expired", "failed", "forgotten", "interrupted", "unknown", "unmatched"
]
"""Why calls of a turn are not released."""


@dataclass(slots=True)
class Found:
    """The turns that match messages of a history, by position, and why others do not."""

    turns: dict[int, tuple[Turn, ...]] = field(default_factory=dict[int, tuple[Turn, ...]])
    doubts: dict[int, Reason] = field(default_factory=dict[int, Reason])
    proven: frozenset[int] = frozenset()
    """Positions where a random id proves the turn."""
    unnamed: frozenset[int] = frozenset()
    """Positions where held turns match, but the client takes several calls at once and sends no id that proves which
    turn it is."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Calls of a turn that are not released. `turn` is None if the turn is unknown."""

    reason: Reason
    turn: Turn | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseCall:
    """The call at `position` of `turn` is next."""

    turn: Turn
    position: int

    @property
    def call(self) -> ToolCall:
        return replace(self.turn.message.calls[self.position], id=self.turn.ids[self.position])


@dataclass(frozen=True, slots=True)
class AskModel:
    messages: tuple[Message, ...]
    """The history with every turn complete, as the models wrote it."""
    closed: tuple[Turn, ...] = ()
    """Turns whose remaining calls are answered "not run" from now on."""
    changed: bool = False
    """The messages differ from the client's."""
    lost: tuple[Lost, ...] = ()
    """Calls that were held and are given up with this request."""


Decision: TypeAlias = ReleaseCall | AskModel
Fields: TypeAlias = dict[str, Json]


@dataclass(slots=True)
class Fold:
    """Everything in a client's history that belongs to one turn: its parts, their results, and messages in between."""

    turn: Turn
    start: int
    end: int = 0
    text: str = ""
    places: dict[str, list[int]] = field(init=False, default_factory=dict[str, list[int]])
    """Positions of the turn's calls, by the ids that they were released with."""
    positions: dict[str, int] = field(default_factory=dict[str, int])
    """Positions of the calls in the client's history, by the ids that they have there."""
    retold: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    """Calls that the client sent back with other arguments, by position (`is_retold`)."""
    results: list[tuple[int, ToolResult]] = field(default_factory=list[tuple[int, ToolResult]])
    between: list[Message] = field(default_factory=list[Message])

    def __post_init__(self) -> None:
        for at, id in enumerate(self.turn.ids):
            self.places.setdefault(id, []).append(at)

    @property
    def present(self) -> set[int]:
        return set(self.positions.values())

    @property
    def waiting(self) -> range:
        """Positions of the calls that were not released: those after the last one in the client's history. A missing
        call before it was released, and the client removed it."""
        return range(max(self.positions.values(), default=-1) + 1, len(self.turn.message.calls))

    @property
    def answered(self) -> set[int]:
        return {at for at, _ in self.results}


def choose_turns(messages: Sequence[Message], found: Found) -> dict[int, Turn]:
    """Of several turns that match a message, the one that matches most of what follows. In a tie, none."""
    chosen = {at: turns[0] for at, turns in found.turns.items() if len(turns) == 1}
    for at, turns in sorted(found.turns.items()):
        if len(turns) > 1:
            folds = [(turn, _fold(messages, at, turn, chosen)) for turn in turns]
            furthest = max((fold.end for _, fold in folds if fold is not None), default=0)
            best = [turn for turn, fold in folds if fold is not None and fold.end == furthest]
            if len(best) == 1:
                chosen[at] = best[0]
            else:
                found.doubts[at] = "ambiguous"
    return chosen


def leave_contradicted(
    messages: Sequence[Message], turns: Mapping[int, Turn], found: Found, on_tool_error: OnToolError
) -> dict[int, Turn]:
    """The turns of a client that takes one call at a time, some reduced to what the client has of them.

    If calls of a turn wait, nothing failed and nobody interrupted it, the next answer releases one of them. If
    something else follows, the client has lost the turn, or it has shortened its history, and the turn belongs to
    another client, whose conversation begins in the same way. Only an id proves that it does not."""
    reduced = dict(turns)
    for fold in fold_turns(messages, turns) if not turns.keys() <= found.proven else ():
        parts = range(fold.start, fold.end)
        after = next((at for at in range(fold.end, len(messages)) if _has_content(messages[at])), None)
        if after is None or not fold.turn.held or not fold.waiting or not found.proven.isdisjoint(parts):
            continue
        failed = on_tool_error == "stop" and any(_failed(result) for _, result in fold.results)
        interrupted = any(isinstance(message, User) for message in messages[fold.end : after])
        if not failed and not interrupted and fold.present <= fold.answered:
            starts = [at for at in parts if at in turns]
            reduced |= dict.fromkeys(starts, _reduced(fold))
            found.doubts |= dict.fromkeys(starts, "unmatched")
    return reduced


def _reduced(fold: Fold) -> Turn:
    """The turn without anything that the client does not have."""
    turn, kept = fold.turn, sorted(fold.present)
    calls = tuple(turn.message.calls[at] for at in kept)
    message = replace(turn.message, calls=calls, reasoning="", native=None)
    return replace(turn, message=message, ids=tuple(turn.ids[at] for at in kept), held=False)


def leave_unnamed(messages: Sequence[Message], turns: Mapping[int, Turn], found: Found) -> dict[int, Turn]:
    """The turns of a client that takes several calls at once. Its own turns need not be stored, so a held turn that
    looks the same is used only if an id proves it."""
    left = {at: turn for at, turn in turns.items() if turn.held and not is_named(turn, messages[at])}
    folds = fold_turns(messages, left) if left else ()
    parts = {at for fold in folds for at in range(fold.start, fold.end)}
    unclear = {at for at, some in found.turns.items() if at not in turns and any(turn.held for turn in some)}
    found.doubts |= dict.fromkeys(parts, "unmatched")
    found.unnamed = frozenset(parts | unclear)
    return {at: turn for at, turn in turns.items() if at not in left}


def fold_turns(messages: Sequence[Message], turns: Mapping[int, Turn]) -> list[Fold]:
    """The turns of a history; `turns` has the positions at which they begin. A turn that the client changed is left
    out."""
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
    turns: Mapping[int, Turn],
    folds: Sequence[Fold],
    holds: Mapping[str, Hold | None],
    now: float,
    *,
    ends_in_result: bool,
    on_tool_error: OnToolError = "continue",
    wire: str = "",
    origin: str = "",
) -> Decision:
    """Decides what to do. `folds` are the `turns` that the client has not changed. `holds` has the hold of each of them
    that still has calls to release, by the turn's key. `ends_in_result`: the client's last message brings a result, so
    text beside it is not a new question. `wire` is the client's; `origin` is the model that is asked: what another
    provider signed has to be removed."""
    rebuilt: list[Message] = []
    closed: list[Turn] = []
    lost: list[Lost] = []
    own_ids: dict[str, str] = {}
    at = 0
    for fold in folds:
        rebuilt += _with_own_ids(messages[at : fold.start], own_ids)
        at = fold.end
        turn, rest = fold.turn, ""
        if turn.held and fold.waiting:
            hold = holds.get(turn.key)
            last = not any(_has_content(message) for message in messages[fold.end :])
            edited = _has_unreleased_calls(fold, messages, turns, folds)
            reason = _reason(fold, hold, now, edited, on_tool_error, is_next=last and ends_in_result)
            if reason is None:
                return ReleaseCall(turn, fold.waiting[0])
            if reason in ("interrupted", "failed"):
                rest = FAILED if reason == "failed" else SPOKEN
            if hold is not None and rest and not hold.closed:
                closed.append(turn)
            if last or turn in closed:  # later requests of this history need not report it again
                lost.append(Lost(reason, turn, len(fold.waiting)))
        said = messages[fold.start : fold.end]
        rebuilt += said if _has_everything(fold, said, wire, origin) else _rebuild(fold, rest)
        own_ids |= {id: turn.message.calls[place].id for id, place in fold.positions.items()}
    rebuilt += _with_own_ids(messages[at:], own_ids)
    changed = len(rebuilt) != len(messages) or any(map(is_not, rebuilt, messages))
    return AskModel(tuple(rebuilt), tuple(closed), changed, tuple(lost))


def missing_turn(
    messages: Sequence[Message],
    folds: Sequence[Fold],
    turns: Mapping[int, Turn],
    found: Found,
    *,
    serial: bool,
    ends_in_result: bool,
) -> Lost | None:
    """Why no further calls are released if the turn of the last calls was not found. If the client does not return a
    result (its user spoke instead), this is reported only if the gateway made the turn, or if the store was emptied."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if isinstance(messages[at], Assistant)), -1)
    if last < 0 or any(fold.start <= last < fold.end for fold in folds):
        return None
    if not serial and last not in found.unnamed:
        return None
    if not ends_in_result and (last in turns or not _may_be_held(messages[last], found.doubts.get(last))):
        return None
    return Lost("edited" if last in turns else found.doubts.get(last, "unknown"))


def _may_be_held(message: Message, doubt: Reason | None) -> bool:
    calls = message.calls if isinstance(message, Assistant) else ()
    return bool(calls) and (doubt is not None or any(is_ours(call.id) for call in calls))


def _reason(
    fold: Fold, hold: Hold | None, now: float, edited: bool, on_tool_error: OnToolError, *, is_next: bool
) -> Reason | None:
    """Why the rest of a held turn is not released; None if it is. `is_next`: the client's history ends with a result of
    this turn."""
    if hold is None:
        return "forgotten"
    alive = now <= hold.until
    if not alive and not hold.closed:
        return "expired"
    if edited:
        return "edited"
    if on_tool_error == "stop" and any(_failed(result) for _, result in fold.results):
        return "failed"
    return None if alive and is_next and fold.present <= fold.answered else "interrupted"


def _fold(messages: Sequence[Message], start: int, turn: Turn, turns: Mapping[int, Turn]) -> Fold | None:
    """The parts of a turn from `start` on; None if the first one differs from the model's message."""
    fold = Fold(turn, start)
    at = start
    while at < len(messages):
        part = messages[at]
        positions = _positions(fold, part)
        if positions is None or not isinstance(part, Assistant):
            break
        # A message that matched another turn belongs to that one, unless its ids prove otherwise.
        if turns.get(at, turn).key != turn.key and positions.keys().isdisjoint(turn.ids):
            break
        if at > fold.end > 0:
            fold.between += messages[fold.end : at]
        fold.positions |= positions
        for call in part.calls:
            if not same_call(turn.message.calls[place := positions[call.id]], call):
                fold.retold[place] = call
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
    """Some clients store the text of an answer and its calls as two messages."""
    before = messages[fold.start - 1] if fold.start > since else None
    if fold.text or not isinstance(before, Assistant) or before.calls:
        return
    if before.text.strip() and words(before.text) == words(fold.turn.text):
        fold.start -= 1
        fold.text = before.text


def _positions(fold: Fold, part: Message) -> dict[str, int] | None:
    """For each call of this part, by the client's id, its position in the turn; None if it is not a part of it. A call
    is found by its id or, if the client has rewritten that, by name and arguments among the calls after the previous
    parts."""
    turn, taken = fold.turn, fold.present
    later = range(max(taken, default=-1) + 1, len(turn.message.calls))
    # Calls that are released later come without text, so this text is the client's own.
    if not isinstance(part, Assistant) or (taken and (not part.calls or words(part.text))):
        return None
    positions: dict[str, int] = {}
    calls = turn.message.calls
    for call in part.calls:
        named = fold.places.get(call.id, ())
        if not named and not agrees(turn, (call,)):
            return None  # it has an id of another turn
        if call.id in fold.positions or call.id in positions:
            return None  # the client gives all calls the same id, so results cannot be assigned
        like = _is_same_or_retold if named else same_call
        places = named or later
        place = next((at for at in places if at not in taken and like(calls[at], call)), None)
        if place is None:
            return None
        taken.add(place)
        positions[call.id] = place
    return positions


def _is_same_or_retold(own: ToolCall, told: ToolCall) -> bool:
    return same_call(own, told) or is_retold(own, told)


def _placed(fold: Fold, result: ToolResult) -> tuple[int, ToolResult]:
    """A result with the model's id of its call; a stray one comes last and keeps its id, for the repairs."""
    turn = fold.turn
    at = fold.positions.get(result.call_id)
    if at is None and (places := fold.places.get(result.call_id)):
        at = places[0]
    if at is None:
        return len(turn.ids), result
    own = turn.message.calls[at]
    return at, replace(result, call_id=own.id, name=own.name)


def _has_unreleased_calls(
    fold: Fold, messages: Sequence[Message], turns: Mapping[int, Turn], folds: Sequence[Fold]
) -> bool:
    """Does the client have calls of this turn that were not released to it? Then it has edited the turn. (Other turns
    may have the same ids and calls.) A client that rewrites ids has the same calls under other ids; a call whose id
    looks like those of this turn but is none of them belongs to another."""
    ids = {fold.turn.ids[at] for at in fold.waiting}
    waiting = [fold.turn.message.calls[at] for at in fold.waiting]
    others = {at for other in folds if other.turn.key != fold.turn.key for at in range(other.start, other.end)}
    others |= {at for at, turn in turns.items() if turn.key != fold.turn.key}
    later = [message for at, message in enumerate(messages) if at >= fold.end and at not in others]
    calls = [call for message in later if isinstance(message, Assistant) for call in message.calls]
    rewritten = [call for call in calls if may_be_rewritten(fold.turn, call)]
    return any(call.id in ids for call in calls) or any(same_call(own, call) for call in rewritten for own in waiting)


def _with_own_ids(messages: Sequence[Message], ids: dict[str, str]) -> list[Message]:
    """Renames results that do not directly follow their turn, so that the repairs can move them to their calls. An id
    that a later call reuses is removed from `ids`."""
    if not ids:
        return [*messages]
    renamed: list[Message] = []
    for said in messages:
        if isinstance(said, Assistant):
            for call in said.calls:
                ids.pop(call.id, None)
        elif isinstance(said, ToolMessage) and any(result.call_id in ids for result in said.results):
            results = (replace(result, call_id=ids.get(result.call_id, result.call_id)) for result in said.results)
            said = ToolMessage(tuple(results))
        renamed.append(said)
    return renamed


def _has_everything(fold: Fold, said: Sequence[Message], wire: str, origin: str) -> bool:
    """Does the client's own history contain everything that the model wrote, with the model's own ids?"""
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
    if not own.native.value:  # only its ids are unusual, and the same wire can carry them
        return own.native.wire == wire
    native = message.native
    return native is not None and native.wire == own.native.wire and _covers(native.value, own.native.value)


def _covers(said: Json, own: Json) -> bool:
    """Is all of `own` in `said`? Clients add fields of their own, for example for caching."""
    if isinstance(own, dict) and isinstance(said, dict):
        fields = cast("dict[str, Json]", said)
        return all(name in fields and _covers(fields[name], value) for name, value in cast("Fields", own).items())
    if isinstance(own, list) and isinstance(said, list):
        items, others = cast("list[Json]", own), cast("list[Json]", said)
        return len(items) == len(others) and all(map(_covers, others, items))
    return bool(said == own)


def _rebuild(fold: Fold, rest: str) -> list[Message]:
    """The turn as its model wrote it. `rest`: the result for calls that were never released; if empty, those are left
    out."""
    turn, message = fold.turn, fold.turn.message
    said = words(fold.text)
    if said and said != words(turn.text):
        message = replace(
            message, text=fold.text, native=None
        )  # the client changed the text, so the signature is not valid
    if fold.retold:
        message = replace(
            message, calls=tuple(_as_client_ran(fold, at) for at in range(len(message.calls))), native=None
        )
    results, kept = fold.results, fold.present
    if rest:
        calls = message.calls
        results = [*results, *((at, ToolResult.of(calls[at], rest, error=True)) for at in fold.waiting)]
        kept = kept | set(fold.waiting)
    if len(kept) < len(message.calls):
        message = replace(message, calls=tuple(call for at, call in enumerate(message.calls) if at in kept))
    ordered = tuple(result for _, result in sorted(results, key=lambda entry: entry[0]))
    return [message, *([ToolMessage(ordered)] if ordered else []), *fold.between]


def _as_client_ran(fold: Fold, at: int) -> ToolCall:
    """The call as the client ran it, under the model's own id."""
    own, told = fold.turn.message.calls[at], fold.retold.get(at)
    return own if told is None else replace(own, arguments=told.arguments, raw=told.raw)


def _has_content(message: Message) -> bool:
    return isinstance(message, Assistant) and bool(message.calls or message.text.strip())


def _failed(result: ToolResult) -> bool:
    """Not every wire has a field for errors; then the text begins with "Error:", as ours and those of many tools do."""
    return result.error or result.text.lstrip().startswith("Error:")
