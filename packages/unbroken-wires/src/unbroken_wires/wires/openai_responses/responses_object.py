"""openai-responses, the response object: every field that a client may expect, repeating what its request said.

The Open Responses specification requires all of them, and clients with strict types fail where one is missing. A field
that the request leaves out has the default of OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Mapping

from unbroken_wires.messages import Json, Usage
from unbroken_wires.wires.json_access import Object, as_dict, as_number, as_text, dicts

_NUMBERS = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_TEXTS_OR_NULL = ("instructions", "previous_response_id", "prompt_cache_key", "safety_identifier")
_COUNTS_OR_NULL = ("max_output_tokens", "max_tool_calls")
_FUNCTION: Object = {"description": None, "parameters": None, "strict": None}
_CHOICES = ("auto", "none", "required")


def new_response(id: str, model: str, created: int, request: Mapping[str, Json]) -> Object:
    """A response without output, in progress. `request` is the body of the client's request."""
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        **{name: as_text(request.get(name)) or None for name in _TEXTS_OR_NULL},
        **{name: value if _is_count(value := request.get(name)) else None for name in _COUNTS_OR_NULL},
        **{name: _number(request.get(name), usual) for name, usual in _NUMBERS.items()},
        "top_logprobs": value if _is_count(value := request.get("top_logprobs")) else 0,
        "tools": [_tool(tool) for tool in dicts(request.get("tools"))],
        "tool_choice": _tool_choice(request.get("tool_choice")),
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "text": _text(as_dict(request.get("text"))),
        "reasoning": {"effort": None, "summary": None, **as_dict(request.get("reasoning"))},
        "truncation": as_text(request.get("truncation")) or "disabled",
        "store": request.get("store") is not False,
        "background": False,
        "service_tier": tier if (tier := as_text(request.get("service_tier"))) not in ("", "auto") else "default",
        "metadata": as_dict(request.get("metadata")),
        "usage": None,
    }


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Json, usual: float) -> float:
    number = as_number(value)
    return usual if number is None else number


def _tool(tool: Object) -> Object:
    return {**_FUNCTION, **tool} if tool.get("type") == "function" else tool


def _tool_choice(choice: Json) -> Json:
    if isinstance(choice, dict):
        chosen = as_dict(choice)
        return {"mode": "auto", **chosen} if chosen.get("type") == "allowed_tools" else chosen
    return choice if choice in _CHOICES else "auto"


def _text(text: Object) -> Object:
    form = as_dict(text.get("format")) or {"type": "text"}
    if form.get("type") == "json_schema":  # the specification has null in the place of the schema
        form = {"name": "", "description": None, **form, "strict": form.get("strict") is True, "schema": None}
    return {**text, "format": form}


def encode_usage(usage: Usage) -> Object:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
