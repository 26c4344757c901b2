"""Claude through the Claude Agent SDK as an upstream of the gateway: its tools are those of the gateway's client."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from unbroken.errors import UserError

if TYPE_CHECKING:
    from unbroken.models.model import Model


def model() -> Model:
    """For a gateway: `model = "python:claude_agent_upstream:model"`."""
    if find_spec("claude_agent_sdk") is None:
        raise UserError("claude_agent_upstream needs claude-agent-sdk: pip install claude-agent-sdk mcp")
    from claude_agent_upstream.claude_model import ClaudeAgentModel  # noqa: PLC0415 - needs the SDK

    return ClaudeAgentModel()
