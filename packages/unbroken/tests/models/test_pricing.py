"""Prices from the real price list: the numbers of `genai-prices`, and None for what it does not know."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from genai_prices import calc_price, extract_usage
from genai_prices.data_snapshot import get_snapshot
from hidden_packages import run_without

from unbroken import Usage, decode
from unbroken.models.pricing import find_prices
from unbroken.models.providers import PROFILES

NOW = datetime(2026, 11, 17, 12, 30, tzinfo=UTC)

USAGES = (
    Usage(1_200, 340),
    Usage(150_000, 9_000, 40_000, 20_000, 3_000, cache_write_1h_tokens=5_000, web_searches=3),
    Usage(420_000, 9_000, 100_000, 20_000, 3_000, cache_write_1h_tokens=20_000, web_searches=1),
)


def by_the_package(usage: Usage, provider: str, model: str) -> float:
    counts = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "output_reasoning_tokens": usage.reasoning_tokens,
        "web_searches": usage.web_searches,
    }
    found = calc_price(counts, model, provider_id=provider, genai_request_timestamp=NOW)
    return float(found.total_price)


@pytest.mark.parametrize("profile", [each for each in PROFILES if each.prices], ids=lambda each: each.name)
def test_every_listed_model_costs_what_the_package_computes(profile: object) -> None:
    assert isinstance(profile, type(PROFILES[0]))
    models = next(each.models for each in get_snapshot().providers if each.id == profile.prices)
    compared = 0
    for model in models[:200]:
        name = model.id if profile.name != "fireworks" else f"accounts/fireworks/models/{model.id}"
        prices = find_prices(f"{profile.name}:{name}", NOW.timestamp())
        if prices is None:  # speech, pictures and embeddings are not priced by input and output
            continue
        compared += 1
        for usage in USAGES:
            if usage.web_searches and prices.web_search is None:
                assert prices.of(usage) is None  # not what the package says: an unknown price is not 0
                continue
            assert prices.of(usage) == pytest.approx(by_the_package(usage, profile.prices, name)), name
    assert compared > 3


CLAUDE: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Hi."}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 900,
        "output_tokens": 800,
        "cache_read_input_tokens": 150_000,
        "cache_creation_input_tokens": 70_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 50_000, "ephemeral_1h_input_tokens": 20_000},
        "server_tool_use": {"web_search_requests": 3},
        "output_tokens_details": {"thinking_tokens": 300},
    },
}
NOVA: dict[str, Any] = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hi."}]}},
    "stopReason": "end_turn",
    "usage": {
        "inputTokens": 900,
        "outputTokens": 80,
        "totalTokens": 10_980,
        "cacheReadInputTokens": 4_000,
        "cacheWriteInputTokens": 6_000,
        "cacheDetails": [{"ttl": "5m", "inputTokens": 5_000}, {"ttl": "1h", "inputTokens": 1_000}],
    },
}
CHAT: dict[str, Any] = {
    "object": "chat.completion",
    "model": "gpt-5-mini",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 5_000,
        "completion_tokens": 700,
        "total_tokens": 5_700,
        "prompt_tokens_details": {"cached_tokens": 4_000},
        "completion_tokens_details": {"reasoning_tokens": 500},
    },
}


@pytest.mark.parametrize(
    ("name", "wire", "body", "flavor"),
    [
        ("anthropic:claude-sonnet-4-5", "anthropic-messages", CLAUDE, "default"),
        ("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0", "bedrock-converse", NOVA, "default"),
        ("openai:gpt-5-mini", "openai-chat", CHAT, "chat"),
    ],
)
def test_a_response_costs_what_the_package_reads_from_it(name: str, wire: str, body: Any, flavor: str) -> None:
    usage, prices = decode(json.dumps(body).encode(), wire=wire).usage, find_prices(name, NOW.timestamp())
    assert usage is not None
    assert prices is not None
    provider = {"bedrock": "aws"}.get(name.partition(":")[0], name.partition(":")[0])
    read = extract_usage(body, provider_id=provider, api_flavor=flavor).usage
    model = name.partition(":")[2]
    found = calc_price(read, model, provider_id=provider, genai_request_timestamp=NOW)
    assert prices.of(usage) == pytest.approx(float(found.total_price))


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("claude:claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("google:models/gemini-2.5-pro", "gemini:gemini-2.5-pro"),
        ("openai-chat:gpt-5-mini", "openai:gpt-5-mini"),
    ],
)
def test_another_name_of_a_model_has_the_same_prices(name: str, same_as: str) -> None:
    assert find_prices(name, NOW.timestamp()) == find_prices(same_as, NOW.timestamp()) is not None


@pytest.mark.parametrize(
    "name",
    ["ollama:qwen3:4b", "vllm:gpt-5", "compatible:gpt-5", "openai:of-my-own", "scripted:demo", "gpt-5", "", "openai:"],
)
def test_what_is_not_in_the_list_has_no_price(name: str) -> None:
    assert find_prices(name, NOW.timestamp()) is None


def test_a_price_that_depends_on_the_time_of_day_is_that_of_the_request() -> None:
    day, night = (find_prices("deepseek:deepseek-chat", NOW.replace(hour=hour).timestamp()) for hour in (12, 20))
    assert day is not None
    assert night is not None
    cheap = night.of(Usage(1000, 1000))
    assert cheap is not None
    assert day.of(Usage(1000, 1000)) == pytest.approx(2 * cheap)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


PLAY = """
import sys
from unbroken import Agent, Limits, ScriptedModel, UserError
from unbroken_testing import Uses

def agent(name, **options):
    return Agent(ScriptedModel(["Hi.", Uses(1000, 100)], name=name), **options)
"""


def test_the_package_is_imported_only_for_a_model_that_may_be_in_its_list() -> None:
    program = f"""{PLAY}
agent("scripted:demo").run_sync("Hi.")
agent("ollama:qwen3:4b").run_sync("Hi.")
assert "genai_prices" not in sys.modules
agent("openai:gpt-5-mini").run_sync("Hi.")
assert "genai_prices" in sys.modules
"""
    assert run(program) == ""


def test_a_price_needs_no_network() -> None:
    program = f"""
import socket
def refuse(*_):
    raise OSError("no network")
socket.socket.connect = socket.getaddrinfo = refuse
{PLAY}
print(agent("openai:gpt-5-mini").run_sync("Hi.").cost)
"""
    assert float(run(program)) == pytest.approx(by_the_package(Usage(1000, 100), "openai", "gpt-5-mini"))


def test_without_the_extra_a_cost_is_unknown_and_cannot_be_limited() -> None:
    program = f"""{PLAY}
print(agent("openai:gpt-5-mini").run_sync("Hi.").cost)
try:
    agent("openai:gpt-5-mini", limits=Limits(cost=0.5)).run_sync("Hi.")
except UserError as error:
    print(error)
"""
    cost, error = run_without("genai_prices", program).stdout.splitlines()
    assert cost == "None"
    assert "the price of `openai:gpt-5-mini` is not known" in error
    assert "prices=Prices(input=…, output=…)" in error
    assert "pip install 'unbroken[prices]'" in error
