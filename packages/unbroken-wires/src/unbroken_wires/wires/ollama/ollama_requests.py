"""ollama, requests: `encode_request` writes ours for the server, `decode_request` reads a client's.

What this wire cannot carry: a tool choice (for `none` the tools are left out; any other choice is dropped), `parallel`,
`strict`, cache marks, the error flag of a result (its text reports it), files other than images, images by their URL,
reasoning of another wire, several texts in one message (they become one).

A request is for a stream unless it says otherwise, so `stream` is always written.
"""

from __future__ import annotations

from dataclasses import replace

from unbroken_wires.messages import Effort, Json, Native, Request, Sampling, ToolSpec
from unbroken_wires.wires.content_parts import own_extra, own_tool, says_more, with_extra
from unbroken_wires.wires.json_access import TOOL_NAME, Object, as_dict, as_list, as_number, as_text, dicts, fit_name
from unbroken_wires.wires.ollama.ollama_messages import NAME, decode_messages, encode_messages

_LEVELS: dict[Effort, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}


def encode_request(request: Request) -> Object:
    body: Object = {
        "model": request.model,
        "messages": encode_messages(request.messages),
        "stream": request.stream,
    }
    extra = dict(own_extra(request, NAME))
    silent = request.final or request.choice == "none"
    if request.tools and not silent:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
    if silent:
        extra.pop("tools", None)
    if request.reasoning is not None:
        body["think"] = _encode_think(request.reasoning, request.model)
    options = {**_encode_options(request.sampling), **as_dict(extra.pop("options", None))}
    if options:
        body["options"] = options
    if request.output is not None and not request.output.tool:
        from unbroken_wires.wires.ollama.ollama_crossing import write_output  # noqa: PLC0415 - start-up time

        write_output(body, request.output)
    return with_extra(body, extra)


def _encode_options(s: Sampling) -> Object:
    options = {
        "num_predict": s.max_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "stop": list(s.stop) or None,
        "seed": s.seed,
    }
    return {key: value for key, value in options.items() if value is not None}


def _encode_think(effort: Effort, model: str) -> Json:
    """Most models take only a switch; gpt-oss takes only a level, and cannot be told not to think."""
    if "gpt-oss" in model:
        return _LEVELS.get(effort, "low")
    return effort != "none"


def _encode_tool(tool: ToolSpec) -> Object:
    if own := own_tool(tool, NAME, TOOL_NAME, "function"):
        return own
    function: Object = {
        "name": fit_name(tool.name, TOOL_NAME),
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


_KNOWN = frozenset({"model", "messages", "stream", "tools", "think", "options"})


def decode_request(body: Object) -> Request:
    """What has no field of ours (`format`, `keep_alive`, other options) stays in `extra`."""
    extra = {key: value for key, value in body.items() if key not in _KNOWN}
    model = as_text(body.get("model"))
    sampling, options = _decode_options(as_dict(body.get("options")))
    if options:
        extra["options"] = options
    effort = _decode_think(body.get("think"))
    if body.get("think") is not None and (effort is None or body["think"] != _encode_think(effort, model)):
        extra["think"] = body["think"]
    tools = dicts(body.get("tools"))
    functions = [tool for tool in tools if isinstance(tool.get("function"), dict)]
    if len(functions) < len(tools):
        extra["tools"] = [tool for tool in tools if not isinstance(tool.get("function"), dict)]
    return Request(
        messages=decode_messages(dicts(body.get("messages"))),
        tools=tuple(map(_decode_tool, functions)),
        stream=body.get("stream") is not False,
        reasoning=effort,
        sampling=sampling,
        extra=extra,
        wire=NAME,
        model=model,
    )


def _decode_options(options: Object) -> tuple[Sampling, Object]:
    """Our settings, and the options that they do not cover: -1 tokens mean that there is no limit."""
    stop, limit = options.get("stop"), as_number(options.get("num_predict"))
    sampling = Sampling(
        max_tokens=limit if limit is not None and limit >= 0 else None,
        temperature=as_number(options.get("temperature")),
        top_p=as_number(options.get("top_p")),
        stop=tuple(text for item in [stop, *as_list(stop)] if (text := as_text(item))),
        seed=as_number(options.get("seed")),
    )
    covered = {key for key in ("temperature", "top_p", "stop", "seed") if key in options}
    covered |= {"num_predict"} if sampling.max_tokens is not None else set()
    return sampling, {key: value for key, value in options.items() if key not in covered and value is not None}


def _decode_think(value: Json) -> Effort | None:
    match value:
        case bool():
            return "medium" if value else "none"
        case "low" | "medium" | "high":
            return value
        case _:
            return None


def _decode_tool(tool: Object) -> ToolSpec:
    function = as_dict(tool["function"])
    spec = ToolSpec(
        name=as_text(function.get("name")),
        description=as_text(function.get("description")),
        parameters=as_dict(function.get("parameters")) or {"type": "object", "properties": {}},
    )
    return replace(spec, native=Native(NAME, tool)) if says_more(tool, _encode_tool(spec)) else spec
