"""Turns `unbroken.toml`, the options of `unbroken serve`, or both into settings, and collects all mistakes.

Options are read as if they were in the file. pydantic checks each value by the types of `GatewaySettings`,
`UpstreamSettings`, `ConnectOptions` and `ClientProfile`; this module handles the tables, and values that depend on each
other. Nothing is connected: a missing provider key is reported when its model is opened.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, cast, get_type_hints

from pydantic import BaseModel, ValidationError, create_model

from unbroken.errors import UserError
from unbroken.models.providers import find_provider
from unbroken_gateway import setting_types
from unbroken_gateway.config.added import add_tables
from unbroken_gateway.config.errors import Mistakes, Where, lines_of, option_of, table_name
from unbroken_gateway.setting_types import ELSEWHERE, ConnectOptions, In, is_alias, is_loopback, words_of
from unbroken_gateway.settings import (
    NO_STORE,
    BudgetSettings,
    ClientProfile,
    DeploymentSettings,
    GatewaySettings,
    GuardrailSettings,
    TeamSettings,
    UpstreamSettings,
)
from unbroken_gateway.spending.allowance import Allowance

Look: TypeAlias = Callable[[GatewaySettings, Mistakes], None]
"""Inspects what was read, which may be incomplete, and notes further mistakes."""

FILE = "unbroken.toml"
"""The file that is read by default, if the working directory has it."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of the command line; empty, None and False mean that an option was not given."""

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
    all_calls: bool | None = None
    """For every model, as in its settings."""
    keys: bool | None = None
    keys_file: str = ""
    record: str = ""


def _partial(name: str, *kinds: type) -> type[BaseModel]:
    """A pydantic model of a table: the fields of these classes, all optional, without those that are tables
    themselves."""
    hints = [get_type_hints(kind, localns={"values": setting_types}, include_extras=True) for kind in kinds]
    tables = ("upstreams", "clients", "budgets", "teams", "options", "deployments", "guardrails")
    fields: Any = {field: (hint, None) for each in hints for field, hint in each.items() if field not in tables}
    return create_model(name, **fields)


_SETTINGS = _partial("Settings", GatewaySettings)
_MODEL = _partial("Model", UpstreamSettings, ConnectOptions)
_DEPLOYMENT = _partial("Deployment", DeploymentSettings, ConnectOptions)
_GUARDRAIL = _partial("Guardrail", GuardrailSettings)
_CLIENT = _partial("Client", ClientProfile)
_BUDGET = _partial("Budget", BudgetSettings)
_TEAM = _partial("Team", TeamSettings)

PLACES: Mapping[str, tuple[str, str]] = {
    setting: (mark.table, mark.key or setting)
    for setting, field in _SETTINGS.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, In)
}
"""The table and the key of each setting."""

TABLES: Mapping[str, Sequence[str]] = {
    **{table: [key for home, key in PLACES.values() if home == table] for table, _ in PLACES.values()},
    "models": [*_MODEL.model_fields, "deployments", "guardrails"],
    "models.deployments": list(_DEPLOYMENT.model_fields),
    "models.guardrails": list(_GUARDRAIL.model_fields),
    "clients": list(_CLIENT.model_fields),
    "budgets": list(_BUDGET.model_fields),
    "teams": list(_TEAM.model_fields),
}
"""The keys of each table."""
ARRAYS = ("models", "models.deployments", "models.guardrails", "clients", "budgets", "teams")


NO_OPTIONS = ServeOptions()
NOTHING_ADDED: Mapping[str, Mapping[str, Mapping[str, Any]]] = MappingProxyType({})


def read_config(
    path: str | Path,
    options: ServeOptions = NO_OPTIONS,
    look: Look | None = None,
    added: Mapping[str, Mapping[str, Mapping[str, Any]]] = NOTHING_ADDED,
) -> GatewaySettings:
    """The settings of a file. Options override the file; if they name a model, only that one is served. `added`: tables
    of the admin API, which the file does not have. All mistakes are raised as one `UserError`, with one line each."""
    text = _read_text(str(path))
    document = _parse(text, str(path))
    return _settle(document, options, Mistakes(str(path), lines_of(text)), look, added)


def read_document(
    document: dict[str, Any],
    mistakes: Mistakes,
    options: ServeOptions = NO_OPTIONS,
    look: Look | None = None,
    added: Mapping[str, Mapping[str, Mapping[str, Any]]] = NOTHING_ADDED,
) -> GatewaySettings:
    """The same for a document that is not TOML's; `mistakes` knows its file and the lines in it."""
    return _settle(document, options, mistakes, look, added)


def settings_from_options(
    options: ServeOptions = NO_OPTIONS,
    look: Look | None = None,
    added: Mapping[str, Mapping[str, Mapping[str, Any]]] = NOTHING_ADDED,
) -> GatewaySettings:
    """The settings of a gateway without a file. Without a model it serves the demo model."""
    document: dict[str, Any] = {} if options.upstream else {"models": [{"model": "demo"}]}
    return _settle(document, options, Mistakes(), look, added)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; without one, name a model with --upstream") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name the file in it") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text, and TOML has to be") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or the error for a number of 5,000 digits
        found = re.search(r"\(at line (\d+),", str(error))
        line = int(found[1]) if found else len(text.splitlines())
        raise UserError(f"{path}:{line}: this is not TOML: {error}") from None


def _settle(
    document: dict[str, Any],
    options: ServeOptions,
    mistakes: Mistakes,
    look: Look | None,
    added: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> GatewaySettings:
    named: dict[str, Any] = {}
    if options.upstream:
        document["models"] = [named]
    for name, value in asdict(options).items():
        if name in ("serial", "all_calls") or value in ("", None) or (value is False and name != "keys"):
            continue
        if name in PLACES:
            where: Where = PLACES[name]
            table: object = document.setdefault(where[0], {})
        elif options.upstream:
            where = ("models", 0, "model" if name == "upstream" else name)
            table = named
        else:
            words = "goes with --upstream PROVIDER:MODEL, which is missing; a file has [[models]]"
            mistakes.note_option(option_of(name), words)
            continue
        if isinstance(table, dict):  # if it is not a table, reading it reports that
            table[where[-1]] = value
            mistakes.written_as(where, option_of(name))
    models: object = document.get("models")
    flags = {"serial": options.serial or None, "all_calls": options.all_calls}
    for model in cast("list[object]", models) if isinstance(models, list) else ():
        if isinstance(model, dict):
            cast("dict[str, object]", model).update({flag: on for flag, on in flags.items() if on is not None})
    add_tables(document, added, mistakes)
    settings = _read_document(document, mistakes)
    if look is not None:
        look(settings, mistakes)
    mistakes.raise_all()
    return settings


def _read_document(document: Mapping[str, Any], mistakes: Mistakes) -> GatewaySettings:
    """The settings are valid only if no mistake was noted."""
    found: dict[str, Any] = {}
    for name, table in document.items():
        if name not in TABLES or "." in name:
            mistakes.note((name,), _unknown_name(name, isinstance(table, dict | list)), table=False)
        elif name not in ARRAYS:
            found[name] = _known_keys(table, (name,), mistakes)
        elif not isinstance(table, list):
            mistakes.note((name,), f"there may be several of them: write [[{name}]], with two brackets")
    given = {setting: found[table][key] for setting, (table, key) in PLACES.items() if key in found.get(table, ())}
    read = _read(_SETTINGS, given, lambda setting: PLACES[setting], mistakes)
    needs_file = read.get("workers", 1) > 1 or read.get("keys_in_store")
    if "store" not in given and not needs_file and not os.access(".", os.W_OK):
        read["store"] = NO_STORE
    settings = GatewaySettings(
        _read_models(document, mistakes),
        _read_clients(document, mistakes),
        _read_budgets(document, mistakes),
        _read_teams(document, mistakes),
        **read,
    )
    if settings.workers > 1 and settings.store.startswith("memory"):
        words = f"cannot be {settings.workers} with memory: for a store, as each has its own: name a file or a server"
        mistakes.note_value(("server", "workers"), words)
    if settings.keys_in_store and settings.store.startswith("memory"):
        words = "cannot be true with memory: for a store, which forgets them: name a file or a server"
        mistakes.note_value(("keys", "in_store"), words)
    if not (is_loopback(settings.host) or settings.keys or settings.open_to_all):
        words = (
            "lets everybody who reaches this machine use your providers' keys: turn gateway keys on (--keys on; "
            "required = true in [keys]), or confirm that it is intended (--open-to-all; open_to_all = true)"
        )
        mistakes.note_value(("server", "host"), words)
    return settings


def _read(
    kind: type[BaseModel], given: Mapping[str, Any], place: Callable[[str], Where], mistakes: Mistakes
) -> dict[str, Any]:
    """The values that are valid; the others are noted as mistakes."""
    try:
        valid = kind.model_validate(given, context=mistakes.beside)
        return {name: getattr(valid, name) for name in kind.model_fields if name in valid.model_fields_set}
    except ValidationError as error:
        wrong = error.errors()
    for each in wrong:
        name, *item = each["loc"]
        mistakes.note_value((*place(str(name)), *item), words_of(each))
    names = {each["loc"][0] for each in wrong}
    return _read(kind, {name: value for name, value in given.items() if name not in names}, place, mistakes)


def _read_array(
    kind: type[BaseModel], document: Mapping[str, Any], name: str, mistakes: Mistakes
) -> Iterator[tuple[Where, dict[str, Any], dict[str, Any]]]:
    """Each table of an array: its place, its values as written, and those that are valid."""
    yield from _read_tables(kind, document.get(name), (name,), mistakes)


def _read_tables(
    kind: type[BaseModel], tables: object, array: Where, mistakes: Mistakes
) -> Iterator[tuple[Where, dict[str, Any], dict[str, Any]]]:
    for at, table in enumerate(cast("list[Any]", tables) if isinstance(tables, list) else ()):
        where = (*array, at)
        known = _known_keys(table, where, mistakes)
        if isinstance(table, dict):
            yield where, table, _read(kind, known, lambda key, where=where: (*where, key), mistakes)


def _known_keys(table: object, where: Where, mistakes: Mistakes) -> dict[str, Any]:
    name = ".".join(step for step in where if isinstance(step, str))
    if not isinstance(table, dict):
        mistakes.note(where, f"this has to be a table: write {_headed(name)} above its keys")
        return {}
    written = cast("dict[str, Any]", table)
    for key in written:
        if key not in TABLES[name]:
            mistakes.note((*where, key), _unknown_key(key, TABLES[name]))
    return {key: value for key, value in written.items() if key in TABLES[name]}


def _unknown_name(name: str, is_table: bool) -> str:
    home = next((table for table, keys in TABLES.items() if name in keys and table != "clients"), "")
    if not is_table and home:
        return f"unknown key `{name}`: it belongs below {_headed(home)}"
    words = f"unknown table [{name}]" if is_table else f"unknown key `{name}`"
    if near := get_close_matches(name, TABLES, 1):
        return f"{words}, did you mean {_headed(near[0])}?"
    return f"{words}; there are: {', '.join(map(_headed, TABLES))}"


def _headed(table: str) -> str:
    return f"[[{table}]]" if table in ARRAYS else f"[{table}]"


def _unknown_key(key: str, known: Sequence[str]) -> str:
    plain = key.lower().replace("-", "_")
    near = get_close_matches(plain, known, 1)
    very_near = get_close_matches(plain, near, 1, 0.85)
    if "api_key_env" in known and not very_near and re.search(r"key|token|secret|password", plain):
        return f"unknown key `{key}`: a provider's key is not written into this file, {ELSEWHERE}"
    if near:
        return f"unknown key `{key}`, did you mean `{near[0]}`?"
    return f"unknown key `{key}`; there are: {', '.join(known)}"


def _read_models(document: Mapping[str, Any], mistakes: Mistakes) -> tuple[UpstreamSettings, ...]:
    if not document.get("models"):
        mistakes.note((), 'no model is named: write [[models]], and below it model = "openai:gpt-5"')
    upstreams: dict[Where, UpstreamSettings] = {}
    by_alias: dict[str, Where] = {}
    for where, table, read in _read_array(_MODEL, document, "models", mistakes):
        if "model" not in table and not table.get("deployments"):
            mistakes.note(where, '`model` is missing: write it like model = "openai:gpt-5"')
        _check_keys(where, read, mistakes)
        if deployments := _read_deployments(where, table, read, mistakes):
            read.setdefault("model", deployments[0].model)
            read["deployments"] = deployments
        if guardrails := _read_guardrails(where, table, mistakes):
            read["guardrails"] = guardrails
        if "model" not in read:
            continue
        kind, _, name = read["model"].partition(":")
        for key in read if kind in ("demo", "python") else ():
            if key not in (
                "alias",
                "model",
                "fallback",
                "serial",
                "all_calls",
                "recover",
                "guardrails",
                "hooks",
                "hook_timeout",
                "price",
            ):  # the others are about a provider
                mistakes.note_value((*where, key), f"has no effect on a model like {kind}: leave it out")
        alias = read.setdefault("alias", name.partition(":")[2] if kind == "python" else name or kind)
        if not is_alias(alias):
            mistakes.note_value((*where, "model"), "has a name that clients cannot use: give it an `alias`")
            continue
        models_named = [read["model"], *(each.model for each in deployments)]
        if alias.count("*") > 1:
            mistakes.note_value((*where, "alias"), "may have one `*`, which stands for any part of a name")
        elif "*" not in alias and any("*" in each for each in models_named):
            mistakes.note_value((*where, "model"), "has a `*`, so its `alias` needs one: it stands for the same part")
        if (other := by_alias.setdefault(alias, where)) != where:
            words = f"its alias `{alias}` is that of {table_name(other)}: give it an `alias` of its own"
            mistakes.note((*where, "alias"), words)
        options = {key: read.pop(key) for key in ConnectOptions.__annotations__ if key in read}
        upstreams[where] = UpstreamSettings(**read, options=options)
    mistakes.models = by_alias if mistakes.file else {}
    models: object = document.get("models")
    if isinstance(models, list) and len(upstreams) == len(cast("list[object]", models)):
        _check_fallbacks(upstreams, mistakes)  # otherwise an alias may only seem to be missing
    return tuple(upstreams.values())


def _read_deployments(
    where: Where, table: Mapping[str, Any], model: Mapping[str, Any], mistakes: Mistakes
) -> tuple[DeploymentSettings, ...]:
    """The deployments of a model. They take over what the model has and they do not."""
    written = table.get("deployments")
    if written is None:
        for key in ("choose", "sticky", "cooldown", "probe"):
            if key in table:
                mistakes.note_value((*where, key), "is about deployments, and the model has none: leave it out")
        return ()
    if not isinstance(written, list) or not written:
        words = "has to be a list of tables: write [[models.deployments]] below the model, once for each"
        mistakes.note_value((*where, "deployments"), words)
        return ()
    deployments: dict[str, DeploymentSettings] = {}
    for place, own, read in _read_tables(_DEPLOYMENT, cast("list[Any]", written), (*where, "deployments"), mistakes):
        _check_keys(place, read, mistakes)
        left = {
            "alias",
            "fallback",
            "serial",
            "all_calls",
            "recover",
            "guardrails",
            "hooks",
            "hook_timeout",
            "deployments",
            "choose",
            "sticky",
            "cooldown",
            "probe",
        }
        if "api_key_env" in own or "api_key_file" in own:
            left |= {"api_key_env", "api_key_file"}
        merged = {key: value for key, value in model.items() if key not in left} | read
        if "model" not in merged:
            if "model" not in own and "model" not in table:
                mistakes.note(place, '`model` is missing: write it here, or above for all, like model = "openai:gpt-5"')
            continue
        kind, _, _ = merged["model"].partition(":")
        if kind in ("demo", "python"):
            mistakes.note(place, f"a model like {kind} cannot be one of several deployments: use it as a `fallback`")
            continue
        name = merged.setdefault("name", f"{kind}-{len(deployments) + 1}")
        if name in deployments:
            mistakes.note((*place, "name"), f"its name `{name}` is taken: give it one of its own")
        options = {key: merged.pop(key) for key in ConnectOptions.__annotations__ if key in merged}
        deployments[name] = DeploymentSettings(**merged, options=options)
    return tuple(deployments.values())


_PARTS = {
    "redact": ("pattern", "by", "arguments"),
    "check_input": ("check", "veto", "message"),
    "check_answers": ("check", "veto", "message", "retries"),
    "check_calls": ("check", "veto", "message", "tools"),
    "check_output": ("check", "veto", "message", "retries"),
}
"""The options of each guardrail."""


def _read_guardrails(where: Where, table: Mapping[str, Any], mistakes: Mistakes) -> tuple[GuardrailSettings, ...]:
    written = table.get("guardrails")
    if written is not None and not isinstance(written, list):
        words = "has to be a list of tables: write [[models.guardrails]] below the model, once for each"
        mistakes.note_value((*where, "guardrails"), words)
    guardrails: list[GuardrailSettings] = []
    for place, own, read in _read_tables(_GUARDRAIL, cast("object", written), (*where, "guardrails"), mistakes):
        if "use" not in own:
            mistakes.note(place, '`use` is missing: write it like use = "redact"')
        if "use" not in read:
            continue
        parts = _PARTS.get(read["use"], ())
        for key in read.keys() - {"use", "name", *parts}:
            mistakes.note_value((*place, key), f"is no option of {read['use']}: leave it out")
        if "pattern" in parts and not own.get("pattern"):
            mistakes.note(place, "`pattern` is missing: the regular expression for what is replaced")
        if "check" in parts and ("check" in own) == ("veto" in own):
            mistakes.note(place, 'it needs one of the two: check = "module:function", or veto = a regular expression')
        guardrails.append(GuardrailSettings(**read))
    return tuple(guardrails)


def _check_keys(where: Where, read: Mapping[str, Any], mistakes: Mistakes) -> None:
    if "api_key_env" in read and "api_key_file" in read:
        mistakes.note((*where, "api_key_file"), "it has `api_key_env` and `api_key_file`: give one of them")


def _check_fallbacks(upstreams: Mapping[Where, UpstreamSettings], mistakes: Mistakes) -> None:
    by_alias = {upstream.alias: upstream for upstream in upstreams.values()}
    for where, upstream in upstreams.items():
        for name in upstream.fallback:
            if name not in by_alias and (words := _unknown_fallback(name, by_alias)):
                mistakes.note_value((*where, "fallback"), words)
        if _leads_back(upstream.alias, by_alias):
            mistakes.note_value((*where, "fallback"), f"leads back to `{upstream.alias}` itself: leave that out")


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
    for where, table, read in _read_array(_CLIENT, document, "clients", mistakes):
        if "name" not in table:
            mistakes.note(where, '`name` is missing: write it like name = "pi"')
        if not table.keys() & {"key", "header", "user_agent"}:
            words = "it does not identify a client: give it `key`, `header` or `user_agent`"
            mistakes.note(where, f"{words}; for every client of a model, set `serial` there")
        profile = ClientProfile(read.pop("name", ""), **read)
        if profile.name and any(profile.name == other.name for other in profiles):
            mistakes.note((*where, "name"), f"its name `{profile.name}` is taken: give it one of its own")
        profiles.append(profile)
    return tuple(profiles)


def _read_budgets(document: Mapping[str, Any], mistakes: Mistakes) -> tuple[BudgetSettings, ...]:
    budgets: dict[str, BudgetSettings] = {}
    for where, table, read in _read_array(_BUDGET, document, "budgets", mistakes):
        whose = [kind for kind in ("key", "team", "model") if kind in table]
        if "amount" not in table:
            mistakes.note(where, '`amount` is missing: write it like amount = "20usd/day"')
        if len(whose) > 1:
            mistakes.note(
                where, f"it has {' and '.join(f'`{kind}`' for kind in whose)}: give one of them, or none for all"
            )
        if "amount" not in read or len(whose) > 1:
            continue
        amount: Allowance = read["amount"]
        of = f"{whose[0]} {read.get(whose[0], '')}" if whose else "all"
        name = read.setdefault("name", f"{of}, {amount.unit} per {amount.period}".replace("per total", "in total"))
        if name in budgets:
            mistakes.note(where, f"there is a budget `{name}` already: leave one out, or give it a `name` of its own")
        budgets[name] = BudgetSettings(**read)
    return tuple(budgets.values())


def _read_teams(document: Mapping[str, Any], mistakes: Mistakes) -> tuple[TeamSettings, ...]:
    teams: dict[str, TeamSettings] = {}
    for where, table, read in _read_array(_TEAM, document, "teams", mistakes):
        if "name" not in table:
            mistakes.note(where, '`name` is missing: write it like name = "search"')
        if "name" in read:
            if read["name"] in teams:
                mistakes.note((*where, "name"), f"its name `{read['name']}` is taken: give it one of its own")
            teams[read["name"]] = TeamSettings(**read)
    return tuple(teams.values())
