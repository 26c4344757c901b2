"""One entry of LiteLLM's `model_list`: the provider, the address, the key and the parameters become the keys of a
`[[models]]` or `[[models.deployments]]` table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

from unbroken.models.providers import find_provider
from unbroken_gateway.from_litellm.provider_names import BEGINNINGS, KNOWN, NOT_SERVED, Known
from unbroken_gateway.from_litellm.report import REFERENCE, Findings, Variables
from unbroken_gateway.from_litellm.yaml_values import Value, as_mapping
from unbroken_gateway.setting_types import holds_secret, is_alias

_RESPONSES_ONLY = re.compile(r"codex|deep-research|computer-use|^(?:gpt|o)[\w.-]*-pro\b")
"""Models of OpenAI that have no chat completions."""
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d+")
_TOKEN_FILE = "vertex-token"
_TO_BODY = [
    "frequency_penalty",
    "guardrailConfig",
    "keep_alive",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "metadata",
    "min_p",
    "modalities",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "provider",
    "repetition_penalty",
    "response_format",
    "safety_settings",
    "service_tier",
    "store",
    "thinking",
    "top_k",
    "top_logprobs",
    "transforms",
    "user",
    "verbosity",
    "chat_template_kwargs",
]
"""Fields of a request that LiteLLM sends as they are."""
_ON_ANTHROPIC = ("thinking", "top_k", "service_tier", "metadata")
_NUMBERS = ("temperature", "top_p", "max_tokens", "seed")
_AWS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
    "aws_profile_name": "AWS_PROFILE",
}
_PRICES = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cached",
    "cache_creation_input_token_cost": "cache_write",
}
_READ = {
    *_AWS,
    *_PRICES,
    *_NUMBERS,
    "model",
    "api_key",
    "api_base",
    "base_url",
    "api_version",
    "organization",
    "custom_llm_provider",
    "weight",
    "order",
    "rpm",
    "tpm",
    "timeout",
    "stream_timeout",
    "max_retries",
    "num_retries",
    "stop",
    "max_completion_tokens",
    "reasoning_effort",
    "extra_headers",
    "headers",
    "extra_body",
    "aws_region_name",
    "region_name",
    "aws_bedrock_runtime_endpoint",
    "vertex_project",
    "vertex_location",
    "litellm_credential_name",
}
_OTHER_NAMES = {
    "vertex_ai_project": "vertex_project",
    "vertex_ai_location": "vertex_location",
    "vertex_ai_credentials": "vertex_credentials",
}
_NEEDS_NOTHING = ("drop_params", "modify_params", "use_chat_completions_api", "litellm_trace_id", "model_info")
_ADVICE: Mapping[str, tuple[str, str]] = {
    "guardrails": ("unsafe", "guardrails are not translated: [[models.guardrails]] has its own (docs/guardrails.md)"),
    "guardrailConfig": ("unsafe", "only Bedrock's own protocol (Converse) has this guardrail"),
    "safety_settings": ("missing", "only Gemini has these settings"),
    "vertex_credentials": (
        "note",
        f"Vertex AI is asked with the access token in the file {_TOKEN_FILE}; this file of credentials is not read",
    ),
    "tags": ("missing", "there is no routing by tags: give each tag an alias of its own"),
    "tag_regex": ("missing", "there is no routing by tags: give each tag an alias of its own"),
    "max_parallel_requests": ("missing", "a deployment has no limit of its own; a key has one (unbroken keys create)"),
    "max_budget": ("unsafe", "a deployment has no budget of its own: use the provider's, or leave the deployment out"),
    "budget_duration": ("note", "belongs to max_budget"),
    "mock_response": ("missing", "serve the model `demo`, or python:module:function with `unbroken_testing`"),
    "configurable_clientside_auth_params": ("missing", "clients cannot choose the provider's key or address here"),
    "additional_drop_params": ("missing", "there is no list of fields to drop; what a model refuses is dropped anyway"),
    "merge_reasoning_content_in_choices": ("missing", "reasoning stays in a field of its own"),
    "use_in_pass_through": ("note", "which paths are passed through is set in [passing] of unbroken.toml"),
    "keepalive_seconds": ("note", "keep_alive in [server] is for all models, 5 s by default"),
    "azure_ad_token": ("missing", "Azure is asked with a key: set api_key"),
    "aws_session_name": ("note", "belongs to aws_role_name"),
    "aws_role_name": ("missing", "AWS credentials are those of the process: let it run with this role"),
    "aws_web_identity_token": ("missing", "AWS credentials are those of the process: let it run with this identity"),
}
"""What becomes of other parameters."""


@dataclass(slots=True)
class Entry:
    alias: str
    at: Value
    table: dict[str, Any] = field(default_factory=dict[str, Any])
    """The keys of the deployment."""
    lines: dict[str, int] = field(default_factory=dict[str, int])
    """Where in the main file they come from."""
    shares: dict[str, float] = field(default_factory=dict[str, float])
    """weight, rpm and tpm: any of them may decide how often it is asked."""
    is_last: bool = False
    """Its weight is 0."""

    def put(self, key: str, value: Any, at: Value | None = None) -> None:
        if value not in ("", None, {}):
            self.table[key] = value
            self.lines[key] = (at or self.at).line


class EntryReader:
    def __init__(self, variables: Variables, findings: Findings, credentials: Mapping[str, Value]) -> None:
        self._variables = variables
        self._findings = findings
        self._credentials = credentials

    def read(self, at: Value) -> Entry | None:
        """None if it cannot be served; the findings have the reason."""
        params = dict(as_mapping(at.get("litellm_params")))
        name, model = at.get("model_name"), params.get("model")
        if name is None or not isinstance(name.data, str):
            self._findings.wrong(at, "model_name is missing, or is no text")
            return None
        if model is None or not isinstance(model.data, str):
            self._findings.wrong(at, "litellm_params.model is missing, or is no text")
            return None
        params = self._with_credential(params)
        params = {_OTHER_NAMES.get(key, key): value for key, value in params.items() if value.data is not None}
        entry = Entry(name.data, at)
        if not self._may_be_served(entry, at, name):
            return None
        found = self._provider(model, params)
        if found is None or not self._name_model(entry, model, params, *found):
            return None
        known = found[0]
        self._address_and_key(entry, params, known)
        self._parameters(entry, params)
        self._rest(entry, params)
        self._information(entry, at.get("model_info"))
        return entry

    def _with_credential(self, params: dict[str, Value]) -> dict[str, Value]:
        named = params.get("litellm_credential_name")
        if named is None:
            return params
        values = self._credentials.get(self._variables.text(named))
        if values is None:
            self._findings.wrong(named, "credential_list has no credential of this name")
            return params
        return {**as_mapping(values), **params}

    def _may_be_served(self, entry: Entry, at: Value, name: Value) -> bool:
        information = as_mapping(at.get("model_info"))
        if information.get("blocked") is not None and information["blocked"].data is True:
            self._findings.note(information["blocked"], "it is blocked, and left out")
            return False
        for key in ("team_id", "access_windows"):
            if information.get(key) is not None and information[key].data:
                words = "only some may use this model: it is left out; serve it, and limit keys with --alias"
                self._findings.missing(information[key], words)
                return False
        if not is_alias(entry.alias) or entry.alias.count("*") > 1:
            words = "cannot be an alias: no spaces, ?, # or %, and at most one *; choose another name"
            self._findings.missing(name, words)
            return False
        return True

    def _provider(self, model: Value, params: Mapping[str, Value]) -> tuple[Known, str, str] | None:
        """The provider, LiteLLM's prefix for it, and the rest of the name."""
        full = self._variables.text(model)
        prefix, slash, rest = full.partition("/")
        if forced := self._variables.text(params.get("custom_llm_provider")):
            prefix, rest = forced, full.removeprefix(f"{forced}/")
        elif not slash or (prefix not in KNOWN and prefix not in NOT_SERVED):
            found = next((BEGINNINGS[begin] for begin in BEGINNINGS if full.startswith(begin)), "")
            if found:
                prefix, rest = found, full
        known = KNOWN.get(prefix)
        if known is None:
            if full == "*":
                words = "which provider is asked is not clear from `*`: write one entry for each, like openai/*"
            elif prefix in NOT_SERVED:
                words = f"the provider {prefix} is not served: {NOT_SERVED[prefix]}"
            else:
                words = (
                    "its provider is not served here; if the server speaks OpenAI's wire, write openai/MODEL and "
                    "api_base, or make it a profile of your own (docs/providers.md)"
                )
            self._findings.missing(model, words)
            return None
        return known, prefix, rest

    def _name_model(
        self, entry: Entry, model: Value, params: Mapping[str, Value], known: Known, prefix: str, rest: str
    ) -> bool:
        """Puts `model` and what depends on its name."""
        profile, wire = known.profile, known.wire
        if prefix in ("openai", "azure", "text-completion-openai", "azure_text") and rest.startswith("responses/"):
            rest = rest.removeprefix("responses/")
            profile, wire = ("openai-responses", "") if profile == "openai-chat" else (profile, "openai-responses")
        elif profile == "openai-chat" and _RESPONSES_ONLY.search(rest):
            profile = "openai-responses"
        elif profile == "azure":
            rest = rest.removeprefix("o_series/").removeprefix("gpt5_series/")
        elif profile == "vertex":
            if rest.startswith("claude"):
                profile = "vertex-claude"
            elif not rest.startswith(("gemini", "*")):
                self._findings.missing(model, "of Vertex AI, only Gemini and Claude are served")
                return False
        elif profile == "bedrock":
            rest = self._bedrock(entry, model, params, rest)
            if not rest:
                return False
        if "*" in rest and "*" not in entry.alias:
            self._findings.wrong(model, "has a * that its model_name does not have")
            return False
        if rest.count("*") > 1 or not rest:
            self._findings.missing(model, "may have one *, and has to name a model")
            return False
        entry.put("model", f"{profile}:{rest}", model)
        entry.put("wire", wire, model)
        return True

    def _bedrock(self, entry: Entry, model: Value, params: Mapping[str, Value], rest: str) -> str:
        for word in ("converse/", "invoke/", "converse_like/"):
            rest = rest.removeprefix(word)
        region, slash, after = rest.partition("/")
        if slash and _REGION.fullmatch(region):
            rest = after.split("-commitment/", 1)[-1]
        else:
            region = ""
        if rest.startswith(("agent/", "agentcore/", "llama/", "deepseek_r1/", "openai/")) or "embed" in rest:
            self._findings.missing(model, "of Bedrock, only models that speak Converse are served")
            return ""
        given = params.get("aws_region_name") or params.get("region_name")
        location = self._variables.text(given) or region or self._variables.get("AWS_REGION_NAME")
        entry.put("location", location, given)
        for key, standard in _AWS.items():
            if key in params:
                self._aws(params[key], standard)
        return rest

    def _aws(self, value: Value, standard: str) -> None:
        """AWS credentials are those of the process, so they have to be in the standard variables."""
        name = self._variables.name_of(value)
        secret = self._variables.get(name) if name else self._variables.text(value)
        if name == standard or self._variables.get(standard) == secret:
            self._variables.use(standard)
        elif secret and not self._variables.get(standard) and standard not in self._variables.to_set:
            self._variables.to_set[standard] = secret
            self._findings.note(value, f"the translation expects it in the variable {standard}")
        elif self._variables.to_set.get(standard) != secret:
            words = f"all models on Bedrock use the credentials of the process ({standard}): run one gateway for each"
            self._findings.missing(value, words)

    def _address_and_key(self, entry: Entry, params: Mapping[str, Value], known: Known) -> None:
        profile, _, name = str(entry.table["model"]).partition(":")
        at = params.get("api_base") or params.get("base_url") or params.get("aws_bedrock_runtime_endpoint")
        address = self._variables.text(at) or self._variables.get(
            next((each for each in known.addresses if self._variables.get(each)), "")
        )
        key = params.get("api_key")
        if profile in ("vertex", "vertex-claude"):
            self._vertex(entry, params, profile)
        elif key is not None:
            variable = self._variables.key(key, entry.alias, known.takes_any_key or bool(address))
            entry.put("api_key_env", variable, key)
        elif known.keys and (find_provider(profile).needs_key or known.base_url or self._first_set(known)):
            ours = find_provider(profile).keys
            variable = self._variables.use_first(known.keys) or known.keys[0]
            if variable not in ours or self._variables.get(ours[0]) != self._variables.get(variable):
                entry.put("api_key_env", variable)
            self._variables.use(variable)
        if profile.startswith("openai") and address:
            if URL(address).host == "api.openai.com":
                address = ""
            else:
                # `openai:` with an address reads OPENAI_API_KEY by itself, as LiteLLM does if there is no key.
                speaks = "openai-responses" if profile == "openai-responses" else ""
                entry.put("model", f"{'openai' if key is None else 'compatible'}:{name}")
                entry.put("wire", speaks)
        entry.put("base_url", address or known.base_url, at)
        if profile == "compatible" and "base_url" not in entry.table:
            self._findings.wrong(entry.at, "litellm_params.api_base is missing")
        if profile == "azure":
            dated = self._variables.text(params.get("api_version")) or self._variables.get("AZURE_API_VERSION")
            if dated[:1].isdigit() and "wire" not in entry.table:
                entry.put("api_version", dated, params.get("api_version"))

    def _first_set(self, known: Known) -> str:
        return next((name for name in known.keys if self._variables.get(name)), "")

    def _vertex(self, entry: Entry, params: Mapping[str, Value], profile: str) -> None:
        project, location = params.get("vertex_project"), params.get("vertex_location") or params.get("region_name")
        get = self._variables.get
        entry.put("project", self._variables.text(project) or get("VERTEXAI_PROJECT"), project)
        where = self._variables.text(location) or get("VERTEXAI_LOCATION") or get("VERTEX_LOCATION")
        if not where and not any(get(name) for name in find_provider(profile).parts["location"]):
            where = "us-central1"  # as LiteLLM
        entry.put("location", where, location)
        entry.put("api_key_file", _TOKEN_FILE)
        words = (
            f"Vertex AI is asked with an access token: keep one in the file {_TOKEN_FILE} beside the configuration, "
            "for example from `gcloud auth print-access-token` every half hour; it is read for each request"
        )
        self._findings.note(entry.at, words)

    def _parameters(self, entry: Entry, params: Mapping[str, Value]) -> None:
        number = self._variables.number
        for key in _NUMBERS:
            entry.put(key, number(params.get(key)), params.get(key))
        if "max_tokens" not in params:
            entry.put("max_tokens", number(params.get("max_completion_tokens")), params.get("max_completion_tokens"))
        if (stop := params.get("stop")) is not None:
            texts = [stop] if isinstance(stop.data, str) else list(stop)
            if not texts or not all(isinstance(each.data, str) for each in texts):
                self._findings.wrong(stop, "has to be a text, or a list of texts")
            else:
                entry.put("stop", [each.data for each in texts], stop)
        effort = self._variables.text(params.get("reasoning_effort"))
        entry.put("reasoning", {"disable": "none", "default": ""}.get(effort, effort), params.get("reasoning_effort"))
        entry.put("organization", self._variables.text(params.get("organization")), params.get("organization"))
        waits = params.get("stream_timeout") or params.get("timeout")
        for key in ("first_byte", "idle"):
            entry.put(key, number(waits), waits)
        retries = params.get("num_retries") or params.get("max_retries")
        if (tries := number(retries)) is not None:
            entry.put("attempts", int(tries) + 1, retries)
        for key in ("weight", "rpm", "tpm"):
            if (share := number(params.get(key))) is not None:
                entry.shares[key] = share
        entry.is_last = entry.shares.get("weight") == 0
        entry.put("priority", number(params.get("order")), params.get("order"))
        self._price(entry, params)
        for key in ("extra_headers", "headers"):
            if key in params:
                entry.put("headers", self._texts(params[key]), params[key])

    def _price(self, entry: Entry, params: Mapping[str, Value]) -> None:
        """LiteLLM has dollars for a token, we have them for a million."""
        prices = {
            kind: round(float(price) * 1_000_000, 9)
            for key, kind in _PRICES.items()
            if (price := self._variables.number(params.get(key))) is not None
        }
        if {"input", "output"} <= prices.keys():
            entry.put("price", prices, params["input_cost_per_token"])
        for key in _PRICES if prices and "price" not in entry.table else ():
            if key in params:
                self._findings.note(
                    params[key], "a price needs input and output: that of the package genai-prices is used"
                )

    def _texts(self, value: Value) -> dict[str, str]:
        texts: dict[str, str] = {}
        for name, each in value.items():
            is_secret = isinstance(each.data, str) and each.data.startswith(REFERENCE)
            if is_secret or holds_secret(name, str(each.data)):
                self._findings.missing(each, "a header that holds a secret is not sent: use api_key")
            else:
                texts[name] = self._variables.text(each)
        return texts

    def _rest(self, entry: Entry, params: Mapping[str, Value]) -> None:
        """Fields of the body, and what has no counterpart."""
        extra: dict[str, Any] = {}
        wire = entry.table.get("wire") or find_provider(str(entry.table["model"]).partition(":")[0]).wire
        for key, value in params.items():
            if key in _READ or key in _NEEDS_NOTHING:
                continue
            if key in _TO_BODY and ((wire, key) in _CARRIED or (wire == "openai-chat" and key not in _ADVICE)):
                extra[_OWN_NAMES.get(key, key)] = value.plain
            elif key in _ADVICE:
                kind, words = _ADVICE[key]
                report: Callable[[Value, str], None] = getattr(self._findings, kind)
                report(value, words)
            elif "cost_per" in key or key.endswith("_cost"):
                self._findings.note(value, "this price is not used: others come from the package genai-prices")
            else:
                words = "is unknown here: if it is a field of the request's body, put it into extra of [[models]]"
                self._findings.missing(value, words)
        body = params.get("extra_body")
        extra |= body.plain if body is not None and isinstance(body.data, dict) else {}
        if extra and _has_secret(extra):
            at = body or entry.at
            self._findings.missing(at, "a field that holds a secret is not sent with each request: use api_key")
            extra = {}
        if _has_null(extra):
            self._findings.missing(body or entry.at, "a field is null, which TOML does not have: it is left out")
        entry.put("extra", _without_null(extra), body)

    def _information(self, entry: Entry, at: Value | None) -> None:
        information = as_mapping(at)
        if (name := information.get("id")) is not None and is_alias(str(name.data)):
            entry.put("name", str(name.data), name)
        if (groups := information.get("access_groups")) is not None:
            self._findings.missing(
                groups, "keys have no groups of models: list them with `unbroken keys create --alias`"
            )
        mode = information.get("mode")
        wire = entry.table.get("wire") or find_provider(str(entry.table["model"]).partition(":")[0]).wire
        if mode is not None and mode.data not in ("chat", "responses", "completion") and not wire.startswith("openai"):
            self._findings.missing(mode, "only chat is served for this provider; other requests pass on OpenAI's wires")


_CARRIED = {
    *(("anthropic-messages", key) for key in _ON_ANTHROPIC),
    ("bedrock-converse", "guardrailConfig"),
    ("ollama", "keep_alive"),
    ("gemini", "safety_settings"),
}
_OWN_NAMES = {"safety_settings": "safetySettings"}


def _has_null(value: Any) -> bool:
    if isinstance(value, dict | list):
        inside: list[Any] = [*(value.values() if isinstance(value, dict) else value)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] - JSON
        return any(map(_has_null, inside))
    return value is None


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        items: list[tuple[str, Any]] = [*value.items()]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] - JSON
        return {key: _without_null(inner) for key, inner in items if inner is not None}
    if isinstance(value, list):
        return [_without_null(inner) for inner in value if inner is not None]  # pyright: ignore[reportUnknownVariableType] - JSON
    return value


def _has_secret(value: Any, name: str = "") -> bool:
    match value:
        case dict():
            return any(_has_secret(inner, str(key)) or holds_secret("", str(key)) for key, inner in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
        case list():
            return any(_has_secret(inner, name) for inner in value)  # pyright: ignore[reportUnknownVariableType] - JSON
        case _:
            text = str(value)
            return text.startswith(REFERENCE) or holds_secret(name, text)
