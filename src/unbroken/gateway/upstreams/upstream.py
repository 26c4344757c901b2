"""Opens the models behind the aliases: settings in, something with `stream` out. Mistakes are reported before the first
request.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import cast

from unbroken.errors import MissingKey, UnbrokenError, UserError
from unbroken.gateway.settings import UpstreamSettings
from unbroken.gateway.upstreams.demo_model import DemoModel
from unbroken.gateway.upstreams.python_model import PythonModel
from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken.models.model import Model
from unbroken.models.retrying import RetryingModel


@dataclass(frozen=True, slots=True)
class Upstream:
    alias: str
    model: Model
    wire: str
    """Empty for a model that speaks none of ours: one of Python."""
    origin: str
    """Where its answers come from: what is signed there is understood there."""
    serial: bool
    http: HTTPModel | None = None
    """The first model, if it is one behind HTTP."""
    fallback: tuple[str, ...] = ()

    def passes(self, wire: str) -> bool:
        """May a body of this wire go out as it came in?"""
        return self.http is not None and self.wire == wire and self.http.passes_bodies


def open_upstreams(settings: Iterable[UpstreamSettings]) -> dict[str, Upstream]:
    """By alias; all mistakes in one error."""
    rows = list(settings)
    doubled = sorted({row.alias for row in rows if sum(other.alias == row.alias for other in rows) > 1})
    if doubled:
        raise UserError(f"two models have the alias `{doubled[0]}`: give each its own")
    upstreams, wrong = try_upstreams(rows)
    mistakes = [type(error)(f"model `{alias}`: {error}") if len(rows) > 1 else error for alias, error in wrong.items()]
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise UserError("\n".join(map(str, mistakes)))
    return upstreams


def try_upstreams(
    rows: Sequence[UpstreamSettings], with_fallbacks: bool = True
) -> tuple[dict[str, Upstream], dict[str, UnbrokenError]]:
    """By alias: those that can be opened, and what is wrong with the others."""
    by_alias = {row.alias: row for row in rows}
    upstreams: dict[str, Upstream] = {}
    mistakes: dict[str, UnbrokenError] = {}
    for row in rows:
        try:
            upstreams[row.alias] = _open(row if with_fallbacks else replace(row, fallback=()), by_alias)
        except UnbrokenError as error:
            mistakes[row.alias] = error
    return upstreams, mistakes


def _open(row: UpstreamSettings, rows: Mapping[str, UpstreamSettings]) -> Upstream:
    model: Model = _model(row, rows, ())
    first: Model = cast("RetryingModel[Model]", model).model if isinstance(model, RetryingModel) else model
    http = first if isinstance(first, HTTPModel) else None
    origin = http.origin if http is not None else first.name
    return Upstream(
        row.alias, cast("Model", model), http.wire if http is not None else "", origin, row.serial, http, row.fallback
    )


def _model(row: UpstreamSettings, rows: Mapping[str, UpstreamSettings], above: tuple[str, ...]) -> Model:
    """`above`: the aliases whose fallback this is."""
    if row.alias in above:
        raise UserError(f"the fallbacks {' > '.join([*above, row.alias])} go round in a circle")
    above = (*above, row.alias)
    key = _key(row)
    fallback = [_fallback(name, rows, above) for name in row.fallback]
    if row.model == "demo" or row.model.startswith("python:"):
        model: Model = DemoModel() if row.model == "demo" else _from_python(row.model)
        return RetryingModel(model, fallback=fallback) if fallback else model
    model = connect(
        row.model,
        base_url=row.base_url or None,
        api_key=key,
        wire=row.wire or None,
        fallback=fallback,
        recover=row.recover,
        **row.options,
    )
    if row.api_key_env or row.api_key_file:  # where it says "check …", it has to name this one
        model.model.endpoint = replace(model.model.endpoint, key_variable=row.api_key_env or row.api_key_file)
    return model


def _fallback(name: str, rows: Mapping[str, UpstreamSettings], above: tuple[str, ...]) -> Model:
    row = rows.get(name)
    return connect(name, recover=False) if row is None else _model(row, rows, above)


@cache
def _from_python(name: str) -> Model:
    """Made once in a process, however often it is looked at: it may be large."""
    module, _, function = name.removeprefix("python:").partition(":")
    if not module or not function:
        raise UserError(f"`{name}` names no function: write python:module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the module may lie beside the configuration
    try:
        made = getattr(importlib.import_module(module), function)()
    except (Exception, SystemExit) as error:  # the module is the user's own, anything may come of it
        raise UserError(f"`{name}` gave no model: {type(error).__name__}: {error}") from error
    # Who made an Agent has loaded it, and with it what only agents need; nobody else has to.
    agents = sys.modules.get("unbroken.agent.agent")
    if agents is not None and isinstance(made, agents.Agent):
        from unbroken.gateway.upstreams.agent_model import AgentModel  # noqa: PLC0415 - start-up: loads all of `agent`

        made = AgentModel(made)
    if inspect.iscoroutine(made):
        made.close()
        raise UserError(f"`{name}` is `async def`, and is called before there is a loop: make it a plain function")
    if not hasattr(made, "stream"):
        raise UserError(f"`{name}` gave {made!r}, which is neither a model nor an Agent")
    if not isinstance(getattr(made, "name", None), str):
        raise UserError(f"`{name}` gave {made!r}, which has no `name`: give it one, a text")
    return PythonModel(cast("Model", made))


def _key(row: UpstreamSettings) -> str | Callable[[], str] | None:
    if row.api_key_file:
        path = Path(row.api_key_file).expanduser()
        _read_key(path)
        return partial(_read_key, path)  # for each request: a key that is changed there counts at once
    if row.api_key_env:
        key = os.environ.get(row.api_key_env, "").strip()
        if not key:
            raise MissingKey(f"the variable {row.api_key_env} is to hold a key and is not set: set it")
        return key
    return None


def _read_key(path: Path) -> str:
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MissingKey(f"reading the key file {path} failed: {error}") from None
    if not key:
        raise MissingKey(f"the key file {path} is empty: write the key into it")
    return key
