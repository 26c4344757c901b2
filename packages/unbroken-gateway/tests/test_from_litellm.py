"""`unbroken serve --from-litellm`: a configuration of LiteLLM's proxy becomes an `unbroken.toml`, what cannot be
translated is listed with its line, and no secret is printed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from checkout import DOCS
from hypothesis import given
from hypothesis import strategies as st
from terminals import invoke

from unbroken import UserError
from unbroken.models.providers import find_provider
from unbroken_gateway import running
from unbroken_gateway.config import ServeOptions, read_config
from unbroken_gateway.from_litellm import Translation, read_litellm
from unbroken_gateway.from_litellm.provider_names import BEGINNINGS, KNOWN, NOT_SERVED
from unbroken_gateway.from_litellm.toml_text import toml_text
from unbroken_gateway.reloading import ConfigSource
from unbroken_testing import serve

SECRET = "sk-proj-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
TEAM = """
model_list:
  - model_name: gpt
    litellm_params:
      model: azure/gpt-4o-eu
      api_base: os.environ/AZURE_API_BASE
      api_key: os.environ/AZURE_API_KEY
      api_version: "2024-10-21"
      rpm: 600
    model_info: {id: eu}
  - model_name: gpt
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, rpm: 1500, order: 2}
  - model_name: claude
    litellm_params: &claude {model: anthropic/claude-sonnet-4-5, api_key: os.environ/ANTHROPIC_API_KEY, max_tokens: 900}
  - model_name: claude-slow
    litellm_params: {<<: *claude, timeout: 600, num_retries: 0}
  - model_name: "any/*"
    litellm_params: {model: openrouter/*, api_key: os.environ/OPENROUTER_API_KEY}
  - model_name: embed
    litellm_params: {model: text-embedding-3-small}
    model_info: {mode: embedding}
router_settings:
  routing_strategy: latency-based-routing
  optional_pre_call_checks: [prompt_caching]
  fallbacks: [{gpt: [claude]}, {claude: [gpt]}]
  cooldown_time: 60
  num_retries: 2
  timeout: 120
  model_group_alias: {gpt-4: gpt}
  redis_host: redis.internal
litellm_settings: {drop_params: true, callbacks: [prometheus, otel], max_budget: 500, budget_duration: 30d}
general_settings: {master_key: os.environ/LITELLM_MASTER_KEY, max_request_size_mb: 8}
"""
ENVIRONMENT = {
    "AZURE_API_BASE": "https://team.openai.azure.com",
    "AZURE_API_KEY": "a",
    "OPENAI_API_KEY": "o",
    "ANTHROPIC_API_KEY": "c",
    "OPENROUTER_API_KEY": "r",
    "LITELLM_MASTER_KEY": "sk-0123456789-0123456789-0123456789",
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "OLLAMA_API_BASE"):
        monkeypatch.delenv(name, raising=False)


def translate(text: str, environment: Mapping[str, str] = ENVIRONMENT) -> Translation:
    Path("config.yaml").write_text(text, "utf-8")
    translated = read_litellm("config.yaml", environment)
    assert tomllib.loads(translated.toml()) == translated.document
    return translated


def one_model(params: str, environment: Mapping[str, str] = ENVIRONMENT) -> dict[str, Any]:
    """The table of a model with these parameters."""
    found = translate(f"model_list: [{{model_name: it, litellm_params: {params}}}]", environment)
    (table,) = found.document["models"]
    assert table.pop("alias") == "it"
    return table


def words(translated: Translation, kind: str = "") -> list[str]:
    return [str(found) for found in translated.findings if not kind or found.kind == kind]


def test_a_configuration_of_a_team_is_translated() -> None:
    translated = translate(TEAM)
    both = {"attempts": 3, "first_byte": 120, "idle": 120}
    pool = {
        **both,
        "choose": "fastest",
        "cooldown": 60,
        "sticky": True,
        "deployments": [
            {
                "name": "eu",
                "model": "azure:gpt-4o-eu",
                "base_url": "https://team.openai.azure.com",
                "api_key_env": "AZURE_API_KEY",
                "api_version": "2024-10-21",
            },
            {"model": "openai-chat:gpt-4o", "api_key_env": "OPENAI_API_KEY", "priority": 2, "weight": 2.5},
        ],
    }
    claude = {"model": "anthropic:claude-sonnet-4-5", "api_key_env": "ANTHROPIC_API_KEY", "max_tokens": 900, **both}
    assert translated.document == {
        "server": {"port": 4000, "max_body": "8 MiB"},
        "telemetry": {"enabled": True},
        "spend": {"enabled": True},
        "budgets": [{"amount": "500usd/month"}],
        "keys": {"required": True, "in_store": True},
        "admin": {"key_env": "LITELLM_MASTER_KEY"},
        "store": {"url": "redis://redis.internal:6379/0"},
        "models": [
            {"alias": "gpt", "fallback": ["claude-alone"], **pool},
            {"alias": "claude", "fallback": ["gpt-alone"], **claude},
            {"alias": "claude-slow", **claude, "first_byte": 600, "idle": 600, "attempts": 1},
            {"alias": "any/*", "model": "openrouter:*", "api_key_env": "OPENROUTER_API_KEY", **both},
            {"alias": "embed", "model": "openai-chat:text-embedding-3-small", **both},
            {"alias": "gpt-4", "fallback": ["claude"], **pool},
            {"alias": "claude-alone", **claude},
            {"alias": "gpt-alone", **pool},
        ],
    }
    assert translated.is_complete
    assert [(found.line, found.path) for found in translated.findings] == [(32, "general_settings.master_key")]
    Path("unbroken.toml").write_text(translated.toml(), "utf-8")
    settings = read_config("unbroken.toml")
    assert [upstream.alias for upstream in settings.upstreams][:3] == ["gpt", "claude", "claude-slow"]
    assert settings.upstreams[0].deployments[1].weight == 2.5


@pytest.mark.parametrize(
    ("params", "table"),
    [
        ("{model: gpt-4o}", {"model": "openai-chat:gpt-4o"}),
        ("{model: openai/responses/gpt-5}", {"model": "openai-responses:gpt-5"}),
        ("{model: openai/gpt-5-codex}", {"model": "openai-responses:gpt-5-codex"}),
        (
            "{model: openai/my, api_base: 'http://127.0.0.1:8000/v1', api_key: none}",
            {"model": "compatible:my", "base_url": "http://127.0.0.1:8000/v1"},
        ),
        (
            "{model: my, custom_llm_provider: openai, api_base: 'http://127.0.0.1:8000/v1'}",
            {"model": "openai:my", "base_url": "http://127.0.0.1:8000/v1"},
        ),
        (
            "{model: azure/responses/o, api_base: 'https://x.openai.azure.com', api_key: os.environ/AZURE_API_KEY}",
            {
                "model": "azure:o",
                "wire": "openai-responses",
                "base_url": "https://x.openai.azure.com",
                "api_key_env": "AZURE_API_KEY",
            },
        ),
        (
            "{model: ollama_chat/qwen3:4b, api_base: 'http://localhost:11434'}",
            {"model": "ollama:qwen3:4b", "wire": "ollama", "base_url": "http://localhost:11434"},
        ),
        (
            "{model: bedrock/converse/eu-west-1/anthropic.claude-3, temperature: 0.5, top_p: 1}",
            {"model": "bedrock:anthropic.claude-3", "location": "eu-west-1", "temperature": 0.5, "top_p": 1},
        ),
        (
            "{model: vertex_ai/claude-sonnet-4@1, vertex_project: p, vertex_location: us-east5}",
            {
                "model": "vertex-claude:claude-sonnet-4@1",
                "project": "p",
                "location": "us-east5",
                "api_key_file": "vertex-token",
            },
        ),
        (
            "{model: together_ai/qwen, reasoning_effort: low, presence_penalty: 1, stop: x, api_key: os.environ/T}",
            {
                "model": "together:qwen",
                "api_key_env": "T",
                "reasoning": "low",
                "stop": ["x"],
                "extra": {"presence_penalty": 1},
            },
        ),
        (
            "{model: perplexity/sonar, input_cost_per_token: 0.000001, output_cost_per_token: 1.5e-5}",
            {
                "price": {"input": 1.0, "output": 15.0},
                "model": "compatible:sonar",
                "base_url": "https://api.perplexity.ai",
                "api_key_env": "PERPLEXITYAI_API_KEY",
            },
        ),
        (
            "{model: cohere_chat/command-a, extra_headers: {X-Team: blue}, max_completion_tokens: 5}",
            {"model": "cohere:command-a", "headers": {"X-Team": "blue"}, "max_tokens": 5},
        ),
        (
            "{model: bedrock/anthropic.claude-3, aws_region_name: us-east-1, guardrailConfig: {trace: full}}",
            {
                "model": "bedrock:anthropic.claude-3",
                "location": "us-east-1",
                "extra": {"guardrailConfig": {"trace": "full"}},
            },
        ),
        (
            "{model: vertex_ai/gemini-3, vertex_ai_project: p, vertex_ai_location: l, safety_settings: [{x: y}]}",
            {
                "model": "vertex:gemini-3",
                "project": "p",
                "location": "l",
                "api_key_file": "vertex-token",
                "extra": {"safetySettings": [{"x": "y"}]},
            },
        ),
        (
            "{model: ollama_chat/x, api_base: 'http://localhost:11434', keep_alive: 8m, reasoning_effort: disable}",
            {
                "model": "ollama:x",
                "wire": "ollama",
                "base_url": "http://localhost:11434",
                "reasoning": "none",
                "extra": {"keep_alive": "8m"},
            },
        ),
    ],
)
def test_a_deployment_becomes_a_model(params: str, table: dict[str, Any]) -> None:
    environment = {**ENVIRONMENT, "COHERE_API_KEY": "k", "CO_API_KEY": "k"}
    assert one_model(params, environment) == table


def test_the_example_of_the_documentation_is_true() -> None:
    page = (DOCS / "moving" / "from-litellm.md").read_text("utf-8")
    (config,) = re.findall("^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (written,) = re.findall("^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert translate(config).toml() == written


def test_every_prefix_leads_to_a_profile_that_exists() -> None:
    for prefix, known in KNOWN.items():
        profile = find_provider(known.profile)
        assert profile.base_url or known.base_url or known.addresses or known.takes_any_key, prefix
    assert set(BEGINNINGS.values()) <= set(KNOWN)
    assert not set(NOT_SERVED) & set(KNOWN)


def test_secrets_of_the_file_move_to_variables_and_are_not_printed() -> None:
    translated = translate(
        f"""
        model_list:
          - {{model_name: a b, litellm_params: {{model: openai/x, api_key: {SECRET}}}}}
          - model_name: gpt-4o
            litellm_params: {{model: openai/x, api_key: {SECRET}, extra_body: {{token: {SECRET}}}}}
          - model_name: local
            litellm_params: {{model: openai/x, api_base: "http://h:1/v1", extra_headers: {{Authorization: {SECRET}}}}}
        router_settings: {{redis_url: "redis://:{SECRET}@h:6379/0"}}
        general_settings: {{master_key: {SECRET}, custom: {SECRET}}}
        environment_variables: {{LANGFUSE_KEY: {SECRET}}}
        """
    )
    assert translated.variables == {"GPT_4O_API_KEY": SECRET, "UNBROKEN_STORE": f"redis://:{SECRET}@h:6379/0"}
    assert translated.document["models"][0]["api_key_env"] == "GPT_4O_API_KEY"
    assert translated.document["store"] == {"url": "env:UNBROKEN_STORE"}
    shown = "\n".join([translated.toml(), repr(translated), *words(translated)])
    assert SECRET not in shown
    assert SECRET[8:] not in shown
    result = invoke("serve", "--from-litellm", "config.yaml", "--write", "unbroken.toml")
    assert result.exit_code == 4
    assert SECRET not in result.output + Path("unbroken.toml").read_text()


def test_variables_of_the_file_are_used_if_something_needs_them() -> None:
    translated = translate(
        f"""
        model_list:
          - {{model_name: a, litellm_params: {{model: openai/x, api_key: os.environ/MINE, api_base: os.environ/BASE}}}}
          - {{model_name: b, litellm_params: {{model: anthropic/x}}}}
        environment_variables: {{MINE: {SECRET}, BASE: "http://h/v1", ANTHROPIC_API_KEY: b, PYTHONPATH: /tmp}}
        """,
        {},
    )
    assert translated.variables == {"MINE": SECRET, "ANTHROPIC_API_KEY": "b"}
    assert translated.document["models"][0]["base_url"] == "http://h/v1"
    assert [found.path for found in translated.findings if "no use" in found.words] == [
        "environment_variables.PYTHONPATH"
    ]


def test_what_cannot_be_translated_is_listed_with_its_place() -> None:
    translated = translate(
        """
        model_list:
          - {model_name: ok, litellm_params: {model: openai/x, tags: [paid], num_ctx: 5, input_cost_per_token: 1,
             input_cost_per_second: 1}}
          - {model_name: sage, litellm_params: {model: sagemaker/x}}
          - {model_name: star, litellm_params: {model: "*"}}
          - {model_name: a b, litellm_params: {model: openai/x}}
          - {model_name: theirs, litellm_params: {model: openai/x}, model_info: {team_id: blue}}
        router_settings:
          fallbacks: [{ok: [sage, openai/gpt-4o]}]
          retry_policy: {TimeoutErrorRetries: 1}
        litellm_settings: {callbacks: [langfuse], cache: true, max_budget: 10, budget_duration: 7d, novelty: 1}
        general_settings: {custom_auth: auth.check, database_url: os.environ/DB, alerting: [slack]}
        guardrails: [{guardrail_name: pii}]
        mcp_servers: {}
        surprise: [1]
        """
    )
    found = {(each.line, each.path): each.kind for each in translated.findings}
    assert found == {
        (3, "model_list[0].litellm_params.tags"): "missing",
        (3, "model_list[0].litellm_params.num_ctx"): "missing",
        (3, "model_list[0].litellm_params.input_cost_per_token"): "note",
        (4, "model_list[0].litellm_params.input_cost_per_second"): "note",
        (5, "model_list[1].litellm_params.model"): "missing",
        (6, "model_list[2].litellm_params.model"): "missing",
        (7, "model_list[3].model_name"): "missing",
        (8, "model_list[4].model_info.team_id"): "missing",
        (10, "router_settings.fallbacks[0].ok[0]"): "missing",
        (11, "router_settings.retry_policy"): "missing",
        (12, "litellm_settings.callbacks[0]"): "missing",
        (12, "litellm_settings.cache"): "missing",
        (12, "litellm_settings.budget_duration"): "unsafe",
        (12, "litellm_settings.novelty"): "missing",
        (13, "general_settings.custom_auth"): "unsafe",
        (13, "general_settings.database_url"): "missing",
        (13, "general_settings.alerting"): "missing",
        (14, "guardrails"): "unsafe",
        (16, "surprise"): "missing",
    }
    assert [model["alias"] for model in translated.document["models"]] == ["ok"]
    assert translated.document["models"][0]["fallback"] == ["openai-chat:gpt-4o"]
    assert "config.yaml:5: not translated: model_list[1].litellm_params.model: the provider sagemaker" in "\n".join(
        words(translated)
    )


@pytest.mark.parametrize(
    "text",
    [
        "litellm_settings: {max_end_user_budget: 1}",
        "litellm_settings: {max_internal_user_budget: 1}",
        "litellm_settings: {callbacks: [openai_moderations]}",
    ],
)
def test_what_protects_something_is_not_left_out_silently(text: str) -> None:
    translated = translate(f"model_list: [{{model_name: a, litellm_params: {{model: groq/x}}}}]\n{text}\n")
    assert [found.line for found in translated.unsafe] == [2]
    (found,) = translate("model_list: [{model_name: a, litellm_params: {model: groq/x, guardrails: [pii]}}]").unsafe
    assert found.path == "model_list[0].litellm_params.guardrails"


def test_a_password_of_redis_may_have_any_character() -> None:
    environment = {**ENVIRONMENT, "REDIS_PASSWORD": "p@ss/w:rd#1%"}
    translated = translate(
        "model_list: [{model_name: a, litellm_params: {model: groq/x}}]\n"
        "router_settings: {redis_host: redis.internal, redis_password: os.environ/REDIS_PASSWORD}\n",
        environment,
    )
    assert translated.variables == {"UNBROKEN_STORE": "redis://:p%40ss%2Fw%3Ard%231%25@redis.internal:6379/0"}
    assert "p@ss" not in translated.toml()


def test_each_organization_of_a_list_is_a_deployment() -> None:
    translated = translate("model_list: [{model_name: a, litellm_params: {model: gpt-4o, organization: [one, two]}}]")
    deployments = translated.document["models"][0]["deployments"]
    assert [each["organization"] for each in deployments] == ["one", "two"]


def test_fallbacks_of_and_to_a_model_that_a_wildcard_serves() -> None:
    translated = translate(
        """
        x-defaults: &defaults {api_key: os.environ/GROQ_KEY}
        model_list:
          - {model_name: groq/*, litellm_params: {model: groq/*, <<: *defaults}}
          - {model_name: openai/*, litellm_params: {model: openai/*}}
        litellm_settings: {fallbacks: [{openai/gpt-5: [groq/llama]}]}
        """
    )
    assert translated.is_complete
    key = {"api_key_env": "GROQ_KEY"}
    assert translated.document["models"] == [
        {"alias": "groq/*", "model": "groq:*", **key},
        {"alias": "openai/*", "model": "openai-chat:*"},
        {"alias": "openai/gpt-5", "model": "openai-chat:gpt-5", "fallback": ["groq/llama"]},
        {"alias": "groq/llama", "model": "groq:llama", **key},
    ]


def test_a_null_in_the_body_cannot_be_written_and_is_reported() -> None:
    translated = translate(
        "model_list:\n"
        "- {model_name: a, litellm_params: {model: groq/x, extra_body: {a: null, b: [1, null], c: {d: null}}}}\n"
    )
    assert translated.document["models"][0]["extra"] == {"b": [1], "c": {}}
    assert [found.path for found in translated.findings] == ["model_list[0].litellm_params.extra_body"]


def test_files_are_included_once_and_their_lists_are_joined() -> None:
    Path("more").mkdir()
    Path("more/models.yaml").write_text(
        "include: [../config.yaml]\nmodel_list:\n- {model_name: b, litellm_params: {model: what/x}}\n"
        "- {model_name: c, litellm_params: {model: groq/x}}\nrouter_settings: {num_retries: 1}\n"
    )
    translated = translate(
        "include: [more/models.yaml]\nmodel_list: [{model_name: a, litellm_params: {model: groq/x}}]\n"
        "router_settings: {num_retries: 5}\n"
    )
    assert [(model["alias"], model["attempts"]) for model in translated.document["models"]] == [("a", 2), ("c", 2)]
    (found,) = translated.findings
    assert (found.file, found.line, found.path) == ("more/models.yaml", 3, "model_list[1].litellm_params.model")


def test_credentials_are_shared_and_those_of_aws_belong_to_the_process() -> None:
    translated = translate(
        """
        credential_list: [{credential_name: mine, credential_values: {api_key: os.environ/MINE, api_base: "http://h/v1"}}]
        model_list:
          - {model_name: a, litellm_params: {model: openai/x, litellm_credential_name: mine}}
          - model_name: b
            litellm_params: {model: bedrock/x, aws_region_name: eu-west-1, aws_access_key_id: os.environ/ONE}
          - {model_name: b, litellm_params: {model: bedrock/x, aws_access_key_id: os.environ/TWO, weight: 0}}
        """,
        {"ONE": "1", "TWO": "2"},
    )
    first, second = translated.document["models"]
    assert first["api_key_env"] == "MINE"
    assert translated.variables == {"AWS_ACCESS_KEY_ID": "1"}
    assert second["deployments"] == [
        {"model": "bedrock:x", "location": "eu-west-1"},
        {"model": "bedrock:x", "priority": 100},
    ]
    assert [found.path for found in translated.findings if found.kind == "missing"] == [
        "model_list[2].litellm_params.aws_access_key_id"
    ]


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{there}: &{there} [{','.join([f'*{here}'] * 10)}]\n" for here, there in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "config.yaml:1: more than 50000 values: aliases (*name) multiply here"),
        ("model_list: &a [*a]\n", "contains itself"),
        ("model_list: []\nmodel_list: []\n", "config.yaml:2: `model_list` is there twice"),
        ("model_list: [\n", "config.yaml:2: this is not YAML"),
        ("model_list: !!python/object/apply:os.system [ls]\n", "the tag of model_list is not allowed"),
        ("model_list: !!python/name:os.system x\n", "this is not YAML"),
        ("a: " + "[" * 1000, "nested too deeply"),
        ("a: " + "[" * 200 + "]" * 200, "nested too deeply"),
        ("[1, 2]\n", "it must be a mapping"),
        ("", "it must be a mapping"),
        ("{}\n", "model_list has to be a list"),
        ("model_list: {a: b}\n", "model_list has to be a list"),
        ("model_list: [3]\n", "model_list[0]: has to be a mapping"),
        ("model_list: [{litellm_params: {model: x}}]\n", "model_name is missing"),
        ("model_list: [{model_name: x}]\n", "litellm_params.model is missing"),
        ("model_list: [{model_name: x, litellm_params: {model: 3}}]\n", "litellm_params.model is missing"),
        ("model_list: [{model_name: x, litellm_params: {model: what/x}}]\n", "none of its models can be served"),
        ("model_list: [{model_name: x, litellm_params: {model: groq/x, timeout: soon}}]\n", "has to be a number"),
        ("model_list: [{model_name: x, litellm_params: {model: groq/x, api_base: os.environ/NO}}]\n", "NO is not set"),
        ("model_list: [{model_name: x, litellm_params: {model: groq/x, api_key: os.environ/a b}}]\n", "does not name"),
        ("model_list: [{model_name: x, litellm_params: {model: openai_like/x}}]\n", "api_base is missing"),
        ("model_list: [{model_name: x, litellm_params: {model: groq/*}}]\n", "has a * that its model_name"),
        ("model_list: [{model_name: x, litellm_params: {model: groq/x}}]\nrouter_settings: 3\n", "to be a mapping"),
        ("model_list: [{model_name: x, litellm_params: {model: groq/x}}]\nfallbacks: 3\ninclude: x\n", "include has"),
        ("include: [no.yaml]\nmodel_list: []\n", "which is not a file"),
        ("? [a, b]\n: c\n", "a key has to be a text"),
        ("a: \x07\n", "this is not YAML"),
    ],
)
def test_hostile_and_wrong_files_end_in_an_error_that_names_the_line(text: str, told: str) -> None:
    Path("config.yaml").write_text(text, "utf-8")
    with pytest.raises(UserError) as caught:
        read_litellm("config.yaml", {})
    assert told in str(caught.value)
    assert str(caught.value).startswith("config.yaml")


def test_mistakes_that_only_our_settings_know_have_the_line_of_the_file() -> None:
    Path("config.yaml").write_text(
        "model_list:\n- model_name: a\n  litellm_params:\n    model: groq/x\n    api_base: 'https://u:pw@h/v1'\n"
        "    order: 700\n"
        "- {model_name: a, litellm_params: {model: groq/x, reasoning_effort: enormous}}\n"
    )
    result = invoke("serve", "--from-litellm", "config.yaml", "--write", "unbroken.toml")
    assert result.exit_code == 2
    assert [line.split(": ")[1] for line in result.output.splitlines()] == [
        "config.yaml:5",
        "config.yaml:6",
        "config.yaml:7",
    ]
    assert not Path("unbroken.toml").exists()


def test_the_command_checks_writes_and_refuses() -> None:
    Path("config.yaml").write_text("model_list: [{model_name: a, litellm_params: {model: ollama/x}}]\n")
    checked = invoke("serve", "--from-litellm", "config.yaml", "--check", "--store", "memory:")
    assert checked.exit_code == 0, checked.output
    assert "would listen on    http://127.0.0.1:4000\n" in checked.output
    assert "model              a: ollama:x (ollama)\n" in checked.output
    assert "configuration      config.yaml\n" in checked.output
    printed = invoke("serve", "--from-litellm", "config.yaml", "--write", "-")
    assert tomllib.loads(printed.output)["models"] == [{"alias": "a", "model": "ollama:x", "wire": "ollama"}]
    assert invoke("serve", "--from-litellm", "config.yaml", "--write", "unbroken.toml").exit_code == 0
    again = invoke("serve", "--from-litellm", "config.yaml", "--write", "unbroken.toml")
    assert (again.exit_code, "it exists already" in again.output) == (2, True)
    for wrong in (("--config", "x"), ("--upstream", "demo:x")):
        assert invoke("serve", "--from-litellm", "config.yaml", *wrong).exit_code == 2
    assert invoke("serve", "--write", "x").exit_code == 2
    assert invoke("serve", "--from-litellm", "no.yaml").exit_code == 2

    Path("config.yaml").write_text(
        "model_list: [{model_name: a, litellm_params: {model: ollama/x, tags: [b]}}]\n", "utf-8"
    )
    assert invoke("serve", "--from-litellm", "config.yaml", "--check", "--store", "memory:").exit_code == 4
    Path("config.yaml").write_text(
        "model_list: [{model_name: a, litellm_params: {model: ollama/x}}]\nguardrails: [{guardrail_name: b}]\n", "utf-8"
    )
    refused = invoke("serve", "--from-litellm", "config.yaml")
    assert (refused.exit_code, "protect something" in refused.output) == (2, True)


def test_a_client_asks_through_the_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve("Hello from behind.") as provider:
        base = provider.base_url("openai-chat")
        translated = translate(
            f"""
            model_list:
              - model_name: dead
                litellm_params: {{model: openai/x, api_base: "http://127.0.0.1:9/v1", api_key: none}}
              - {{model_name: live, litellm_params: {{model: openai/big, api_base: "{base}", api_key: {SECRET}}}}}
            router_settings: {{fallbacks: [{{dead: [live]}}], num_retries: 0}}
            """
        )
        monkeypatch.setenv("LIVE_API_KEY", SECRET)  # so that it is removed afterwards
        settings = translated.settings(ServeOptions(port=0, store="memory:"))
        again = ConfigSource("config.yaml", {"port": 0, "store": "memory:"}, is_litellm=True)
        assert again.read({}) == settings
        with running(settings) as url:
            body = json.dumps({"model": "dead", "messages": [{"role": "user", "content": "Hi"}]}).encode()
            with urlopen(Request(f"{url}/v1/chat/completions", body)) as answer:
                said = json.load(answer)
        (asked,) = provider.requests
    assert said["choices"][0]["message"]["content"] == "Hello from behind."
    assert asked.model == "big"


def test_models_of_the_admin_api_are_added_to_those_of_the_file_and_stay_with_a_reload() -> None:
    config = "model_list: [{model_name: a, litellm_params: {model: ollama/x}}]\ngeneral_settings: {%s}\n"
    assert "admin" not in translate(config % "").document
    translated = translate(config % "store_model_in_db: true")
    assert translated.document["admin"] == {"shared": True}
    assert not words(translated)
    source = ConfigSource("config.yaml", {"store": "memory:"}, is_litellm=True)
    assert source.names("models") == {"a"}
    read = source.read({"models": {"b": {"model": "ollama:y"}, "a": {"model": "ollama:z"}}})
    assert [(each.alias, each.model) for each in read.upstreams] == [("a", "ollama:x"), ("b", "ollama:y")]
    with pytest.raises(UserError, match="alias `b` of the admin API: unknown key `modle`"):
        source.read({"models": {"b": {"modle": "ollama:y"}}})
    Path("config.yaml").write_text("[")
    assert source.names("models") == set()


@given(
    st.dictionaries(
        st.text(max_size=8), st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False), max_size=4
    )
)
def test_toml_that_is_written_reads_back(values: dict[str, Any]) -> None:
    document = {
        "server": values,
        "models": [{"alias": "a", "extra": {"inner": values, "list": [*values.values()]}, "deployments": [values, {}]}],
    }
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return  # a lone surrogate, which no file can hold
    assert tomllib.loads(toml_text(document, ["a\nb", "\x07"])) == document
