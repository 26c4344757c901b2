"""Summaries in a history: what is sent of a history that has one, and where a history may be cut for the next.

A summary is a message of the user with `kept` set, at the place where it was written. The history stays complete, and
everything that saves a history saves its summaries. Requests contain the first prompt, the last summary in place of all
that it stands for, and what came after. No call is ever separated from its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from unbroken_wires.messages import Assistant, Message, System, ToolMessage, User


def is_summary(message: Message) -> bool:
    return isinstance(message, User) and message.kept is not None


def is_prompt(message: Message) -> TypeGuard[User]:
    """A message of the user: neither a summary nor the results of background calls."""
    return isinstance(message, User) and message.kept is None and not message.arrived


def sent_part(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What is sent of this history: all of it, if it has no summary."""
    place = next((at for at in range(len(messages) - 1, -1, -1) if is_summary(messages[at])), None)
    if place is None:
        return tuple(messages)
    summary = messages[place]
    assert isinstance(summary, User)
    cut = may_cut(messages[:place], place - (summary.kept or 0))
    covered = messages[:cut]
    prompts = [at for at, message in enumerate(covered) if is_prompt(message)]
    head = [message for message in covered[: prompts[0] if prompts else cut] if isinstance(message, System)]
    head += [covered[at] for at in prompts[:1]]
    # The prompt that the run works on is not summarised either.
    task = [] if any(map(is_prompt, messages[cut:place])) else [covered[at] for at in prompts[1:][-1:]]
    return (*head, summary, *task, *(message for message in messages[cut:] if not is_summary(message)))


def may_cut(messages: Sequence[Message], place: int) -> int:
    """This place, or the nearest one before it, where the history may be cut: before a message that is neither a result
    nor the continuation of an answer."""
    place = max(min(place, len(messages)), 0)
    while 0 < place < len(messages):
        message, before = messages[place], messages[place - 1]
        continues = isinstance(message, Assistant) and isinstance(before, Assistant)
        if not (isinstance(message, ToolMessage) or is_summary(message) or continues):
            break
        place -= 1
    return place


def before_last_rounds(messages: Sequence[Message], rounds: int) -> int:
    """Where the last rounds begin: an answer of the model with all that follows it, and with its prompt, or the
    results that arrived for it."""
    left = rounds
    place = len(messages)
    for at in range(len(messages) - 1, -1, -1):
        if left <= 0:
            break
        message = messages[at]
        if isinstance(message, Assistant) and not (at and isinstance(messages[at - 1], Assistant)):
            left -= 1
            place = at
    if left > 0:
        return 0
    while place and isinstance(messages[place - 1], User) and not is_summary(messages[place - 1]):
        place -= 1
    return may_cut(messages, place)
