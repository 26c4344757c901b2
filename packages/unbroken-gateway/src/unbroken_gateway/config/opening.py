"""Opens what settings name, to find the mistakes that only opening shows: a missing key of a provider, a store's file
that cannot be used. Nothing is changed."""

from __future__ import annotations

import os
from pathlib import Path

from unbroken.errors import UserError
from unbroken_gateway.config.errors import Mistakes
from unbroken_gateway.keys import KeyRing
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.stores import check_store, journal_url, store_url
from unbroken_gateway.upstreams.upstream import Upstream, try_upstreams

IN_A_FILE = {"pass api_key=…": "name a variable with `api_key_env`", "pass base_url=…": "write `base_url`"}
"""The advice in an error message, and what does the same in a configuration."""
SHORTEST_KEY = 24
"""Characters of an admin key."""


class Opened:
    """A `Look` that opens what the settings name, without changing anything: models, keys, the store's file. Mistakes
    are reported with their line of the file, like all others. It keeps what it opened."""

    def __init__(self) -> None:
        self.upstreams: dict[str, Upstream] = {}
        self.ring: KeyRing | None = None

    def __call__(self, settings: GatewaySettings, mistakes: Mistakes) -> None:
        # A fallback may be missing because it could not be read. Each model is opened on its own anyway.
        self.upstreams, wrong = try_upstreams(settings.upstreams, with_fallbacks=not mistakes)
        for alias, error in wrong.items():
            for line in str(error).splitlines():
                mistakes.note(mistakes.models.get(alias, ()), line)
        try:
            _check_store(settings)
        except UserError as error:
            mistakes.note(("store", "url"), str(error), table=False)
        try:
            self.ring = KeyRing(settings.keys_file) if settings.keys and not settings.keys_in_store else None
        except UserError as error:
            mistakes.note(("keys", "file"), str(error), table=False)
        if settings.admin_key_env:
            try:
                admin_key(settings)
            except UserError as error:
                mistakes.note(("admin", "key_env"), str(error), table=False)
        if settings.journal:
            try:
                journal_url(settings.journal)
            except UserError as error:
                mistakes.note(("durable", "journal"), str(error), table=False)
        if settings.record and (words := _unusable(Path(settings.record).expanduser())):
            mistakes.note(("record", "folder"), words, table=False)


def admin_key(settings: GatewaySettings) -> str:
    """The key of the admin API that a variable holds; empty if none is configured."""
    if not settings.admin_key_env:
        return ""
    key = os.environ.get(settings.admin_key_env, "").strip()
    if not key:
        raise UserError(f"the variable {settings.admin_key_env} should hold the admin key but is not set: set it")
    if len(key) < SHORTEST_KEY:
        raise UserError(
            f"the admin key in {settings.admin_key_env} has fewer than {SHORTEST_KEY} characters: "
            "`openssl rand -hex 32` makes one that cannot be guessed"
        )
    return key


def refuse_name_of_admin_key(settings: GatewaySettings, name: str) -> None:
    """Raises `UserError` if a key would have the name under which the log shows what the configured admin key did."""
    if settings.admin_key_env and name.casefold() == settings.admin_key_env.casefold():
        raise UserError(f"`{name}` is the name of the admin key of this gateway: choose another name")


def _unusable(folder: Path) -> str:
    """Why nothing can be recorded there. A missing folder is no problem: it will be created."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"recording to {folder} is not possible: {there} is not a folder; name another"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"recording to {folder} is not possible: {there} cannot be written to; name another folder"
    return ""


def _check_store(settings: GatewaySettings) -> None:
    url = store_url(settings.store)
    if settings.workers > 1 and settings.store.startswith("env:") and url.startswith("memory"):
        raise UserError(
            f"{settings.store} is memory, which the {settings.workers} workers cannot share: use SQLite or Redis"
        )
    check_store(url)
