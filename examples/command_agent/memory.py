"""Limits the history of a conversation: a model's context is limited, and a connection may last for days."""

from __future__ import annotations

from command_agent.tools import TOOL_CHAIN_CONTINUE_PROMPT
from unbroken import Conversation, User

MOST_WISHES = 40
KEPT = 20


def recent(chat: Conversation) -> Conversation:
    """The same conversation, or one with the latest wishes only. Many are dropped at once, so that the beginning of the
    history, which providers cache, seldom changes."""
    prompts = [(at, message) for at, message in enumerate(chat.messages) if isinstance(message, User)]
    starts = [at for at, message in prompts if message.text != TOOL_CHAIN_CONTINUE_PROMPT]
    if len(starts) <= MOST_WISHES:
        return chat
    return Conversation(chat.agent, chat.messages[starts[-KEPT] :], store=chat.store, deps=chat.deps)
