"""Settings that Chat Completions and the Responses API spell almost alike, for the crossings of both wires."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from unbroken_wires.messages import Json, OutputSchema, ServerTool
from unbroken_wires.server_tools import WebFetch, WebSearch
from unbroken_wires.wires.crossing import Name, Settings, Target, place_of, texts
from unbroken_wires.wires.json_access import Object, as_dict, as_flag, as_text
from unbroken_wires.wires.openai_models import OPENAI
from unbroken_wires.wires.schemas import is_object, is_strict, strict_form
from unbroken_wires.wires.server_tools import Encoded, given

FIELDS: Mapping[str, Name] = {
    "user": "user",
    "safety_identifier": "safety_identifier",
    "prompt_cache_key": "cache_key",
    "prompt_cache_retention": "cache_retention",
    "metadata": "metadata",
    "service_tier": "service_tier",
    "store": "store",
}
"""The same fields on both wires."""

OF_OPENAI: tuple[Name, ...] = ("safety_identifier", "cache_key", "cache_retention", "service_tier", "verbosity")
"""Fields that other providers of these wires do not know, and that some of them refuse."""

_TIERS = ("auto", "default", "flex", "priority", "scale")


def portable_fields(settings: Settings, target: Target) -> Iterator[tuple[str, Json]]:
    """The fields that both wires have, for this model."""
    for key, name in FIELDS.items():
        setting = settings.get(name)
        if setting is None or (name in OF_OPENAI and target.vendor not in OPENAI):
            continue
        if name == "service_tier" and setting.value not in _TIERS:
            continue
        yield key, setting.value


def decode_output(format: Json) -> OutputSchema | None:
    """`response_format` or `text.format`; None for text, and for what is not known."""
    fields = as_dict(format)
    if fields.get("type") == "json_object":
        return OutputSchema()
    if fields.get("type") != "json_schema":
        return None
    inner = as_dict(fields.get("json_schema")) or fields
    return OutputSchema(
        as_dict(inner.get("schema")) or {"type": "object"},
        as_text(inner.get("name")),
        as_text(inner.get("description")),
        as_flag(inner.get("strict")),
    )


def encode_output(output: OutputSchema) -> Object | None:
    """Name, schema and strictness; None if the answer has to be something else than an object, which OpenAI refuses.

    Unless it says otherwise, a schema is written so that it can be strict, if that is possible: the answer fits it.
    """
    schema = dict(output.schema or {})
    if not is_object(schema):
        return None
    if output.strict is None and output.schema is not None:
        strict_schema = strict_form(output.schema)
        strict, schema = strict_schema is not None, strict_schema or schema
    else:
        strict = bool(output.strict) and is_strict(schema)
    name = re.sub("[^a-zA-Z0-9_-]+", "_", output.name or as_text(schema.get("title")))[:64] or "answer"
    described: Object = {"description": output.description} if output.description else {}
    return {"name": name, **described, "schema": schema, "strict": strict}


def decode_search(tool: Mapping[str, Json]) -> WebSearch:
    """A tool of the Responses API, or `web_search_options` of Chat Completions."""
    place = as_dict(tool.get("user_location"))
    size = tool.get("search_context_size")
    return WebSearch(
        allowed_domains=texts(as_dict(tool.get("filters")).get("allowed_domains")),
        user_location=place_of(as_dict(place.get("approximate")) or place),
        search_context_size=size if size in ("low", "medium", "high") else None,
    )


def openrouter_tool(tool: ServerTool) -> Encoded | None:
    """OpenRouter runs these for every model, on both wires."""
    match tool:
        case WebSearch():
            settings: Object = {
                "allowed_domains": list(tool.allowed_domains),
                "excluded_domains": list(tool.blocked_domains),
                "search_context_size": tool.search_context_size,
                "user_location": {"type": "approximate", **tool.user_location} if tool.user_location else None,
            }
            if tool.allowed_domains or tool.blocked_domains:
                settings["engine"] = "exa"  # the searches of OpenAI and Perplexity ignore domains
            return _of_openrouter("web_search", settings, given(tool, "max_uses"))
        case WebFetch():
            settings = {
                "allowed_domains": list(tool.allowed_domains),
                "blocked_domains": list(tool.blocked_domains),
                "max_uses": tool.max_uses,
                "max_content_tokens": tool.max_content_tokens,
            }
            return _of_openrouter("web_fetch", settings, given(tool, "citations"))
        case _:
            return None


def _of_openrouter(name: str, settings: Object, lost: tuple[str, ...]) -> Encoded:
    parameters = {key: value for key, value in settings.items() if value}
    return Encoded({"type": f"openrouter:{name}"} | ({"parameters": parameters} if parameters else {}), lost)
