"""Which program sent a request, by its `User-Agent` and a few other headers: for people, on the status page. What a
client may do never depends on it, since a client can send any name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

_AGENTS = {
    "claude-cli": "Claude Code",
    "codex": "Codex",
    "geminicli": "Gemini CLI",
    "qwencode": "Qwen Code",
    "opencode": "opencode",
    "githubcopilot": "GitHub Copilot",
    "cline": "Cline",
    "roo-code": "Roo Code",
    "goose": "Goose",
    "aider": "Aider",
    "zed": "Zed",
    "cursor": "Cursor",
    "crush": "Crush",
}
"""Command-line agents and editors, by what their `User-Agent` contains."""
_BROWSER = "a browser"
_LIBRARIES = {
    "unbroken": "unbroken",
    "pydantic-ai": "Pydantic AI",
    "langchain": "LangChain",
    "litellm": "LiteLLM",
    "ai-sdk": "AI SDK",
    "asyncopenai/python": "openai (Python)",
    "openai/python": "openai (Python)",
    "openai/js": "openai (JavaScript)",
    "openai/go": "openai (Go)",
    "openai/java": "openai (Java)",
    "asyncanthropic/python": "anthropic (Python)",
    "anthropic/python": "anthropic (Python)",
    "anthropic/js": "anthropic (JavaScript)",
    "google-genai-sdk": "google-genai",
    "ollama-python": "ollama (Python)",
    "ollama-js": "ollama (JavaScript)",
    "ollama": "ollama",
    "cohere": "cohere",
    "boto3": "boto3",
    "aws-sdk": "AWS SDK",
    "python-httpx": "httpx",
    "python-requests": "requests",
    "aiohttp": "aiohttp",
    "python-urllib": "Python urllib",
    "curl": "curl",
    "node": "Node.js",
    "go-http-client": "Go",
    "okhttp": "OkHttp",
    "mozilla": _BROWSER,
}
"""SDKs and HTTP clients, tried after those."""
_VERSION = re.compile(r"(?:\s|/)v?(\d[0-9A-Za-z.+-]{0,19})")
_READ = 300
"""Characters of a header that are looked at."""
_SHOWN = 60
"""Characters of a name that a client chose."""


def client_name(headers: Mapping[str, str]) -> str:
    """`Claude Code 2.1.4`, or what the client calls itself, without characters that could mislead; empty if unknown."""
    return _name(
        headers.get("user-agent", "")[:_READ], headers.get("originator", "")[:_READ], headers.get("x-title", "")[:_READ]
    )


@lru_cache(512)  # a client sends the same headers with each request
def _name(agent: str, originator: str, title: str) -> str:
    if found := _known(_AGENTS, agent):
        return found
    if originator.lower().startswith("codex"):
        return "Codex"
    if title:
        return _harmless(title)
    return _known(_LIBRARIES, agent) or _harmless(agent.split("(")[0].strip())


def _known(names: Mapping[str, str], agent: str) -> str:
    """The first of these that the `User-Agent` has as a word or at the beginning of one, with its version."""
    for mark, name in names.items():
        if found := re.search(rf"(?<![\w-]){re.escape(mark)}", agent, re.IGNORECASE):
            version = _VERSION.search(agent, found.end(), found.end() + 40)
            return f"{name} {version[1]}" if version and name != _BROWSER else name
    return ""


def _harmless(text: str) -> str:
    """Without control characters and characters that change the order of others."""
    shown = "".join(
        letter if letter == " " or unicodedata.category(letter)[0] not in "CZ" else "?" for letter in text[: _SHOWN + 1]
    )
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
