"""Tools that the provider runs, on every wire: what a wire says about one (`Encoded`), and how they get into a body.

Each wire has a function that encodes one tool. Our own requests and clients of the gateway go through the same one:
what is lost is an error or a warning for the first, and named in a header for the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from unbroken_wires.errors import UserError
from unbroken_wires.messages import Json, ServerTool
from unbroken_wires.server_tools import MCPConnector, WebFetch, WebSearch
from unbroken_wires.wires.json_access import Object

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Target


@dataclass(frozen=True, slots=True)
class Encoded:
    """One tool in the words of a wire."""

    tool: Object | None = None
    """Its entry in `tools`, if it has one."""
    lost: tuple[str, ...] = ()
    """Settings that have no field here."""
    body: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Other fields of the request; lists are appended to what is there."""


EncodeServerTool: TypeAlias = "Callable[[ServerTool, Target], Encoded | None]"
"""None: the provider or the model has no such tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTools:
    """How a wire requests them."""

    encode: EncodeServerTool
    place: Callable[[Object, Encoded, Target], None]
    """Puts an encoded tool into a body."""
    why_not: Callable[[Object, Target], str] = lambda body, target: ""
    """Why this body cannot have such tools, and the way out; empty if it can."""
    finds_tools: Callable[[Target], bool] = lambda target: False
    """Does this model search deferred tools itself? Then `defer` marks them."""
    defer: Callable[[Object, frozenset[str]], None] | None = None
    beta_header: str = ""
    """The header that names betas."""
    betas: Callable[[Object], Sequence[str]] = lambda body: ()
    """The betas that the tools in a body need."""
    forbid: Callable[[Object], None] | None = None
    """Keeps the model from calling anything, in a final request. None: such a request is sent without these tools."""


def add_server_tools(
    body: Object,
    tools: Sequence[ServerTool],
    wire: ServerTools | None,
    target: Target,
    model: str,
    elsewhere: Callable[[ServerTool], str] = lambda tool: "",
) -> list[str]:
    """Puts the tools of a request of our own into its body. Returns the wishes that are lost. `UserError` if the model
    lacks a tool, or a setting that must not be lost. `model` is its name for people; `elsewhere` finds out how to
    connect to the same provider so that it has a tool that it lacks here."""
    lost: list[str] = []
    for tool in tools:
        encoded = wire.encode(tool, target) if wire is not None else None
        name = type(tool).__name__
        if wire is None or encoded is None:
            raise UserError(f"{name}: `{model}` has no such tool of its own; {_way_out(tool, elsewhere(tool))}")
        if firm := [each for each in encoded.lost if each in tool.firm]:
            raise UserError(
                f"{name}({firm[0]}=…): `{model}` has no such setting, and without it the tool would do more than you "
                f"allow; leave the setting out, or choose another model"
            )
        if isinstance(tool, WebSearch | WebFetch) and tool.allowed_domains and tool.blocked_domains:
            raise UserError(f"{name}: `{model}` takes allowed_domains or blocked_domains, not both")
        if reason := wire.why_not(body, target):
            raise UserError(f"{name}: {reason}")
        lost += [f"{name}.{each}" for each in encoded.lost]
        wire.place(body, encoded, target)
    return lost


def _way_out(tool: ServerTool, elsewhere: str) -> str:
    if elsewhere:
        return f"it has it on another wire: {elsewhere}"
    if isinstance(tool, WebSearch | WebFetch):
        return "give a function that does it among tools=, or choose another model"
    if isinstance(tool, MCPConnector):
        return "use MCPServer, which connects from here, or choose another model"
    return "choose another model, or give a function of your own among tools="


def given(tool: ServerTool, *settings: str) -> tuple[str, ...]:
    """The settings among these that are set: what a wire without fields for them loses."""
    return tuple(name for name in settings if getattr(tool, name))


def append_tool(body: Object, encoded: Encoded, target: Target) -> None:
    """Where `tools` is a list at the top of the body."""
    if encoded.tool is not None:
        body["tools"] = [*body.get("tools", ()), encoded.tool]
    for key, value in encoded.body.items():
        body[key] = [*body.get(key, ()), *value] if isinstance(value, list) else value


def with_betas(header: str, betas: Iterable[str]) -> str:
    """The value of a header that has `header` already, with these betas."""
    named = [each.strip() for each in header.split(",") if each.strip()]
    return ",".join(dict.fromkeys([*named, *betas]))
