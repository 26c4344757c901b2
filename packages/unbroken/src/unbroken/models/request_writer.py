"""Writes a request for one provider: adapted to its quirks and to the rules of its model, in the words of its wire; and
reports what the request lost on the way. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from unbroken.errors import InvalidRequest
from unbroken.models.addresses import Endpoint
from unbroken.models.connect import Settings, with_settings
from unbroken.models.providers import PROFILES, find_provider
from unbroken.models.quirks import (
    fit_body,
    fit_request,
    fit_spelled,
    replace_lost_reasoning,
    rules_beside_tools,
    rules_of,
)
from unbroken.models.relay import RelayRequest, headers_for, verbatim_for
from unbroken.models.structured_output import OutputFitter
from unbroken_wires.frozen import quick
from unbroken_wires.messages import Json, Request, ServerTool, ToolSpec
from unbroken_wires.server_tools import DeferredTools
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.crossing import (
    Crossed,
    Target,
    cross,
    keep_limit,
    lost_media,
    not_sent,
    report,
    sets_something,
)
from unbroken_wires.wires.history_losses import HistoryCrossing, lost_from_answers
from unbroken_wires.wires.http_api import HttpApi
from unbroken_wires.wires.json_access import doubled_name, fit_name
from unbroken_wires.wires.rules import obey
from unbroken_wires.wires.server_tools import add_server_tools, with_betas

_SERVER_TOOLS = frozenset(("web_fetch", "code_execution"))
"""Settings of a client of another wire that may need a header of their own."""

_NONE: Mapping[str, str] = {}


@quick
@dataclass(frozen=True, slots=True)
class Written:
    """A request as it is sent, and how it was changed for the provider."""

    request: Request
    body: dict[str, Json]
    lost_reasoning: str = ""
    """What is done because the provider requires reasoning that the request lacks; empty if nothing."""
    left_out: tuple[str, ...] = ()
    """Fields that the model would refuse: left out, or replaced by what it accepts."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers that this request needs beside those of every request: a client's, and the betas of its server tools."""


class RequestWriter:
    """`headers` are those of a streaming request without a key: rules look at them."""

    def __init__(self, endpoint: Endpoint, settings: Settings, streams: bool, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._streams = streams
        self._headers = headers
        self._wire = find_wire(endpoint.wire)
        self._output = OutputFitter(
            endpoint.provider, endpoint.wire, endpoint.vendor, endpoint.model, endpoint.quirks.native_output
        )
        self._target = Target(endpoint.vendor, endpoint.model)
        self._accepted_tools: tuple[ToolSpec, ...] | None = None
        """Those of the last request that obeyed all rules: an agent sends the same ones again. 4 % of a run."""

    @property
    def manages(self) -> frozenset[str]:
        """What the provider can do by itself with a long history. Others that speak its wire cannot."""
        http = self._wire.http
        return http.manages if self._endpoint.vendor == http.provider else frozenset()

    def write(self, asked: Request) -> Written:
        endpoint = self._endpoint
        if asked.output is not None:
            asked = self._output.fit(asked)
        request = with_settings(asked, self._settings, endpoint.model, endpoint.wire, self._streams)
        request = fit_request(request, endpoint.quirks)
        if request.managed is not None and not self.manages:
            request = replace(request, managed=None)
        relayed = isinstance(request, RelayRequest)
        spelled = verbatim_for(request, endpoint.wire) if relayed else None
        crossed: Crossed | None = None
        lowered: Sequence[str] = ()
        wishes: Sequence[str] = ()
        if spelled is not None:
            body = fit_spelled(_as_spelled(spelled.body, request, self._wire.http), endpoint.quirks)
            if spelled.edited and self._wire.drop_moved_thinking is not None:
                self._wire.drop_moved_thinking(body, request)
        else:
            body = self._wire.encode_request(request)
            if asked.wire not in ("", endpoint.wire):
                request, body, crossed = self._cross(asked, request, body)
            if asked.wire and asked.sampling.max_tokens is not None:
                lowered = keep_limit(body, asked.sampling.max_tokens)
            if request.server_tools:
                wishes = self._add_server_tools(body, request)
            body = fit_body(body, request, endpoint.quirks)
        body, lost = replace_lost_reasoning(body, request, endpoint.quirks.lost_reasoning, self._wire)
        theirs = headers_for(request, endpoint.wire) if relayed or request.managed is not None else _NONE
        needs_beta = request.server_tools or (crossed is not None and not _SERVER_TOOLS.isdisjoint(crossed.asked))
        rewritten = (spelled is None or spelled.edited) and request.appended is not request.messages
        if needs_beta or (rewritten and "thinking" in body):
            theirs = {**theirs, **self._betas(body, theirs)}
        headers = {**self._headers, **theirs} if theirs else self._headers
        ours = spelled is None and "tools" not in request.extra
        known = ours and asked.tools is self._accepted_tools and not request.server_tools
        if not known and spelled is None:
            self._check_names(asked.tools)
        rules = (rules_beside_tools if known else rules_of)(endpoint.wire, endpoint.vendor, endpoint.model)
        said = () if request.wire else request.extra
        body, left_out = obey(rules, body, endpoint.model, headers, request.stream, said)
        if ours and not left_out:
            self._accepted_tools = asked.tools
        if lowered or wishes:
            left_out = [*lowered, *wishes, *left_out]
        if crossed is not None:
            left_out = report(crossed, body, left_out)
        elif not asked.wire:
            if sets_something(asked):
                left_out = [*left_out, *not_sent(asked, body, self._wire.crossing(), left_out)]
            left_out += lost_from_answers(asked.messages, endpoint.wire, _history_of)
        return Written(request, body, lost, tuple(left_out), theirs)

    def _add_server_tools(self, body: dict[str, Json], request: Request) -> list[str]:
        """The wishes about them that are lost."""
        wire = self._wire.server_tools()
        tools = [tool for tool in request.server_tools if not isinstance(tool, DeferredTools)]
        if request.final and wire is not None and wire.forbid is None:
            tools = []
        name = f"{self._endpoint.provider}:{self._endpoint.model}"
        lost = add_server_tools(body, tools, wire, self._target, f"{name} ({self._wire.name})", self._elsewhere)
        for tool in request.server_tools:
            if isinstance(tool, DeferredTools) and wire is not None and wire.defer is not None:
                wire.defer(body, frozenset(fit_name(name, self._wire.name_rule) for name in tool.names))
        if request.final and wire is not None and wire.forbid is not None and body.get("tools"):
            wire.forbid(body)
        return lost

    def _elsewhere(self, tool: ServerTool) -> str:
        """How to connect to the same provider so that it has the tool; empty if it has not."""

        def offers(name: str) -> bool:
            wire = WIRES[name].server_tools()
            return wire is not None and wire.encode(tool, self._target) is not None

        profile = find_provider(self._endpoint.vendor)
        for name in filter(offers, (profile.wire, *profile.other_wires)):
            return f'connect(…, wire="{name}")'
        for other in PROFILES:
            if other.base_url == profile.base_url and not other.elsewhere and offers(other.wire):
                return f'connect("{other.name}:{self._endpoint.model}", …)'
        return ""

    def _betas(self, body: dict[str, Json], theirs: Mapping[str, str]) -> dict[str, str]:
        wire = self._wire.server_tools()
        betas = wire.betas(body) if wire is not None else ()
        return {wire.beta_header: with_betas(theirs.get(wire.beta_header, ""), betas)} if wire and betas else {}

    @property
    def finds_tools(self) -> bool:
        """Does the model search deferred tools itself?"""
        wire = self._wire.server_tools()
        return wire is not None and wire.finds_tools(self._target)

    @property
    def later_system(self) -> bool:
        """May system text stand between the messages?"""
        return self._endpoint.model in self._wire.http.later_system

    def _cross(
        self, asked: Request, request: Request, body: dict[str, Json]
    ) -> tuple[Request, dict[str, Json], Crossed | None]:
        """A client of another wire: its settings are written into the body."""
        if not body.get(self._wire.http.messages_field):
            raise InvalidRequest("all messages are empty, and this model refuses empty ones: write a text")
        target, encode = self._target, self._wire.encode_request
        client = find_wire(asked.wire)
        crossed = cross(asked, body, client.crossing(), self._wire.crossing(), target)
        if crossed is not None and crossed.output is not None:
            in_words = self._output.in_words(request, crossed.output)
            if in_words is not None:
                request, body = in_words, encode(in_words)
                crossed = cross(asked, body, client.crossing(), self._wire.crossing(), target)
        if crossed is not None:
            crossed.lost += lost_media(request, body, encode, client.http.messages_field)
        return request, body, crossed

    def _check_names(self, tools: Sequence[ToolSpec]) -> None:
        if name := doubled_name((tool.name for tool in tools), self._wire.name_rule):
            raise InvalidRequest(f"two tools would be called `{name}` for this model: rename one of them")


def _as_spelled(body: Mapping[str, Json], request: Request, http: HttpApi) -> dict[str, Json]:
    """A client's body for this model, with its `model` and `stream` fields; on wires that have both in the URL, without
    them."""
    spelled = {**body}
    if "model" in body:
        spelled["model"] = request.model
    if http.stream_field and request.stream != http.streams(body):
        spelled[http.stream_field] = request.stream
    if not request.stream:
        spelled.pop("stream_options", None)
    return spelled


def _history_of(wire: str) -> HistoryCrossing:
    crossing = WIRES[wire].crossing() if wire in WIRES else None
    return HistoryCrossing() if crossing is None else crossing.history
