"""The clients: one row each. How it is installed, started and pointed at the gateway; and with which of its tools it
writes a file. In commands, files and variables `$url` is the gateway's address, `$model` the alias, `$prompt` the
prompt, `$node` the folder of an installed Node package, `$programs` that of our own programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from story import WriteTool

from unbroken_gateway.settings import ClientProfile

CHAT, RESPONSES, MESSAGES, GEMINI = "openai-chat", "openai-responses", "anthropic-messages", "gemini"
WIRES = (CHAT, RESPONSES, MESSAGES, GEMINI)


WRITE_FILE = WriteTool("write_file", "path", "content")
"""Of our own programs."""


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    kind: Literal["python", "node", "agent"]
    packages: tuple[str, ...]
    """With the versions that were seen working. The first is the one whose version is told."""
    wire: str
    others: tuple[str, ...]
    """The wires of upstreams that are not its own."""
    command: tuple[str, ...]
    tool: WriteTool = WRITE_FILE
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it reads from its home."""
    model: str = "story"
    profile: ClientProfile | None = None
    """With which the gateway gives it one call at a time. Without, the client asks for that itself."""
    unstreamed: bool = False
    """It can be told not to stream."""
    beside: tuple[str, ...] = ()
    """Python packages for what it starts itself."""
    in_text: bool = False
    """Calls and results are texts in its history."""
    thinks: bool = False
    """It asks for adaptive thinking and has old thinking cleared."""
    alone: bool = True
    """It can do without the gateway: a provider of its wire that keeps nothing is enough."""


def _python(name: str, package: str, program: str, wire: str, other: str) -> Client:
    return Client(name, "python", (package,), wire, (other,), ("$python", f"$programs/{program}.py"), unstreamed=True)


def _node(name: str, packages: tuple[str, ...], program: str, wire: str, other: str) -> Client:
    return Client(name, "node", packages, wire, (other,), ("node", f"$node/{program}.mjs"), unstreamed=True)


def _except(wire: str) -> tuple[str, ...]:
    return tuple(each for each in WIRES if each != wire)


OPENAI, OPENAI_AGENTS = "openai==3.49.0", "openai-agents==0.24.0"
AI_SDK = ("ai@7.0.169", "@ai-sdk/openai-compatible@3.0.90", "@ai-sdk/openai@4.0.115", "zod@4.6.7")
PYDANTIC_AI = "pydantic-ai-slim[openai,anthropic]==2.66.0"

CLAUDE_CODE = Client(
    "Claude Code",
    "agent",
    ("@anthropic-ai/claude-code@2.1.325",),
    MESSAGES,
    _except(MESSAGES),
    ("$bin/claude", "-p", "$prompt", "--model", "$model", "--allowedTools", "Write"),
    WriteTool("Write", "file_path", "content"),
    {
        "ANTHROPIC_BASE_URL": "$url",
        "ANTHROPIC_API_KEY": "$key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    },
    profile=ClientProfile("it", user_agent="claude-cli"),
    model="claude-sonnet-4-5",
)

CODEX = Client(
    "Codex",
    "agent",
    ("@openai/codex@0.166.0",),
    RESPONSES,
    _except(RESPONSES),
    ("$bin/codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "$prompt"),
    WriteTool("exec_command", shell="cmd"),
    {"GATEWAY_KEY": "$key"},
    {
        ".codex/config.toml": (
            'model = "$model"\nmodel_provider = "gateway"\n\n[model_providers.gateway]\nname = "gateway"\n'
            'base_url = "$url/v1"\nenv_key = "GATEWAY_KEY"\nwire_api = "responses"\n'
        )
    },
    profile=ClientProfile("it", user_agent="codex"),
)

MCP_SERVER = '\n[mcp_servers.files]\ncommand = "$python"\nargs = ["$programs/mcp_files.py"]\nrequired = true\n'

CLIENTS = (
    _python("openai, Chat Completions", OPENAI, "openai_chat", CHAT, MESSAGES),
    _python("openai, Responses", OPENAI, "openai_responses", RESPONSES, CHAT),
    replace(
        _python("openai, Responses with store", OPENAI, "openai_responses", RESPONSES, GEMINI),
        environment={"GATEWAY_STORED": "1"},
        alone=False,
    ),
    _python("anthropic", "anthropic==2.8.0", "anthropic_messages", MESSAGES, CHAT),
    replace(
        _python("google-genai", "google-genai==3.3.0", "google_genai", GEMINI, MESSAGES),
        profile=ClientProfile("it", user_agent="google-genai-sdk"),
    ),
    _python("openai-agents, Responses", OPENAI_AGENTS, "openai_agents", RESPONSES, MESSAGES),
    _python("openai-agents, Chat Completions", OPENAI_AGENTS, "openai_agents", CHAT, GEMINI),
    replace(
        _python("pydantic-ai, Anthropic", PYDANTIC_AI, "pydantic_agent", MESSAGES, RESPONSES), model="claude-opus-4-6"
    ),  # it refuses structured output for a model that it does not know
    _python("pydantic-ai, Chat Completions", PYDANTIC_AI, "pydantic_agent", CHAT, MESSAGES),
    replace(_python("pydantic-ai, Responses", PYDANTIC_AI, "pydantic_agent", RESPONSES, GEMINI), model="gpt-5"),
    _python("pydantic-ai, Responses, a model that it does not know", PYDANTIC_AI, "pydantic_agent", RESPONSES, CHAT),
    _python("langchain-openai", "langchain-openai==1.7.3", "langchain_chat", CHAT, GEMINI),
    replace(
        _python("smolagents", "smolagents[openai]==1.26.0", "smolagents_agent", CHAT, MESSAGES),
        in_text=True,
        alone=False,
    ),
    _node("openai for Node", ("openai@7.53.0",), "openai_chat", CHAT, RESPONSES),
    _node("@anthropic-ai/sdk", ("@anthropic-ai/sdk@1.8.0",), "anthropic_messages", MESSAGES, GEMINI),
    _node("ai", AI_SDK, "ai_sdk", CHAT, MESSAGES),
    replace(_node("ai, Responses", AI_SDK, "ai_sdk", RESPONSES, MESSAGES), alone=False),
    CLAUDE_CODE,
    replace(CLAUDE_CODE, name="Claude Code, a model that it does not know", model="story"),
    replace(CLAUDE_CODE, name="Claude Code with thinking", model="claude-opus-4-6", thinks=True),
    CODEX,
    replace(
        CODEX,
        name="Codex with an MCP server",
        tool=WriteTool("mcp__files__write_file", "path", "content", second="mcp__files__write_line"),
        files={path: text + MCP_SERVER for path, text in CODEX.files.items()},
        beside=("mcp==2.3.0",),
    ),
    Client(
        "pi",
        "agent",
        ("@mariozechner/pi-coding-agent@0.73.1",),
        CHAT,
        _except(CHAT),
        ("$bin/pi", "--provider", "gateway", "--model", "$model", "-p", "$prompt"),
        WriteTool("write", "path", "content"),
        {"PI_OFFLINE": "1", "GATEWAY_KEY": "$key"},
        {
            ".pi/agent/models.json": (
                '{"providers": {"gateway": {"baseUrl": "$url/v1", "api": "openai-completions", "apiKey": "GATEWAY_KEY",'
                ' "headers": {"x-client": "pi"}, "models": [{"id": "$model"}]}}}'
            )
        },
        profile=ClientProfile("it", header="x-client: pi"),
    ),
    Client(
        "opencode",
        "agent",
        ("opencode-ai@1.18.18",),  # the newest whose program for Linux on ARM is in the registry
        CHAT,
        _except(CHAT),
        ("$bin/opencode", "run", "--model", "gateway/$model", "$prompt"),
        WriteTool("write", "filePath", "content"),
        {},
        {
            ".config/opencode/opencode.json": (
                '{"provider": {"gateway": {"npm": "@ai-sdk/openai-compatible", "name": "gateway", "options": '
                '{"baseURL": "$url/v1", "apiKey": "$key"}, "models": {"$model": {}}}}}'
            )
        },
        profile=ClientProfile("it", user_agent="opencode"),
    ),
    Client(
        "Qwen Code",
        "agent",
        ("@qwen-code/qwen-code@0.24.4",),
        CHAT,
        _except(CHAT),
        ("$bin/qwen", "--auth-type", "openai", "--yolo", "-p", "$prompt"),
        WriteTool("write_file", "file_path", "content"),
        {"OPENAI_API_KEY": "$key", "OPENAI_BASE_URL": "$url/v1", "OPENAI_MODEL": "$model"},
        profile=ClientProfile("it", user_agent="QwenCode"),
    ),
    Client(
        "Gemini CLI",
        "agent",
        ("@google/gemini-cli@0.61.0",),
        GEMINI,
        _except(GEMINI),
        ("$bin/gemini", "-m", "$model", "--yolo", "-p", "$prompt"),
        WriteTool("write_file", "file_path", "content"),
        {
            "GEMINI_API_KEY": "$key",
            "GOOGLE_GEMINI_BASE_URL": "$url",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        {".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'},
        profile=ClientProfile("it", user_agent="GeminiCLI"),
    ),
)
