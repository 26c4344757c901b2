"""`@tool(…)`: a tool that the program itself calls. It runs as a model's call would (arguments are checked, its
time-out counts, who approves is asked), but its value stays a value, and its failure ends the program."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from unbroken.agent.emitter import Emitter
from unbroken.dph.environment import Environment
from unbroken.dph.events import BlockRun, InBlock
from unbroken.dph.keeping import ToolCallFailed, kept_value
from unbroken.dph.values import Answer, in_text
from unbroken.events import CallFinished, CallStarted, CallWritten, Event
from unbroken.messages import Json, ToolCall
from unbroken.middleware import as_middleware
from unbroken.tools.approval import Allow, Deny, Edit, Wait, ask
from unbroken.tools.caller import Prepared, ToolCaller, prepare
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox


async def call_tool(name: str, arguments: dict[str, Json], block: BlockRun, environment: Environment) -> Json:
    """The value that the tool gives."""
    tool = environment.toolbox.get(name)
    assert tool is not None  # whoever calls has looked
    if tool.function is None:
        raise ToolCallFailed(f"tool `{name}` runs at a client, and a program has none; call it in an /explore/")
    toolbox = Toolbox(environment.keep(tool))
    # A tool may change what it is given, and must not change a variable by it.
    call = ToolCall(f"call_{block.number}", name, _fitted(tool, deepcopy(arguments)))
    prepared = await _approved(prepare(call, toolbox), toolbox, environment)
    if prepared.refusal:
        raise ToolCallFailed(prepared.refusal)

    def tell(event: Event) -> None:
        environment.tell(InBlock(block, event))

    emitter = Emitter(environment.run, environment.clock)
    emitter.listen(as_middleware([tell]))
    told = block.number, call.id, name
    context = CallContext(
        environment.run,
        0,
        call.id,
        name,
        prepared.fingerprint,
        nth=block.number,
        number=block.number,
        deps=environment.deps,
        arguments=prepared.arguments,
        say=emitter.emit,
    )
    caller = ToolCaller(toolbox, environment.clock, environment.results)
    emitter.emit(CallWritten, *told, call.arguments)
    emitter.emit(CallStarted, *told, prepared.call.arguments)
    started = environment.clock.elapsed()
    try:
        result = await caller(prepared.call, context)
    finally:
        context.ended = True
    took = environment.clock.elapsed() - started
    emitter.emit(CallFinished, *told, took, result.error, result.text, result.outcome)
    if result.error:
        raise ToolCallFailed(f"tool `{name}` failed: {result.text.removeprefix('Error: ')}")
    return kept_value(result)


def _fitted(tool: Tool, arguments: dict[str, Json]) -> dict[str, Json]:
    """Where a tool wants a text, the value of a block stands for its answer."""
    wanted: Mapping[str, Json] = tool.spec.parameters.get("properties") or {}
    return {
        name: in_text(value) if isinstance(value, Answer) and wanted.get(name, {}).get("type") == "string" else value
        for name, value in arguments.items()
    }


async def _approved(prepared: Prepared, toolbox: Toolbox, environment: Environment) -> Prepared:
    """The call as it may run. What a person refuses ends the program, as any failure does."""
    if prepared.refusal or not prepared.asks:
        return prepared
    name = prepared.call.name
    if environment.on_approval is None:
        return replace(
            prepared, refusal=f"tool `{name}` needs an approval, and nobody is there to give it (on_approval=, --yes)"
        )
    match await ask(environment.on_approval, prepared.call):
        case Allow():
            return prepared
        case Deny(reason):
            return replace(prepared, refusal=f"the call of `{name}` was denied{f': {reason}' if reason else ''}")
        case Edit(arguments):
            return prepare(replace(prepared.call, arguments=arguments), toolbox)
        case Wait():
            return replace(prepared, refusal=f"the call of `{name}` waits for an approval, and a program cannot wait")
