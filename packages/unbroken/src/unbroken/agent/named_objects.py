"""Finds Python objects by the names that commands and files use: `app:agent`, `folder/app.py:agent`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from unbroken.errors import UserError

_FILES: dict[Path, ModuleType] = {}
"""The files that were loaded: one that is named several times is run once."""


def find_object(given: str, what: str, example: str = "") -> Any:
    """The object that `MODULE:NAME` names; `NAME` may have dots, for an attribute or the key of a dict. `what` is the
    option or the key with that name, for errors."""
    place, colon, name = given.rpartition(":")
    if not colon or not place or not name:
        raise UserError(f"{what} {given}: write MODULE:NAME, as in {example or 'app:name'}")
    found: Any = _import(f"{what} {given}", place)
    for part in name.split("."):
        try:
            found = cast("Mapping[str, Any]", found)[part] if isinstance(found, Mapping) else getattr(found, part)
        except (AttributeError, KeyError):
            raise UserError(f"{what} {given}: {place} has no `{name}`") from None
    return found


def _import(given: str, place: str) -> ModuleType:
    try:
        if place.endswith(".py") or os.sep in place:
            return _load(given, place)
        _search(os.getcwd())  # as with `python -m`
        return importlib.import_module(place)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        words = f": {error}" if str(error) else ""
        raise UserError(f"{given}: importing {place} failed: {type(error).__name__}{words}") from error


def _load(given: str, place: str) -> ModuleType:
    file = Path(place).resolve()
    if file in _FILES:
        return _FILES[file]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise UserError(f"{given}: there is no Python file {place}")
    _search(str(file.parent))  # its neighbours are found
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    _FILES[file] = module
    return module


def _search(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
