"""The history that a caller gives a run: messages, a transcript, or stored messages of pydantic-ai; repaired if it is
broken."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import cast

from unbroken.agent.options import OpenCalls
from unbroken.errors import UserError
from unbroken_wires.messages import Message, ToolMessage, ToolResult
from unbroken_wires.transcript import NO_RESULT, Transcript, repair
from unbroken_wires.wires.chain import StoredHistory, may_be_stored, validate_tool_chain

LOG = logging.getLogger("unbroken.agent")


def read_history(history: Sequence[Message] | StoredHistory | Transcript | None, open_calls: OpenCalls) -> Transcript:
    if isinstance(history, Transcript):
        transcript = history
    elif history is None or history == ():
        return Transcript()
    else:
        given = own_messages(history)
        _refuse_foreign(given)
        messages, edits = repair(given, answer_open=False)
        if edits:
            LOG.warning("The given history was broken and has been repaired: %s", "; ".join(map(str, edits)))
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


def own_messages(history: Sequence[Message] | StoredHistory) -> Sequence[Message]:
    """The history that a caller gave. Stored messages of pydantic-ai become our own, and what cannot be carried is
    logged; anything else is returned as it is."""
    if not isinstance(history, Sequence) or not history or not may_be_stored(history[0]):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        return cast("Sequence[Message]", history)
    from unbroken_wires.wires.pydantic_ai import is_stored, read_stored  # noqa: PLC0415 - few histories are of that kind

    if not is_stored(history):
        return cast("Sequence[Message]", history)
    messages, left_out = read_stored(history)
    if left_out:
        LOG.warning("Stored messages of pydantic-ai have parts that were left out: %s", "; ".join(left_out))
    return messages


HOW_TO_READ = "messages of a provider are read by `find_wire('openai-chat').decode_request({'messages': …}).messages`"


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
                f"Conversation has in `messages`; {HOW_TO_READ}"
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
