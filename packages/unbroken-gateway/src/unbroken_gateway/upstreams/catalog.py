"""The models that clients can ask for: by an alias, by an alias with a `*`, and which deployment of it answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from unbroken.asgi import Refused
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.references import provider_references
from unbroken_gateway.settings import UpstreamSettings
from unbroken_gateway.upstreams.pool import conversation_of
from unbroken_gateway.upstreams.upstream import Upstream, open_upstream, open_upstreams
from unbroken_wires.messages import Json


class Catalog:
    """All models are opened at once; those behind a `*` when they are first asked for."""

    def __init__(self, settings: Sequence[UpstreamSettings], before: Catalog | None = None) -> None:
        """`before`: the models of an earlier configuration. Those that have not changed stay open, with all that is
        known of them."""
        self._settings = {each.alias: each for each in settings}
        self.upstreams = open_upstreams(settings, {} if before is None else self._same(before))
        if before is None or before._settings != self._settings:
            self._wildcards = Wildcards(settings, self.upstreams)
        else:
            self._wildcards = before._wildcards
        self._probing: list[asyncio.Task[None]] = []
        if before is not None:
            _take_over(self.upstreams, before.upstreams)

    def _same(self, before: Catalog) -> dict[str, Upstream]:
        return {
            alias: upstream
            for alias, upstream in before.upstreams.items()
            if alias in self._settings
            and _with_fallbacks(alias, self._settings) == _with_fallbacks(alias, before._settings)
        }

    def find(
        self, model: str, key: GatewayKey | None, body: Mapping[str, Json] | None = None, messages_field: str = ""
    ) -> Upstream:
        """The model with this name, and of its deployments the one for this body. Raises `Refused` if there is none, or
        none that the key may use."""
        upstream = self.look_up(model, key)
        if upstream is None:
            allowed = [alias for alias in self.upstreams if key is None or key.allows(alias)]
            raise Refused(404, f"there is no model {model[:100]!r} here; there are: {', '.join(allowed)}")
        pool = upstream.pool
        # What a provider holds (files, containers) is at one deployment; `held_at` finds it.
        if pool is None or body is None or any(True for _ in provider_references(body)):
            return upstream
        scope = key.id if key is not None else ""
        return pool.pick(conversation_of(scope, upstream.alias, body, messages_field) if pool.sticky else b"")

    def look_up(self, model: str, key: GatewayKey | None) -> Upstream | None:
        """The model with this name; None if there is none that the key may use."""
        upstream = self.upstreams.get(model)
        if upstream is None:
            upstream = self._wildcards.find(model)
        if upstream is None or key is None or key.allows(model) or key.allows(upstream.counted_as):
            return upstream
        return None

    def has(self, model: str) -> bool:
        """Whether there is a model with this name, or an alias with a `*` that it fits."""
        return model in self.upstreams or self._wildcards.fits(model)

    def start_probes(self) -> None:
        """Finds out from time to time whether deployments that failed are back."""
        pools = [upstream.pool for upstream in self.upstreams.values() if upstream.pool is not None]
        self._probing = [asyncio.create_task(pool.probe()) for pool in pools if pool.interval is not None]

    def stop_probes(self) -> None:
        for probing in self._probing:
            probing.cancel()


def _with_fallbacks(alias: str, settings: Mapping[str, UpstreamSettings]) -> list[UpstreamSettings]:
    """The settings of an alias and of all aliases that it falls back to."""
    found: dict[str, UpstreamSettings] = {}
    ahead = [alias]
    while ahead:
        name = ahead.pop()
        if name in settings and name not in found:
            found[name] = settings[name]
            ahead += settings[name].fallback
    return [*found.values()]


def _take_over(upstreams: Mapping[str, Upstream], before: Mapping[str, Upstream]) -> None:
    for alias, upstream in upstreams.items():
        old = before.get(alias)
        if upstream is old or old is None or upstream.pool is None or old.pool is None:
            continue
        known = {each.name: each for each in old.pool.deployments}
        for each in upstream.pool.deployments:
            same = known.get(each.name)
            if same is not None and same.model.model.origin == each.model.model.origin:
                each.take_over(same)


MOST_NAMES = 500
"""Models of one alias with a `*` that are kept open; those that were not used for the longest time are closed."""


_NAME = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,199}")
"""Names that a client may choose: they become part of an address at some providers."""


class Wildcards:
    """The models whose alias has a `*`. What stands for it in a client's name for the model, stands for the `*` in
    `model` too. The longest alias that fits is used, so `*` alone is the default."""

    def __init__(self, settings: Iterable[UpstreamSettings], opened: Mapping[str, Upstream]) -> None:
        models = list(settings)
        self._opened = opened
        self._by_alias = {model.alias: model for model in models}
        self._patterns = sorted((model for model in models if "*" in model.alias), key=_fixed_length, reverse=True)
        self._open = lru_cache(MOST_NAMES)(self._open_now)

    def fits(self, name: str) -> bool:
        parts = (settings.alias.partition("*") for settings in self._patterns)
        return any(name.startswith(before) and name.endswith(after) for before, _, after in parts)

    def find(self, name: str) -> Upstream | None:
        """None if no alias fits."""
        for settings in self._patterns:
            before, _, after = settings.alias.partition("*")
            if len(name) > _fixed_length(settings) and name.startswith(before) and name.endswith(after):
                return self._open(settings.alias, name) if _NAME.fullmatch(name) else None
        return None

    def _open_now(self, pattern: str, name: str) -> Upstream:
        settings = self._by_alias[pattern]
        before, _, after = pattern.partition("*")
        part = name[len(before) : len(name) - len(after)]
        named = replace(
            settings,
            alias=name,
            model=settings.model.replace("*", part),
            deployments=tuple(replace(each, model=each.model.replace("*", part)) for each in settings.deployments),
        )
        upstream = replace(open_upstream(named, self._by_alias), pattern=pattern)
        if (pool := upstream.pool) is None:
            return upstream
        counted_by = self._opened[pattern].pool
        assert counted_by is not None, "it has the same deployments"
        for each, whole in zip(pool.deployments, counted_by.deployments, strict=True):
            each.whole = whole
        counted = {name: replace(each, pattern=pattern) for name, each in pool.upstreams.items()}
        return replace(upstream, pool=replace(pool, upstreams=counted))


def _fixed_length(settings: UpstreamSettings) -> int:
    return len(settings.alias) - 1
