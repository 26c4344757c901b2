"""What providers complain about, in the wordings seen in practice: the kind is read from codes first, then from the
text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unbroken_wires.decoding.verdict import Complaint, complaint_of


def said(message: str, type: str | None = None, code: str | int | None = None) -> dict[str, Any]:
    """An error in the format of OpenAI and compatible servers."""
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


TOO_LONG: dict[str, Any] = {
    "openai": said("Too long.", "invalid_request_error", "context_length_exceeded"),
    "openai, by its words": said(
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens."
    ),
    "responses": {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."},
    "responses, by its words": said("Your input exceeds the context window of this model.", "invalid_request_error"),
    "openai, one string": said(
        "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576.",
        "invalid_request_error",
        "string_above_max_length",
    ),
    "openai, more than a minute's tokens": said(
        "Request too large for m in organization o on tokens per min (TPM): Limit 30000, Requested 31000.",
        "tokens",
        "rate_limit_exceeded",
    ),
    "anthropic": {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
    },
    "anthropic, with max_tokens": {
        "type": "invalid_request_error",
        "message": "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease input length",
    },
    "anthropic, by size": {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds"}},
    "gemini": {
        "error": {
            "code": 400,
            "message": "The input token count (1300000) exceeds the maximum number of tokens allowed (1048576).",
            "status": "INVALID_ARGUMENT",
        }
    },
    "gemini, in a list": [
        {"error": {"code": 400, "message": "Request payload size exceeds the limit: 20971520 bytes."}}
    ],
    "vertex": said("Unable to submit request because the input token count is 1300000 but model only supports up to 9"),
    "groq": said(
        "Request too large for model `m` in organization `o` on tokens per minute (TPM): Limit 6000, Requested 9000",
        "tokens",
        "rate_limit_exceeded",
    ),
    "groq, the context": said("Please reduce the length of the messages or completion.", "invalid_request_error"),
    "mistral": {
        "object": "error",
        "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        "type": "invalid_request_error",
        "code": "3051",
    },
    "deepseek": said(
        "This model's maximum context length is 65536 tokens. However, you requested 69648 tokens (69648 in the "
        "messages, 0 in the completion). Please reduce the length of the messages or completion.",
        "invalid_request_error",
        "invalid_request_error",
    ),
    "qwen": said(
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        "invalid_request_error",
        "invalid_parameter_error",
    ),
    "glm": said("Prompt exceeds max length", code="1261"),
    "moonshot": said("Invalid request: Your request exceeded model token limit: 262144", "invalid_request_error"),
    "minimax": {"base_resp": {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"}},
    "vllm": {
        "object": "error",
        "message": "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        "type": "BadRequestError",
        "code": 400,
    },
    "vllm, older": {
        "message": "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        "code": 400,
    },
    "sglang": said("Input length (9000 tokens) exceeds the maximum allowed length (8187 tokens).", "BadRequestError"),
    "sglang, with its output": said("Requested token count exceeds the model's maximum context length of 8192 tokens."),
    "llama.cpp": said(
        "request (9000 tokens) exceeds the available context size (8192 tokens)", "exceed_context_size_error"
    ),
    "llama.cpp, older": said("the request exceeds the available context size. try increasing it", "server_error", 500),
    "ollama": {"error": "prompt too long; exceeded max context length by 12 tokens"},
    "ollama, another": said("input length exceeds the context length", "api_error"),
    "lm studio": {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    "lm studio, another": {
        "error": "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with "
        "context length of only 4096 tokens."
    },
    "bedrock": {"message": "Input is too long for requested model.", "__type": "ValidationException"},
    "cohere": {"message": "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs."},
    "xai": {
        "code": "Client specified an invalid argument",
        "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    },
    "together": said(
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193.", "invalid_request_error"
    ),
    "fireworks": said("The prompt is too long: 140000, model maximum context length: 131071", "invalid_request_error"),
    "openrouter": said(
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832", code=400
    ),
    "openrouter, the provider's own": {
        "error": {
            "code": 400,
            "message": "Provider returned error",
            "metadata": {"raw": json.dumps(said("prompt is too long: 2 tokens > 1 maximum")), "provider_name": "x"},
        }
    },
    "copilot": said(
        "prompt token count of 130000 exceeds the limit of 128000", code="model_max_prompt_tokens_exceeded"
    ),
    "github": said("Request body too large for gpt-4o model. Max size: 8000 tokens.", code="tokens_limit_reached"),
    "z.ai": said("", code="model_context_window_exceeded"),
    "tgi": {"error": "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000"},
    "chinese": said("输入长度超过模型上限"),
    "chinese, the context": said("请求的上下文长度超出了模型的最大限制", "invalid_request_error"),
    "chinese, the prompt": said("Prompt 超长，请缩短后重试", code="1261"),
    "chinese, the length": said("请求内容超过最大长度限制"),
    "plain words": "the prompt is too long",
}


@pytest.mark.parametrize("error", TOO_LONG.values(), ids=TOO_LONG)
def test_the_context_is_recognised_as_too_long(error: Any) -> None:
    assert complaint_of(error) == "too_long"


OTHERS: list[tuple[Complaint, Any]] = [
    # Too many requests
    (
        "limited",
        said(
            "Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29000", "tokens", "rate_limit_exceeded"
        ),
    ),
    (
        "limited",
        said("Limit reached. Add a payment method: https://x/account/billing", "requests", "rate_limit_exceeded"),
    ),
    (
        "limited",
        {"type": "error", "error": {"type": "rate_limit_error", "message": "This request would exceed your limit"}},
    ),
    (
        "limited",
        {"type": "rate_limit_error", "message": "Extra usage is required for long context requests: limit exceeded"},
    ),
    ("limited", {"error": {"code": 429, "message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}),
    ("limited", {"message": "Too many tokens, please wait before trying again."}),
    ("limited", {"__type": "ThrottlingException", "message": "Too many tokens, please wait before trying again."}),
    ("limited", said("Requests rate limit exceeded", code="1300")),
    ("limited", said("Your account reached max request concurrency: 3", "rate_limit_reached_error")),
    ("limited", {"code": "Throttling.RateQuota", "message": "Requests throttled", "request_id": "r"}),
    ("limited", said("High concurrency usage of this API, please reduce concurrency", code="1302")),
    ("limited", said("Provider returned error", code=429)),
    ("limited", said("请求过于频繁")),
    ("limited", "Too Many Requests"),
    # The provider's own trouble
    ("unavailable", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    ("unavailable", {"type": "api_error", "message": "Internal server error"}),
    ("unavailable", said("The server had an error while processing your request", "server_error")),
    ("unavailable", said("The engine is currently overloaded, please try again later", "engine_overloaded_error")),
    ("unavailable", {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}),
    ("unavailable", {"error": {"code": 504, "message": "Deadline expired", "status": "DEADLINE_EXCEEDED"}}),
    ("unavailable", {"code": "server_error", "message": "An error occurred"}),
    ("unavailable", said("Loading model", "unavailable_error", 503)),
    ("unavailable", {"error": "Model m is currently loading", "estimated_time": 20.0}),
    ("unavailable", said("Provider returned error", code=502)),
    ("unavailable", said("upstream connect error or disconnect/reset before headers")),
    ("unavailable", said("系统繁忙，请稍后再试")),
    ("unavailable", said("该模型当前访问量过大，请您稍后再试", code="1305")),
    ("unavailable", said("Failed to call a function.", "invalid_request_error", "tool_use_failed")),
    # A retry will not help
    ("refused", said("Unsupported value: 'temperature'", "invalid_request_error", "unsupported_value")),
    (
        "refused",
        {"type": "error", "error": {"type": "invalid_request_error", "message": "messages: roles must alternate"}},
    ),
    ("refused", {"type": "authentication_error", "message": "invalid x-api-key"}),
    ("refused", {"type": "permission_error", "message": "Your key has no access"}),
    ("refused", {"type": "not_found_error", "message": "model: m"}),
    ("refused", said("You exceeded your current quota", "insufficient_quota", "insufficient_quota")),
    ("refused", said("Insufficient Balance", "unknown_error", "invalid_request_error")),
    ("refused", {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}),
    ("refused", {"error": {"code": 402, "message": "This request requires more credits"}}),
    ("refused", {"code": "Arrearage", "message": "Access denied, please make sure your account is in good standing."}),
    ("refused", {"code": "DataInspectionFailed", "message": "Input data may contain inappropriate content."}),
    ("refused", said("The response was filtered due to the prompt triggering our policy", code="content_filter")),
    ("refused", said("Your request was flagged", "image_generation_user_error", "moderation_blocked")),
    ("refused", {"error": {"code": 400, "message": "API key not valid", "status": "INVALID_ARGUMENT"}}),
    ("refused", {"code": "invalid_prompt", "message": "Invalid prompt: limited access to this model"}),
    ("refused", {"error": {"code": 400, "message": "Token limit reached"}}),
    ("refused", {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
    ("refused", said("余额不足或无可用资源包，请充值", code="1113")),
    ("refused", said("系统检测到输入或生成内容可能包含不安全或敏感内容", code="1301")),
    # The limit of the answer, of a name, of an image: none of them is the context
    (
        "refused",
        said(
            "max_tokens is too large: 99999. This model supports at most 16384 completion tokens", code="invalid_value"
        ),
    ),
    ("refused", {"type": "invalid_request_error", "message": "max_tokens: 99999 > 8192, the maximum for this model"}),
    ("refused", said("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", "invalid_request_error")),
    ("refused", said("Range of max_tokens should be [1, 8192]", code="invalid_parameter_error")),
    (
        "refused",
        said("The maximum tokens you requested exceeds the model limit of 4096. Try again with less", code=400),
    ),
    (
        "refused",
        said(
            "Invalid 'tools[0].function.name': string too long.",
            code="string_above_max_length",
            type="invalid_request_error",
        ),
    ),
    ("refused", said("Invalid 'messages[2].tool_calls[0].id': string too long.", "invalid_request_error")),
    ("refused", {"type": "invalid_request_error", "message": "messages.0.content.0.image: image exceeds 5 MB maximum"}),
    # Unknown
    ("", said("Something happened")),
    ("", {"object": "error"}),
    ("", {}),
    ("", None),
    ("", []),
    ("", 17),
    ("", "boom"),
]


@pytest.mark.parametrize(
    ("kind", "error"), OTHERS, ids=[f"{kind or 'unknown'}-{n}" for n, (kind, _) in enumerate(OTHERS)]
)
def test_other_complaints_are_distinguished(kind: Complaint, error: Any) -> None:
    assert complaint_of(error) == kind


@pytest.mark.parametrize(
    "error",
    [
        {
            "detail": [
                {
                    "type": "string_type",
                    "loc": ["body"],
                    "msg": "Input should be a string",
                    "input": {"q": "prompt is too long"},
                }
            ]
        },
        {"error": {"message": "Failed", "code": "bad", "failed_generation": "the prompt is too long, rate limit, 429"}},
        said("Input should be an integer [type=int, input_value='prompt is too long', input_type=str]"),
        said('Unknown word in "please explain why the prompt is too long for this old model" at 4'),
    ],
)
def test_text_of_a_user_is_not_a_complaint(error: Any) -> None:
    assert complaint_of(error) != "too_long"


def test_an_error_nested_in_itself_many_times_is_read_as_far_as_useful() -> None:
    error: Any = said("prompt is too long")
    for _ in range(500):
        error = {"error": error}
    assert complaint_of(error) == ""


@pytest.mark.parametrize(
    "words",
    [
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        "Deadline exceeded: context canceled",
        "timeout exceeded: context deadline",
        "The request exceeded the time limit in the current context",
    ],
)
def test_a_context_deadline_is_not_a_context_that_is_too_long(words: str) -> None:
    assert complaint_of(said(words)) == "unavailable"
    assert complaint_of({"error": {"message": words, "code": 503}}) == "unavailable"


def test_too_many_requests_at_once_is_not_a_context_that_is_too_long() -> None:
    assert complaint_of({"error": {"message": "Concurrency limit exceeded for context x", "code": 429}}) == "limited"
