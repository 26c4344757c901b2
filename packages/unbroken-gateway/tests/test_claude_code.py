"""What Claude Code sends beside messages and tools reaches Anthropic as it was: adaptive thinking, edits of the
context, betas; with all calls at once and one at a time."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from gateway_client import serving, settings_for
from gateway_upstreams import Told, Upstream, events, telling

from unbroken_gateway.settings import UpstreamSettings

pytestmark = pytest.mark.anyio

Object = dict[str, Any]

BETA = {"anthropic-beta": "context-management-2025-06-27,interleaved-thinking-2025-05-14"}
EDITS: Object = {
    "edits": [
        {"type": "clear_thinking_20251015", "keep": "all"},
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 100_000}},
    ]
}
BASH: Object = {"name": "Bash", "description": "Runs.", "input_schema": {"type": "object", "properties": {}}}
SETTINGS: Object = {
    "max_tokens": 32_000,
    "context_management": EDITS,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": "user_1"},
}
CALL: Object = {"type": "tool_use", "id": "toolu_01AbCdEfGhJk", "name": "Bash", "input": {}}
THOUGHT: Object = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}
RESULT: Object = {"type": "tool_result", "tool_use_id": CALL["id"], "content": "done"}
ASK: Object = {"role": "user", "content": "Run it."}
HISTORIES: dict[str, list[Object]] = {
    "question": [ASK],
    "result": [ASK, {"role": "assistant", "content": [THOUGHT, CALL]}, {"role": "user", "content": [RESULT]}],
    "result of a turn without thinking": [
        ASK,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [RESULT]},
    ],
}
ANSWER = events(
    {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": {}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
    named=True,
)


def claude(upstream: Upstream, model: str, **more: Any) -> UpstreamSettings:
    return UpstreamSettings("m", f"anthropic:{model}", base_url=upstream.url, options={"attempts": 1}, **more)


async def asked(model: str, body: Object, *, headers: Object = BETA, **more: Any) -> tuple[Any, dict[str, str]]:
    """What the upstream was sent, and the headers of the answer."""
    async with telling(Told(ANSWER)) as upstream, serving(settings_for(claude(upstream, model, **more))) as url:
        told = await post(url, body, headers)
        return upstream.asked[0], told


async def post(url: str, body: Object, headers: Object) -> dict[str, str]:
    """The headers of the answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/messages", json={"model": "m", **body}, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        await answer.read()
        return {name.lower(): value for name, value in answer.headers.items()}


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-sonnet-4-6", "claude-opus-4-7", "claude-sonnet-5"])
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("serial", [True, False])
async def test_adaptive_thinking_and_context_edits_arrive_intact(serial: bool, history: str, model: str) -> None:
    body = {**SETTINGS, "messages": HISTORIES[history], "tools": [BASH], "stream": True}
    sent, told = await asked(model, body, serial=serial)
    assert {name: sent.body.get(name) for name in SETTINGS} == SETTINGS
    assert sent.headers["anthropic-beta"] == BETA["anthropic-beta"]
    assert "x-unbroken-dropped" not in told
    assert "x-unbroken-reasoning" not in told


@pytest.mark.parametrize("options", [{"max_tokens": 1000}, {"extra": {"inference_geo": "eu"}}], ids=str)
async def test_betas_arrive_also_where_the_upstream_has_settings_of_its_own(options: Object) -> None:
    body = {**SETTINGS, "messages": [ASK], "stream": True}
    async with telling(Told(ANSWER)) as upstream:
        row = UpstreamSettings("m", "anthropic:claude-opus-4-6", base_url=upstream.url, options=options)
        async with serving(settings_for(row)) as url:
            await post(url, body, BETA)
    assert upstream.asked[0].body["context_management"] == EDITS
    assert upstream.asked[0].headers["anthropic-beta"] == BETA["anthropic-beta"]


@pytest.mark.parametrize("first", ["thinking", "context_management"])
@pytest.mark.parametrize("serial", [True, False])
async def test_a_model_without_adaptive_thinking_gets_no_edit_that_needs_it(serial: bool, first: str) -> None:
    settings = {first: SETTINGS[first], **SETTINGS}
    body = {**settings, "messages": [ASK], "stream": True}
    sent, told = await asked("claude-sonnet-4-5", body, serial=serial)
    assert "thinking" not in sent.body
    assert [edit["type"] for edit in sent.body["context_management"]["edits"]] == ["clear_tool_uses_20250919"]
    named = told["x-unbroken-dropped"].split(", ")
    assert {"thinking", "context_management.edits"} <= set(named)


@pytest.mark.parametrize("serial", [True, False])
async def test_thinking_with_a_budget_takes_its_edit_along_where_it_has_to_be_turned_off(serial: bool) -> None:
    thinking = {"type": "enabled", "budget_tokens": 4000}
    body = {**SETTINGS, "thinking": thinking, "output_config": {}, "stream": True, "tools": [BASH]}
    body["messages"] = HISTORIES["result of a turn without thinking"]
    sent, told = await asked("claude-sonnet-4-5", body, serial=serial)
    assert "thinking" not in sent.body
    assert [edit["type"] for edit in sent.body["context_management"]["edits"]] == ["clear_tool_uses_20250919"]
    assert told["x-unbroken-reasoning"] == "lost; thinking is off"
    assert told["x-unbroken-dropped"] == "context_management.edits"
