"""How a provider differs from its wire: data in its profile, applied before and after the wire's encoder.

Two pure functions: `fit_request` changes the request, `fit_body` its JSON. Neither knows a provider's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from unbroken_wires.messages import Effort, Json, OneTool, Request, System, User
from unbroken_wires.wires import Wire, find_wire
from unbroken_wires.wires.json_access import IdRule, Object, as_dict, as_text, dicts, fit

if TYPE_CHECKING:
    from unbroken_wires.wires.rules import RulesByField

# What to do if a provider requires its own reasoning back and it is missing: dropped by a client, or from another
# provider.
#
# Each wire knows the ways that its providers accept; a provider profile names one of them (`Quirks.lost_reasoning`).


LostReasoning: TypeAlias = Literal["", "blank", "off", "placeholder"]
"""Not required; a blank in its place; thinking turned off for this request; a documented placeholder."""

WAYS = tuple(way for way in get_args(LostReasoning) if way)


def replace_lost_reasoning(body: Object, request: Request, way: LostReasoning, wire: Wire) -> tuple[Object, str]:
    """The body that the provider accepts, and what was done for that; empty if nothing is missing."""
    change = wire.lost_reasoning.get(way)
    return change(body, request) if change is not None else (body, "")


NOTHING_RUNS = "No tool will run any more. Do not call any; answer now, with what you know, in words."
"""System line of the final request for a provider without the choice `none`."""

NativeOutput: TypeAlias = Literal["never", "alone", "always"]

ChoiceKind: TypeAlias = Literal["auto", "none", "required", "one"]
ALL_CHOICES: frozenset[ChoiceKind] = frozenset({"auto", "none", "required", "one"})


@dataclass(frozen=True, slots=True)
class Quirks:
    """The defaults follow the documentation of the wires."""

    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of the body under another name: `max_tokens` as `max_completion_tokens`."""
    drop: frozenset[str] = frozenset()
    """Keys of the body that the provider refuses or does not know."""
    add: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Keys that every body has, except for a client's own."""
    require: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Keys without which the provider refuses any body, a client's own too."""
    reasoning: Mapping[str, Mapping[str, Json]] = field(default_factory=dict[str, Mapping[str, Json]])
    """Instead of `reasoning_effort`: the body's fields for an effort, `*` for those not named. Other efforts are sent
    as the wire defines them."""
    choices: frozenset[ChoiceKind] = ALL_CHOICES
    """The tool choices that it supports. Others are left out; if a single tool cannot be chosen by name, only that tool
    is offered and required, if possible. Without `none`, a system line in the final request states that no tool will
    run."""
    asks_for_several: bool = False
    """It returns one call at a time unless the request asks for several."""
    call_ids: IdRule | None = None
    """A rule for call ids that is stricter than the wire's."""
    no_call_ids: bool = False
    """Calls and results have no ids here; the provider refuses them."""
    stream_with_tools: bool = True
    """False: a request with tools is sent unstreamed."""
    strict: bool = True
    """False: `strict` in a tool is refused or unknown."""
    lost_reasoning: LostReasoning = ""
    """What to do if it requires its own reasoning back and that is missing."""
    native_output: NativeOutput = "never"
    """Whether it accepts the schema of a structured answer: never, only in requests without tools, or always. The rules
    of its wire know the models that do not."""
    prose: bool = True
    """Recover calls that leaked into the text? Off for models that leak none."""


@lru_cache(256)
def rules_of(wire: str, vendor: str, model: str) -> RulesByField:
    """What the requests for a model have to obey."""
    from unbroken_wires.wires.rules import rules_for, to_obey  # noqa: PLC0415 - start-up time

    return to_obey(rules_for(find_wire(wire).rules(), vendor, model))


@lru_cache(64)
def rules_beside_tools(wire: str, vendor: str, model: str) -> RulesByField:
    """The same for a request whose tools are known to be accepted."""
    from unbroken_wires.wires.rules import beside  # noqa: PLC0415 - start-up time

    return beside(rules_of(wire, vendor, model), "tools")


def fit_request(request: Request, quirks: Quirks) -> Request:
    """The request adapted to this provider. The same object if nothing has to change."""
    last = request.messages[-1] if request.messages else None
    if isinstance(last, System) and all(isinstance(each, System) for each in request.messages):
        # Providers refuse a conversation in which nobody asks anything.
        request = replace(request, messages=(*request.messages[:-1], User(last.parts)))
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
    """If a provider supports requiring a call, but not choosing the tool, it is offered only that tool."""
    choice = request.choice
    if isinstance(choice, OneTool) and "required" in quirks.choices:
        named = tuple(tool for tool in request.tools if tool.name == choice.name)
        if named:
            return replace(request, choice="required", tools=named)
    return replace(request, choice=None)


def fit_body(body: Object, request: Request, quirks: Quirks) -> Object:
    """The body adapted to this provider. Keys that `extra` has set stay unchanged: the user set them explicitly."""
    said = request.extra
    spelled = _reasoning(request.reasoning, quirks)
    if spelled is not None and "reasoning_effort" not in said:
        body.pop("reasoning_effort", None)
        body = {**spelled, **body}
    if quirks.add:
        body = {**quirks.add, **body}
    return fit_spelled(body, quirks, said)


def fit_spelled(body: Object, quirks: Quirks, said: Collection[str] = ()) -> Object:
    """The same for a client's own body: only what the provider would refuse is changed. `said`: keys that stay
    unchanged."""
    for key, value in quirks.require.items():
        body.setdefault(key, value)
    for key, name in quirks.rename.items():
        if key in body and key not in said:
            value = body.pop(key)
            body.setdefault(name, value)
    for key in quirks.drop:
        if key not in said:
            body.pop(key, None)
    if quirks.call_ids is not None and "messages" in body:
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
    """Copies, because the body shares objects with the history."""
    return [{**content, "parts": [_without_id(part) for part in dicts(content.get("parts"))]} for content in contents]


def _without_id(part: Object) -> Object:
    for key in ("functionCall", "functionResponse"):
        if "id" in (inner := as_dict(part.get(key))):
            part = {**part, key: {name: value for name, value in inner.items() if name != "id"}}
    return part
