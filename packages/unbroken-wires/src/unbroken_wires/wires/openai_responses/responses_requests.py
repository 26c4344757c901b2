"""openai-responses, requests: `encode_request` and `decode_request`, with their settings and tools.

The history is a flat list of items here (`responses_messages`). No state on the server is used unless `extra` asks for
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

from unbroken_wires.messages import (
    Choice,
    Effort,
    Json,
    Message,
    Native,
    OneTool,
    Request,
    Sampling,
    System,
    Text,
    ToolSpec,
)
from unbroken_wires.wires.content_parts import custom_as_functions, free_text_tool, own_extra, own_tool, with_extra
from unbroken_wires.wires.json_access import NAMESPACE, TOOL_NAME, Object, as_dict, as_number, as_text, dicts, fit_name
from unbroken_wires.wires.openai_responses.responses_items import NAME
from unbroken_wires.wires.openai_responses.responses_messages import decode_messages, encode_messages

_STATE = {"store", "include", "previous_response_id", "conversation"}
_FEWEST_TOKENS = 16
"""The API refuses a lower limit."""
_OFFERED = ("function", "custom", "namespace")
"""Kinds of tools that the client runs and every wire can offer."""
_TOOL_FIELDS = {"type", "name", "description", "parameters", "strict"}


# Requests, outgoing


def encode_request(request: Request) -> Object:
    """`stop` and `seed` do not exist on this wire and are left out. The first system message becomes `instructions`
    if it is one text, unless `extra` speaks of them; later ones become messages of the developer.

    With a reasoning effort the request is stateless: nothing is stored and reasoning comes encrypted, so that native
    items carry it back by themselves. Without one neither is sent, because models that do not reason refuse it; then
    the provider's default decides. Any of `store`, `include`, `previous_response_id`, `conversation` in `extra` turns
    this off. `reasoning` in `extra` is merged key by key, so that a summary can be asked for beside the effort.
    """
    extra = own_extra(request, NAME)
    system, messages = ("", request.messages) if "instructions" in extra else _instructions(request.messages)
    body: Object = {"model": request.model}
    if system:
        body["instructions"] = system
    if request.tools:
        body["tools"] = _grouped([_encode_tool(tool, request.wire) for tool in request.tools])
    if request.tools or extra.get("tools"):
        if request.choice is not None:
            body["tool_choice"] = _encode_choice(request.choice)
        if request.parallel is not None:
            body["parallel_tool_calls"] = request.parallel
    if request.stream:
        body["stream"] = True
    if request.managed is not None and request.managed.compact_at is not None:
        body["context_management"] = [{"type": "compaction", "compact_threshold": request.managed.compact_at}]
    sampling = request.sampling
    if sampling.max_tokens is not None:
        body["max_output_tokens"] = max(sampling.max_tokens, _FEWEST_TOKENS)
    for key, value in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        if value is not None:
            body[key] = value
    effort: Object = {} if request.reasoning is None else {"effort": request.reasoning}
    effort |= as_dict(extra.get("reasoning"))
    if effort.get("effort") not in (None, "none") and not _STATE & extra.keys():
        body |= {"store": False, "include": ["reasoning.encrypted_content"]}
    body = with_extra(body, extra)
    output = request.output
    if output is not None and not output.tool and "format" not in as_dict(body.get("text")):
        from unbroken_wires.wires.openai_responses.responses_crossing import write_output  # noqa: PLC0415 - start-up time

        write_output(body, output)
    if body.get("instructions") is None:
        body.pop("instructions", None)
    if effort:
        body["reasoning"] = effort
    if request.final and body.get("tools"):
        body["tool_choice"] = "none"
    functions = custom_as_functions(request.tools, NAME) if request.tools else ()
    body.setdefault("input", encode_messages(messages, body.get("store") is False, functions))
    return body


def _instructions(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    match messages:
        case [System(parts=(Text(text=text),)), *rest] if text:
            return text, rest
        case _:
            return "", messages


def _grouped(tools: list[Object]) -> list[Object]:
    """With neighbours of one namespace in one group, as the client sent them."""
    grouped: list[Object] = []
    for tool in tools:
        last = grouped[-1] if grouped else {}
        if tool["type"] == last.get("type") == "namespace" and tool.get("name") == last.get("name"):
            grouped[-1] = {**last, "tools": [*last["tools"], *tool["tools"]]}
        else:
            grouped.append(tool)
    return grouped


def _encode_tool(tool: ToolSpec, wire: str) -> Object:
    if own := own_tool(tool, NAME, TOOL_NAME):
        return own
    encoded: Object = {
        "type": "function",
        "name": fit_name(tool.name, TOOL_NAME),
        "description": tool.description,
        "parameters": tool.parameters,
    }
    # Left out, `strict` means true here and the schema is rewritten (optional fields become required): send false. Only
    # a client of this wire may have meant just that.
    if tool.strict is not None or wire != NAME:
        encoded["strict"] = bool(tool.strict)
    return encoded


def _encode_choice(choice: Choice) -> Json:
    return {"type": "function", "name": fit_name(choice.name, TOOL_NAME)} if isinstance(choice, OneTool) else choice


# Requests, incoming


def decode_request(body: Object) -> Request:
    """A tool that the provider runs (web search) has no field of ours: it stays in `extra`, so that nothing is lost
    between two ends of this wire. `instructions` become the first system message. Where a client has none and begins
    with a message of the developer, `extra` says so (None): a message stays in a stored conversation, instructions do
    not."""
    known = {"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream", "reasoning"}
    known |= {"max_output_tokens", "temperature", "top_p"}
    extra: Object = {key: value for key, value in body.items() if key not in known}
    tools = dicts(body.get("tools"))
    if others := [tool for tool in tools if tool.get("type") not in _OFFERED]:
        extra["tools"] = others
    choice = _decode_choice(body.get("tool_choice"))
    if choice is None and body.get("tool_choice") is not None:
        extra["tool_choice"] = body["tool_choice"]
    reasoning = dict(as_dict(body.get("reasoning")))
    effort = reasoning.pop("effort", None) if reasoning.get("effort") in get_args(Effort) else None
    if reasoning:
        extra["reasoning"] = reasoning
    instructions = as_text(body.get("instructions"))
    messages = tuple(decode_messages(body.get("input")))
    if instructions:
        messages = (System.of(instructions), *messages)
    elif messages and isinstance(messages[0], System):
        extra["instructions"] = None
    parallel, tokens = body.get("parallel_tool_calls"), body.get("max_output_tokens")
    return Request(
        messages=messages,
        tools=tuple(spec for tool in tools if tool.get("type") in _OFFERED for spec in _decode_tools(tool)),
        choice=choice,
        parallel=parallel if isinstance(parallel, bool) else None,
        stream=bool(body.get("stream")),
        reasoning=effort,
        sampling=Sampling(
            max_tokens=tokens if isinstance(tokens, int) else None,
            temperature=as_number(body.get("temperature")),
            top_p=as_number(body.get("top_p")),
        ),
        extra=extra,
        wire=NAME,
        model=as_text(body.get("model")),
    )


def _decode_tools(tool: Object) -> Iterator[ToolSpec]:
    """One tool, or those of a namespace, each with the namespace before its name."""
    if tool.get("type") != "namespace":
        yield _decode_tool(tool)
        return
    group = as_text(tool.get("name"))
    for each in dicts(tool.get("tools")):
        spec = _decode_tool(each)
        native = Native(NAME, {**tool, "tools": [each]})
        yield replace(spec, name=f"{group}{NAMESPACE}{spec.name}", native=native)


def _decode_tool(tool: Object) -> ToolSpec:
    if tool.get("type") == "custom":
        format = as_dict(tool.get("format"))
        words = as_text(format.get("syntax")), as_text(format.get("definition"))
        name, description = as_text(tool.get("name")), as_text(tool.get("description"))
        return free_text_tool(name, description, *words, Native(NAME, tool))
    strict = tool.get("strict")
    more = any(value is not None for key, value in tool.items() if key not in _TOOL_FIELDS)
    return ToolSpec(
        name=as_text(tool.get("name")),
        description=as_text(tool.get("description")),
        parameters=as_dict(tool.get("parameters")) or {"type": "object", "properties": {}},
        strict=strict if isinstance(strict, bool) else None,
        native=Native(NAME, tool) if more else None,
    )


def _decode_choice(choice: Json) -> Choice | None:
    match choice:
        case "auto" | "none" | "required":
            return choice
        case {"type": "function", "name": str(name)}:
            return OneTool(name)
        case _:
            return None
