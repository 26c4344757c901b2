"""gemini: settings that not every wire has, and what only its messages can say, from and to other wires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from unbroken_wires.errors import InvalidRequest
from unbroken_wires.messages import Json, OutputSchema
from unbroken_wires.server_tools import CodeExecution, WebFetch, WebSearch
from unbroken_wires.wires.crossing import (
    Crossing,
    Name,
    Setting,
    Settings,
    Target,
    put,
    rest_of,
    simple,
    texts,
    write_tool,
)
from unbroken_wires.wires.gemini.gemini_parts import GROUNDING, NAME_RULE, camel, parts_of
from unbroken_wires.wires.gemini.gemini_requests import json_schema
from unbroken_wires.wires.gemini.gemini_rules import BEFORE_3, OUTPUT_KEYWORDS
from unbroken_wires.wires.gemini.gemini_server_tools import SERVER_TOOLS
from unbroken_wires.wires.history_losses import Citation, HistoryCrossing, unknown_fields
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_list, as_text, dicts, fit_name
from unbroken_wires.wires.schemas import each_schema, limited

_CONFIG: Mapping[str, Name] = {
    "topK": "top_k",
    "frequencyPenalty": "frequency_penalty",
    "presencePenalty": "presence_penalty",
}
_OUTPUT = ("responseMimeType", "responseSchema", "responseJsonSchema", "_responseJsonSchema")
_HANDLED = frozenset((*_CONFIG, *_OUTPUT, "thinkingConfig", "candidateCount", "responseLogprobs"))
_FIELDS: Mapping[str, Name] = {"labels": "metadata", "store": "store"}
_TOP = frozenset((*_FIELDS, "generationConfig", "serviceTier", "tools", "toolConfig"))
_TIERS = {"unspecified": "auto", "standard": "default", "flex": "flex", "priority": "priority"}
_JSON = "application/json"


def _read(extra: Mapping[str, Json]) -> tuple[Settings, list[str]]:
    if extra.get("cachedContent"):
        raise InvalidRequest("`cachedContent`: this model cannot read Gemini's cache; send its contents instead")
    config = as_dict(extra.get("generationConfig"))
    before = "generationConfig."
    settings: Settings = {**dict(simple(config, _CONFIG, before)), **dict(simple(extra, _FIELDS))}
    lost = rest_of(extra, _TOP) + rest_of(config, _HANDLED, before)
    lost += _read_output(config, settings)
    if extra.get("serviceTier") is not None:
        tier = as_text(extra["serviceTier"]).lower()
        settings["service_tier"] = Setting("serviceTier", _TIERS.get(tier, tier))
    lost += [f"{before}candidateCount"] if config.get("candidateCount") not in (None, 1) else []
    lost += [f"{before}responseLogprobs"] if config.get("responseLogprobs") else []
    thinking = as_dict(config.get("thinkingConfig"))
    if thinking and "thinkingBudget" not in thinking and "thinkingLevel" not in thinking:
        lost.append(f"{before}thinkingConfig")
    for tool in dicts(extra.get("tools")):
        lost += _read_tool(tool, settings)
    choice = as_dict(extra.get("toolConfig"))
    calling = as_dict(choice.get("functionCallingConfig"))
    if names := texts(calling.get("allowedFunctionNames")):
        mode = "auto" if calling.get("mode") == "VALIDATED" else "required"
        settings["allowed_tools"] = Setting("toolConfig.functionCallingConfig.allowedFunctionNames", (mode, names))
    elif calling.get("mode") is not None:
        lost.append("toolConfig.functionCallingConfig.mode")
    return settings, lost + rest_of(choice, ("functionCallingConfig",), "toolConfig.")


def _read_output(config: Object, settings: Settings) -> list[str]:
    mime = config.get("responseMimeType")
    field = next((key for key in reversed(_OUTPUT) if config.get(key) is not None), "")
    if mime in (None, _JSON) and field:
        schema = as_dict(config.get(field)) if field != "responseMimeType" else {}
        if field == "responseSchema":
            schema = json_schema(schema)
        settings["output"] = Setting(f"generationConfig.{field}", OutputSchema(schema or None))
        return []
    return ["generationConfig.responseMimeType"] if mime not in (None, "text/plain") else []


def _read_tool(tool: Object, settings: Settings) -> list[str]:
    """Tools that the provider runs. What is not understood of them is returned."""
    lost: list[str] = []
    for key, value in tool.items():
        field = f"tools.{key}"
        fields = camel(as_dict(value))
        match key:
            case "googleSearch" | "googleSearchRetrieval":
                search = WebSearch(blocked_domains=texts(fields.get("excludeDomains")))
                settings["web_search"] = Setting(field, search)
                lost += rest_of(fields, ("excludeDomains",), f"{field}.")
            case "codeExecution":
                settings["code_execution"] = Setting(field, CodeExecution())
            case "urlContext":
                settings["web_fetch"] = Setting(field, WebFetch())
            case _:
                lost.append(field)
    return lost


def write_output(body: Object, output: OutputSchema, model: str) -> None:
    if model in BEFORE_3 and _has_functions(body):
        return  # older models refuse JSON beside functions: then the calls are the harder fact
    put(body, "generationConfig.responseMimeType", _JSON)
    if output.schema is not None:
        schema = as_dict(each_schema(dict(output.schema), _as_enum))
        put(body, "generationConfig.responseJsonSchema", limited(schema, OUTPUT_KEYWORDS))


def _has_functions(body: Object) -> bool:
    return any(tool.get("functionDeclarations") for tool in dicts(body.get("tools")))


def _as_enum(fields: Object) -> Object:
    """`const` is not known, and one value to choose from is the same."""
    if "const" not in fields or "enum" in fields:
        return fields
    return {**{key: value for key, value in fields.items() if key != "const"}, "enum": [fields["const"]]}


def _write(body: Object, settings: Settings, target: Target) -> list[str]:
    lost: list[str] = []
    for key, name in _CONFIG.items():
        if name in settings:
            put(body, f"generationConfig.{key}", settings[name].value)
    if "metadata" in settings and target.vendor == "vertex":
        body["labels"] = settings["metadata"].value
    tier = settings.get("service_tier")
    if tier is not None and tier.value in _TIERS.values():
        body["serviceTier"] = next(own for own, name in _TIERS.items() if name == tier.value)
    if "store" in settings and target.vendor != "vertex":
        body["store"] = settings["store"].value
    if (output := settings.get("output")) is not None:
        write_output(body, output.value, target.model)
    for name in ("web_search", "code_execution", "web_fetch"):
        lost += write_tool(settings, name, SERVER_TOOLS, body, target)
    if (allowed := settings.get("allowed_tools")) is not None and _has_functions(body):
        mode, names = allowed.value
        fitting = [fit_name(name, NAME_RULE) for name in names]
        calling = {"mode": "ANY" if mode == "required" else "VALIDATED", "allowedFunctionNames": fitting}
        put(body, "toolConfig.functionCallingConfig", calling)
    return lost


_SPOKEN = ("text", "thought", "thoughtSignature", "functionCall", "partMetadata")


def _lost_in_body(body: Object) -> Iterator[str]:
    for part in parts_of(body.get("systemInstruction") or body.get("system_instruction")):
        yield from unknown_fields(part, ("text", "thought", "partMetadata"), "systemInstruction.parts.")


def _lost_in_answer(native: Json) -> Iterator[str]:
    for part in dicts(native):
        yield from unknown_fields(part, _SPOKEN, "contents.parts.")


def _citations(native: Json) -> Iterator[Citation]:
    """Places are given in bytes of UTF-8, and count in the first part."""
    parts = dicts(native)
    grounding = next((as_dict(part[GROUNDING]) for part in parts if GROUNDING in part), Object())
    chunks = [as_dict(chunk.get("web")) for chunk in dicts(grounding.get("groundingChunks"))]
    text = "".join(as_text(part.get("text")) for part in parts if not part.get("thought")).encode("utf-8", "replace")
    for support in dicts(grounding.get("groundingSupports")):
        segment = as_dict(support.get("segment"))
        if segment.get("partIndex"):
            continue
        ends = [len(text[: as_int(segment.get(key))].decode("utf-8", "ignore")) for key in ("startIndex", "endIndex")]
        for index in as_list(support.get("groundingChunkIndices")):
            if isinstance(index, int) and 0 <= index < len(chunks):
                yield Citation(as_text(chunks[index].get("uri")), as_text(chunks[index].get("title")), *ends)


def _lost_in_part(part: Object) -> Iterator[str]:
    return unknown_fields(part, (*_SPOKEN, "inlineData", "fileData"), "contents.parts.")


def _block_kind(part: Object) -> Literal["text", "call", ""]:
    if "functionCall" in part:
        return "call"
    return "text" if not part.get("thought") and as_text(part.get("text")).strip() else ""


CROSSING = Crossing(
    places={
        "max_tokens": ("generationConfig.maxOutputTokens",),
        "temperature": ("generationConfig.temperature",),
        "top_p": ("generationConfig.topP",),
        "stop": ("generationConfig.stopSequences",),
        "seed": ("generationConfig.seed",),
        "choice": ("toolConfig.functionCallingConfig",),
        "effort": ("generationConfig.thinkingConfig",),
        "output": ("generationConfig.responseMimeType",),
        "metadata": ("labels",),
        "service_tier": ("serviceTier",),
        "store": ("store",),
        "web_search": ("tools[].googleSearch",),
        "web_fetch": ("tools[].urlContext",),
        "code_execution": ("tools[].codeExecution",),
        "allowed_tools": ("toolConfig.functionCallingConfig.allowedFunctionNames",),
        **{name: (f"generationConfig.{key}",) for key, name in _CONFIG.items()},
    },
    read=_read,
    write=_write,
    history=HistoryCrossing(
        features={"failed_result": "contents.functionResponse.response.error"},
        in_body=_lost_in_body,
        in_answer=_lost_in_answer,
        citations=_citations,
        cited=f"contents.parts.{GROUNDING}",
        in_part=_lost_in_part,
        tools="tools.functionDeclarations",
        tool_fields=frozenset({"name", "description", "parameters", "parametersJsonSchema"}),
        block_kind=_block_kind,
    ),
)
