"""Reads the configuration of a running gateway again: after a signal, through the admin API, or when its file changes.

New requests use the new configuration, those in flight finish with the old one, and no connection is closed. If the new
one has a mistake, nothing changes: the mistake is logged and shown on the status page.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from unbroken.errors import UnbrokenError, UserError
from unbroken_gateway.settings import NEEDS_RESTART, GatewaySettings

if TYPE_CHECKING:  # they load pydantic, and prometheus_client, an optional extra
    from unbroken_gateway.admin.stats import Stats
    from unbroken_gateway.config import ServeOptions
    from unbroken_gateway.config.opening import Opened

log = logging.getLogger("unbroken.gateway")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where the settings of a gateway come from. It is pickled for workers, so it holds plain data only: a worker that
    never reloads does not load pydantic."""

    file: str
    """Empty: there are options only."""
    options: Mapping[str, Any]
    """The fields of `ServeOptions`."""
    is_litellm: bool = False
    """The file is a configuration of LiteLLM's proxy."""

    def read(self, added: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> GatewaySettings:
        """`added`: what the admin API has added. Raises `UserError` with all mistakes."""
        from unbroken_gateway.config import ServeOptions  # noqa: PLC0415 - see above
        from unbroken_gateway.config.opening import IN_A_FILE, Opened  # noqa: PLC0415 - see above

        try:
            return self._read(ServeOptions(**self.options), Opened(), added)
        except UserError as error:
            words = str(error)
            for spelled, here in IN_A_FILE.items():
                words = words.replace(spelled, here)
            raise UserError(words) from None

    def _read(
        self, options: ServeOptions, opened: Opened, added: Mapping[str, Mapping[str, Mapping[str, Any]]]
    ) -> GatewaySettings:
        from unbroken_gateway.config import read_config, settings_from_options  # noqa: PLC0415 - see above

        if self.is_litellm:
            from unbroken_gateway.from_litellm import read_litellm  # noqa: PLC0415 - see above

            return read_litellm(self.file).settings(options, opened, added)
        if self.file:
            return read_config(self.file, options, opened, added)
        return settings_from_options(options, opened, added)

    def names(self, array: str) -> set[str]:
        """The names of an array's tables in the file, or of the model that the options name."""
        from unbroken_gateway.config.added import names_in_file  # noqa: PLC0415 - see above

        if array == "models" and (model := self.options.get("upstream")):
            return names_in_file({"models": [{"model": model, "alias": self.options.get("alias") or None}]}, array)
        if not self.file:
            return set()
        try:
            if self.is_litellm:
                from unbroken_gateway.from_litellm import read_litellm  # noqa: PLC0415 - see above

                return names_in_file(read_litellm(self.file).document, array)
            return names_in_file(tomllib.loads(Path(self.file).read_text("utf-8-sig")), array)
        except (OSError, ValueError, UserError):
            return set()

    def stamp(self) -> tuple[int, int, int]:
        """Changes with the file."""
        try:
            found = Path(self.file).stat()
        except OSError:
            return 0, 0, 0
        return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True)
class Reload:
    """One attempt to read the configuration again."""

    at: float
    problem: str = ""
    """Why the old configuration stays in force: all mistakes, one line each."""
    changes: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    """Settings whose new value is not used before a restart, as in `server.port`."""


class Reloadable(Protocol):
    @property
    def settings(self) -> GatewaySettings: ...

    @property
    def added(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """What the admin API has added to the configuration."""
        ...

    async def use(self, settings: GatewaySettings) -> None:
        """Raises `UnbrokenError`, and then uses what it had."""
        ...


class Reloader:
    def __init__(self, source: ConfigSource, gateway: Reloadable, stats: Stats, now: Callable[[], float]) -> None:
        self.last: Reload | None = None
        self.file = source.file
        self._source = source
        self._gateway = gateway
        self._stats = stats
        self._now = now
        self._alone = asyncio.Lock()
        self._stamp = source.stamp()
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Reloads without being waited for."""
        task = asyncio.get_running_loop().create_task(self.reload(), name="unbroken-reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start_watching(self) -> None:
        if multiprocessing.parent_process() is not None:
            self._stamp = 0, 0, 0  # the file may have changed since the workers were started
        self._tasks.add(asyncio.get_running_loop().create_task(self._watch(), name="unbroken-watch"))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def names_in_file(self, array: str) -> set[str]:
        """The names of the tables that do not come from the admin API; none if the file cannot be read now."""
        return self._source.names(array)

    async def check(self, added: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        """Raises `UserError` if the configuration has mistakes with these additions."""
        await asyncio.to_thread(self._source.read, added)

    async def reload(self) -> Reload:
        async with self._alone:
            try:
                self.last = await self._reload()
            except Exception as error:
                if not isinstance(error, UnbrokenError):
                    log.error("reading the configuration again failed", exc_info=error)
                self.last = Reload(self._now(), str(error) or type(error).__name__)
                for line in self.last.problem.splitlines():
                    log.error("config_refused %s", line)
            self._stats.metrics.reloaded(not self.last.problem)
            return self.last

    async def _reload(self) -> Reload:
        from unbroken_gateway.config.changes import describe, find_changes  # noqa: PLC0415 - start-up: loads pydantic

        self._stamp = self._source.stamp()
        wanted = await asyncio.to_thread(self._source.read, self._gateway.added)
        old = self._gateway.settings
        settings = changed_at_run_time(old, wanted)
        changes = find_changes(describe(old), describe(wanted))
        await self._gateway.use(settings)
        for change in changes:
            log.info("config_change %s", change)
        restart = tuple(change.what for change in changes if change.restart)
        log.info("config_reloaded changes=%d restart=%s", len(changes), ",".join(restart) or "-")
        return Reload(self._now(), changes=tuple(map(str, changes)), needs_restart=restart)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._gateway.settings.look_every)
            if self._gateway.settings.watch and self._source.stamp() != self._stamp:
                await self.reload()


def changed_at_run_time(old: GatewaySettings, wanted: GatewaySettings) -> GatewaySettings:
    """The new settings, except those that only a restart changes. The new ones were checked with their own host; so
    this raises `UserError` if they are not safe with the old one."""
    from unbroken_gateway.setting_types import is_loopback  # noqa: PLC0415 - start-up: loads pydantic

    settings = replace(wanted, **{name: getattr(old, name) for name in NEEDS_RESTART})
    if settings.host != wanted.host and not (settings.keys or settings.open_to_all or is_loopback(settings.host)):
        raise UserError(
            f"without keys, the gateway would be open to everybody until its restart: it still listens on "
            f"{settings.host}, and `host` changes only with a restart"
        )
    return settings
