"""Translates a configuration of LiteLLM's proxy into the document of an `unbroken.toml`, and reports what it cannot
translate. Nothing is connected or opened, except for the file and those that it includes."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from unbroken.errors import UserError
from unbroken.models.providers import find_provider
from unbroken_gateway.config import ServeOptions, read_document
from unbroken_gateway.config.errors import Mistakes, Where
from unbroken_gateway.config.opening import SHORTEST_KEY
from unbroken_gateway.config.reading import NOTHING_ADDED, Look
from unbroken_gateway.from_litellm.model_list import Entry, EntryReader
from unbroken_gateway.from_litellm.provider_names import KNOWN
from unbroken_gateway.from_litellm.report import Finding, Findings, Variables
from unbroken_gateway.from_litellm.sections import (
    ADVICE,
    CALLBACKS,
    NEEDS_NOTHING,
    OTHER_CALLBACK,
    OTHER_SECTIONS,
    PERIODS,
    STRATEGIES,
    TRANSLATED,
)
from unbroken_gateway.from_litellm.toml_text import toml_text
from unbroken_gateway.from_litellm.yaml_values import Value, as_mapping, read_yaml
from unbroken_gateway.setting_types import is_alias
from unbroken_gateway.settings import GatewaySettings

PORT = 4000
"""LiteLLM's own, so that clients need no other address."""
_SECTIONS = ("router_settings", "litellm_settings", "general_settings")
_READ = ("model_list", "credential_list", "environment_variables", *_SECTIONS)
_STORE = "UNBROKEN_STORE"


@dataclass(frozen=True, slots=True)
class Translation:
    file: str
    document: dict[str, Any]
    """As `tomllib` reads an `unbroken.toml`."""
    lines: Mapping[Where, int]
    """The line of the LiteLLM file for each place in the document."""
    findings: Sequence[Finding]
    variables: Mapping[str, str] = field(repr=False)
    """Variables that have to be set, whose values are written in the file: they may be secrets."""

    @property
    def is_complete(self) -> bool:
        return all(found.kind == "note" for found in self.findings)

    @property
    def unsafe(self) -> list[Finding]:
        """What protects something in LiteLLM, and has no counterpart."""
        return [found for found in self.findings if found.kind == "unsafe"]

    def check(self) -> None:
        """Raises `UserError` if a value is one that our settings do not take."""
        read_document(copy.deepcopy(self.document), Mistakes(self.file, self.lines))

    def settings(
        self,
        options: ServeOptions,
        look: Look | None = None,
        added: Mapping[str, Mapping[str, Mapping[str, Any]]] = NOTHING_ADDED,
    ) -> GatewaySettings:
        """The settings, to serve them from this process: it gets the variables that it needs. `added`: tables of the
        admin API."""
        if self.unsafe:
            raise UserError(
                f"{self.file} is not served as it is, because {len(self.unsafe)} of its settings protect something and "
                "are not translated: write it with --write unbroken.toml, put something in their place, and serve that"
            )
        os.environ.update(self.variables)
        return read_document(copy.deepcopy(self.document), Mistakes(self.file, self.lines), options, look, added)

    def toml(self) -> str:
        comments = [f"Translated from {self.file}, a configuration of LiteLLM's proxy."]
        if self.variables:
            comments.append(f"Set these variables, whose values are in that file: {', '.join(self.variables)}.")
        comments += map(str, self.findings)
        return toml_text(self.document, comments)


def read_litellm(path: str, environment: Mapping[str, str] | None = None) -> Translation:
    """Raises `UserError` if the file is wrong, with one line for each mistake."""
    root = read_yaml(path)
    findings = Findings()
    variables = Variables(
        os.environ if environment is None else environment, root.get("environment_variables"), findings
    )
    translator = _Translator(root, findings, variables)
    translator.translate()
    variables.report()
    found = sorted(findings.all, key=lambda each: (each.file != path, each.file, each.line))
    if wrong := [each for each in found if each.kind == "wrong"]:
        raise UserError("\n".join(map(str, wrong)))
    return Translation(path, translator.document, translator.lines, found, dict(variables.to_set))


class _Translator:
    def __init__(self, root: Value, findings: Findings, variables: Variables) -> None:
        self.document: dict[str, Any] = {"server": {"port": PORT}}
        self.lines: dict[Where, int] = {}
        self._root = root
        self._findings = findings
        self._variables = variables
        self._router, self._litellm, self._general = (self._section(name) for name in _SECTIONS)

    def translate(self) -> None:
        for name, value in self._root.items():
            if name in OTHER_SECTIONS and value.data:
                self._findings.add(OTHER_SECTIONS[name][0], value, OTHER_SECTIONS[name][1])
            elif name not in _READ and name not in OTHER_SECTIONS and not name.startswith("x-"):  # parts to refer to
                self._findings.missing(value, "is a section that is unknown here")
        for section, values in zip(_SECTIONS, (self._router, self._litellm, self._general), strict=True):
            self._report_section(section, values)
        self._callbacks()
        self._server()
        self._budget()
        self._store()
        self._models()

    def _section(self, name: str) -> Mapping[str, Value]:
        value = self._root.get(name)
        if value is not None and not isinstance(value.data, dict):
            self._findings.wrong(value, "has to be a mapping")
        return {key: each for key, each in as_mapping(value).items() if each.data is not None}

    def _report_section(self, section: str, values: Mapping[str, Value]) -> None:
        for key, value in values.items():
            if key in TRANSLATED[section] or key in NEEDS_NOTHING[section] or value.data is False:
                continue
            kind, words = ADVICE[section].get(key, ("missing", "is unknown here, and is not translated"))
            self._findings.add(kind, value, words)

    def _callbacks(self) -> None:
        for key in ("callbacks", "success_callback", "failure_callback"):
            value = self._litellm.get(key)
            for each in (value if isinstance(value.data, list) else [value]) if value is not None else ():
                if each.data == "otel":
                    self._export_traces(each)
                advice = CALLBACKS.get(str(each.data), OTHER_CALLBACK)
                if advice is not None:
                    self._findings.add(*advice[:1], each, advice[1])
        cache = self._litellm.get("cache")
        if cache is not None and cache.data is True:
            self._findings.missing(cache, "answers are not cached; a provider's prompt cache is used (sticky, cache)")

    def _export_traces(self, at: Value) -> None:
        self.document["telemetry"] = {"enabled": True}
        self.lines["telemetry", "enabled"] = at.line

    def _server(self) -> None:
        if (traces := self._general.get("otel")) is not None and traces.data is True:
            self._export_traces(traces)
        if (key := self._general.get("master_key")) is not None:
            self.document["keys"] = {"required": True}
            self.lines["keys", "required"] = key.line
            name = self._variables.name_of(key)
            if name and len(self._variables.get(name)) >= SHORTEST_KEY:
                self.document["admin"] = {"key_env": self._variables.use(name)}
                self.lines["admin", "key_env"] = key.line
                words = "is the key of the admin API here"
            else:
                words = (
                    "is not taken over: to be the key of the admin API, it has to be in a variable that is set "
                    f"(os.environ/NAME) and have {SHORTEST_KEY} characters or more"
                )
            self._findings.note(key, f"{words}; clients need keys of their own: unbroken keys create NAME")
        if (stored := self._general.get("store_model_in_db")) is not None and stored.data is True:
            self.document.setdefault("admin", {})["shared"] = True
            self.lines["admin", "shared"] = stored.line
        for key, setting in (("max_request_size_mb", "max_body"), ("max_response_size_mb", "max_response")):
            if (size := self._variables.number(self._general.get(key))) is not None:
                self.document["server"][setting] = f"{size} MiB"
                self.lines["server", setting] = self._general[key].line

    def _budget(self) -> None:
        """Money is counted if LiteLLM counts it, which it does with a database or a budget."""
        most, period = self._litellm.get("max_budget"), self._litellm.get("budget_duration")
        if most is None and "database_url" not in self._general:
            return
        self.document["spend"] = {"enabled": True}
        if (amount := self._variables.number(most)) is None:
            return
        each = PERIODS.get(self._variables.text(period))
        if each is None and period is not None:
            self._findings.unsafe(period, "a budget is for a day (1d), a month (30d, 1mo), or without an end")
        else:
            self.document["budgets"] = [{"amount": f"{amount}usd/{each or 'total'}"}]
            self.lines["budgets", 0] = (most or self._root).line

    def _store(self) -> None:
        """Where LiteLLM's instances share their counts, gateways share what they hold."""
        url, host, password = (self._router.get(f"redis_{part}") for part in ("url", "host", "password"))
        if url is not None:
            name = self._variables.name_of(url)
            text = "" if name else self._variables.text(url)
            if text and "@" in text:
                name = self._variables.keep(url, text, _STORE)
            self._put_store(url, f"env:{self._variables.use(name)}" if name else text)
        elif host is not None:
            port = self._variables.number(self._router.get("redis_port")) or 6379
            place = f"{self._variables.text(host)}:{port}/{self._variables.number(self._router.get('redis_db')) or 0}"
            if password is None:
                self._put_store(host, f"redis://{place}")
                return
            named = self._variables.name_of(password)
            secret = self._variables.get(named) if named else self._variables.text(password)
            if named and not secret:
                self._findings.wrong(password, f"the variable {named} is not set: set it")
            self._variables.to_set[_STORE] = f"redis://:{quote(secret, safe='')}@{place}"
            words = (
                f"the translation expects the address with its password, redis://:PASSWORD@{place}, in {_STORE}, with "
                "special characters of the password percent-encoded"
            )
            self._findings.note(password, words)
            self._put_store(host, f"env:{_STORE}")

    def _put_store(self, at: Value, url: str) -> None:
        self.document["store"] = {"url": url}
        self.lines["store", "url"] = at.line
        if "keys" in self.document:
            self.document["keys"]["in_store"] = True  # all gateways that share it have the same keys

    def _models(self) -> None:
        listed = self._root.get("model_list")
        if listed is None or not isinstance(listed.data, list) or not listed.data:
            self._findings.wrong(listed or self._root, "model_list has to be a list with a model")
            return
        credentials = self._credentials()
        reader = EntryReader(self._variables, self._findings, credentials)
        groups: dict[str, list[Entry]] = {}
        for each in listed:
            if not isinstance(each.data, dict):
                self._findings.wrong(each, "has to be a mapping with model_name and litellm_params")
                continue
            for one in _for_each_organization(each):
                if (entry := reader.read(one)) is not None:
                    groups.setdefault(entry.alias, []).append(entry)
        tables = {alias: self._model(alias, entries) for alias, entries in groups.items()}
        others = self._group_aliases(tables, groups)
        self._fallbacks(tables, others)
        if not tables and not any(found.kind == "wrong" for found in self._findings.all):
            self._findings.wrong(listed, "none of its models can be served")
        self.document["models"] = [_in_order(table) for table in tables.values()]
        for number, alias in enumerate(tables):
            self._note_lines(("models", number), groups.get(alias, ()))

    def _credentials(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for each in self._root.get("credential_list") or ():
            name, values = each.get("credential_name"), each.get("credential_values")
            if name is not None and values is not None:
                found[str(name.data)] = values
        return found

    def _note_lines(self, where: Where, entries: Sequence[Entry]) -> None:
        inside = len(entries) > 1
        for number, entry in enumerate(entries):
            if entry.at.file != self._root.file:
                continue
            place = (*where, "deployments", number) if inside else where
            self.lines.setdefault(where, entry.at.line)
            self.lines[place] = entry.at.line
            for key, line in entry.lines.items():
                self.lines[(*place, key)] = line

    def _model(self, alias: str, entries: Sequence[Entry]) -> dict[str, Any]:
        table: dict[str, Any] = {"alias": alias}
        setting = {**self._litellm, **self._router}
        if (retries := self._variables.number(setting.get("num_retries"))) is not None:
            table["attempts"] = min(int(retries) + 1, 100)
        waits = setting.get("stream_timeout") or self._router.get("timeout") or self._litellm.get("request_timeout")
        if (seconds := self._variables.number(waits)) is not None:
            table |= {"first_byte": seconds, "idle": seconds}
        if len(entries) == 1:
            left = ("name", "priority")
            return table | {key: value for key, value in entries[0].table.items() if key not in left}
        strategy = self._router.get("routing_strategy")
        choose, words = STRATEGIES.get(
            self._variables.text(strategy), ("weighted", "is unknown here: weighted is used")
        )
        if strategy is not None and words:
            self._findings.note(strategy, words)
        if strategy is not None and choose != "weighted":
            table["choose"] = choose
        if (cooldown := self._variables.number(setting.get("cooldown_time"))) is not None:
            table["cooldown"] = cooldown
        if self._general.get("background_health_checks") is not None and self._general["background_health_checks"].data:
            table["probe"] = self._variables.number(self._general.get("health_check_interval")) or 300
        table |= self._checks()
        _weigh(entries)
        names = [entry.table.get("name") for entry in entries]
        for entry in entries:
            if names.count(entry.table.get("name")) > 1:
                entry.table.pop("name", None)
        return table | {"deployments": [entry.table for entry in entries]}

    def _checks(self) -> dict[str, Any]:
        sticky = ("prompt_caching", "deployment_affinity", "session_affinity", "responses_api_deployment_check")
        found: dict[str, Any] = {}
        for each in self._router.get("optional_pre_call_checks") or ():
            if each.data in (*sticky, "encrypted_content_affinity"):
                found["sticky"] = True
            elif each.data in ("router_budget_limiting", "enforce_model_rate_limits"):
                self._findings.unsafe(each, "a deployment has no limits of its own: use the provider's")
            else:
                self._findings.missing(each, "is unknown here, and is not translated")
        return found

    def _group_aliases(self, tables: dict[str, dict[str, Any]], groups: dict[str, list[Entry]]) -> dict[str, str]:
        """Other names for a model: each becomes a model of its own with the same settings. Returns whose name it is."""
        found: dict[str, str] = {}
        both = (self._router.get("model_group_alias"), self._litellm.get("model_alias_map"))
        for alias, value in [item for each in both if each is not None for item in each.items()]:
            named = value.get("model") if isinstance(value.data, dict) else value
            target = str(named.data) if named is not None else ""
            if target not in tables or alias in tables or not is_alias(alias):
                self._findings.missing(value, "names no model of model_list, or is no name of its own")
                continue
            if (hidden := value.get("hidden")) is not None and hidden.data is True:
                self._findings.note(hidden, "every alias is listed in /v1/models")
            tables[alias] = copy.deepcopy(tables[target]) | {"alias": alias}
            groups[alias] = groups[target]
            found[alias] = target
        return found

    def _fallbacks(self, tables: dict[str, dict[str, Any]], others: Mapping[str, str]) -> None:
        wanted: dict[str, list[str]] = {}
        for key in ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks"):
            value = self._router.get(key) or self._litellm.get(key)
            if value is not None and key != "fallbacks" and value.data:
                words = "these are asked after any failure, not only after this one"
                self._findings.note(value, words)
            self._read_fallbacks(value, tables, wanted)
        for alias, target in others.items():
            if target in wanted:
                wanted.setdefault(alias, [name for name in wanted[target] if name != alias])
        default = self._router.get("default_fallbacks") or self._litellm.get("default_fallbacks")
        general = [*wanted.pop("*", ()), *self._known_names(default or (), tables)]
        for alias in tables:
            if alias not in wanted and general:
                wanted[alias] = [name for name in general if name != alias]
        add_fallbacks(tables, wanted)

    def _read_fallbacks(
        self, value: Value | None, tables: dict[str, dict[str, Any]], wanted: dict[str, list[str]]
    ) -> None:
        if value is not None and not isinstance(value.data, list):
            self._findings.wrong(value, "has to be a list, like [{model: [fallback]}]")
            return
        for pair in value or ():
            for alias, names in pair.items():
                if alias != "*" and not _add_named(alias, tables):
                    self._findings.missing(names, "no model of this name is served")
                    continue
                found = wanted.setdefault(alias, [])
                found += [name for name in self._known_names(names, tables) if name not in (*found, alias)]

    def _known_names(self, names: Value | tuple[()], tables: dict[str, dict[str, Any]]) -> list[str]:
        found: list[str] = []
        for each in names:
            name = str(each.data)
            prefix, _, model = name.partition("/")
            profile = KNOWN[prefix].profile if prefix in KNOWN else ""
            if "*" not in name and _add_named(name, tables):
                found.append(name)
            elif (
                model
                and profile
                and find_provider(profile).base_url
                and find_provider(profile).keys
                and "*" not in name
            ):
                found.append(f"{profile}:{model}")  # LiteLLM finds it by a wildcard
            else:
                self._findings.missing(each, "no model of this name is served")
        return found


def _for_each_organization(entry: Value) -> list[Value]:
    """LiteLLM asks with each organization of a list: a deployment for each."""
    params, about = entry.get("litellm_params"), dict(entry.items())
    listed = None if params is None else params.get("organization")
    if params is None or listed is None or not isinstance(listed.data, list):
        return [entry]
    kept = dict(params.items())
    return [
        replace(entry, data={**about, "litellm_params": replace(params, data={**kept, "organization": each})})
        for each in listed
    ]


def _add_named(name: str, tables: dict[str, dict[str, Any]]) -> bool:
    """Is a model of this name served? One that a wildcard serves gets a table of its own, which can have fallbacks."""
    if name in tables:
        return True
    fitting = [
        (len(before) + len(after), alias, name[len(before) : len(name) - len(after)])
        for alias in tables
        for before, star, after in [alias.partition("*")]
        if star and name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
    ]
    if not fitting or not is_alias(name):
        return False
    _, alias, part = max(fitting)
    table = copy.deepcopy(tables[alias]) | {"alias": name}
    for each in (table, *table.get("deployments", ())):
        if "model" in each:
            each["model"] = each["model"].replace("*", part)
    tables[name] = table
    return True


def _weigh(entries: Sequence[Entry]) -> None:
    """As LiteLLM's simple-shuffle: by weight, else by requests a minute, else by tokens a minute."""
    key = next((key for key in ("weight", "rpm", "tpm") if any(entry.shares.get(key) for entry in entries)), "")
    smallest = min((share for entry in entries if (share := entry.shares.get(key, 0)) > 0), default=1)
    for entry in entries:
        share = entry.shares.get(key, 0)
        if entry.is_last:
            entry.table["priority"] = 100  # LiteLLM never asks it; here it is the last resort
        elif share > 0 and share != smallest:
            entry.table["weight"] = share if key == "weight" else round(share / smallest, 3)
        elif share > 0 and key == "weight" and share != 1:
            entry.table["weight"] = share


def add_fallbacks(tables: dict[str, dict[str, Any]], wanted: Mapping[str, Sequence[str]]) -> None:
    """Puts `fallback` into the tables. Two models may be the fallback of each other in LiteLLM; here that would have no
    end, so the second one of such a pair is a copy without fallbacks, `NAME-alone`."""
    reached = {alias: _reached(alias, wanted) for alias in wanted}
    for alias, names in wanted.items():
        chosen: list[str] = []
        for name in names:
            if alias not in reached.get(name, ()):
                chosen.append(name)
                continue
            alone = f"{name}-alone"
            tables.setdefault(alone, {**copy.deepcopy(tables[name]), "alias": alone})
            tables[alone].pop("fallback", None)
            chosen.append(alone)
        if chosen:
            tables[alias]["fallback"] = chosen


def _in_order(table: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader looks for comes first."""
    first = ("alias", "name", "model", "wire", "base_url", "api_key_env", "api_key_file", "fallback")
    ordered = {key: table[key] for key in (*first, *table) if key in table}
    if "deployments" in ordered:
        ordered["deployments"] = [_in_order(each) for each in ordered["deployments"]]
    return ordered


def _reached(alias: str, wanted: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [*wanted.get(alias, ())]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += wanted.get(name, ())
    return found
