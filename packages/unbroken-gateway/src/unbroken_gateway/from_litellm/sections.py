"""What becomes of the sections beside `model_list`: data, one line for each key that is not simply translated."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken_gateway.from_litellm.report import Kind

Advice = tuple[Kind, str]

_KEYS = "clients need gateway keys: unbroken keys create NAME"
_LIMITS = "keys have limits: unbroken keys create NAME --requests-per-minute N --tokens-per-minute N --in-flight N"
_BUDGETS = "keys have: unbroken keys create NAME --budget 10usd/month"
_METRICS = "alerts are made from /metrics: deploy/ has rules for Prometheus"
_NOT_HERE = "has no counterpart here"

TRANSLATED: Mapping[str, frozenset[str]] = {
    "router_settings": frozenset(
        [
            "routing_strategy",
            "fallbacks",
            "default_fallbacks",
            "context_window_fallbacks",
            "content_policy_fallbacks",
            "cooldown_time",
            "num_retries",
            "timeout",
            "stream_timeout",
            "model_group_alias",
            "redis_url",
            "redis_host",
            "redis_port",
            "redis_password",
            "redis_db",
            "optional_pre_call_checks",
        ]
    ),
    "litellm_settings": frozenset(
        [
            "num_retries",
            "request_timeout",
            "fallbacks",
            "default_fallbacks",
            "context_window_fallbacks",
            "content_policy_fallbacks",
            "model_alias_map",
            "callbacks",
            "success_callback",
            "failure_callback",
            "cache",
            "cache_params",
            "cooldown_time",
            "max_budget",
            "budget_duration",
        ]
    ),
    "general_settings": frozenset(
        [
            "store_model_in_db",
            "master_key",
            "background_health_checks",
            "health_check_interval",
            "max_request_size_mb",
            "max_response_size_mb",
            "otel",
        ]
    ),
}
"""Keys that `translation` reads."""

NEEDS_NOTHING: Mapping[str, frozenset[str]] = {
    "router_settings": frozenset(
        ["set_verbose", "debug_level", "client_ttl", "polling_interval", "enable_weighted_failover", "max_fallbacks"]
    ),
    "litellm_settings": frozenset(
        [
            "drop_params",
            "modify_params",
            "telemetry",
            "set_verbose",
            "suppress_debug_info",
            "turn_off_message_logging",
            "redact_user_api_key_info",
            "redact_messages_in_exceptions",
            "json_logs",
            "enable_json_schema_validation",
            "add_function_to_prompt",
            "force_ipv4",
            "public_routes",
            "ui_theme_config",
        ]
    ),
    "general_settings": frozenset(
        [
            "store_prompts_in_spend_logs",
            "disable_spend_logs",
            "disable_spend_updates",
            "disable_error_logs",
            "proxy_batch_write_at",
            "database_connection_pool_limit",
            "database_connection_timeout",
            "user_api_key_cache_ttl",
            "ui_access_mode",
            "disable_reset_budget",
            "use_redis_transaction_buffer",
            "allow_requests_on_db_unavailable",
            "disable_adding_master_key_hash_to_db",
            "health_check_details",
            "disable_prisma_schema_update",
        ]
    ),
}
"""Keys whose effect the gateway has anyway, or that are about parts that it does not have."""

ADVICE: Mapping[str, Mapping[str, Advice]] = {
    "router_settings": {
        "allowed_fails": ("note", "a deployment rests at once after a 429 or no connection, else after three failures"),
        "allowed_fails_policy": ("note", "when a deployment rests is fixed: docs/gateway.md, cooldown"),
        "disable_cooldowns": ("note", "a deployment that failed is asked last for `cooldown`; it is never refused"),
        "retry_policy": ("missing", "the number of attempts is the same for every error; refusals are not retried"),
        "model_group_retry_policy": ("missing", "set num_retries in litellm_params of these models"),
        "retry_after": ("note", "waits grow from 0.5 s, or are what the provider asks for"),
        "enable_pre_call_checks": (
            "note",
            "a context that is too long is cut and sent again, then a fallback is asked",
        ),
        "enable_tag_filtering": ("missing", "there is no routing by tags: give each tag an alias of its own"),
        "cache_responses": ("missing", "answers are not cached; a provider's prompt cache is used (sticky, cache)"),
        "caching_groups": ("missing", "answers are not cached"),
        "provider_budget_config": ("unsafe", "there is no budget for each provider: use the provider's own"),
        "default_max_parallel_requests": ("missing", _LIMITS),
        "default_litellm_params": ("missing", "write them into litellm_params of each model"),
        "routing_groups": ("missing", "the strategy is one for all models: set `choose` of a model in unbroken.toml"),
        "routing_strategy_args": ("note", "how `fastest` measures is fixed"),
        "alerting_config": ("missing", _METRICS),
    },
    "litellm_settings": {
        "guardrails": (
            "unsafe",
            "guardrails are not translated: [[models.guardrails]] has its own (docs/guardrails.md)",
        ),
        "allowed_fails": ("note", "a deployment rests at once after a 429 or no connection, else after three failures"),
        "service_callbacks": ("missing", _METRICS),
        "s3_callback_params": ("missing", "requests are recorded to a folder: [record] in unbroken.toml"),
        "default_team_settings": ("missing", "teams are not translated: unbroken keys create NAME --team TEAM"),
        "default_internal_user_params": ("missing", _KEYS),
        "upperbound_key_generate_params": ("missing", _KEYS),
        "default_key_generate_params": ("missing", _KEYS),
        "custom_provider_map": ("missing", 'serve the provider with model = "python:module:function"'),
        "ssl_verify": ("missing", "certificates are always checked: add yours with the variable SSL_CERT_FILE"),
        "max_user_budget": ("unsafe", f"users have no budgets: {_BUDGETS}"),
        "max_internal_user_budget": ("unsafe", f"users have no budgets: {_BUDGETS}"),
        "internal_user_budget_duration": ("note", "belongs to max_internal_user_budget"),
        "max_end_user_budget": ("unsafe", f"the users of your clients have no budgets: {_BUDGETS}"),
        "max_end_user_budget_id": ("unsafe", f"the users of your clients have no budgets: {_BUDGETS}"),
        "post_call_rules": ("unsafe", "rules in Python are not translated"),
        "model_group_settings": ("missing", _NOT_HERE),
        "forward_client_headers_to_llm_api": (
            "missing",
            "only anthropic-beta, anthropic-version, openai-beta are passed",
        ),
    },
    "general_settings": {
        "database_url": ("missing", f"keys, teams and spend of the database are not taken over: {_KEYS}"),
        "database_type": ("missing", "keys, teams and spend of the database are not taken over"),
        "maximum_spend_logs_retention_period": (
            "note",
            "numbers are kept for 400 days: `keep` in [spend]",
        ),
        "litellm_key_header_name": (
            "missing",
            "keys are read from Authorization, x-api-key, x-goog-api-key and api-key: let clients send theirs there",
        ),
        "custom_auth": ("unsafe", f"clients cannot be checked in Python: {_KEYS}"),
        "enable_jwt_auth": ("unsafe", f"tokens (JWT) are not checked: {_KEYS}"),
        "litellm_jwtauth": ("unsafe", f"tokens (JWT) are not checked: {_KEYS}"),
        "enable_oauth2_auth": ("unsafe", f"OAuth tokens are not checked: {_KEYS}"),
        "allowed_ips": ("unsafe", "addresses are not checked: do it in the balancer"),
        "allowed_routes": ("unsafe", "which paths pass is set in [passing], and with `unbroken keys create --pass`"),
        "admin_only_routes": ("missing", _NOT_HERE),
        "public_routes": ("missing", "only /healthz and /readyz need no key"),
        "enforce_user_param": ("missing", "a request may come without `user`"),
        "max_parallel_requests": ("missing", _LIMITS),
        "global_max_parallel_requests": ("missing", _LIMITS),
        "alerting": ("missing", _METRICS),
        "alerting_threshold": ("missing", _METRICS),
        "alert_types": ("missing", _METRICS),
        "pass_through_endpoints": ("missing", "only requests to the providers of the models pass: [passing]"),
        "key_management_system": ("missing", "a key is read from a variable, or from a file with api_key_file"),
        "key_management_settings": ("missing", "a key is read from a variable, or from a file with api_key_file"),
        "completion_model": ("missing", "add a model whose alias is *: it answers to any name"),
        "infer_model_from_keys": ("missing", "name the models in model_list"),
        "coordination_redis": ("missing", "name the server in [store]: gateways share it"),
    },
}

OTHER_SECTIONS: Mapping[str, Advice] = {
    "guardrails": ("unsafe", "guardrails are not translated: [[models.guardrails]] has its own (docs/guardrails.md)"),
    "policies": ("unsafe", "guardrails are not translated: [[models.guardrails]] has its own (docs/guardrails.md)"),
    "policy_attachments": ("unsafe", "guardrails are not translated"),
    "pass_through_endpoints": ("missing", "only requests to the providers of the models pass: [passing]"),
    "mcp_servers": ("missing", "the gateway serves models, no MCP servers: connect clients to them directly"),
    "mcp_tools": ("missing", "the gateway serves models, no MCP servers: connect clients to them directly"),
    "files_settings": ("missing", "files pass to the provider of a model: list the paths in [passing]"),
    "finetune_settings": ("missing", "list the paths of fine-tuning in [passing]"),
    "assistant_settings": ("missing", _NOT_HERE),
    "vector_store_registry": ("missing", _NOT_HERE),
    "search_tools": ("missing", _NOT_HERE),
    "prompts": ("missing", _NOT_HERE),
    "callback_settings": ("note", "belongs to callbacks"),
    "default_vertex_config": ("missing", "only models of model_list are asked"),
}

CALLBACKS: Mapping[str, Advice | None] = {
    "prometheus": None,  # /metrics is always there
    "otel": None,  # becomes [telemetry]
    "dynamic_rate_limiter": ("missing", _LIMITS),
    "dynamic_rate_limiter_v3": ("missing", _LIMITS),
    "max_parallel_request_limiter": ("missing", _LIMITS),
    "lakera_prompt_injection": ("unsafe", "guardrails are not translated"),
    "detect_prompt_injection": ("unsafe", "guardrails are not translated"),
    "hide_secrets": ("unsafe", "guardrails are not translated"),
    "presidio": ("unsafe", "guardrails are not translated"),
    "llamaguard_moderations": ("unsafe", "guardrails are not translated"),
    "google_text_moderation": ("unsafe", "guardrails are not translated"),
    "banned_keywords": ("unsafe", "guardrails are not translated"),
    "azure_content_safety": ("unsafe", "guardrails are not translated"),
    "llmguard_moderations": ("unsafe", "guardrails are not translated"),
    "openai_moderations": ("unsafe", "guardrails are not translated"),
    "blocked_user_check": ("unsafe", "guardrails are not translated"),
}
OTHER_CALLBACK: Advice = (
    "missing",
    "is not called: use /metrics, or [record] or [telemetry] (OpenTelemetry) in unbroken.toml",
)

PERIODS: Mapping[str, str] = {
    **dict.fromkeys(("1d", "24h", "daily"), "day"),
    **dict.fromkeys(("30d", "31d", "1mo", "monthly"), "month"),
}
"""Of a budget. Here days and months are those of the calendar, in UTC."""

STRATEGIES: Mapping[str, tuple[str, str]] = {
    "simple-shuffle": ("weighted", ""),
    "least-busy": ("least-busy", ""),
    "latency-based-routing": ("fastest", ""),
    "usage-based-routing": ("least-busy", "the nearest is used, least-busy: tokens and requests a minute do not count"),
    "usage-based-routing-v2": (
        "least-busy",
        "the nearest is used, least-busy: tokens and requests a minute do not count",
    ),
    "cost-based-routing": ("weighted", "prices do not decide: give the cheap deployments `order: 1`, the others 2"),
}
"""`choose`, and what is different."""
