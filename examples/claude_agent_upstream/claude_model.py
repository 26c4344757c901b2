"""The model: each request starts, continues or rebuilds a session of the Claude Agent SDK and streams its answer."""

# pyright: basic, reportMissingImports=false
# Sessions need claude-agent-sdk, which is not in the environment in which the types are checked.

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from claude_agent_upstream.answer import Answer
from claude_agent_upstream.conversation import (
    Continued,
    Conversation,
    Returned,
    continued,
    history_key,
    idle_key,
    latest_calls,
    read,
    says_the_same,
)
from claude_agent_upstream.pool import Pool, Settings, Waiting
from claude_agent_upstream.session import Finished, Session, as_results
from unbroken.errors import ProviderError, Unavailable
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Request


class ClaudeAgentModel:
    """Claude through the Claude Agent SDK, with the client's tools as its only tools."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environment()
        self._pool = Pool(self.settings)

    @property
    def name(self) -> str:
        return f"claude-agent:{self.settings.model or 'default'}"

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        conversation = read(request, self.settings.model)
        history = history_key(request.messages)
        session = await self._continue(request, conversation) or await self._pool.start(conversation)
        answer, kept = Answer(request, conversation.tool_names), False
        try:
            while answer.outcome in ("open", "text"):
                event = await session.next(self.settings.silence)
                if isinstance(event, Finished):
                    break
                if deltas := answer.feed(event):
                    yield deltas
            if answer.outcome == "open":
                raise Unavailable("the Claude Agent SDK ended its turn without an answer", status=502)
            kept = self._keep(session, conversation, history, answer)
            yield answer.end(conversation.left_out)
        except ProviderError as error:
            if not answer.began:
                raise
            yield answer.break_off(str(error))
        finally:
            if not kept:
                self._pool.close(session)

    async def _continue(self, request: Request, conversation: Conversation) -> Session | None:
        """The session that has this conversation, with what is new given to it; None if there is none."""
        match continued(request):
            case Returned(history, said):
                waiting = self._pool.take_by_calls(call.id for call in said.calls)
                if waiting is None:
                    return None
                results = as_results(conversation.results)
                if (
                    results is None
                    or results.keys() != waiting.calls.keys()
                    or waiting.settings != conversation.settings
                    or waiting.history != history
                    or not says_the_same(said, waiting.said)
                    or waiting.session.closing
                ):
                    self._pool.close(waiting.session)  # its calls are answered, in a history that it does not have
                    return None
                waiting.session.give({waiting.calls[id]: result for id, result in results.items()})
                return waiting.session
            case Continued(history, said):
                waiting = self._pool.take_idle(idle_key(conversation, history, said.text))
                if waiting is None:
                    return None
                said_it = False
                try:
                    said_it = await waiting.session.say(conversation.messages[-1]["content"])
                finally:  # also if the client leaves meanwhile
                    if not said_it:
                        self._pool.close(waiting.session)
                return waiting.session if said_it else None
            case None:
                # Results and more, for example: the client has moved on in a way that a session cannot.
                if waiting := self._pool.take_by_calls(call.id for call in latest_calls(request)):
                    self._pool.close(waiting.session)
                return None

    def _keep(self, session: Session, conversation: Conversation, history: str, answer: Answer) -> bool:
        """Keeps the session for the client's next request, if it can be used for that."""
        if answer.outcome == "cut" or (answer.outcome == "text" and answer.hidden):
            return False  # an idle session is found by what the client has seen of it: there must be nothing else
        said = answer.message
        key = "" if answer.outcome == "calls" else idle_key(conversation, history, said.text)
        self._pool.keep(Waiting(session, conversation.settings, history, said, answer.calls, key))
        return True
