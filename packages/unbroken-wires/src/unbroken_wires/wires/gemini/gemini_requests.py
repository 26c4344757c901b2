"""gemini, requests: `encode_request` writes the body for the API, `decode_request` reads a client's, in camelCase or
snake_case.

Model and `stream` are part of the URL, not of the body. `encode_request` leaves them out; `decode_request` takes them
from `model` and `stream` if the reader of the URL has put them there, else it leaves the defaults.

Ids. The Gemini API takes an `id` in calls and results; Vertex AI gives none, and its stable API refuses the field. So
an id is sent unless it is the one that `decode_request` mints at that place anyway (which is also what the decoder
mints for a call without an id): a conversation with Vertex stays free of ids, and any other id survives.

What this wire cannot carry: `parallel`, `strict`, cache marks, reasoning of another wire, the text form of arguments,
several texts in one result (they become one), a result's own name, a file's name, empty texts and empty messages (the
API refuses them). A system message in the middle becomes a user's, marked as such; it is not turned back, because any
user could write the mark. A placeholder for a signature (`sign`) is read as a client's own.

Schemas of declared functions come in the API's own subset of OpenAPI; `json_schema` converts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import cast

from unbroken_wires.messages import Choice, Effort, Json, Native, OneTool, Request, Sampling, System, Text, ToolSpec
from unbroken_wires.wires.content_parts import own_extra, own_tool
from unbroken_wires.wires.gemini.gemini_contents import decode_contents, encode_contents
from unbroken_wires.wires.gemini.gemini_parts import NAME, NAME_RULE, camel, listed, parts_of
from unbroken_wires.wires.json_access import Object, as_dict, as_number, as_text, dicts, fit_name

_BUDGETS: dict[Effort, int] = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192, "high": 24576, "xhigh": 32768}

# Requests, outgoing


def encode_request(request: Request) -> Object:
    leading = list(takewhile(lambda message: isinstance(message, System), request.messages))
    texts = [part.text for message in leading if isinstance(message, System) for part in message.parts]
    system = [{"text": text} for text in texts if text]
    body: Object = {"contents": encode_contents(request.messages[len(leading) :], request.model)}
    if system:
        body["systemInstruction"] = {"parts": system}
    extra = own_extra(request, NAME)
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_encode_tool(tool) for tool in request.tools]}]
    if request.choice is not None and (request.tools or extra.get("tools")):
        body["toolConfig"] = {"functionCallingConfig": _encode_choice(request.choice)}
    config = _encode_config(request)
    if config:
        body["generationConfig"] = config
    if request.output is not None and not request.output.tool:
        from unbroken_wires.wires.gemini.gemini_crossing import write_output  # noqa: PLC0415 - start-up time

        write_output(body, request.output, request.model)
    body = _with_extra(body, extra)
    if request.final and body.get("tools"):
        body["toolConfig"] = _merged(as_dict(body.get("toolConfig")), {"functionCallingConfig": {"mode": "NONE"}})
        as_dict(body["toolConfig"])["functionCallingConfig"].pop("allowedFunctionNames", None)
    return body


def _encode_config(request: Request) -> Object:
    s = request.sampling
    config: Object = {
        "maxOutputTokens": s.max_tokens,
        "temperature": s.temperature,
        "topP": s.top_p,
        "stopSequences": list(s.stop) or None,
        "seed": s.seed,
    }
    if request.reasoning is not None:
        config["thinkingConfig"] = _thinking(request.reasoning)
    return {key: value for key, value in config.items() if value is not None}


def _thinking(effort: Effort) -> Object:
    # Thoughts cannot be asked for where there are none: Vertex answers that with an error.
    return {"thinkingBudget": _BUDGETS[effort], "includeThoughts": True} if effort != "none" else {"thinkingBudget": 0}


def _with_extra(body: Object, extra: Mapping[str, Json]) -> Object:
    """`extra` last: merged into the two objects that hold settings, added to the tools, else in place of ours."""
    for key, value in extra.items():
        if key in ("generationConfig", "toolConfig") and isinstance(value, dict) and key in body:
            body[key] = _merged(body[key], cast("Object", value))
        elif key == "tools" and isinstance(value, list) and key in body:
            body[key] = [*body[key], *cast("list[Json]", value)]
        else:
            body[key] = value
    return body


def _merged(ours: Object, theirs: Object) -> Object:
    merged = {**ours, **theirs}
    for key in ours.keys() & theirs.keys():
        if isinstance(ours[key], dict) and isinstance(theirs[key], dict):
            merged[key] = _merged(ours[key], theirs[key])
    if "thinkingLevel" in theirs:
        merged.pop("thinkingBudget", None)  # the API refuses both together
    return merged


def _encode_tool(tool: ToolSpec) -> Object:
    if native := own_tool(tool, NAME, NAME_RULE):
        return native
    declaration: Object = {"name": fit_name(tool.name, NAME_RULE)}
    if tool.description:
        declaration["description"] = tool.description
    # `parameters` takes a subset of OpenAPI; only this field takes JSON Schema with $ref and additionalProperties.
    declaration["parametersJsonSchema"] = dict(tool.parameters)
    return declaration


def _encode_choice(choice: Choice) -> Object:
    if isinstance(choice, OneTool):
        return {"mode": "ANY", "allowedFunctionNames": [fit_name(choice.name, NAME_RULE)]}
    return {"mode": {"auto": "AUTO", "none": "NONE", "required": "ANY"}[choice]}


# Requests, incoming


def decode_request(body: Object) -> Request:
    body = camel(body)
    config = camel(as_dict(body.pop("generationConfig", None)))
    reasoning, thinking = _decode_thinking(config.pop("thinkingConfig", None))
    sampling = Sampling(
        max_tokens=as_number(config.pop("maxOutputTokens", None)),
        temperature=as_number(config.pop("temperature", None)),
        top_p=as_number(config.pop("topP", None)),
        stop=tuple(stop for stop in listed(config.pop("stopSequences", None)) if isinstance(stop, str)),
        seed=as_number(config.pop("seed", None)),
    )
    choice, tool_config = _decode_choice(body.pop("toolConfig", None))
    tools, other_tools = _decode_tools(body.pop("tools", None))
    system = parts_of(body.pop("systemInstruction", None))
    texts = tuple(Text(part["text"]) for part in system if part.get("text") and isinstance(part["text"], str))
    messages = decode_contents(body.pop("contents", None))
    model, stream = body.pop("model", None), body.pop("stream", None)
    extra = {"generationConfig": {**config, **thinking}, "toolConfig": tool_config, "tools": other_tools}
    return Request(
        messages=(*((System(texts),) if texts else ()), *messages),
        tools=tools,
        choice=choice,
        stream=stream is not False,
        reasoning=reasoning,
        sampling=sampling,
        extra={**{key: value for key, value in extra.items() if value}, **body},
        wire=NAME,
        model=model.removeprefix("models/") if isinstance(model, str) else "",
    )


def _decode_thinking(value: Json) -> tuple[Effort | None, Object]:
    """The effort, and what it does not cover: that goes into `extra`, so that this wire gets back what was sent."""
    thinking = camel(as_dict(value))
    budget, level = thinking.get("thinkingBudget"), thinking.get("thinkingLevel")
    effort: Effort | None = None
    if isinstance(level, str) and level.lower() in _BUDGETS:
        effort = cast("Effort", level.lower())
    elif isinstance(budget, int) and budget >= 0:  # -1 leaves it to the model
        efforts: list[Effort] = [effort for effort, most in _BUDGETS.items() if budget <= most]
        effort = efforts[0] if efforts else "high"
    if not thinking or (effort is not None and thinking == _thinking(effort)):
        return effort, {}
    return effort, {"thinkingConfig": {**({"includeThoughts": False} if effort else {}), **thinking}}


def _decode_choice(value: Json) -> tuple[Choice | None, Object]:
    """The choice, and what it does not cover: that goes into `extra`, so that this wire gets back what was sent."""
    config = camel(as_dict(value))
    calling = camel(as_dict(config.pop("functionCallingConfig", None)))
    mode, names = calling.pop("mode", None), listed(calling.pop("allowedFunctionNames", None))
    if mode == "VALIDATED":
        calling["mode"] = mode
    if names and not (mode == "ANY" and len(names) == 1):
        calling["allowedFunctionNames"] = names
    if calling:
        config["functionCallingConfig"] = calling
    choice: Choice | None = None
    if mode == "ANY":
        choice = OneTool(names[0]) if len(names) == 1 and isinstance(names[0], str) else "required"
    elif mode in ("AUTO", "VALIDATED", "NONE"):
        choice = "none" if mode == "NONE" else "auto"
    return choice, config


def _decode_tools(value: Json) -> tuple[tuple[ToolSpec, ...], list[Json]]:
    """Declared functions, and the tools that the provider runs itself, as they are."""
    tools: list[ToolSpec] = []
    others: list[Json] = []
    for tool in dicts(listed(value)):
        tool = camel(tool)
        tools += map(_decode_tool, dicts(listed(tool.pop("functionDeclarations", None))))
        tool = {key: value for key, value in tool.items() if value is not None}
        if tool:
            others.append(tool)
    return tuple(tools), others


_SAID = frozenset(("name", "description", "parameters", "parametersJsonSchema"))


def _decode_tool(declaration: Object) -> ToolSpec:
    declaration = {key: value for key, value in camel(declaration).items() if value is not None}
    spec = ToolSpec(
        as_text(declaration.get("name")),
        as_text(declaration.get("description")),
        # What it gives back, and whether the model waits for that, has no field of ours.
        native=None if declaration.keys() <= _SAID else Native(NAME, declaration),
    )
    schema = as_dict(declaration.get("parametersJsonSchema")) or json_schema(declaration.get("parameters"))
    return replace(spec, parameters=schema) if schema else spec


_NAMED = frozenset(("properties", "patternProperties", "$defs", "defs", "definitions", "dependentSchemas"))
"""Keywords that hold schemas by name; the names are the tool's own, whatever they look like."""

_INNER = frozenset(
    (
        "items",
        "prefixItems",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "additionalProperties",
        "contains",
        "propertyNames",
        "if",
        "then",
        "else",
    )
)
"""Keywords that hold a schema or a list of them."""

_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
"""int64 in the API, which JSON clients may write as text."""

_TYPES = ("", "string", "number", "integer", "boolean", "array", "object", "null")
"""By the numbers of the API's enum, which gRPC clients have been seen to send."""


def json_schema(value: Json) -> Object:
    """A schema in the API's subset of OpenAPI (`OBJECT`, `nullable`, `any_of`, `"1"`) as JSON Schema."""
    root = camel(as_dict(value))
    stack = [root]
    while stack:
        schema = stack.pop()
        for key, item in schema.items():
            if key in _NAMED and isinstance(item, dict):
                schema[key] = named = dict(cast("Object", item))
                for name, inner in named.items():
                    named[name] = _opened(inner, stack)
            elif key in _INNER:
                many = isinstance(item, list)
                schema[key] = (
                    [_opened(one, stack) for one in cast("list[Json]", item)] if many else _opened(item, stack)
                )
            elif key in _COUNTS and isinstance(item, str) and item.isdecimal() and len(item) < 20:
                schema[key] = int(item)
        _set_type(schema)
    return root


def _opened(value: Json, stack: list[Object]) -> Json:
    """A copy of a schema, to be worked on; anything else (`additionalProperties: false`) as it is."""
    if not isinstance(value, dict):
        return value
    schema = camel(cast("Object", value))
    stack.append(schema)
    return schema


def _set_type(schema: Object) -> None:
    nullable = schema.pop("nullable", None) is True
    type = schema.get("type")
    if isinstance(type, int) and 0 < type < len(_TYPES):
        type = _TYPES[type]
    if type in (0, "TYPE_UNSPECIFIED"):
        del schema["type"]
    elif isinstance(type, str):
        schema["type"] = [type.lower(), "null"] if nullable else type.lower()
    if nullable and "type" not in schema and isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
