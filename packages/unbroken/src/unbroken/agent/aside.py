"""A request to a model beside the conversation of a run: a tool asks, and the run counts what it costs."""

from __future__ import annotations

from collections.abc import Callable

from unbroken.agent.limits import Account
from unbroken.clock import Clock
from unbroken.errors import ChainBroken
from unbroken.models.model import Model, closing
from unbroken.tools.results import ToolFailed
from unbroken_wires.deltas import AttemptFailed, Ended, PartialResponse, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Request, Usage
from unbroken_wires.transcript.shorten import CHARACTERS_PER_TOKEN, characters


async def ask_aside(
    account: Account, clock: Clock, model: Model, request: Request, spend: Callable[[Usage], None]
) -> tuple[Assistant, str]:
    """The complete answer, and the name of the model that gave it. Raises `ToolFailed` if the run has reached a limit,
    and `ChainBroken` if the answer broke off. `spend` counts what each attempt used."""
    await account.load_prices((model.name,), clock)
    if (reached := account.reached(clock, aside=True)) is not None:
        raise ToolFailed(f"the run has reached its limit ({reached[0]}), so its model is not asked")
    response = PartialResponse()
    usage: Usage | None = None

    def count(name: str) -> None:
        if usage is not None or not response.is_empty:  # else there was no answer
            used = usage or estimate(sum(map(characters, request.messages)), response.message)
            spend(account.priced(used, name, clock))

    ended = Ended(Verdict("unfinished", "the model stopped without an end"))
    try:
        async with closing(model.stream(request)) as batches:
            async for deltas in batches:
                for delta in deltas:
                    response.feed(delta)
                    if isinstance(delta, UsageReported) and delta.usage.total_tokens:
                        usage = delta.usage
                    elif isinstance(delta, AttemptFailed):
                        count(model.name)
                        usage = None
                    elif isinstance(delta, Ended):
                        ended = delta
    finally:
        count(ended.verdict.model or model.name)
    if ended.verdict.failed:
        raise ChainBroken(ended.verdict.reason, (ended.verdict,))
    return ended.message or response.message, ended.verdict.model or model.name


def estimate(sent: int, answer: Assistant) -> Usage:
    """The usage of a request with so many characters, if the provider does not report it."""
    return Usage(sent // CHARACTERS_PER_TOKEN + 1, characters(answer) // CHARACTERS_PER_TOKEN + 1, estimated=True)
