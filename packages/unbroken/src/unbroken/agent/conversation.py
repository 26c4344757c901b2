"""`Conversation`: one history over many turns. It is always valid, even after a cancelled or failed turn, and can be
saved and loaded as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from unbroken.agent.agent import Agent
from unbroken.agent.given_history import HOW_TO_READ, own_messages, read_history
from unbroken.agent.options import Answers, DepsT, Options, ResumeOptions, Trim, TurnOptions
from unbroken.agent.output import Output
from unbroken.agent.prompts import Prompt, to_user
from unbroken.agent.ready_run import ReadyRun
from unbroken.agent.result import OutputT, Result
from unbroken.agent.streaming import BACKGROUND, RunStream
from unbroken.errors import CannotEncode, UserError
from unbroken.events import Sink
from unbroken.middleware import Middleware
from unbroken.tools.caller import failure
from unbroken.tools.handles import arrival
from unbroken_wires.messages import Json, Message, ToolCall, ToolMessage
from unbroken_wires.transcript import Transcript, from_json, repair, to_json
from unbroken_wires.validation import check_options, checked
from unbroken_wires.wires.chain import StoredHistory
from unbroken_wires.wires.jsontext import dumps

T = TypeVar("T")

SPOKE_INSTEAD = "not executed: the user spoke instead of answering it"


@checked
class Conversation(Generic[DepsT, OutputT]):
    """`await chat.say("…")`; `chat.messages` is the history. `trim=` is a function that chooses which part of a long
    history is sent; `chat.messages` keeps all of it. `store` and `deps` are what tools find in their `CallContext`;
    only the store is saved with the conversation. `agent` may be set to another between two turns.

    `messages` may also be what pydantic-ai stored. If they end in a call without a result, `say` without a prompt runs
    it, and with one it is answered as not executed; `Policy(open_calls=…)` decides otherwise."""

    def __init__(
        self,
        agent: Agent[DepsT, OutputT],
        messages: Sequence[Message] | StoredHistory = (),
        *,
        trim: Trim | None = None,
        store: dict[str, Any] | None = None,
        deps: DepsT | None = None,
    ) -> None:
        self.agent = agent
        self.store: dict[str, Any] = {} if store is None else store
        own = own_messages(messages)
        self._has_stored_calls = own is not messages
        """Whether open calls are those of a stored chat, not of a turn that waits."""
        if own and isinstance(own[0], dict):
            raise UserError(
                f"Conversation(messages=…): neither our messages nor stored ones of pydantic-ai; {HOW_TO_READ}"
            )
        self._transcript = read_history(own, "execute") if self._has_stored_calls else Transcript(repair(own)[0])
        self.deps = deps
        self._trim = trim
        self._waiting: Result[OutputT] | None = None
        self._going = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history. It ends in open calls while some are `pending`."""
        return self._transcript.messages

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Calls of the last turn that wait for an approval or for the client; continue with `resume`."""
        return self._waiting.pending if self._waiting else ()

    @overload
    async def say(self, prompt: Prompt | None = None, **options: Unpack[TurnOptions[DepsT]]) -> Result[OutputT]: ...
    @overload
    async def say(
        self, prompt: Prompt | None = None, *, output: type[T] | Output[T], **options: Unpack[TurnOptions[DepsT]]
    ) -> Result[T]: ...
    @overload
    async def say(
        self, prompt: Prompt | None = None, *, output: Any, **options: Unpack[TurnOptions[DepsT]]
    ) -> Result[Any]: ...
    async def say(
        self, prompt: Prompt | None = None, *, output: Any = None, **options: Unpack[TurnOptions[DepsT]]
    ) -> Result[Any]:
        """One turn. Without a prompt the last one is retried, for example after an error."""
        return await self._perform(self._next(prompt, options, output))

    def stream(
        self, prompt: Prompt | None = None, *, output: Any = None, **options: Unpack[TurnOptions[DepsT]]
    ) -> RunStream[OutputT]:
        """One turn as a stream of events. It begins when the first of them is read."""
        self._refuse_while_active()
        check_options("Conversation.stream", TurnOptions, options, also=("prompt", "output"))
        asked = None if prompt is None else to_user(prompt)

        kind = self.agent.output_of(output)

        async def perform(sinks: Sequence[Sink], outermost: Sequence[Middleware]) -> Result[Any]:
            return await self._perform(self._next(asked, options, kind), sinks, outermost)

        return RunStream(perform, self._answered, kind)

    def say_sync(
        self, prompt: Prompt | None = None, *, output: Any = None, **options: Unpack[TurnOptions[DepsT]]
    ) -> Result[OutputT]:
        """`say` for programs that cannot await."""
        return BACKGROUND.run(self.say(prompt, output=output, **options))

    async def resume(
        self, answers: Answers, *, output: Any = None, **options: Unpack[ResumeOptions[DepsT]]
    ) -> Result[OutputT]:
        """Resume the turn that is waiting."""
        return await self._perform(self._rest(answers, options, output))

    def resume_sync(
        self, answers: Answers, *, output: Any = None, **options: Unpack[ResumeOptions[DepsT]]
    ) -> Result[OutputT]:
        """`resume` for programs that cannot await."""
        return BACKGROUND.run(self.resume(answers, output=output, **options))

    def stream_resume(
        self, answers: Answers, *, output: Any = None, **options: Unpack[ResumeOptions[DepsT]]
    ) -> RunStream[OutputT]:
        """The same as `resume`, as a stream of events. Raises at once if no call waits."""
        kind = self.agent.output_of(output)
        ready = self._rest(answers, options, kind)
        return RunStream(partial(self._perform, ready), ready.messages, kind)

    def to_json(self) -> dict[str, Json]:
        """The history, the turn that waits, and the values of the `store` that are JSON."""
        store = {key: value for key, value in self.store.items() if _is_json(value)}
        waiting = self._waiting.to_json() if self._waiting else None
        messages = self.messages
        if not self._waiting and self._transcript.answered:  # of a stored chat whose last round is open
            messages = (*messages, ToolMessage(self._transcript.answered))
        return {"version": 1, "messages": to_json(messages), "waiting": waiting, "store": store}

    @classmethod
    def from_json(
        cls, agent: Agent[DepsT, OutputT], saved: Json, *, trim: Trim | None = None, deps: Any = None
    ) -> Self:
        """Restores what `to_json` returned, or the messages that pydantic-ai stores as JSON; raises `UserError` for
        anything else. `trim` and `deps` are not saved: pass them again."""
        if isinstance(saved, list) and saved:
            return cls(agent, cast("StoredHistory", saved), trim=trim, deps=deps)
        if not isinstance(saved, dict) or "messages" not in saved or "stop_reason" in saved:
            raise UserError("a saved conversation cannot be read: it is not what Conversation.to_json returns")
        fields = cast("dict[str, Any]", saved)
        if fields.get("version", 1) != 1:
            raise UserError("a saved conversation cannot be read: another version of unbroken wrote it; use that one")
        waiting = Result.from_json(fields["waiting"]) if fields.get("waiting") else None
        messages = () if waiting else from_json(fields["messages"])
        chat = cls(agent, messages, trim=trim, store=fields.get("store"), deps=deps)
        if waiting:
            chat._wait(waiting)
        return chat

    def save(self, path: str | Path) -> None:
        """Writes the file atomically: a crash leaves the old file. Only its owner may read it. Raises `UserError` if it
        cannot be written."""
        path = Path(path)
        new = path.with_name(f"{path.name}.new")
        try:
            new.unlink(missing_ok=True)
            with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(dumps(self.to_json()))
            new.replace(path)
        except OSError as error:
            raise UserError(f"the conversation cannot be saved in {path}: {error.strerror or error}") from None

    @classmethod
    def load(
        cls, agent: Agent[DepsT, OutputT], path: str | Path, *, trim: Trim | None = None, deps: Any = None
    ) -> Self:
        """Loads what `save` wrote, or a file with the messages of pydantic-ai; raises `UserError` if the file cannot be
        read or is not a conversation."""
        try:
            saved = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"the conversation {str(path)!r} cannot be loaded: {error}") from error
        return cls.from_json(agent, saved, trim=trim, deps=deps)

    def _next(self, prompt: Prompt | None, options: TurnOptions[DepsT], output: Any) -> ReadyRun:
        self._refuse_while_active()
        check_options("Conversation.say", TurnOptions, options, also=("prompt", "output"))
        prompt = None if prompt is None else to_user(prompt)  # before anything is changed, because it may raise
        if not self._has_stored_calls:
            for call in self._transcript.open:
                self._transcript.answer(failure(call, SPOKE_INSTEAD, "not_executed"))
        if self._waiting is not None:
            self._add_unread(self._waiting)
        self._waiting = None
        history: Options[DepsT] = {**self._own_options(), **options, "history": self._transcript}
        ready = self.agent.prepare(prompt, history, output)
        self._has_stored_calls = False
        return ready

    def _rest(self, answers: Answers, options: ResumeOptions[DepsT], output: Any) -> ReadyRun:
        self._refuse_while_active()
        if self._waiting is None:
            raise UserError("resume: no call of this conversation is waiting; continue with `say`")
        return self.agent.prepare_resume(self._waiting, answers, {**self._own_options(), **options}, output)

    def _answered(self) -> tuple[Message, ...]:
        return self.messages if self._transcript.closed else repair(self.messages)[0]

    def _own_options(self) -> ResumeOptions[DepsT]:
        own: ResumeOptions[DepsT] = {"store": self.store, "trim": self._trim}
        return own if self.deps is None else {**own, "deps": self.deps}

    async def _perform(
        self, ready: ReadyRun, sinks: Sequence[Sink] = (), outermost: Sequence[Middleware] = ()
    ) -> Result[Any]:
        self._refuse_while_active()
        self._going = True
        self._waiting = None
        self._transcript = ready.state.transcript
        try:
            result = await ready(sinks, outermost)
        finally:
            self._going = False
        if result.pending:
            self._waiting = result
        else:
            self._add_unread(result)
        return result

    def _add_unread(self, result: Result[Any]) -> None:
        """The history names handles whose results have not arrived: the next turn has to know how those calls ended."""
        unread = [(each.handle, each.result) for each in result.background if each.result and not each.delivered]
        if unread:
            self._transcript.add(arrival(unread))

    def _wait(self, waiting: Result[Any]) -> None:
        self._waiting = waiting
        self._transcript = waiting.transcript()

    def _refuse_while_active(self) -> None:
        if self._going:
            raise UserError(
                "a turn of this conversation is still active: wait for its end, or use another Conversation"
            )


def _is_json(value: Any) -> bool:
    try:
        dumps(value)
    except CannotEncode:
        return False
    return True
