"""Whether a model gets the schema of an answer as its structured output, or as a tool that it calls to answer.

Profiles say which providers have structured output (`Quirks.native_output`); encoders and rules of the wires know the
models and schemas that it is not for. Nothing here knows a provider's name.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from unbroken.errors import ContextTooLong, RequestRefused, UserError
from unbroken.models.quirks import NativeOutput, rules_of
from unbroken_wires.messages import Assistant, OneTool, OutputSchema, Request, System, ToolSpec, User
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.body_paths import find, first_key
from unbroken_wires.wires.rules import Asked

NOT_BESIDE_TOOLS = "it accepts no schema in a request with tools"
NO_FORM = "its structured output cannot express this type"
_ABOUT_OUTPUT = re.compile(r"schema|format|output|json|mime|structured", re.I)

IN_WORDS = "When you give your final answer, write nothing but JSON that fits this JSON Schema:\n{schema}"
"""System line for a model that cannot get the schema in another way."""


def why_not_native(wire: str, vendor: str, model: str, output: OutputSchema, beside_tools: bool) -> str:
    """Why a model would not accept this schema of an answer; empty if it would. A sample request is written and judged
    by the rules."""
    body = _sample(wire, model, output, beside_tools)
    crossing = find_wire(wire).crossing()
    places = crossing.places.get("output", ()) if crossing is not None else ()
    if not any(find(body, place) for place in places):
        alone = beside_tools and any(find(_sample(wire, model, output, False), place) for place in places)
        return NOT_BESIDE_TOOLS if alone else NO_FORM
    rules, asked = rules_of(wire, vendor, model), Asked(body, model)
    broken = (rule for place in places for rule in rules.get(first_key(place), ()) if rule.check.broken(asked))
    return next((rule.says for rule in broken), "")


def _sample(wire: str, model: str, output: OutputSchema, with_tool: bool) -> dict[str, object]:
    tools = (ToolSpec("sample"),) if with_tool else ()
    return find_wire(wire).encode_request(Request((User.of("?"),), tools, output=replace(output, tool=""), model=model))


class OutputFitter:
    """For one model: decides for each request, and judges each schema once."""

    def __init__(self, provider: str, wire: str, vendor: str, model: str, native: NativeOutput) -> None:
        self._name = f"{provider}:{model}"
        self._model = wire, vendor, model
        self._native: NativeOutput = native
        self._judged: tuple[OutputSchema | None, bool, str] = None, False, ""
        """The last schema, whether there were tools beside it, and why it is not accepted."""

    def fit(self, request: Request) -> Request:
        """The request with the schema alone, or with the tool alone."""
        output = request.output
        if output is None:
            return request
        others = tuple(tool for tool in request.tools if tool.name != output.tool)
        if not output.tool:
            if why_not := self.why_not(output, bool(others)):
                raise UserError(f'`{self._name}` cannot answer with output=Output(…, via="native"): {why_not}')
            return request
        if not self._is_native(output, bool(others)) or _needs_tool(request, output.tool, bool(others)):
            return replace(request, output=None)
        choice, final, output = request.choice, request.final, replace(output, tool="")
        if isinstance(choice, OneTool) and choice.name not in {tool.name for tool in others}:
            choice, final = None, True  # it shall answer
        if not others:
            return replace(request, tools=(), choice=None, parallel=None, final=False, output=output)
        return replace(request, tools=others, choice=choice, final=final, output=output)

    def _is_native(self, output: OutputSchema, beside_tools: bool) -> bool:
        if self._native == "never" or (self._native == "alone" and beside_tools):
            return False
        return not self.why_not(output, beside_tools)

    def why_not(self, output: OutputSchema, beside_tools: bool) -> str:
        known, beside, why_not = self._judged
        if known is not output or beside is not beside_tools:
            why_not = why_not_native(*self._model, output, beside_tools)
            self._judged = output, beside_tools, why_not
        return why_not

    def in_words(self, request: Request, output: OutputSchema) -> Request | None:
        """For a client's schema: the request with it as a system line, if the model accepts it in no other way."""
        if output.schema is None or not self.why_not(output, bool(request.tools)):
            return None
        line = System.of(IN_WORDS.format(schema=json.dumps(output.schema, ensure_ascii=False)))
        return replace(request, messages=(*request.messages, line))


def _needs_tool(request: Request, tool: str, others: bool) -> bool:
    """Providers refuse a history with calls if there are no tools, or not that one."""
    called = {call.name for message in request.messages if isinstance(message, Assistant) for call in message.calls}
    return tool in called or bool(called and not others)


def explain_refusal(error: RequestRefused) -> None:
    """Adds the way out to the error of a provider that refused a request with a schema."""
    if isinstance(error, ContextTooLong) or not _ABOUT_OUTPUT.search(str(error)):
        return
    error.args = (
        f'{error}; if it has no structured output, ask for the answer as a call: output=Output(…, via="tool")',
    )
