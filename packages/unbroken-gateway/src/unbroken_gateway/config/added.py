"""Adds what the admin API has added to the tables of the file. Tables of the file win over added ones of the same name.

An admin key is not a login to the machine: what is added cannot name Python code or files, or send variables that hold
no provider's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from unbroken.models.providers import PROFILES
from unbroken_gateway.config.errors import Mistakes

NAME_OF = {"models": "alias", "teams": "name", "budgets": "name"}
"""The arrays that the admin API may add to, and the key that names their tables."""
ONE_OF = {"models": "alias", "teams": "team", "budgets": "budget"}
FILE_ONLY = ("api_key_file", "raw_log", "hooks", "check")
"""Keys of models, deployments and guardrails that name a file or code."""
CODE = "python:"


def add_tables(
    document: dict[str, Any], added: Mapping[str, Mapping[str, Mapping[str, Any]]], mistakes: Mistakes
) -> None:
    for array, tables in added.items():
        rows = document.setdefault(array, [])
        if array not in NAME_OF or not isinstance(rows, list):
            continue
        written = cast("list[Any]", rows)
        names = {_name(array, row) for row in written}
        variables = set(_variables(written))
        for name, table in tables.items():
            if name in names:
                continue
            where = (array, len(written))
            mistakes.added[where] = f"{ONE_OF[array]} `{name}` of the admin API"
            refused = [*_refusals(table, variables)] if array == "models" else []
            for words in refused:
                mistakes.note(where, words)
            if not refused:  # otherwise what it names would be opened, to find its mistakes
                written.append({**table, NAME_OF[array]: name})


def names_in_file(document: Mapping[str, Any], array: str) -> set[str]:
    rows: object = document.get(array)
    return {_name(array, row) for row in cast("list[Any]", rows)} if isinstance(rows, list) else set()


def _name(array: str, row: object) -> str:
    table = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    name = table.get(NAME_OF[array])
    if isinstance(name, str) or array != "models":
        return str(name)
    kind, _, model = str(table.get("model", "")).partition(":")
    return model.partition(":")[2] if kind == "python" else model or kind


def _variables(rows: list[Any]) -> Iterator[str]:
    for row in rows:
        if isinstance(row, dict):
            table = cast("dict[str, Any]", row)
            yield str(table.get("api_key_env", ""))
            yield from _variables(table.get("deployments") or [])


def _refusals(table: Mapping[str, Any], variables: set[str]) -> Iterator[str]:
    lists = [table.get(key) for key in ("deployments", "guardrails")]
    inner = [each for rows in lists if isinstance(rows, list) for each in cast("list[Any]", rows)]
    known = variables | {variable for provider in PROFILES for variable in provider.keys}
    for row in (table, *(cast("dict[str, Any]", each) for each in inner if isinstance(each, dict))):
        for key in ("model", "use", "fallback"):
            named = row.get(key)  # a fallback is one name, or a list of them
            if any(map(_is_code, cast("list[Any]", named) if isinstance(named, list) else [named])):
                yield f"`{key}` names Python code: it can be written in the configuration file only"
        for key in FILE_ONLY:
            if key in row:
                yield f"`{key}` names a file or code: it can be written in the configuration file only"
        variable = row.get("api_key_env")
        if isinstance(variable, str) and variable not in known:
            yield "`api_key_env` can only be a variable of a provider, or one that the file names"


def _is_code(name: object) -> bool:
    """Blanks around a name are ignored where it is read."""
    return isinstance(name, str) and name.strip().startswith(CODE)
