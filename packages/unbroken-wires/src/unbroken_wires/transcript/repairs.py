"""What is wrong with a chain of calls and results, as a list of named edits that would fix it.

A pure function over a neutral view of a history (`Link`), so that our own messages and every wire's raw messages follow
the same rules. Nothing is changed here and no message is read: `histories` applies the edits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from string import ascii_lowercase
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["call", "result", "speech"]

NO_RESULT = "Error: no result was recorded for this call"


class Place(NamedTuple):
    """Where something is: the position of its message in the history, and its own position in that message."""

    message: int
    part: int


@dataclass(frozen=True, slots=True)
class Link:
    """One item of a history as the chain sees it.

    `turn` numbers what the wire treats as one message: results must be the first items of the turn directly after the
    turn of their calls. `id` is None if a wire has no ids and `name` identifies the call; it is empty if the id is
    missing.
    """

    kind: Kind
    id: str | None
    place: Place
    turn: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Drop:
    """The result at `place` is removed: it answers no call ("orphan"), or one that has its result already
    ("doubled")."""

    id: str
    place: Place
    reason: str


@dataclass(frozen=True, slots=True)
class Insert:
    """The call at `place` gets an error with `text` as its result, at position `index` among the results of its
    turn."""

    id: str
    place: Place
    index: int
    reason: str = "missing"
    text: str = NO_RESULT


@dataclass(frozen=True, slots=True)
class Move:
    """The result at `place` moves to position `index` among the results of the turn of its `call`."""

    id: str
    place: Place
    call: Place
    index: int
    reason: str = "misplaced"


@dataclass(frozen=True, slots=True)
class Rename:
    """The call or the result at `place` gets the id `to`: two calls shared one ("doubled"), or it had none
    ("nameless")."""

    id: str
    place: Place
    to: str
    reason: str


HistoryEdit: TypeAlias = Drop | Insert | Move | Rename
"""`id` is the id of the call in question, or its name where the wire gave no id. Places are those before any edit."""


def repairs(
    links: Sequence[Link], *, answer_open: bool = True, whole: bool = True, unique: bool = False
) -> list[HistoryEdit]:
    """The edits that make the chain valid, in the order of the history; none for a valid one.

    `answer_open=False` does not touch open calls at the very end: they may still be executed. `whole=False` means that
    an earlier part of the history is missing here, so that a result without its call is not touched. `unique` requires
    ids that are unique in the complete history; otherwise they may repeat in each turn.
    """
    turns = [list(turn) for _, turn in groupby(links, key=lambda link: link.turn)]
    call_of, strays = _match(links, whole)
    ids = _new_ids(turns, unique)
    edits: list[HistoryEdit] = [Drop(_label(result), result.place, reason) for result, reason in strays.values()]
    edits.extend(_renames(links, call_of, ids))
    result_of = {call_of[link.place].place: link for link in links if link.place in call_of}
    tail = None if answer_open else _tail(turns)
    for number, turn in enumerate(turns):
        calls = [link for link in turn if link.kind == "call"]
        if calls:
            following = turns[number + 1] if number + 1 < len(turns) else []
            heads = [link for link in takewhile(_is_result, following) if link.place not in strays]
            edits.extend(_placed(calls, heads, call_of, result_of, ids, answer=number != tail))
    return sorted(edits, key=lambda edit: edit.place)


def _is_result(link: Link) -> bool:
    return link.kind == "result"


def _label(link: Link) -> str:
    return link.id or link.name


def _placed(
    calls: Sequence[Link],
    heads: Sequence[Link],
    call_of: Mapping[Place, Link],
    result_of: Mapping[Place, Link],
    ids: Mapping[Place, str],
    *,
    answer: bool,
) -> Iterable[HistoryEdit]:
    """What one turn's results need. `heads` stand where results of this turn belong; those in call order stay."""
    order = {call.place: number for number, call in enumerate(calls)}
    line: list[tuple[int, Link | None]] = []  # number of the call, and the call if its result has yet to come here
    staying: set[Place] = set()
    highest = -1
    for head in heads:
        call = call_of.get(head.place)
        if call is None:  # its call is in the missing part: it stays where it is
            line.append((highest, None))
        elif order.get(call.place, -1) > highest:
            highest = order[call.place]
            line.append((highest, None))
            staying.add(call.place)
    for number, call in enumerate(calls):
        if call.place not in staying and (answer or call.place in result_of):
            line.append((number, call))
    line.sort(key=lambda entry: entry[0])
    for index, (_, call) in enumerate(line):
        if call is not None:
            id = ids.get(call.place) or _label(call)
            result = result_of.get(call.place)
            yield Insert(id, call.place, index) if result is None else Move(id, result.place, call.place, index)


def _tail(turns: Sequence[Sequence[Link]]) -> int | None:
    """The turn whose calls may still be executed: only results follow it."""
    for number in range(len(turns) - 1, -1, -1):
        kinds = {link.kind for link in turns[number]}
        if "call" in kinds:
            return number
        if "speech" in kinds:
            return None
    return None


def _new_ids(turns: Iterable[Sequence[Link]], unique: bool) -> dict[Place, str]:
    """Ids for calls that have none, or one that another call in reach has: `call_{round}_{index}`, as everywhere."""
    turns = list(turns)
    used = {link.id for turn in turns for link in turn if link.id}
    ids: dict[Place, str] = {}
    seen: set[str] = set()
    round = 0
    for turn in turns:
        calls = [link for link in turn if link.kind == "call"]
        if not unique:
            seen.clear()
        for index, call in enumerate(calls):
            if call.id is None:
                continue
            if not call.id or call.id in seen:
                ids[call.place] = id = _free(f"call_{round}_{index}", used)
                used.add(id)
            seen.add(call.id)
        round += bool(calls)
    return ids


def _free(id: str, used: set[str]) -> str:
    while id in used:
        id = next((id + letter for letter in ascii_lowercase if id + letter not in used), id + "z")
    return id


def _renames(links: Iterable[Link], call_of: Mapping[Place, Link], ids: Mapping[Place, str]) -> Iterable[HistoryEdit]:
    for link in links:
        call = call_of.get(link.place, link)
        id = ids.get(call.place, call.id)
        if link.kind != "speech" and id and link.id is not None and link.id != id:
            yield Rename(_label(link), link.place, id, "doubled" if link.id else "nameless")


def _match(links: Sequence[Link], whole: bool) -> tuple[dict[Place, Link], dict[Place, tuple[Link, str]]]:
    """For each result its call: the nearest turn before it that has such a call without a result, there the first.

    Results that answer no call are strays, with the reason. A result before the only call with its id is still its
    result, unless that call has one of its own. Results that name nothing at all answer the calls without ids before
    them, in order, if there are as many.
    """
    waiting = _Waiting()
    call_of: dict[Place, Link] = {}
    strays: dict[Place, tuple[Link, str]] = {}
    early: list[Link] = []
    for link in links:
        if link.kind == "call":
            waiting.add(link)
        elif link.kind == "result":
            call = waiting.take(link)
            if call is not None:
                call_of[link.place] = call
            elif waiting.knows(link):
                strays[link.place] = (link, "doubled")
            else:
                early.append(link)
    if any(map(_names_nothing, early)):
        call_of.update(_match_by_order(links, call_of))
        early = [link for link in early if link.place not in call_of]
    if not whole:
        return call_of, strays
    later = waiting.left_by_id() if early else {}
    for link in early:
        calls = later.get(link.id or "")
        if calls:
            call_of[link.place] = calls.popleft()
        else:
            strays[link.place] = (link, "doubled" if link.id and waiting.knows(link) else "orphan")
    return call_of, strays


def _names_nothing(result: Link) -> bool:
    return result.id == "" and not result.name


def _match_by_order(links: Iterable[Link], call_of: Mapping[Place, Link]) -> dict[Place, Link]:
    answered = {call.place for call in call_of.values()}
    found: dict[Place, Link] = {}
    calls: list[Link] = []
    results: list[Link] = []
    turn = None

    def pair() -> None:
        if len(calls) == len(results):
            found.update({result.place: call for result, call in zip(results, calls, strict=True)})

    for link in links:
        if link.kind == "call":
            if link.turn != turn:
                pair()
                calls, results, turn = [], [], link.turn
            if link.id == "" and link.place not in answered:
                calls.append(link)
        elif link.kind == "result" and _names_nothing(link):
            results.append(link)
    pair()
    return found


_Key: TypeAlias = tuple[Literal["id", "name", "bare"], str]


class _Waiting:
    """The calls that lack a result, found by id; by name where the result, or the call ("bare"), has no id."""

    def __init__(self) -> None:
        self._turns: defaultdict[_Key, list[deque[Link]]] = defaultdict(list)
        self._taken: set[Place] = set()

    def add(self, call: Link) -> None:
        keys: list[_Key] = [("name", call.name), ("id", call.id) if call.id else ("bare", call.name)]
        for key in keys:
            if not key[1]:
                continue
            turns = self._turns[key]
            if turns and turns[-1] and turns[-1][-1].turn == call.turn:
                turns[-1].append(call)
            else:
                turns.append(deque([call]))

    def take(self, result: Link) -> Link | None:
        turns = self._turns.get(self._key(result), [])
        while turns:
            calls = turns[-1]
            while calls:
                call = calls.popleft()
                if call.place not in self._taken:
                    self._taken.add(call.place)
                    return call
            turns.pop()
        return None

    def knows(self, result: Link) -> bool:
        return self._key(result) in self._turns

    def left_by_id(self) -> dict[str, deque[Link]]:
        left: defaultdict[str, deque[Link]] = defaultdict(deque)
        for (by, id), turns in self._turns.items():
            if by == "id":
                left[id].extend(call for calls in turns for call in calls if call.place not in self._taken)
        return left

    def _key(self, result: Link) -> _Key:
        if not result.id:
            return ("name", result.name)
        return ("id", result.id) if ("id", result.id) in self._turns else ("bare", result.name)
