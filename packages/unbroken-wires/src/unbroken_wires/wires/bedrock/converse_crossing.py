"""bedrock-converse: settings that not every wire has, and what only its messages can say, from and to other wires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from unbroken_wires.errors import InvalidRequest
from unbroken_wires.messages import Json, OutputSchema
from unbroken_wires.wires.bedrock.converse_content import is_claude
from unbroken_wires.wires.bedrock.converse_reasoning import FIELDS
from unbroken_wires.wires.bedrock.converse_requests import is_call, text_of
from unbroken_wires.wires.content_parts import object_from_text
from unbroken_wires.wires.crossing import Crossing, Setting, Settings, Target, put, rest_of
from unbroken_wires.wires.history_losses import HistoryCrossing, unknown_fields
from unbroken_wires.wires.json_access import TOOL_NAME, Object, as_dict, as_text, dicts, fit_name
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.schemas import claude_form

_HANDLED = frozenset(
    (
        "inferenceConfig",
        "toolConfig",
        FIELDS,
        "outputConfig",
        "requestMetadata",
        "serviceTier",
        "additionalModelResponseFieldPaths",
    )
)
_MEANT = ("guardrailConfig", "promptVariables")
"""Without these the answer would be another one."""
_EFFORTS = ("thinking", "reasoningConfig", "reasoning_effort", "output_config")
_TIERS = ("default", "flex", "priority")


def _read(extra: Mapping[str, Json]) -> tuple[Settings, list[str]]:
    for field in _MEANT:
        if extra.get(field):
            raise InvalidRequest(f"`{field}`: this model is not on Bedrock and has no such field; leave it out")
    settings: Settings = {}
    lost = rest_of(extra, _HANDLED) + rest_of(as_dict(extra.get("inferenceConfig")), (), "inferenceConfig.")
    lost += rest_of(as_dict(extra.get("toolConfig")), (), "toolConfig.")
    fields = as_dict(extra.get(FIELDS))
    if fields.get("top_k") is not None:
        settings["top_k"] = Setting(f"{FIELDS}.top_k", fields["top_k"])
    lost += rest_of(fields, ("top_k", *_EFFORTS), f"{FIELDS}.")
    if extra.get("additionalModelResponseFieldPaths"):
        lost.append("additionalModelResponseFieldPaths")
    if extra.get("requestMetadata"):
        settings["metadata"] = Setting("requestMetadata", extra["requestMetadata"])
    if tier := as_text(as_dict(extra.get("serviceTier")).get("type")):
        settings["service_tier"] = Setting("serviceTier", tier)
    return settings, lost + _read_output(as_dict(extra.get("outputConfig")), settings)


def _read_output(config: Object, settings: Settings) -> list[str]:
    format = as_dict(config.get("textFormat"))
    described = as_dict(as_dict(format.get("structure")).get("jsonSchema"))
    schema = object_from_text(as_text(described.get("schema")))
    if schema:
        name, description = as_text(described.get("name")), as_text(described.get("description"))
        settings["output"] = Setting("outputConfig.textFormat", OutputSchema(schema, name, description))
        return rest_of(config, ("textFormat",), "outputConfig.")
    return rest_of(config, (), "outputConfig.")


def write_output(body: Object, output: OutputSchema) -> None:
    schema = None if output.schema is None else claude_form(output.schema)
    if schema is None:
        return
    described: Object = {"schema": dumps(schema).decode()}
    described |= {"name": output.name} if output.name else {}
    described |= {"description": output.description} if output.description else {}
    put(body, "outputConfig.textFormat", {"type": "json_schema", "structure": {"jsonSchema": described}})


def _write(body: Object, settings: Settings, target: Target) -> list[str]:
    if "top_k" in settings and is_claude(target.model):
        put(body, f"{FIELDS}.top_k", settings["top_k"].value)
    if "metadata" in settings:
        texts = {key: value for key, value in as_dict(settings["metadata"].value).items() if isinstance(value, str)}
        body |= {"requestMetadata": texts} if texts else {}
    if (tier := settings.get("service_tier")) is not None and tier.value in _TIERS:
        body["serviceTier"] = {"type": tier.value}
    if (output := settings.get("output")) is not None:
        write_output(body, output.value)
    tools = dicts(as_dict(body.get("toolConfig")).get("tools"))
    if (allowed := settings.get("allowed_tools")) is not None and tools:
        mode, names = allowed.value
        if len(names) == 1 and mode == "required":
            put(body, "toolConfig.toolChoice", {"tool": {"name": fit_name(names[0], TOOL_NAME)}})
    return []


def _lost_in_body(body: Object) -> Iterator[str]:
    for block in dicts(body.get("system")):
        yield from unknown_fields(block, ("text", "cachePoint"), "system.")


def _lost_in_answer(native: Json) -> Iterator[str]:
    for block in dicts(native):
        known = ("text", "reasoningContent", "cachePoint")
        cited = as_dict(block.get("citationsContent"))
        if cited:
            yield from unknown_fields(cited, ("content",), "messages.citationsContent.")
        elif not is_call(block):
            yield from unknown_fields(block, known, "messages.")


def _lost_in_part(block: Object) -> Iterator[str]:
    for kind, value in block.items():
        yield from unknown_fields(as_dict(value), ("format", "name", "source", "title", "content"), f"messages.{kind}.")


def _block_kind(block: Object) -> Literal["text", "call", ""]:
    return "call" if is_call(block) else "text" if text_of(block).strip() else ""


CROSSING = Crossing(
    places={
        "max_tokens": ("inferenceConfig.maxTokens",),
        "temperature": ("inferenceConfig.temperature",),
        "top_p": ("inferenceConfig.topP",),
        "stop": ("inferenceConfig.stopSequences",),
        "choice": ("toolConfig.toolChoice",),
        "effort": tuple(f"{FIELDS}.{name}" for name in _EFFORTS),
        "strict": ("toolConfig.tools[].toolSpec{strict=True}.strict",),
        "output": ("outputConfig.textFormat",),
        "top_k": (f"{FIELDS}.top_k",),
        "metadata": ("requestMetadata",),
        "service_tier": ("serviceTier",),
        "allowed_tools": ("toolConfig.toolChoice",),
    },
    read=_read,
    write=_write,
    history=HistoryCrossing(
        features={"failed_result": "messages.toolResult.status", "file_name": "messages.document.name"},
        in_body=_lost_in_body,
        in_answer=_lost_in_answer,
        in_part=_lost_in_part,
        tools="toolConfig.tools.toolSpec",
        tool_group="toolSpec",
        tool_fields=frozenset({"name", "description", "inputSchema", "strict"}),
        block_kind=_block_kind,
    ),
)
