"""What the strict checkers of the wires share. A checker reads a request as the strictest server of its wire does.

Two levels: `check_shape` finds what no server can read (nothing is asked, a field has a wrong type), `check_request`
finds everything else for which a provider would refuse the request, and takes the types for granted. Written from what
the providers document and answer, and independent of our encoders and repairs, so that it can judge them. In one thing
it is stricter than most servers on purpose: results must be in the order of their calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts

Kind: TypeAlias = Literal["a text", "a number", "true or false", "a list", "an object"]
Fields: TypeAlias = Mapping[str, tuple[Kind, ...]]

TEXT: tuple[Kind, ...] = ("a text",)
NUMBER: tuple[Kind, ...] = ("a number",)
FLAG: tuple[Kind, ...] = ("true or false",)
LIST: tuple[Kind, ...] = ("a list",)
OBJECT: tuple[Kind, ...] = ("an object",)
TEXT_OR_LIST: tuple[Kind, ...] = ("a text", "a list")
TEXT_OR_OBJECT: tuple[Kind, ...] = ("a text", "an object")
LIST_OR_OBJECT: tuple[Kind, ...] = ("a list", "an object")

SAMPLING: Fields = {"temperature": NUMBER, "top_p": NUMBER}
MESSAGES: Fields = {"role": TEXT, "content": TEXT_OR_LIST, "tool_calls": LIST}


def check_types(body: Object, fields: Fields, lists: Mapping[str, Fields], messages: str = "") -> list[str]:
    """The fields that have another type than they should. `lists`: the fields that are lists of objects, and the fields
    of these objects. A null is as good as a field that is absent. The field `messages` has to
    be there."""
    problems = _wrong_types("", body, fields)
    for field, inside in lists.items():
        for n, item in enumerate(as_list(body.get(field))):
            where = f"{field}[{n}]"
            wrong = _wrong_types(f"{where}.", as_dict(item), inside)
            problems += wrong if isinstance(item, dict) else [f"{where}: it has to be an object"]
    return problems or ([f"{messages}: none"] if messages and not body.get(messages) else [])


def _wrong_types(before: str, value: Object, fields: Fields) -> list[str]:
    given = {field: value[field] for field in fields if value.get(field) is not None}
    return [
        f"{before}{field}: it is {_kind(one)}, and has to be {' or '.join(fields[field])}"
        for field, one in given.items()
        if _kind(one) not in fields[field]
    ]


def _kind(value: Json) -> Kind:
    match value:
        case bool():
            return "true or false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


# Calls and results

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Chain:
    """Calls and results in the order of the history. Adds what is wrong to `problems`.

    `unique`: no two calls of the history may share an id.
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
        """Something other than a result: every call before it must have its result by now."""
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
