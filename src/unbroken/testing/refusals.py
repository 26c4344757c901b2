"""How many providers say that the context is too long. The shape of an error on each wire is in `wires.refusals`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.wires.refusals import refusal
from unbroken.wires.values import Object


@dataclass(frozen=True, slots=True)
class TooLong:
    """How somebody says that the context is too long: the status, the words, and what stands beside them."""

    wires: tuple[str, ...]
    status: int
    message: str
    beside: Mapping[str, str | int] = field(default_factory=dict[str, str | int])

    def body(self, wire: str) -> Object:
        body = refusal(wire, self.status, self.message)
        body["error"] |= self.beside
        return body


_CHAT = ("openai-chat",)
TOO_LONG = {
    "openai": TooLong(
        ("openai-chat", "openai-responses"),
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9731 tokens. "
        "Please reduce the length of the messages.",
        {"param": "messages", "code": "context_length_exceeded"},
    ),
    "responses": TooLong(
        ("openai-responses",),
        400,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        {"param": "input", "code": "context_length_exceeded"},
    ),
    "anthropic": TooLong(("anthropic-messages",), 400, "prompt is too long: 214315 tokens > 200000 maximum"),
    "anthropic_with_output": TooLong(
        ("anthropic-messages",),
        400,
        "input length and `max_tokens` exceed context limit: 195012 + 8192 > 200000, decrease input length or "
        "`max_tokens` and try again",
    ),
    "anthropic_413": TooLong(("anthropic-messages",), 413, "Request exceeds the maximum size"),
    "gemini": TooLong(
        ("gemini",),
        400,
        "The input token count (1206415) exceeds the maximum number of tokens allowed (1048575).",
    ),
    "vllm": TooLong(
        _CHAT,
        400,
        "This model's maximum context length is 4096 tokens. However, you requested 5012 tokens (4500 in the messages, "
        "512 in the completion). Please reduce the length of the messages or completion.",
        {"type": "BadRequestError", "code": 400},
    ),
    "llama_cpp": TooLong(
        _CHAT,
        400,
        "the request exceeds the available context size (4096 tokens), try increasing it",
        {"type": "exceed_context_size_error", "code": 400},
    ),
    "mistral": TooLong(
        _CHAT,
        400,
        "Prompt contains 40133 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        {"type": "invalid_request_prompt", "code": "3051"},
    ),
    "groq": TooLong(
        _CHAT,
        400,
        "Please reduce the length of the messages or completion.",
        {"param": "messages", "code": "context_length_exceeded"},
    ),
    "qwen": TooLong(
        _CHAT,
        400,
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        {"code": "invalid_parameter_error"},
    ),
    "moonshot": TooLong(_CHAT, 400, "Invalid request: Your request exceeded model token limit: 131072"),
}
"""By who says it so."""
