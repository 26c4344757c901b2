"""Rules that wires share: each call has its one result, in time and in order; names, ids and arguments are sound."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from unbroken.messages import Json
from unbroken.wires.values import Object, as_text, dicts

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Chain:
    """Calls and their results, told in the order in which they stand. Adds what is wrong to `problems`.

    `unique` says that no two calls of the whole history may share an id.
    """

    def __init__(self, problems: list[str], unique: bool = False) -> None:
        self._problems = problems
        self._unique = unique
        self._seen: set[str] = set()
        self._open: list[str] = []
        self._answered: set[str] = set()

    def calls(self, where: str, ids: Iterable[str]) -> None:
        """The calls of one message."""
        self.other(where)
        self._answered.clear()
        for id in ids:
            if id in self._open:
                self._problems.append(f"{where}: two calls have the id {id!r}")
            elif self._unique and id in self._seen:
                self._problems.append(f"{where}: the id {id!r} was already used by an earlier call")
            self._seen.add(id)
            self._open.append(id)

    def result(self, where: str, id: str) -> None:
        if id in self._open:
            if self._open[0] != id:
                self._problems.append(f"{where}: the result of {id!r} stands before that of {self._open[0]!r}")
            self._open.remove(id)
            self._answered.add(id)
        elif id in self._answered:
            self._problems.append(f"{where}: a second result for the call {id!r}")
        else:
            self._problems.append(f"{where}: a result for {id!r}, which no call right before it has")

    def other(self, where: str) -> None:
        """Something else is said: whatever was called must have its result by now."""
        if self._open:
            self._problems.append(f"{where}: these calls before it have no result: {', '.join(self._open)}")
            self._open.clear()


def check_model(body: Object) -> list[str]:
    return [] if as_text(body.get("model")) else ["model: none is named"]


def check_names(where: str, names: list[str], allowed: re.Pattern[str] = NAME) -> list[str]:
    problems = [f"{where}: {name!r} cannot be a tool's name" for name in names if not allowed.fullmatch(name)]
    return problems + [f"{where}: two are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]


def check_id(where: str, id: Json, longest: int) -> list[str]:
    if not as_text(id):
        return [f"{where}: a call without an id"]
    return [f"{where}: the id {id!r} is longer than {longest} characters"] if len(id) > longest else []


def check_call(where: str, name: Json, arguments: Json) -> list[str]:
    """A call whose arguments are text."""
    problems = check_names(where, [as_text(name)])
    try:
        whole = isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError):
        whole = False
    return problems if whole else [*problems, f"{where}: the arguments of {name!r} are not the text of a JSON object"]


def check_content(where: str, content: Json, types: set[str]) -> list[str]:
    """A text, or parts of these types."""
    if isinstance(content, str):
        return []
    parts = dicts(content)
    if not parts:
        return [f"{where}: no content"]
    strange = [part.get("type") for part in parts if part.get("type") not in types]
    return [f"{where}: a part of type {type!r} is not allowed here" for type in strange]
