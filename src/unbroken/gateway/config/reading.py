"""Where a configuration comes from: a file, the options of `unbroken serve`, or both. Options are read as if they stood
in the file, so the same tables check them, in the same words."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from unbroken.errors import UserError
from unbroken.gateway.config.document import read_document
from unbroken.gateway.config.mistakes import Mistakes
from unbroken.gateway.config.toml_lines import Where, lines_of
from unbroken.gateway.settings import GatewaySettings

Look: TypeAlias = Callable[[GatewaySettings, Mistakes], None]
"""Has a look at what was read, which may be incomplete, and notes what else is wrong."""

FILE = "unbroken.toml"
"""What is read when nothing else is said and it stands in the working directory."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What was said on the command line; what is empty, None or False was not."""

    upstream: str = ""
    alias: str = ""
    base_url: str = ""
    api_key_env: str = ""
    wire: str = ""
    host: str = ""
    port: int | None = None
    workers: int | None = None
    open_to_all: bool = False
    access_log: bool = False
    store: str = ""
    hold_timeout: float | str = ""
    serial: bool = False
    """One call at a time for every client of every model."""
    keys: bool | None = None
    keys_file: str = ""
    record: str = ""


_PLACES: Mapping[str, Where] = {
    "upstream": ("models", 0, "model"),
    "alias": ("models", 0, "alias"),
    "base_url": ("models", 0, "base_url"),
    "api_key_env": ("models", 0, "api_key_env"),
    "wire": ("models", 0, "wire"),
    "host": ("server", "host"),
    "port": ("server", "port"),
    "workers": ("server", "workers"),
    "open_to_all": ("server", "open_to_all"),
    "access_log": ("server", "access_log"),
    "store": ("store", "url"),
    "hold_timeout": ("serial", "hold_timeout"),
    "keys": ("keys", "required"),
    "keys_file": ("keys", "file"),
    "record": ("record", "folder"),
}
"""Where each option would stand in the file."""


def read_config(
    path: str | Path,
    options: ServeOptions = ServeOptions(),  # noqa: B008 - frozen
    look: Look | None = None,
) -> GatewaySettings:
    """The settings of a file. What options say counts before it; a model that they name is served alone. All mistakes
    are one `UserError`, a line for each."""
    text = _read_text(str(path))
    document = _parse(text, str(path))
    return _settle(document, options, Mistakes(str(path), lines_of(text)), look)


def settings_from_options(
    options: ServeOptions = ServeOptions(),  # noqa: B008 - frozen
    look: Look | None = None,
) -> GatewaySettings:
    """The settings of a gateway without a file. One that is told of no model has the demo model, which keeps what it
    said in memory, if that does."""
    document: dict[str, Any] = {}
    if not options.upstream:
        document["models"] = [{"model": "demo"}]
        if (options.workers or 1) == 1:
            document["store"] = {"url": "memory:"}
    return _settle(document, options, Mistakes(), look)


def store_url(setting: str) -> str:
    """The store's address: what the setting says, or what the variable holds that it names."""
    if not setting.startswith("env:"):
        return setting
    name = setting.removeprefix("env:")
    if url := os.environ.get(name, "").strip():
        return url
    raise UserError(f"the store's address is missing: variable {name} is not set; export it, or name another store")


def _read_text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; without one, name a model with --upstream") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name the file in it") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text, and TOML always is") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{path} is nested deeper than anybody writes") from None
    except ValueError as error:  # TOMLDecodeError, and what a number of 5,000 digits makes
        found = re.search(r"\(at line (\d+),", str(error))
        line = int(found[1]) if found else len(text.splitlines())
        raise UserError(f"{path}:{line}: this is no TOML: {error}") from None


def _settle(document: dict[str, Any], options: ServeOptions, mistakes: Mistakes, look: Look | None) -> GatewaySettings:
    if options.upstream:
        document["models"] = [{}]
    for name, where in _PLACES.items():
        value = getattr(options, name)
        if value in ("", None) or (value is False and name != "keys"):
            continue
        option = f"--{name.replace('_', '-')}"
        if where[0] == "models" and not options.upstream:
            mistakes.note_option(option, "goes with --upstream PROVIDER:MODEL, which is missing; a file has [[models]]")
            continue
        if (table := _table_at(document, where)) is not None:
            table[str(where[-1])] = value
            mistakes.written_as(where, option)
    if options.serial:
        _one_at_a_time(document)
    settings = read_document(document, mistakes)
    if look is not None:
        look(settings, mistakes)
    mistakes.tell()
    return settings


def _table_at(document: dict[str, Any], where: Where) -> dict[str, Any] | None:
    """The table that the key stands in; what is no table is told of when it is read."""
    found: Any = document["models"][0] if where[0] == "models" else document.setdefault(str(where[0]), {})
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _one_at_a_time(document: dict[str, Any]) -> None:
    models: object = document.get("models")
    for model in cast("list[object]", models) if isinstance(models, list) else ():
        if isinstance(model, dict):
            model["serial"] = True
