"""openai-chat, requests: `encode_request` writes ours for the API, `decode_request` reads a client's.

What this wire cannot carry: cache marks (unless a client of this wire set them), the error flag of a result (its text
reports it), images inside a result (they follow in a user message), files other than images by URL (a text names the
URL), reasoning of another wire.

What is lost between two clients of this wire: `name` of a user or system message, fields beside the text of a part
other than `cache_control`, anything but text in a system message. The role `developer` becomes `system`, which every
server accepts; a `function` message and its call become `tool` and `tool_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from unbroken_wires.messages import UNSET, Choice, Effort, Json, Native, OneTool, Request, Sampling, ToolSpec
from unbroken_wires.wires.content_parts import (
    cache_mark,
    custom_as_functions,
    free_text_tool,
    own_extra,
    own_tool,
    says_more,
    with_extra,
)
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
from unbroken_wires.wires.openai_chat.chat_messages import NAME, decode_messages, encode_messages


def encode_request(request: Request) -> Object:
    """A stream is asked for its usage, unless `extra` has `stream_options` of its own."""
    extra = own_extra(request, NAME)
    functions = custom_as_functions(request.tools, NAME) if request.tools else ()
    messages = encode_messages(request.messages, marks=request.wire == NAME, functions=functions)
    body: Object = {"model": request.model, "messages": messages}
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
    if request.tools or extra.get("tools"):
        if request.choice is not None:
            body["tool_choice"] = _encode_choice(request.choice)
        if request.parallel is not None:
            body["parallel_tool_calls"] = request.parallel
    if request.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if request.reasoning is not None:
        body["reasoning_effort"] = request.reasoning
    if request.sampling is not UNSET:
        body |= _encode_sampling(request.sampling, extra)
    if request.output is not None and not request.output.tool:
        from unbroken_wires.wires.openai_chat.chat_crossing import write_output  # noqa: PLC0415 - start-up time

        write_output(body, request.output)
    body = with_extra(body, extra)
    if not body.get("stream"):
        body.pop("stream_options", None)  # OpenAI refuses it there, and a stream may be retried without streaming
    if request.final and body.get("tools"):
        body["tool_choice"] = "none"
    return body


def _encode_sampling(sampling: Sampling, extra: Mapping[str, Json]) -> Object:
    fields: Object = {
        "max_tokens": None if "max_completion_tokens" in extra else sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": list(sampling.stop) or None,
        "seed": sampling.seed,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _encode_tool(tool: ToolSpec) -> Object:
    if own := own_tool(tool, NAME, TOOL_NAME, "custom" if tool.kind == "custom" else "function"):
        return own
    name = fit_name(tool.name, TOOL_NAME)
    function: Object = {"name": name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _encode_choice(choice: Choice) -> Json:
    if isinstance(choice, OneTool):
        return {"type": "function", "function": {"name": fit_name(choice.name, TOOL_NAME)}}
    return choice


_SAMPLING = frozenset({"max_tokens", "temperature", "top_p", "stop", "seed"})
_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
_KNOWN = _SAMPLING | _TOOLS | {"model", "messages", "stream", "stream_options", "reasoning_effort"}


def decode_request(body: Object) -> Request:
    """What has no field of ours (tools of other kinds, a choice of several, `max_completion_tokens`, `stream_options`
    other than ours) stays in `extra`, so that nothing is lost between two ends of this wire."""
    extra = {key: value for key, value in body.items() if key not in _KNOWN}
    tools = dicts(body.get("tools"))
    offered = [tool for tool in tools if _is_function(tool) or _is_custom(tool)]
    if len(offered) < len(tools):
        extra["tools"] = [tool for tool in tools if not _is_function(tool) and not _is_custom(tool)]
    choice, effort = _decode_choice(body.get("tool_choice")), body.get("reasoning_effort")
    if choice is None and body.get("tool_choice") is not None:
        extra["tool_choice"] = body["tool_choice"]
    if effort is not None and effort not in get_args(Effort):
        extra["reasoning_effort"], effort = effort, None
    options = body.get("stream_options")
    if options is not None and not _asks_for_usage_only(options):
        extra["stream_options"] = options
    stop = body.get("stop")
    return Request(
        messages=decode_messages(dicts(body.get("messages"))),
        tools=tuple(_decode_tool(tool) for tool in offered),
        choice=choice,
        parallel=as_flag(body.get("parallel_tool_calls")),
        stream=bool(body.get("stream")),
        reasoning=effort,
        sampling=Sampling(
            max_tokens=as_number(body.get("max_completion_tokens") or body.get("max_tokens")),
            temperature=as_number(body.get("temperature")),
            top_p=as_number(body.get("top_p")),
            stop=tuple(text for item in [stop, *as_list(stop)] if (text := as_text(item))),
            seed=as_number(body.get("seed")),
        ),
        extra=extra,
        wire=NAME,
        model=as_text(body.get("model")),
    )


def _asks_for_usage_only(options: Json) -> bool:
    return as_dict(options).keys() == {"include_usage"} and options["include_usage"] is True


def _is_function(tool: Object) -> bool:
    return tool.get("type") in ("function", None) and isinstance(tool.get("function"), dict)


def _is_custom(tool: Object) -> bool:
    return tool.get("type") == "custom" and isinstance(tool.get("custom"), dict)


def _decode_tool(tool: Object) -> ToolSpec:
    if _is_custom(tool):
        custom = as_dict(tool["custom"])
        grammar = as_dict(as_dict(custom.get("format")).get("grammar"))
        words = as_text(grammar.get("syntax")), as_text(grammar.get("definition"))
        return free_text_tool(
            as_text(custom.get("name")), as_text(custom.get("description")), *words, Native(NAME, tool)
        )
    function = as_dict(tool["function"])
    spec = ToolSpec(
        name=as_text(function.get("name")),
        description=as_text(function.get("description")),
        parameters=as_dict(function.get("parameters")) or {"type": "object", "properties": {}},
        strict=as_flag(function.get("strict")),
        cache=cache_mark(tool),
    )
    return replace(spec, native=Native(NAME, tool)) if says_more(tool, _encode_tool(spec)) else spec


def _decode_choice(choice: Json) -> Choice | None:
    match choice:
        case "auto" | "none" | "required":
            return choice
        case {"function": {"name": str(name)}}:
            return OneTool(name)
        case _:
            return None
