"""What a provider wants otherwise than its wire says: data in its row, applied before and after the wire's encoder.

Two pure functions: `fit_request` changes what is asked, `fit_body` how it is spelled. Neither knows a provider's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from unbroken.messages import Effort, Json, OneTool, Request, System
from unbroken.wires import WIRES
from unbroken.wires.values import IdRule, Object, as_dict, as_text, dicts, fit

# What to do where a provider demands its own reasoning back and it is gone: cut by a client, or from another
# provider.
#
# Each wire knows the ways that its providers accept; a provider profile names one of them (`Quirks.lost_reasoning`).


LostReasoning: TypeAlias = Literal["", "blank", "off", "placeholder"]
"""Not demanded; a blank in its place; thinking is turned off for this request; a documented placeholder."""

WAYS = {way: replace for wire in WIRES.values() for way, replace in wire.lost_reasoning.items()}


def go_on(body: Object, request: Request, way: LostReasoning) -> tuple[Object, str]:
    """The body that the provider accepts, and what was done for that; empty if nothing is missing."""
    return WAYS[way](body, request) if way else (body, "")


NOTHING_RUNS = "No tool will run any more. Do not call any; answer now, with what you know, in words."
"""Said in the final request to a provider that has no choice `none`."""

ChoiceKind: TypeAlias = Literal["auto", "none", "required", "one"]
ALL_CHOICES: frozenset[ChoiceKind] = frozenset({"auto", "none", "required", "one"})


@dataclass(frozen=True, slots=True)
class Quirks:
    """The defaults are what the wires' own documents say."""

    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of the body under another name: `max_tokens` as `max_completion_tokens`."""
    drop: frozenset[str] = frozenset()
    """Keys of the body that the provider refuses or does not know."""
    add: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Keys that every body has."""
    reasoning: Mapping[str, Mapping[str, Json]] = field(default_factory=dict[str, Mapping[str, Json]])
    """Instead of `reasoning_effort`: what the body has for an effort, `*` for those not named. One that is neither is
    spelled as the wire does."""
    choices: frozenset[ChoiceKind] = ALL_CHOICES
    """The choices of tools that it takes; another is left out, and in place of one tool by name that tool alone is
    offered, if one can be required. Without `none`, a system line says in the final request that nothing will run."""
    asks_for_several: bool = False
    """It gives one call at a time unless the request asks for several."""
    call_ids: IdRule | None = None
    """A rule for call ids that is stricter than the wire's."""
    no_call_ids: bool = False
    """Calls and results have no ids here, and one is refused."""
    stream_with_tools: bool = True
    """False: a request with tools is sent unstreamed."""
    strict: bool = True
    """False: `strict` in a tool is refused or unknown."""
    lost_reasoning: LostReasoning = ""
    """How to go on where it demands its own reasoning back and that is gone."""
    prose: bool = True
    """Recover calls that leaked into the text, where the wire lets them through? Off where the models leak none."""


def fit_request(request: Request, quirks: Quirks) -> Request:
    """What is asked, as this provider can be asked. The same object where nothing has to change."""
    if not request.tools:
        return request
    if request.stream and not quirks.stream_with_tools:
        request = replace(request, stream=False)
    if request.final and "none" not in quirks.choices:
        messages = (*request.messages, System.of(NOTHING_RUNS))
        request = replace(request, final=False, choice=None, messages=messages)
    if request.choice is not None:
        kind: ChoiceKind = "one" if isinstance(request.choice, OneTool) else request.choice
        if kind not in quirks.choices:
            request = _without_choice(request, quirks)
    if quirks.asks_for_several and request.parallel is None:
        request = replace(request, parallel=True)
    if not quirks.strict and any(tool.strict is not None for tool in request.tools):
        request = replace(request, tools=tuple(replace(tool, strict=None) for tool in request.tools))
    return request


def _without_choice(request: Request, quirks: Quirks) -> Request:
    """A provider that cannot be told which tool to call, but that one must be, is offered that tool alone."""
    choice = request.choice
    if isinstance(choice, OneTool) and "required" in quirks.choices:
        named = tuple(tool for tool in request.tools if tool.name == choice.name)
        if named:
            return replace(request, choice="required", tools=named)
    return replace(request, choice=None)


def fit_body(body: Object, request: Request, quirks: Quirks) -> Object:
    """The body as this provider spells it. A key that `extra` has set is left alone: who says it exactly means it."""
    said = request.extra
    spelled = _reasoning(request.reasoning, quirks)
    if spelled is not None and "reasoning_effort" not in said:
        body.pop("reasoning_effort", None)
        body = {**spelled, **body}
    if quirks.add:
        body = {**quirks.add, **body}
    return fit_spelled(body, quirks, said)


def fit_spelled(body: Object, quirks: Quirks, said: Collection[str] = ()) -> Object:
    """The same for a body as a client spelled it: only what the provider would refuse is changed. `said`: keys that are
    left alone."""
    for key, name in quirks.rename.items():
        if key in body and key not in said:
            value = body.pop(key)
            body.setdefault(name, value)
    for key in quirks.drop:
        if key not in said:
            body.pop(key, None)
    if quirks.call_ids is not None:
        body["messages"] = [_with_ids(message, quirks.call_ids) for message in dicts(body.get("messages"))]
    if quirks.no_call_ids:
        body["contents"] = _without_ids(dicts(body.get("contents")))
    return body


def _reasoning(effort: Effort | None, quirks: Quirks) -> Mapping[str, Json] | None:
    if effort is None:
        return None
    return quirks.reasoning.get(effort, quirks.reasoning.get("*"))


def _with_ids(message: Object, rule: IdRule) -> Object:
    """A copy, as below."""
    if calls := dicts(message.get("tool_calls")):
        message = {**message, "tool_calls": [{**call, "id": fit(as_text(call.get("id")), rule)} for call in calls]}
    if "tool_call_id" in message:
        message = {**message, "tool_call_id": fit(as_text(message["tool_call_id"]), rule)}
    return message


def _without_ids(contents: list[Object]) -> list[Object]:
    """Copies: what the model said itself stands in the body as it stands in the history."""
    return [{**content, "parts": [_without_id(part) for part in dicts(content.get("parts"))]} for content in contents]


def _without_id(part: Object) -> Object:
    for key in ("functionCall", "functionResponse"):
        if "id" in (inner := as_dict(part.get(key))):
            part = {**part, key: {name: value for name, value in inner.items() if name != "id"}}
    return part
