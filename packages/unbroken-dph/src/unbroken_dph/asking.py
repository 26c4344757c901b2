"""The blocks that ask a model: `/prompt/`, `/explore/`, `/judge/`. Each is a run of an `Agent` with the settings of the
block. This module has the defaults of the language; the loop is the agent's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from unbroken.agent import Agent, Limits, Result
from unbroken.agent.emitter import Emitter
from unbroken.agent.options import Options, Policy
from unbroken.errors import AnswerInvalid, UserError
from unbroken.events import (
    CallFinished,
    CallStarted,
    CallWritten,
    Event,
    RequestRetried,
    RunFailed,
    ToolCallsDetected,
)
from unbroken.middleware import as_middleware
from unbroken.tools.approval import Allow, Deny, Edit, Wait, ask
from unbroken.tools.caller import Prepared, ToolCaller, prepare
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken_dph import flags
from unbroken_dph.arguments import Settings
from unbroken_dph.evaluating import Environment, choose_tools, no_such_choice
from unbroken_dph.outputs import BlockRun, DoesNotFit, InBlock, Output, correction, output_of
from unbroken_dph.text_calls import TextCalls
from unbroken_dph.values import Answer, ToolCallFailed, in_text, kept_value
from unbroken_wires.messages import Assistant, Json, Message, System, ToolCall, Usage, User

LOG = logging.getLogger("unbroken.dph")
NO_CHANGES: Mapping[str, Any] = {}
QUOTED = 200
"""Characters of an answer that an error quotes."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The result of a block."""

    value: Json
    messages: tuple[Message, ...]
    """The history, for later blocks with `history=true`."""
    stop_reason: str


async def ask_prompt(
    text: str, settings: Settings, history: Sequence[Message], block: BlockRun, environment: Environment
) -> BlockResult:
    """Sends one request without tools."""
    return await _Asking(settings, history, block, environment).ask(text, Toolbox())


async def ask_explore(
    text: str, settings: Settings, history: Sequence[Message], block: BlockRun, environment: Environment
) -> BlockResult:
    """Runs the tool loop until the model stops calling tools."""
    tools = choose_tools(environment.toolbox, settings.tools)
    return await _Asking(settings, history, block, environment).ask(text, tools)


async def ask_judge(
    text: str, settings: Settings, history: Sequence[Message], block: BlockRun, environment: Environment
) -> BlockResult:
    """Sends one request in which the model may choose one tool. Its result is the value of the block; no other request
    follows."""
    tools = choose_tools(environment.toolbox, settings.tools)
    asking = _Asking(settings, history, block, environment)
    chosen = Toolbox(*(environment.keep_values(tool) for tool in tools))
    result = await asking.run(text, chosen, None, {"final_answer": False}, several_calls=False, limits=Limits(rounds=1))
    if not result.calls:
        return BlockResult(result.text, result.messages, result.stop_reason)
    call = result.calls[0]
    if call.error:
        why = call.result.text.removeprefix("Error: ")
        raise ToolCallFailed(f"the model chose `{call.name}`, which failed: {why}")
    value = kept_value(call.result)
    return BlockResult(value, (*result.messages, Assistant(in_text(value))), "answered")


class _Asking:
    def __init__(
        self, settings: Settings, history: Sequence[Message], block: BlockRun, environment: Environment
    ) -> None:
        self._settings = settings
        self._block = block
        self._environment = environment
        self._history = _history(settings.history, history)
        self._turn = -1
        self._calls: list[int] = []
        """The calls of the response of this turn in call order, by number: what is known of it so far, then all."""

    async def ask(self, text: str, tools: Toolbox) -> BlockResult:
        form = self._settings.output
        output = output_of(form, self._environment.types) if form is not None else None
        result = await self.run(text, tools, output)
        if result.stop_reason == "tool_failure":
            self._environment.failed_blocks.append(self._block)
            if output is not None:  # the sentence that the block ends with is no value of that format
                raise ToolCallFailed(f"{result.text} The last one: {result.calls[-1].result.text}")
        if output is None:
            return BlockResult(self._answer(result), result.messages, result.stop_reason)
        try:
            value = output.read(result.text)
        except DoesNotFit as problem:
            self._history = result.messages
            # Only the answer has to be corrected: no tools are needed.
            choice = "none" if len(tools) else None
            policy = {"choice": choice, "on_all_failed": "continue"}
            result = await self.run(correction(problem, output), tools, output, policy)
            try:
                value = output.read(result.text)
            except DoesNotFit as again:
                answer = result.text[:QUOTED]
                raise AnswerInvalid(
                    f'the answer does not match output="{form}", even after a correction: {again}. It was: {answer!r}'
                ) from None
        return BlockResult(value, result.messages, result.stop_reason)

    async def run(
        self,
        text: str,
        tools: Toolbox,
        output: Output | None = None,
        policy: Mapping[str, Any] = NO_CHANGES,
        **changes: Any,
    ) -> Result:
        settings, environment = self._settings, self._environment
        if problem := no_such_choice(settings.tool_choice, tools):
            raise UserError(problem)
        model = environment.find_model(settings.model)
        if settings.mode == "prompt":
            model = TextCalls(model)
        several = settings.multi_tool_calls
        if several is None:
            several = flags.is_enabled(flags.ENABLE_PARALLEL_TOOL_CALLS)
        rounds = settings.max_rounds
        usual: dict[str, Any] = {
            # With one call at a time a single failure would end the block: instead the model reads the error.
            "on_all_failed": settings.on_all_failed or ("continue" if settings.mode == "prompt" else "stop"),
            "choice": settings.tool_choice,
            "share_all": True,
            "share_rounds": settings.enable_skill_deduplicator,
        }
        arguments: dict[str, Any] = {
            "name": f"{self._block.kind}[{self._block.name}]",
            "schedule": settings.tool_execution,
            "limits": Limits() if rounds is None else Limits(rounds=rounds),
            "several_calls": several and settings.mode != "prompt",
            "on_approval": environment.on_approval,
            "guidance": False,  # a program writes its own system prompt
            "record": environment.recorder,
            "policy": Policy(**{**usual, **policy}),
            "clock": environment.clock,
            **changes,
        }
        instructions = settings.system_prompt
        if output is not None:
            instructions = f"{instructions}\n\n{output.instruction}" if instructions.strip() else output.instruction
        options: Options = {"deps": environment.deps, "history": self._history, "sinks": (self._emit,)}
        result = await Agent(model, tools, instructions, **arguments).run(text, **options)
        environment.usage += result.usage
        environment.requests += result.requests
        if result.pending:
            names = ", ".join(f"`{call.name}`" for call in result.pending)
            raise UserError(f"{names} waits for an answer from outside, and a program cannot wait")
        return result

    def _answer(self, result: Result) -> Answer:
        new = [one for one in result.messages[len(self._history) :] if isinstance(one, Assistant)]
        think = "\n\n".join(message.reasoning for message in new if message.reasoning)
        answer = Answer(answer=result.text, think=think)
        if self._block.kind == "explore":
            answer["calls"] = [
                {"name": call.name, "arguments": call.arguments, "result": call.result.text, "error": call.error}
                for call in result.calls
            ]
        return answer

    def _emit(self, event: Event) -> None:
        if isinstance(event, RunFailed):  # there is no result with its usage
            self._environment.usage += Usage(**event.usage)
            self._environment.requests += event.requests
        elif self._block.kind == "explore" and LOG.isEnabledFor(logging.DEBUG):
            self._log(event)
        self._environment.emit(InBlock(self._block, event))

    def _log(self, event: Event) -> None:
        if event.turn != self._turn:
            self._turn, self._calls = event.turn, []
        match event:
            case CallWritten():
                self._calls.append(event.call)
            case RequestRetried():
                self._calls = []
            case ToolCallsDetected():
                self._calls = [call["call"] for call in event.calls]
                LOG.debug("explore[%s] detected %d tool calls: %s", self._block.name, event.count, list(event.names))
            case CallStarted():
                place = self._calls.index(event.call) + 1 if event.call in self._calls else len(self._calls)
                LOG.debug("Executing tool call %d/%d: %s", place, len(self._calls), event.name)
            case CallFinished(error=False, outcome="done", duplicate_of=""):
                LOG.debug("Tool call %s completed, response length: %d", event.name, len(event.text))
            case _:
                pass


def _history(wanted: bool | list[dict[str, str]], history: Sequence[Message]) -> tuple[Message, ...]:
    if isinstance(wanted, bool):
        return tuple(history) if wanted else ()
    roles: dict[str, Callable[[str], Message]] = {"user": User.of, "assistant": Assistant, "system": System.of}
    return tuple(roles[message["role"]](message["content"]) for message in wanted)


ASK: dict[str, Callable[[str, Settings, Sequence[Message], BlockRun, Environment], Awaitable[BlockResult]]] = {
    "prompt": ask_prompt,
    "explore": ask_explore,
    "judge": ask_judge,
}


# `@tool(…)`: a tool that the program itself calls. It runs like a call of a model (arguments are checked, its time-out
# applies, the approver is asked), but its value stays a value, and its failure ends the program.


async def call_tool(name: str, arguments: dict[str, Json], block: BlockRun, environment: Environment) -> Json:
    """Calls a tool and returns its value."""
    tool = environment.toolbox.get(name)
    assert tool is not None  # the caller has checked
    if tool.function is None:
        raise ToolCallFailed(f"tool `{name}` runs in a client, and a program has none; use it in an /explore/")
    toolbox = Toolbox(environment.keep_values(tool))
    # A tool may change its arguments, which must not change a variable.
    call = ToolCall(f"call_{block.number}", name, _fitted(tool, deepcopy(arguments)))
    prepared = await _approved(prepare(call, toolbox), toolbox, environment)
    if prepared.refusal:
        raise ToolCallFailed(prepared.refusal)

    def emit(event: Event) -> None:
        environment.emit(InBlock(block, event))

    emitter = Emitter(environment.run, environment.clock)
    emitter.listen(as_middleware([emit]))
    about = block.number, call.id, name
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
    emitter.emit(CallWritten, *about, call.arguments)
    started = environment.clock.elapsed()
    context.known = environment.results.find(tool, prepared.call, context, started) if tool.cache is not None else None
    if context.known is None:
        emitter.emit(CallStarted, *about, prepared.call.arguments)
    try:
        result = await caller(prepared.call, context)
    finally:
        context.ended = True
    took = 0.0 if context.known is not None else environment.clock.elapsed() - started
    emitter.emit(CallFinished, *about, took, result.error, result.text, result.outcome)
    if result.error:
        raise ToolCallFailed(f"tool `{name}` failed: {result.text.removeprefix('Error: ')}")
    return kept_value(result)


def _fitted(tool: Tool, arguments: dict[str, Json]) -> dict[str, Json]:
    """If a parameter of the tool is a string, the value of a block is replaced by its answer."""
    wanted: Mapping[str, Json] = tool.spec.parameters.get("properties") or {}
    return {
        name: in_text(value) if isinstance(value, Answer) and wanted.get(name, {}).get("type") == "string" else value
        for name, value in arguments.items()
    }


async def _approved(prepared: Prepared, toolbox: Toolbox, environment: Environment) -> Prepared:
    """The call as it may run. A denial ends the program, like any failure."""
    if prepared.refusal or not prepared.asks:
        return prepared
    name = prepared.call.name
    if environment.on_approval is None:
        return replace(
            prepared, refusal=f"tool `{name}` needs an approval, and nobody can be asked (on_approval=, --yes)"
        )
    match await ask(environment.on_approval, prepared.call):
        case Allow():
            return prepared
        case Deny(reason):
            return replace(prepared, refusal=f"the call to `{name}` was denied{f': {reason}' if reason else ''}")
        case Edit(arguments):
            return prepare(replace(prepared.call, arguments=arguments), toolbox)
        case Wait():
            return replace(prepared, refusal=f"the call to `{name}` waits for an approval, and a program cannot wait")
