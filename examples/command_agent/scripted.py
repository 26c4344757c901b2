"""The model without a key: it understands a handful of wishes, in English and Chinese, and grants them step by step.

It is a function of the request and has no memory: the history shows how far a wish has come. The final answer is built
from the real results of its calls. If it does not understand a wish, it answers with what it can do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from command_agent.tools import TOOL_CHAIN_CONTINUE_PROMPT
from command_agent.wishes import CAN_DO, CAN_DO_ZH, is_chinese, understand
from unbroken import Assistant, Request, ToolCall, ToolMessage, ToolResult, User
from unbroken_testing import Answer, Call, Say, Step, Think, Uses

ERROR = "Error: "
NOT_EXECUTED = f"{ERROR}not executed"


def script(pace: float = 0.0) -> Callable[[Request], Answer]:
    """For `ScriptedModel` and the servers of `unbroken_testing`; a `pace` of 1 takes about as long as a real model."""

    def answer(request: Request) -> Answer:
        return [_paced(step, pace) for step in grant(request)]

    return answer


def grant(request: Request) -> list[Step]:
    """The next response to a wish."""
    wish, answered = _so_far(request)
    chinese = is_chinese(wish)
    thought: list[Step] = [Think(f"The wish is: {wish[:60]!r}. ")] if "reasoner" in request.model else []
    plan = understand(wish)
    if plan is None:
        return [*thought, Say(CAN_DO_ZH if chinese else f"I did not understand that. {CAN_DO}"), Uses(310, 60)]
    # Most wires can express "this is an error" only in the text itself.
    if refused := next((result.text for _, result in answered if result.text.startswith(ERROR)), ""):
        reason = refused.removeprefix(ERROR)
        return [*thought, Say(f"没有成功：{reason}。" if chinese else f"That did not work: {reason}."), Uses(420, 30)]
    if not request.final:
        for stage in plan.stages:
            left = [call for call in stage.calls if not _was_made(call, answered)]
            if left:
                words = "" if _was_rejected(request) else stage.words
                return [
                    *thought,
                    *([Say(words)] if words else []),
                    *left,
                    Uses(350 + 40 * len(answered), 24 * len(left)),
                ]
    results = {result.name or call.name: result.text for call, result in answered}
    return [*thought, Say(plan.answer(results)), Uses(380 + 40 * len(answered), 24)]


def _so_far(request: Request) -> tuple[str, list[tuple[ToolCall, ToolResult]]]:
    """The last wish, and the calls that have run since then."""
    wish, answered, calls = "", list[tuple[ToolCall, ToolResult]](), dict[str, ToolCall]()
    for message in request.messages:
        match message:
            case User() if message.text != TOOL_CHAIN_CONTINUE_PROMPT:
                wish, answered = message.text, []
            case Assistant():
                calls = {call.id: call for call in message.calls}
            case ToolMessage():
                ran = [result for result in message.results if not result.text.startswith(NOT_EXECUTED)]
                answered += [(calls[result.call_id], result) for result in ran if result.call_id in calls]
            case _:
                pass
    return wish, answered


def _was_rejected(request: Request) -> bool:
    """Whether a call did not run because its arguments were cut off: then it is made again, without text."""
    last = request.messages[-1]
    return isinstance(last, ToolMessage) and any(result.text.startswith(NOT_EXECUTED) for result in last.results)


def _was_made(call: Call, answered: Sequence[tuple[ToolCall, ToolResult]]) -> bool:
    arguments = json.loads(call.raw)
    return any(made.name == call.name and made.arguments == arguments for made, _ in answered)


def _paced(step: Step, pace: float) -> Step:
    match step:
        case Say() | Think():
            return replace(step, after=0.25 * pace, over=0.012 * len(step.text) * pace)
        case Call():
            arguments = json.loads(step.raw)
            return Call(step.name, arguments, after=0.03 * pace, over=0.06 * pace)
        case _:
            return step
