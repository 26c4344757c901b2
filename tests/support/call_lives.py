"""The rules for the events of calls in every run: written, started, finished, adopted or dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unbroken import CallFinished, CallStarted, Event, RunFinished, ToolCallsDetected
from unbroken.events import CallAdopted, CallDropped, CallEvent, CallWritten


def assert_lives(events: Sequence[Event], died: bool = False) -> None:
    """All events of one run, from its start on. `died`: its process died, so calls may have no end."""
    written = Counter(event.call for event in events if isinstance(event, CallWritten))
    assert all(count == 1 for count in written.values()), "a number was given twice"
    known: set[int] = set()
    started: set[int] = set()
    over: set[int] = set()
    """Dropped, or continued by another call."""
    finished: Counter[int] = Counter()
    in_messages: set[int] = set()
    ids: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallsDetected):
            in_messages.update(call["call"] for call in event.calls)
        if not isinstance(event, CallEvent):
            continue
        assert event.call in known or isinstance(event, CallWritten), f"{event} is about a call that was never written"
        assert event.call not in over, f"{event} comes after the end of its call"
        match event:
            case CallWritten():
                known.add(event.call)
            case CallStarted():
                started.add(event.call)
                ids[event.call] = event.call_id
            case CallFinished():
                finished[event.call] += 1
            case CallAdopted():
                assert event.adopted in known
                assert event.adopted not in over, "two calls continue one"
                over.add(event.adopted)
            case CallDropped():
                assert event.call not in in_messages, f"{event}: it is in a message"
                assert event.call not in started or event.call in finished, f"{event}: it has started and not finished"
                over.add(event.call)
            case _:
                pass
    assert all(count == 1 for count in finished.values()), "a call finished twice"
    if died:
        return
    last = next((event for event in reversed(events) if isinstance(event, RunFinished)), None)
    waits = last is not None and last.stop_reason == "waiting"
    inside = [str(call["id"]) for call in last.pending if call.get("agent")] if last is not None else []
    started -= {call for call in started if any(id.startswith(f"{ids[call]}/") for id in inside)}
    assert started <= over | {*finished}, "a call has started, and nothing says how it ended"
    assert waits or known <= over | {*finished}, "a call was written, and nothing says what became of it"
