"""How a chain of calls stands: how many calls and results there are, which calls are open, which results are orphans.

Judged by the same rules as `repairs`, so a history is complete exactly when none of its calls would be given an error
for a result. Our own messages and a `Transcript` are read here; raw messages of a wire are read in `wires.chain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unbroken.messages import Assistant, Message, ToolMessage
from unbroken.transcript.repairs import Drop, Insert, Link, Place, repairs
from unbroken.transcript.transcript import Transcript


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
