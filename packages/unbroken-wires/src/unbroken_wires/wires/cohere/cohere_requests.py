"""cohere-v2, requests: `encode_request` writes ours for the API, `decode_request` reads a client's.

What this wire cannot carry: `parallel`, cache marks, the error flag of a result (its text reports it), images inside a
result (they follow in a user message), files other than images, reasoning of another wire. There is no choice of one
tool: it is written as `REQUIRED`, with only that tool offered. `strict` is one switch for all tools.
"""

from __future__ import annotations

from dataclasses import replace

from unbroken_wires.messages import Choice, Effort, Json, Native, OneTool, Request, Sampling, ToolSpec
from unbroken_wires.wires.cohere.cohere_messages import NAME, decode_messages, encode_messages
from unbroken_wires.wires.content_parts import own_extra, own_tool, says_more, with_extra
from unbroken_wires.wires.json_access import (
    TOOL_NAME,
    Object,
    as_dict,
    as_flag,
    as_list,
    as_number,
    as_text,
    dicts,
    fit_name,
)

_BUDGETS: dict[Effort, int] = {"minimal": 512, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576}
_LEAST_P, _MOST_P = 0.01, 0.99


def encode_request(request: Request) -> Object:
    body: Object = {"model": request.model, "messages": encode_messages(request.messages), "stream": request.stream}
    extra = own_extra(request, NAME)
    choice: Choice | None = "none" if request.final else request.choice
    tools = request.tools
    if isinstance(choice, OneTool):
        name = choice.name
        tools = tuple(tool for tool in tools if tool.name == name) or tools
    if tools:
        body["tools"] = [_encode_tool(tool) for tool in tools]
        if all(tool.strict for tool in tools):
            body["strict_tools"] = True
    if (tools or extra.get("tools")) and choice not in (None, "auto"):
        body["tool_choice"] = "NONE" if choice == "none" else "REQUIRED"
    if request.reasoning is not None:
        body["thinking"] = _encode_thinking(request.reasoning)
    s = request.sampling
    settings = {
        "max_tokens": s.max_tokens,
        "temperature": s.temperature,
        "p": None if s.top_p is None else min(max(s.top_p, _LEAST_P), _MOST_P),  # beyond these it is refused
        "stop_sequences": list(s.stop) or None,
        "seed": s.seed,
    }
    body |= {key: value for key, value in settings.items() if value is not None}
    if request.output is not None and not request.output.tool:
        from unbroken_wires.wires.cohere.cohere_crossing import write_output  # noqa: PLC0415 - start-up time

        write_output(body, request.output)
    body = with_extra(body, extra)
    if request.final and body.get("tools"):
        body["tool_choice"] = "NONE"
    return body


def _encode_tool(tool: ToolSpec) -> Object:
    if own := own_tool(tool, NAME, TOOL_NAME, "function"):
        return own
    function: Object = {
        "name": fit_name(tool.name, TOOL_NAME),
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _encode_thinking(effort: Effort) -> Object:
    return {"type": "disabled"} if effort == "none" else {"type": "enabled", "token_budget": _BUDGETS[effort]}


_SAMPLING = frozenset({"max_tokens", "temperature", "p", "stop_sequences", "seed"})
_KNOWN = _SAMPLING | {"model", "messages", "stream", "tools", "strict_tools", "tool_choice", "thinking"}


def decode_request(body: Object) -> Request:
    """What has no field of ours (documents, citation options, response format) stays in `extra`."""
    extra = {key: value for key, value in body.items() if key not in _KNOWN}
    tools = dicts(body.get("tools"))
    functions = [tool for tool in tools if isinstance(tool.get("function"), dict)]
    if len(functions) < len(tools):
        extra["tools"] = [tool for tool in tools if not isinstance(tool.get("function"), dict)]
    strict = as_flag(body.get("strict_tools")) or None
    choice = _decode_choice(body.get("tool_choice"))
    if choice is None and body.get("tool_choice") is not None:
        extra["tool_choice"] = body["tool_choice"]
    effort = _decode_thinking(as_dict(body.get("thinking")))
    if body.get("thinking") is not None and (effort is None or body["thinking"] != _encode_thinking(effort)):
        extra["thinking"] = body["thinking"]
    return Request(
        messages=decode_messages(dicts(body.get("messages"))),
        tools=tuple(_decode_tool(tool, strict) for tool in functions),
        choice=choice,
        stream=bool(body.get("stream")),
        reasoning=effort,
        sampling=Sampling(
            max_tokens=as_number(body.get("max_tokens")),
            temperature=as_number(body.get("temperature")),
            top_p=as_number(body.get("p")),
            stop=tuple(stop for stop in as_list(body.get("stop_sequences")) if isinstance(stop, str)),
            seed=as_number(body.get("seed")),
        ),
        extra=extra,
        wire=NAME,
        model=as_text(body.get("model")),
    )


def _decode_choice(choice: Json) -> Choice | None:
    match choice:
        case "REQUIRED":
            return "required"
        case "NONE":
            return "none"
        case _:
            return None


def _decode_thinking(thinking: Object) -> Effort | None:
    match thinking:
        case {"type": "disabled"}:
            return "none"
        case {"type": "enabled", "token_budget": int(budget)}:
            return min(_BUDGETS, key=lambda effort: abs(_BUDGETS[effort] - budget))
        case {"type": "enabled"}:
            return "high"
        case _:
            return None


def _decode_tool(tool: Object, strict: bool | None) -> ToolSpec:
    function = as_dict(tool["function"])
    spec = ToolSpec(
        name=as_text(function.get("name")),
        description=as_text(function.get("description")),
        parameters=as_dict(function.get("parameters")) or {"type": "object", "properties": {}},
        strict=strict,
    )
    return replace(spec, native=Native(NAME, tool)) if says_more(tool, _encode_tool(spec)) else spec
