"""The history that a run is given: checked, repaired if it is broken, and its open calls handled."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from unbroken.agent.options import OpenCalls
from unbroken.errors import UserError
from unbroken.messages import Message, ToolMessage, ToolResult
from unbroken.transcript import NO_RESULT, Transcript, repair
from unbroken.wires.chain import validate_tool_chain

LOG = logging.getLogger("unbroken.agent")


def read_history(history: Sequence[Message] | Transcript | None, open_calls: OpenCalls) -> Transcript:
    if isinstance(history, Transcript):
        transcript = history
    elif history is None or history == ():
        return Transcript()
    else:
        _refuse_foreign(history)
        messages, edits = repair(history, answer_open=False)
        if edits:
            LOG.warning("The history that was handed in was broken and is mended: %s", "; ".join(map(str, edits)))
        transcript = _transcript(messages)
    if transcript.closed or open_calls == "execute":
        return transcript
    names = ", ".join(f"`{call.id}` ({call.name})" for call in transcript.open)
    if open_calls == "error":
        raise UserError(
            f"history= ends in calls without results: {names}; answer them, or use open_calls='execute' to run them, "
            f"'answer' to tell the model that they did not run"
        )
    LOG.warning("The history that was handed in ends in calls without results, answered as not executed: %s", names)
    for call in transcript.open:
        transcript.answer(ToolResult.of(call, NO_RESULT, error=True))
    return transcript


def _refuse_foreign(history: Sequence[Message]) -> None:
    if isinstance(history, str | bytes) or not isinstance(history, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        raise UserError(
            f"agent.run(history=…): expected the messages of a Result or a Conversation, or a Transcript, got "
            f"{type(history).__name__}"
        )
    for place, message in enumerate(history):
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            kind = type(message).__name__
            raise UserError(
                f"history= holds no message at {place}, but a value of the type {kind}: it takes what a Result or a "
                f"Conversation has in `messages`; messages of a provider are read by "
                f"`find_wire('openai-chat').decode_request({{'messages': …}}).messages`"
            )


def _transcript(messages: Sequence[Message]) -> Transcript:
    """Also accepts a history whose last round has only some of its results."""
    last = messages[-1] if messages else None
    if not isinstance(last, ToolMessage) or validate_tool_chain(messages):
        return Transcript(messages)
    transcript = Transcript(messages[:-1])
    for result in last.results:
        transcript.answer(result)
    return transcript
