"""What settings name is opened, so far as that changes nothing: models, keys, the store's file. What is wrong there is
told with all the rest, in its line of the file.

Not loaded with the other parts: who only reads a file needs no models.
"""

from __future__ import annotations

import os
from pathlib import Path

from unbroken.errors import UserError
from unbroken.gateway.config.mistakes import Mistakes
from unbroken.gateway.keys import KeyRing
from unbroken.gateway.settings import GatewaySettings
from unbroken.gateway.stores.opening import check_store, store_url
from unbroken.gateway.upstreams.upstream import Upstream, try_upstreams


class Opened:
    """A `Look`; afterwards it has what it opened."""

    def __init__(self) -> None:
        self.upstreams: dict[str, Upstream] = {}
        self.ring: KeyRing | None = None

    def __call__(self, settings: GatewaySettings, mistakes: Mistakes) -> None:
        # Who was not read may be missing as a fallback; each is opened for itself anyway.
        self.upstreams, wrong = try_upstreams(settings.upstreams, with_fallbacks=not mistakes)
        for alias, error in wrong.items():
            mistakes.note(mistakes.models.get(alias, ()), str(error))
        try:
            _check_store(settings)
        except UserError as error:
            mistakes.note(("store", "url"), str(error), table=False)
        try:
            self.ring = KeyRing(settings.keys_file) if settings.keys else None
        except UserError as error:
            mistakes.note(("keys", "file"), str(error), table=False)
        if settings.record and (words := _unusable(Path(settings.record).expanduser())):
            mistakes.note(("record", "folder"), words, table=False)


def _unusable(folder: Path) -> str:
    """Why nothing can be recorded there; a folder that is not there yet will be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"recording to {folder} is not possible: {there} is no folder; name another"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"recording to {folder} is not possible: {there} cannot be written to; name another folder"
    return ""


def _check_store(settings: GatewaySettings) -> None:
    url = store_url(settings.store)
    if settings.workers > 1 and settings.store.startswith("env:") and url.startswith("memory"):
        raise UserError(f"{settings.store} is memory, and each of {settings.workers} workers has its own")
    check_store(url)
