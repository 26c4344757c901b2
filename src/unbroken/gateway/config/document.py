"""Turns a parsed TOML document into settings, and collects everything that is wrong with it.

Nothing is connected here: a missing provider key is reported when its model is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from unbroken.errors import UserError
from unbroken.gateway.config import value_types as values
from unbroken.gateway.config.mistakes import Mistakes
from unbroken.gateway.config.tables import ARRAYS, CLIENT, CONNECT, MODEL, OF_PROVIDERS, PATHS, TABLES
from unbroken.gateway.config.toml_lines import Where
from unbroken.gateway.config.value_types import ELSEWHERE, Reader, Wrong
from unbroken.gateway.settings import ClientProfile, GatewaySettings, UpstreamSettings
from unbroken.models.providers import find_provider


def read_document(document: Mapping[str, Any], mistakes: Mistakes) -> GatewaySettings:
    """The settings are only good if no mistake was noted."""
    for name, value in document.items():
        if name not in TABLES and name not in ARRAYS:
            mistakes.note((name,), "", _unknown_name(name, isinstance(value, dict | list)))
    given: dict[str, Any] = {}
    for table, keys in TABLES.items():
        readers = {key: reader for key, (_, reader) in keys.items()}
        read = _read_table(document.get(table, {}), readers, (table,), f"[{table}]", mistakes)
        given |= {keys[key][0]: value for key, value in read.items()}
    settings = GatewaySettings(_read_models(document, mistakes), _read_clients(document, mistakes), **given)
    if settings.workers > 1 and settings.store.startswith("memory"):
        words = f"cannot be {settings.workers} with memory: for a store, as each has its own: name a file or a server"
        mistakes.note_value(("server", "workers"), "[server]", words)
    if not (values.is_loopback(settings.host) or settings.keys or settings.open_to_all):
        words = (
            "lets everybody who reaches this machine use your providers' keys: turn gateway keys on (--keys on; "
            "required = true in [keys]), or say as well that it is meant so (--open-to-all; open_to_all = true)"
        )
        mistakes.note_value(("server", "host"), "[server]", words)
    return settings


def _unknown_name(name: str, is_table: bool) -> str:
    homes = [table for table, keys in TABLES.items() if name in keys]
    homes += ["models"] if name in MODEL or name in CONNECT else []
    if not is_table and homes:
        return f"unknown key `{name}`: it belongs below {_headed(homes[0])}"
    words = f"unknown table [{name}]" if is_table else f"unknown key `{name}`"
    known = [*TABLES, *ARRAYS]
    if near := get_close_matches(name, known, 1):
        return f"{words}, did you mean {_headed(near[0])}?"
    return f"{words}; there are: {', '.join(map(_headed, known))}"


def _headed(table: str) -> str:
    return f"[[{table}]]" if table in ARRAYS else f"[{table}]"


def _read_table(
    table: object, readers: Mapping[str, Reader], where: Where, place: str, mistakes: Mistakes
) -> dict[str, Any]:
    """What of it can be read."""
    if not isinstance(table, dict):
        mistakes.note(where, place, f"this has to be a table: write {_headed(str(where[0]))} above its keys")
        return {}
    read: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", table).items():
        at = (*where, key)
        if key not in readers:
            mistakes.note(at, place, _unknown_key(key, readers))
            continue
        try:
            read[key] = readers[key](value)
        except Wrong as wrong:
            mistakes.note_value(at, place, str(wrong))
            continue
        if key in PATHS:
            read[key] = mistakes.beside(at, read[key])
        elif at == ("store", "url") and read[key].startswith("sqlite:"):
            read[key] = f"sqlite:{mistakes.beside(at, read[key].removeprefix('sqlite:'))}"
    return read


def _unknown_key(key: str, readers: Mapping[str, Reader]) -> str:
    plain = key.lower().replace("-", "_")
    near = get_close_matches(plain, readers, 1)
    very_near = get_close_matches(plain, near, 1, 0.85)
    if "api_key_env" in readers and not very_near and re.search(r"key|token|secret|password", plain):
        return f"unknown key `{key}`: a provider's key is not written into this file, {ELSEWHERE}"
    if near:
        return f"unknown key `{key}`, did you mean `{near[0]}`?"
    return f"unknown key `{key}`; there are: {', '.join(readers)}"


def _each(document: Mapping[str, Any], name: str, mistakes: Mistakes) -> Iterator[tuple[Where, str, object]]:
    """The tables of an array, each with its place, also in words."""
    tables: object = document.get(name, [])
    if isinstance(tables, list):
        for at, table in enumerate(cast("list[object]", tables)):
            yield (name, at), f"[[{name}]] {at + 1}", table
    else:
        mistakes.note((name,), f"[{name}]", f"there may be several of them: write [[{name}]], with two brackets")


def _read_models(document: Mapping[str, Any], mistakes: Mistakes) -> tuple[UpstreamSettings, ...]:
    if not document.get("models"):
        mistakes.note((), "", 'no model is named: write [[models]], and below it model = "openai:gpt-5"')
    upstreams: list[UpstreamSettings] = []
    places: dict[str, str] = {}
    unread = False
    for where, place, table in _each(document, "models", mistakes):
        read = _read_table(table, {**MODEL, **CONNECT}, where, place, mistakes)
        if isinstance(table, dict) and "model" not in table:
            mistakes.note(where, place, '`model` is missing: write it like model = "openai:gpt-5"')
        if "model" not in read or not _is_model(read, where, place, mistakes):
            unread = True
            continue
        given: dict[str, Any] = {key: value for key, value in read.items() if key in MODEL}
        given.setdefault("alias", _own_name(read["model"]))
        upstream = UpstreamSettings(**given, options={key: value for key, value in read.items() if key in CONNECT})
        if upstream.alias in places:
            words = f"its alias `{upstream.alias}` is that of {places[upstream.alias]}: give it an `alias` of its own"
            mistakes.note((*where, "alias"), place, words)
        places.setdefault(upstream.alias, place)
        mistakes.models.setdefault(upstream.alias, (where, place) if mistakes.file else ((), ""))
        upstreams.append(upstream)
    if not unread:  # else an alias may be missing that is there
        _check_fallbacks(upstreams, mistakes)
    return tuple(upstreams)


def _is_model(read: Mapping[str, Any], where: Where, place: str, mistakes: Mistakes) -> bool:
    """Is it one that can be asked? What is wrong with it is noted."""
    model: str = read["model"]
    provider, colon, name = model.partition(":")
    if "api_key_env" in read and "api_key_file" in read:
        mistakes.note((*where, "api_key_file"), place, "it has `api_key_env` and `api_key_file`: give one of them")
    if model == "demo" or provider == "python":
        if provider == "python" and not re.fullmatch(r"[\w.]+:[\w.]+", name):
            words = "has to be python:module:function, where the function gives the model"
            mistakes.note_value((*where, "model"), place, words)
            return False
        for key in read:
            if key in OF_PROVIDERS:
                mistakes.note_value((*where, key), place, f"says nothing to a model like {provider}: leave it out")
        return True
    if not colon or not name.strip() or provider in ("http", "https"):
        words = "has to be PROVIDER:MODEL like openai:gpt-5, python:module:function, or demo"
        mistakes.note_value((*where, "model"), place, words)
        return False
    try:
        find_provider(provider)
        values.alias(read.get("alias", name))
    except UserError as error:
        mistakes.note_value((*where, "model"), place, f"names no model: {error}")
        return False
    except Wrong:
        mistakes.note_value((*where, "model"), place, "has a name that no client can ask for: give it an `alias`")
        return False
    return True


def _own_name(model: str) -> str:
    return model.rpartition(":")[2] if model.startswith("python:") else model.partition(":")[2] or model


def _check_fallbacks(upstreams: Sequence[UpstreamSettings], mistakes: Mistakes) -> None:
    by_alias = {upstream.alias: upstream for upstream in upstreams}
    for at, upstream in enumerate(upstreams):
        where, place = ("models", at, "fallback"), f"[[models]] {at + 1}"
        for name in upstream.fallback:
            if name not in by_alias and (words := _unknown_fallback(name, by_alias)):
                mistakes.note_value(where, place, words)
        if _leads_back(upstream.alias, by_alias):
            mistakes.note_value(where, place, f"leads back to `{upstream.alias}` itself: leave that out")


def _unknown_fallback(name: str, aliases: Mapping[str, UpstreamSettings]) -> str:
    provider, _, model = name.partition(":")
    if model.strip():
        try:
            find_provider(provider)
        except UserError as error:
            return f"names no model: {error}"
        return ""
    near = get_close_matches(name, aliases, 1)
    guess = f", did you mean `{near[0]}`?" if near else ""
    return f"names `{name}`, which is neither an alias of this file nor PROVIDER:MODEL{guess}"


def _leads_back(alias: str, upstreams: Mapping[str, UpstreamSettings]) -> bool:
    seen: set[str] = set()
    ahead = [*upstreams[alias].fallback]
    while ahead:
        name = ahead.pop()
        if name == alias:
            return True
        if name in upstreams and name not in seen:
            seen.add(name)
            ahead += upstreams[name].fallback
    return False


def _read_clients(document: Mapping[str, Any], mistakes: Mistakes) -> tuple[ClientProfile, ...]:
    profiles: list[ClientProfile] = []
    for where, place, table in _each(document, "clients", mistakes):
        read = _read_table(table, CLIENT, where, place, mistakes)
        if not isinstance(table, dict):
            continue
        if "name" not in table:
            mistakes.note(where, place, '`name` is missing: write it like name = "pi"')
        if not table.keys() & {"key", "header", "user_agent"}:
            words = "nothing says which client it is: give it `key`, `header` or `user_agent`"
            mistakes.note(where, place, f"{words}; for every client of a model, set `serial` there")
        profile = ClientProfile(read.pop("name", ""), **read)
        if profile.name and any(profile.name == other.name for other in profiles):
            mistakes.note((*where, "name"), place, f"its name `{profile.name}` is taken: give it one of its own")
        profiles.append(profile)
    return tuple(profiles)
