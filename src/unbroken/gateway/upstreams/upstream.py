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
    """Empty for a Python model, which has no wire."""
    origin: str
    """Where its answers come from: only the same origin accepts its signatures."""
    serial: bool
    http: HTTPModel | None = None
    """The first model, if it is called over HTTP."""
    fallback: tuple[str, ...] = ()

    def passes(self, wire: str) -> bool:
        """May a body of this wire be forwarded unchanged?"""
        return self.http is not None and self.wire == wire and self.http.passes_bodies


def open_upstreams(settings: Iterable[UpstreamSettings]) -> dict[str, Upstream]:
    """Opens the models by alias; reports all mistakes in one error."""
    models = list(settings)
    doubled = sorted({model.alias for model in models if sum(other.alias == model.alias for other in models) > 1})
    if doubled:
        raise UserError(f"two models have the alias `{doubled[0]}`: give each its own")
    upstreams, wrong = try_upstreams(models)
    mistakes = [
        type(error)(f"model `{alias}`: {error}") if len(models) > 1 else error for alias, error in wrong.items()
    ]
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise UserError("\n".join(map(str, mistakes)))
    return upstreams


def try_upstreams(
    models: Sequence[UpstreamSettings], with_fallbacks: bool = True
) -> tuple[dict[str, Upstream], dict[str, UnbrokenError]]:
    """By alias: the models that can be opened, and the mistakes of the others."""
    by_alias = {model.alias: model for model in models}
    upstreams: dict[str, Upstream] = {}
    mistakes: dict[str, UnbrokenError] = {}
    for model in models:
        try:
            upstreams[model.alias] = _open(model if with_fallbacks else replace(model, fallback=()), by_alias)
        except UnbrokenError as error:
            mistakes[model.alias] = error
    return upstreams, mistakes


def _open(settings: UpstreamSettings, by_alias: Mapping[str, UpstreamSettings]) -> Upstream:
    model: Model = _model(settings, by_alias, ())
    first: Model = cast("RetryingModel[Model]", model).model if isinstance(model, RetryingModel) else model
    http = first if isinstance(first, HTTPModel) else None
    origin = http.origin if http is not None else first.name
    return Upstream(
        settings.alias,
        cast("Model", model),
        http.wire if http is not None else "",
        origin,
        settings.serial,
        http,
        settings.fallback,
    )


def _model(settings: UpstreamSettings, by_alias: Mapping[str, UpstreamSettings], above: tuple[str, ...]) -> Model:
    """`above`: the chain of aliases whose fallback this is."""
    if settings.alias in above:
        raise UserError(f"the fallbacks {' > '.join([*above, settings.alias])} go round in a circle")
    above = (*above, settings.alias)
    key = _key(settings)
    fallback = [_fallback(name, by_alias, above) for name in settings.fallback]
    if settings.model == "demo" or settings.model.startswith("python:"):
        model: Model = DemoModel() if settings.model == "demo" else _from_python(settings.model)
        return RetryingModel(model, fallback=fallback) if fallback else model
    model = connect(
        settings.model,
        base_url=settings.base_url or None,
        api_key=key,
        wire=settings.wire or None,
        fallback=fallback,
        recover=settings.recover,
        **settings.options,
    )
    if settings.api_key_env or settings.api_key_file:  # an error that says "check …" has to name this one
        model.model.endpoint = replace(model.model.endpoint, key_variable=settings.api_key_env or settings.api_key_file)
    return model


def _fallback(name: str, by_alias: Mapping[str, UpstreamSettings], above: tuple[str, ...]) -> Model:
    settings = by_alias.get(name)
    return connect(name, recover=False) if settings is None else _model(settings, by_alias, above)


@cache
def _from_python(name: str) -> Model:
    """Cached per process, because the model may be large."""
    module, _, function = name.removeprefix("python:").partition(":")
    if not module or not function:
        raise UserError(f"`{name}` names no function: write python:module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the module may lie beside the configuration
    try:
        made = getattr(importlib.import_module(module), function)()
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise UserError(f"`{name}` gave no model: {type(error).__name__}: {error}") from error
    # If it is an Agent, the `agent` package is loaded already; otherwise it is not needed.
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


def _key(settings: UpstreamSettings) -> str | Callable[[], str] | None:
    if settings.api_key_file:
        path = Path(settings.api_key_file).expanduser()
        _read_key(path)
        return partial(_read_key, path)  # read for each request, so that a changed key is used at once
    if settings.api_key_env:
        key = os.environ.get(settings.api_key_env, "").strip()
        if not key:
            raise MissingKey(f"the variable {settings.api_key_env} should hold the key but is not set: set it")
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
