"""Opens the models behind the aliases: settings in, something with `stream` out. Mistakes are reported before the first
request.

`PythonModel` wraps a model written in Python. An exception in it is a failed attempt: it is logged and counted, and the
fallback is asked. It may yield its answer piece by piece, or all at once at the end.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from unbroken.errors import MissingKey, ProviderError, StreamError, Unavailable, UnbrokenError, UserError
from unbroken.models.connect import connect
from unbroken.models.demo_model import DemoModel
from unbroken.models.http import HTTPModel
from unbroken.models.model import RESPONSE_HEAD, Model, closing
from unbroken.models.relay import without_relay
from unbroken.models.retrying import RetryingModel
from unbroken_gateway.http.large_requests import MAIN_LOOP
from unbroken_gateway.settings import DeploymentSettings, UpstreamSettings
from unbroken_gateway.upstreams.pool import Deployment, Pool
from unbroken_wires.deltas import (
    CallReady,
    CallSpoiled,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Restarted,
    TextDelta,
)
from unbroken_wires.messages import Assistant, Request, ToolCall
from unbroken_wires.wires.content_parts import as_declared

if TYPE_CHECKING:
    from unbroken_gateway.guards.guarding import Guardrails

log = logging.getLogger("unbroken.gateway")
T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class _Response:
    """The response so far. Calls are numbered by arrival and get an id if they have none, because handwritten models
    often leave both out."""

    round: int
    custom: frozenset[str] = frozenset()
    """Names of tools that take free text."""
    heard: PartialResponse = field(default_factory=PartialResponse)
    given: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    """The calls as the model gave them, by their number here."""

    def feed(self, delta: Delta) -> Delta:
        match delta:
            case CallReady(call):
                return CallReady(self._number(call))
            case CallSpoiled(call):
                self._forget(call.id)
            case Restarted():
                self.given.clear()
                self.heard.restart()
            case TextDelta() | ReasoningDelta():
                self.heard.feed(delta)
            case _:
                pass  # it has the model's own numbers
        return delta

    def end(self, ended: Ended) -> list[Delta]:
        """The end, with the complete message, and before it the deltas for what only the message contains."""
        message, heard, deltas = ended.message, self.heard.message, list[Delta]()
        if message is None:
            return [Ended(ended.verdict, heard)]
        if message.reasoning and not heard.reasoning:
            deltas.append(ReasoningDelta(message.reasoning))
        if message.text and not heard.text:
            deltas.append(TextDelta(message.text))
        left = dict(self.given)
        calls: list[ToolCall] = []
        for call in message.calls:
            at = next((at for at, said in left.items() if said == call or (said.id and said.id == call.id)), None)
            if at is not None:
                del left[at]
                calls.append(self.heard.calls[at])
            elif call.problem:
                calls.append(call)
            else:
                calls.append(self._number(call))
                deltas.append(CallReady(calls[-1]))
        return [*deltas, Ended(ended.verdict, replace(message, calls=tuple(calls)))]

    def _number(self, call: ToolCall) -> ToolCall:
        calls = self.heard.calls
        index = max(calls, default=-1) + 1
        id = call.id if call.id and all(call.id != said.id for said in calls.values()) else f"call_{self.round}_{index}"
        self.given[index] = call
        numbered = replace(as_declared(call, self.custom), id=id, index=index)
        self.heard.feed(CallReady(numbered))
        return numbered

    def _forget(self, id: str) -> None:
        at = next((at for at, said in self.given.items() if said.id == id), None)
        if at is not None:
            del self.given[at], self.heard.calls[at]


class PythonModel:
    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        if (head := RESPONSE_HEAD.get()) is not None:
            head.model = head.asked = self.name
        rounds = sum(isinstance(said, Assistant) and bool(said.calls) for said in request.messages)
        response = _Response(rounds, frozenset(tool.name for tool in request.tools if tool.kind == "custom"))
        home, request = MAIN_LOOP.get(), without_relay(request)
        said = self.model.stream(request) if home is None else _stream_on_main_loop(home, self.model, request)
        try:
            async with closing(said) as batches:
                async for deltas in batches:
                    batch: list[Delta] = []
                    for delta in deltas:
                        if isinstance(delta, Ended):
                            yield [*batch, *response.end(delta)]
                            return
                        batch.append(response.feed(delta))
                    yield batch
        except (ProviderError, StreamError):
            raise
        except Exception as error:
            # The user's code may raise anything, even our `UserError`, and the client is not to blame.
            log.exception("the model `%s` failed", self.name)
            raise Unavailable(f"model `{self.name}` failed: {type(error).__name__}", status=502) from error


async def _stream_on_main_loop(
    home: asyncio.AbstractEventLoop, model: Model, request: Request
) -> AsyncIterator[Sequence[Delta]]:
    """A model may be bound to the loop that it was first used on, so it runs there, in one task."""
    here = asyncio.get_running_loop()
    queue: asyncio.Queue[Sequence[Delta] | None] = asyncio.Queue()

    async def ask() -> None:
        try:
            async with closing(model.stream(request)) as batches:
                async for deltas in batches:
                    here.call_soon_threadsafe(queue.put_nowait, deltas)
        finally:
            here.call_soon_threadsafe(queue.put_nowait, None)

    asking = asyncio.run_coroutine_threadsafe(ask(), home)
    try:
        while (deltas := await queue.get()) is not None:
            yield deltas
        await asyncio.wrap_future(asking)
    finally:
        asking.cancel()


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
    """The names of what may answer in its place."""
    pool: Pool | None = None
    """Set if it has several deployments: the one that answers is picked for each request."""
    all_calls: bool | None = None
    """As in its settings."""
    pattern: str = ""
    """The alias with a `*` that its own name fits."""
    guards: Guardrails | None = None
    """Set if it has guardrails or hooks: no request and no answer passes unchanged then."""

    @property
    def own_fallback(self) -> tuple[str, ...]:
        """What may answer in its place, without its other deployments."""
        return self.fallback if self.pool is None else self.fallback[len(self.pool.deployments) - 1 :]

    @property
    def counted_as(self) -> str:
        """Its name in metrics and on the status page. Clients choose what stands for a `*`, so that would be any
        number of names."""
        return self.pattern or self.alias

    def passes(self, wire: str) -> bool:
        """May a body of this wire be forwarded unchanged?"""
        return self.http is not None and self.wire == wire and self.http.passes_bodies and self.guards is None


NO_UPSTREAMS: Mapping[str, Upstream] = MappingProxyType({})


def open_upstreams(
    settings: Iterable[UpstreamSettings], same: Mapping[str, Upstream] = NO_UPSTREAMS
) -> dict[str, Upstream]:
    """Opens the models by alias; reports all mistakes in one error. `same` are open already, and stay."""
    models = list(settings)
    doubled = sorted({model.alias for model in models if sum(other.alias == model.alias for other in models) > 1})
    if doubled:
        raise UserError(f"two models have the alias `{doubled[0]}`: give each its own")
    upstreams, wrong = try_upstreams(models, same=same)
    mistakes = [_named(f"model `{alias}`", error) if len(models) > 1 else error for alias, error in wrong.items()]
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise UserError("\n".join(map(str, mistakes)))
    return upstreams


def try_upstreams(
    models: Sequence[UpstreamSettings], with_fallbacks: bool = True, same: Mapping[str, Upstream] = NO_UPSTREAMS
) -> tuple[dict[str, Upstream], dict[str, UnbrokenError]]:
    """By alias: the models that can be opened, and the mistakes of the others."""
    by_alias = {model.alias: model for model in models}
    upstreams: dict[str, Upstream] = {}
    mistakes: dict[str, UnbrokenError] = {}
    for model in models:
        if (open := same.get(model.alias)) is not None:
            upstreams[model.alias] = open
            continue
        try:
            upstreams[model.alias] = open_upstream(model if with_fallbacks else replace(model, fallback=()), by_alias)
        except UnbrokenError as error:
            mistakes[model.alias] = error
    return upstreams, _without_those_of_fallbacks(mistakes, by_alias)


def _without_those_of_fallbacks(
    mistakes: dict[str, UnbrokenError], by_alias: Mapping[str, UpstreamSettings]
) -> dict[str, UnbrokenError]:
    """What is wrong with a fallback that has an alias is reported for that alias only."""
    own: dict[str, UnbrokenError] = {}
    for alias, error in mistakes.items():
        left = tuple(name for name in by_alias[alias].fallback if name not in mistakes)
        if left == by_alias[alias].fallback:
            own[alias] = error
            continue
        try:
            open_upstream(replace(by_alias[alias], fallback=left), by_alias)
        except UnbrokenError as found:
            own[alias] = found
    return own or mistakes


def _each(works: Iterable[Callable[[], T]]) -> list[T]:
    """The results of all. Their mistakes are raised together, one line each."""
    results: list[T] = []
    mistakes: list[UnbrokenError] = []
    for work in works:
        try:
            results.append(work())
        except UnbrokenError as error:
            mistakes.append(error)
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise UserError("\n".join(dict.fromkeys(map(str, mistakes))))
    return results


def _both(first: Callable[[], T], second: Callable[[], U]) -> tuple[T, U]:
    one, two = _each(cast("list[Callable[[], Any]]", [first, second]))
    return one, two


def _named(what: str, error: UnbrokenError) -> UnbrokenError:
    """The error, with what it is about before each of its lines."""
    return type(error)("\n".join(f"{what}: {line}" for line in str(error).splitlines()))


def open_upstream(settings: UpstreamSettings, by_alias: Mapping[str, UpstreamSettings]) -> Upstream:
    if settings.deployments:
        return _open_pool(settings, by_alias)
    return _upstream(settings, *_both(lambda: _model(settings, by_alias, ()), lambda: _guards(settings)))


def _open_pool(settings: UpstreamSettings, by_alias: Mapping[str, UpstreamSettings]) -> Upstream:
    (models, fallback), guards = _both(
        lambda: _both(lambda: _deployed(settings), lambda: _fallbacks(settings, by_alias, (settings.alias,))),
        lambda: _guards(settings),
    )
    deployments = tuple(
        Deployment(each.name, models[each.name], each.weight, each.priority, settings.cooldown)
        for each in settings.deployments
    )
    upstreams = {
        name: replace(
            _upstream(settings, model, guards),
            fallback=(*(other for other in models if other != name), *settings.fallback),
        )
        for name, model in models.items()
    }
    pool = Pool(deployments, upstreams, tuple(fallback), settings.choose, settings.sticky, settings.probe)
    return replace(upstreams[deployments[0].name], pool=pool)


def _deployed(settings: UpstreamSettings) -> dict[str, RetryingModel[HTTPModel]]:
    """The models of its deployments, by their names, without fallbacks."""

    def open_one(each: DeploymentSettings) -> RetryingModel[HTTPModel]:
        one = UpstreamSettings(
            settings.alias,
            each.model,
            each.base_url,
            each.api_key_env,
            each.api_key_file,
            each.wire,
            recover=settings.recover,
            options=each.options,
        )
        try:
            return cast("RetryingModel[HTTPModel]", _model(one, {}, ()))
        except UnbrokenError as error:
            raise _named(f"deployment `{each.name}`", error) from None

    models = _each(partial(open_one, each) for each in settings.deployments)
    return {each.name: model for each, model in zip(settings.deployments, models, strict=True)}


def _upstream(settings: UpstreamSettings, model: Model, guards: Guardrails | None) -> Upstream:
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
        all_calls=settings.all_calls,
        guards=guards,
    )


def _guards(settings: UpstreamSettings) -> Guardrails | None:
    if not (settings.guardrails or settings.hooks):
        return None
    from unbroken_gateway.guards.opening import open_guardrails  # noqa: PLC0415 - start-up time

    return open_guardrails(settings)


def _model(settings: UpstreamSettings, by_alias: Mapping[str, UpstreamSettings], above: tuple[str, ...]) -> Model:
    """`above`: the chain of aliases whose fallback this is."""
    if settings.alias in above:
        raise UserError(f"the fallbacks {' > '.join([*above, settings.alias])} form a circle: remove one of them")
    if settings.deployments:
        several, fallback = _both(
            lambda: _deployed(settings), lambda: _fallbacks(settings, by_alias, (*above, settings.alias))
        )
        first, *others = several.values()
        return first.with_fallback(*others, *fallback)
    model, fallback = _both(lambda: _alone(settings), lambda: _fallbacks(settings, by_alias, (*above, settings.alias)))
    if not fallback:
        return model
    if isinstance(model, RetryingModel):
        return cast("RetryingModel[Model]", model).with_fallback(*fallback)
    return RetryingModel(model, fallback=fallback)


def _alone(settings: UpstreamSettings) -> Model:
    """The model without its fallbacks."""
    if settings.model == "demo" or settings.model.startswith("python:"):
        return DemoModel() if settings.model == "demo" else _from_python(settings.model)
    model = connect(
        settings.model,
        base_url=settings.base_url or None,
        api_key=_key(settings),
        wire=settings.wire or None,
        recover=settings.recover,
        **settings.options,
    )
    if settings.api_key_env or settings.api_key_file:  # an error that says "check …" has to name this one
        model.model.endpoint = replace(model.model.endpoint, key_variable=settings.api_key_env or settings.api_key_file)
    return model


def _fallbacks(
    settings: UpstreamSettings, by_alias: Mapping[str, UpstreamSettings], above: tuple[str, ...]
) -> list[Model]:
    return _each(partial(_fallback, name, by_alias, above) for name in settings.fallback)


def _fallback(name: str, by_alias: Mapping[str, UpstreamSettings], above: tuple[str, ...]) -> Model:
    settings = by_alias.get(name)
    if settings is not None:
        return _model(settings, by_alias, above)
    try:
        return connect(name, recover=False)
    except UnbrokenError as error:
        raise _named(f"fallback `{name}`", error) from None


@cache
def _from_python(name: str) -> Model:
    """Cached per process, because the model may be large."""
    module, _, function = name.removeprefix("python:").partition(":")
    if not module or not function:
        raise UserError(f"`{name}` does not name a function: write python:module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the module may lie beside the configuration
    try:
        made = getattr(importlib.import_module(module), function)()
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise UserError(f"calling `{name}` failed: {type(error).__name__}: {error}") from error
    # If it is an Agent, the `agent` package is loaded already; otherwise it is not needed.
    agents = sys.modules.get("unbroken.agent.agent")
    if agents is not None and isinstance(made, agents.Agent):
        from unbroken_gateway.upstreams.agent_model import AgentModel  # noqa: PLC0415 - start-up: loads all of `agent`

        made = AgentModel(made)
    if inspect.iscoroutine(made):
        made.close()
        raise UserError(
            f"`{name}` is `async def`, but there is no event loop yet when it is called: make it a plain function"
        )
    if not hasattr(made, "stream"):
        raise UserError(f"`{name}` returned {made!r}, which is neither a model nor an Agent")
    if not isinstance(getattr(made, "name", None), str):
        raise UserError(f"`{name}` returned {made!r}, which has no `name`: give it one, a text")
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
