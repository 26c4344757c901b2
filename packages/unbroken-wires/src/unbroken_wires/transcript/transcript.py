"""The only place where a chain grows: every call gets exactly one result, in call order, before the next message.

A step that would break this raises `InvalidStep` and changes nothing. `repair` fixes a history that came in broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from unbroken_wires.errors import InvalidStep
from unbroken_wires.messages import Assistant, Message, System, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript.repairs import Drop, Insert, Link, Place, repairs

_WAY_OUT = "use `repair` on a history that came in broken"


class Transcript:
    """A history that cannot be broken. After an assistant message with calls it is open until each call has its
    result: all at once by `add(ToolMessage)`, or one at a time, in any order, by `answer`."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._calls: dict[str, ToolCall] = {}
        self._results: dict[str, ToolResult] = {}
        self.summarised = False
        """Whether there is a summary in it (see `summaries`)."""
        for message in messages:
            self.add(message)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history. The results of an open round are in it once the last of them is there."""
        return tuple(self._messages)

    @property
    def open(self) -> tuple[ToolCall, ...]:
        """The calls that still lack a result, in call order."""
        return tuple(call for id, call in self._calls.items() if id not in self._results)

    @property
    def answered(self) -> tuple[ToolResult, ...]:
        """The results that an open round has so far, in call order."""
        return tuple(self._results[id] for id in self._calls if id in self._results)

    @property
    def closed(self) -> bool:
        """Every call has its result: the model may be asked."""
        return not self._calls

    def add(self, message: Message) -> None:
        """Adds a message. Raises `InvalidStep` and changes nothing if it is not allowed here: text while a call is
        open, results that do not fit the calls."""
        match message:
            case System() | User():
                self._refuse_while_open(message)
                self._messages.append(message)
                if isinstance(message, User) and message.kept is not None:
                    self.summarised = True
            case Assistant():
                self._refuse_while_open(message)
                self._check_ids(message.calls)
                self._messages.append(message)
                self._calls = {call.id: call for call in message.calls}
            case ToolMessage():
                self._check_results(message.results)
                self._close(message)
            case _:
                assert_never(message)

    def replace_prompt(self, prompt: User) -> None:
        """Replaces the last message, which has to be the user's."""
        if not self._messages or not isinstance(self._messages[-1], User):
            raise self._invalid("the last message is not the user's, so there is no prompt to replace")
        self._messages[-1] = prompt

    def refuse_prompt(self, prompt: User, instead: User) -> None:
        """Removes this message and all that follows it, and adds the other one. No call may be open."""
        if not self.closed:
            raise self._invalid(f"a prompt cannot be removed: {self._expected()}")
        places = [place for place, message in enumerate(self._messages) if message is prompt]
        if not places:
            raise self._invalid("the prompt that was refused is not in it")
        del self._messages[places[-1] :]
        self.add(instead)

    def take_back(self) -> None:
        """Removes the last message, which has to be an answer without calls."""
        last = self._messages[-1] if self._messages else None
        if not isinstance(last, Assistant) or last.calls:
            raise self._invalid("the last message is not an answer without calls, so there is none to take back")
        self._messages.pop()

    def answer(self, result: ToolResult) -> None:
        """One result of the open round. They may come in any order; they enter together, in call order."""
        if result.call_id in self._results:
            raise self._invalid(f"call {self._name(result.call_id)} has a result already; each call gets exactly one")
        if result.call_id not in self._calls:
            raise self._invalid(f"no open call has the id `{result.call_id}`; {self._expected()}")
        self._results[result.call_id] = result
        if len(self._results) == len(self._calls):
            self._close(ToolMessage(tuple([self._results[id] for id in self._calls])))

    def _close(self, message: ToolMessage) -> None:
        self._messages.append(message)
        self._calls = {}
        self._results = {}

    def _refuse_while_open(self, message: Message) -> None:
        if self._calls:
            kind = type(message).__name__
            raise self._invalid(f"{kind} cannot be added while a call lacks its result; {self._expected()}")

    def _check_ids(self, calls: Sequence[ToolCall]) -> None:
        seen: set[str] = set()
        for position, call in enumerate(calls):
            if not call.id:
                raise self._invalid(f"call {position} (`{call.name}`) has no id")
            if call.id in seen:
                raise self._invalid(f"two calls of one message have the id `{call.id}`")
            seen.add(call.id)

    def _check_results(self, results: Sequence[ToolResult]) -> None:
        if self._results:
            answered = ", ".join(f"`{id}`" for id in self._results)
            raise self._invalid(f"{answered} got a result by `answer` already; answer the others one at a time too")
        seen: set[str] = set()
        for result in results:
            if result.call_id not in self._calls:
                raise self._invalid(f"no open call has the id `{result.call_id}`; {self._expected()}")
            if result.call_id in seen:
                raise self._invalid(f"call {self._name(result.call_id)} has two results")
            seen.add(result.call_id)
        if not self._calls:
            raise self._invalid("a ToolMessage without results, where no call is open")
        for id in self._calls:
            if id not in seen:
                raise self._invalid(f"call {self._name(id)} has no result")
        for id, result in zip(self._calls, results, strict=True):
            if id != result.call_id:
                raise self._invalid(f"the result of call {self._name(result.call_id)} is not in call order")

    def _expected(self) -> str:
        missing = self.open
        if not missing:
            return "no call is open"
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"open: {', '.join(self._name(call.id) for call in missing[:3])}{more}"

    def _name(self, id: str) -> str:
        return f"`{id}` (`{self._calls[id].name}`)"

    def _invalid(self, what: str) -> InvalidStep:
        return InvalidStep(f"message {len(self._messages)}: {what}; {_WAY_OUT}")


# The state of a chain of calls: how many calls and results there are, which calls are open, which results are orphans.
# The rules are those of `repairs`, so a history is complete exactly if none of its calls would get an error as its
# result. Our own messages and a `Transcript` are read here; raw messages of a wire are read in `wires.chain`.


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """`open` are the calls without a result, `orphan` the results that answer no call or one that has its result
    already; each with its `id`, its `name` and its `place`. The same number of calls and results says nothing: a
    result may be missing beside an orphan."""

    tool_calls: int
    tool_returns: int
    open: tuple[Link, ...] = ()
    orphan: tuple[Link, ...] = ()

    @property
    def complete(self) -> bool:
        """Every call has its result."""
        return not self.open


def status_of(links: Sequence[Link], *, whole: bool = True) -> ChainStatus:
    """`whole=False`: the history began before what is seen here, so a result may answer a call that is not in it."""
    at = {link.place: link for link in links}
    edits = repairs(links, whole=whole)
    return ChainStatus(
        sum(link.kind == "call" for link in links),
        sum(link.kind == "result" for link in links),
        tuple(at[edit.place] for edit in edits if isinstance(edit, Insert)),
        tuple(at[edit.place] for edit in edits if isinstance(edit, Drop)),
    )


def own_status(messages: Iterable[Message] | Transcript) -> ChainStatus:
    return status_of(list(_links(messages)))


def _links(messages: Iterable[Message] | Transcript) -> Iterable[Link]:
    if isinstance(messages, Transcript):
        # Results of the round that is open are not among its messages yet.
        messages = (*messages.messages, ToolMessage(messages.answered))
    for position, message in enumerate(messages):
        match message:
            case Assistant(calls=(_, *_)):
                for part, call in enumerate(message.calls):
                    yield Link("call", call.id, Place(position, part), position, call.name)
            case ToolMessage():
                for part, result in enumerate(message.results):
                    yield Link("result", result.call_id, Place(position, part), position, result.name)
            case _:
                yield Link("speech", None, Place(position, 0), position)
