"""An `Agent` as a model: the client asks, the agent runs its own tools and answers with text.

The client's tools are not offered to the agent's model: the agent has its own. The client receives the agent's text,
reasoning and usage, and none of its calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from unbroken.agent import Agent
from unbroken.events import ReasoningAdded, RunFinished, TextAdded, TextFinished, TextReplaced
from unbroken_wires.deltas import Delta, Ended, ReasoningDelta, Restarted, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Request, System, Usage


class AgentModel:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    @property
    def name(self) -> str:
        return f"agent:{self.agent.name}"

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        history = tuple(message for message in request.messages if not isinstance(message, System))
        text = before = ""
        async with self.agent.stream(history=history) as events:
            async for event in events:
                match event:
                    case TextAdded():
                        text += event.text
                        yield [TextDelta(event.text)]
                    case ReasoningAdded():
                        yield [ReasoningDelta(event.text)]
                    case TextFinished(final=False) if text:
                        text = before = f"{text}\n\n"  # text before a call and after it are two paragraphs
                        yield [TextDelta("\n\n")]
                    case TextReplaced():
                        text = before + event.text
                        yield [Restarted(()), TextDelta(text)]
                    case RunFinished():
                        yield [UsageReported(replace(_usage(event.usage), cost=event.cost))]
                    case _:
                        pass
        yield [Ended(Verdict("whole", finish="stop"), Assistant(text))]


def _usage(saved: dict[str, Any]) -> Usage:
    known = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
    return Usage(**{name: saved[name] for name in known if isinstance(saved.get(name), int)})
