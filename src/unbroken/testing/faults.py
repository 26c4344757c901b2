"""What goes wrong between a provider and its clients, as data: every fault of a server, row by row.

A fault changes the script (`rewrites`), the events (`event_faults`) or their bytes (`damage`), or it takes the place of
the response (a status). `faulty` serves them. The numbers of rows are those of docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

from unbroken.errors import UserError
from unbroken.models.scripted import Break, End
from unbroken.testing import damage, event_faults, rewrites
from unbroken.testing.event_faults import each_fragment, indexes
from unbroken.testing.fault import Fault, Instead, Outcome
from unbroken.testing.rewrites import changed, each_call
from unbroken.wires import WIRES, find_wire
from unbroken.wires.event_shapes import BOTH, EventShapes, Mode, TooLong, dumps
from unbroken.wires.values import Object

STREAMED: tuple[Mode, ...] = ("streamed",)
WHOLE: tuple[Mode, ...] = ("whole",)


def _wires(allow: Callable[[EventShapes], bool]) -> tuple[str, ...]:
    """The wires whose events allow a fault."""
    return tuple(name for name, wire in WIRES.items() if allow(wire.for_tests().events))


def _except(modes_of: Callable[[EventShapes], Sequence[Mode]]) -> tuple[tuple[str, Mode], ...]:
    """The wires and modes that are not among those of their wire."""
    return tuple(
        (name, mode) for name, wire in WIRES.items() for mode in BOTH if mode not in modes_of(wire.for_tests().events)
    )


LOOSE = _wires(lambda events: events.loose_fragments)
IN_FRAGMENTS = _wires(lambda events: events.in_fragments)
IN_ONE_EVENT = _wires(lambda events: not events.in_fragments)
DONE_ENDS = tuple(name for name, wire in WIRES.items() if wire.done_ends)
LEAKING = tuple(name for name, wire in WIRES.items() if wire.calls_leak)
ARGUMENTS_ARE_OBJECTS = _except(lambda events: events.text_arguments)

LONGEST = 20_000


def find_fault(name: str | Fault) -> Fault:
    """By its name; `reset@120` is a reset after byte 120."""
    if isinstance(name, Fault):
        return name
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - tests need not be typed
        raise UserError(f"{name!r} is no fault: give a name, as in fault='reset', or a Fault")
    word, at, number = name.partition("@")
    fault = FAULTS.get(word.strip().replace("-", "_"))
    if fault is None:
        close_ones = get_close_matches(word, FAULTS, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close_ones)}?" if close_ones else "`unbroken faults list` shows them all"
        raise UserError(f"there is no fault {word!r}; {hint}")
    if not at:
        return fault
    if not number.isdecimal() or not number.isascii():
        raise UserError(f"fault {name!r}: after the @ stands a number of bytes, as in {word}@120")
    return fault.at(after=int(number))


def close(after: int | None = None) -> Fault:
    """The connection ends after this byte of the body."""
    return FAULTS["close"].at(after=after)


def reset(after: int | None = None) -> Fault:
    return FAULTS["reset"].at(after=after)


def stall(after: int | None = None, seconds: float | None = None) -> Fault:
    """Silence after this byte, for ever or for some seconds."""
    return FAULTS["stall"].at(after=after, seconds=seconds)


def garbage(after: int | None = None) -> Fault:
    return FAULTS["garbage"].at(after=after)


def drip(seconds: float = 0.0) -> Fault:
    """One byte at a time, with this pause between them."""
    return FAULTS["drip"].at(seconds=seconds)


def status(code: int, retry_after: float | None = None) -> Fault:
    """A refusal in the format of the wire. Codes without a row of their own are permanent."""
    fault = FAULTS.get(f"status_{code}")
    if fault is None:
        what = f"typed:{'Unavailable' if code >= 500 else 'RequestRefused'}"
        fault = _status(code, "answered" if code >= 500 else what, what)
    return fault if retry_after is None else replace(fault.at(seconds=retry_after), name=f"{fault.name}_retry_after")


def context_too_long(spelling: str = "openai", longest: int = LONGEST) -> Fault:
    """Requests with a longer body are refused, as worded by some provider."""
    return find_fault(f"too_long_{spelling}").at(longest=longest)


def _status(code: int, outcome: Outcome, lasting: Outcome) -> Fault:
    words = _WORDS.get(code, "no")

    def body(wire: str) -> bytes:
        return dumps(find_wire(wire).error_body(code, words))

    title = f"the provider answers {code}: {words}"
    return Fault(f"status_{code}", 19, title, True, outcome, lasting, instead=Instead(code, body))


_WORDS = {
    408: "the request took too long",
    409: "another request is in the way",
    425: "too early",
    429: "too many requests",
    500: "internal error",
    502: "bad gateway",
    503: "the service is unavailable",
    529: "overloaded",
}
_PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head>\n<body><h1>Bad Gateway</h1></body></html>\n"
)

BROKEN: Outcome = "typed:ChainBroken"
UNREACHABLE: Outcome = "typed:Unreachable"


def _in_calls() -> Iterator[Fault]:
    """Rows 1 to 9: how calls are sent."""
    yield Fault("several_calls", 1, "several calls in one response")
    yield Fault(
        "calls_in_one_event",
        1,
        "several calls in one event",
        wires=_wires(lambda events: events.merges_calls),
        modes=STREAMED,
        bend=event_faults.all_calls_at_once,
    )
    yield Fault(
        "calls_interleaved",
        1,
        "the pieces of several calls in turns",
        wires=_wires(lambda events: events.interleaves),
        modes=STREAMED,
        bend=event_faults.interleaved,
    )
    yield Fault("no_index", 2, "no index", wires=IN_FRAGMENTS, modes=STREAMED, bend=indexes(lambda index: None))
    yield Fault("no_type", 2, "calls without their type", wires=LOOSE, bend=each_fragment(event_faults.without_type))
    yield Fault(
        "all_at_index_0", 3, "every call at index 0", wires=IN_FRAGMENTS, modes=STREAMED, bend=indexes(lambda _: 0)
    )
    yield Fault(
        "one_index_several_ids",
        3,
        "one index with several ids, in one event",
        wires=LOOSE,
        modes=STREAMED,
        bend=event_faults.at_one_index,
    )
    yield Fault(
        "index_0_without_ids",
        3,
        "every call at index 0, and no ids",
        wires=LOOSE,
        modes=STREAMED,
        bend=each_fragment(event_faults.at_index_0_without_ids),
    )
    from_1, sparse, text = indexes(lambda index: index + 1), indexes(lambda index: 2 * index), indexes(str)
    yield Fault("index_from_1", 4, "the first index is 1", wires=IN_FRAGMENTS, modes=STREAMED, bend=from_1)
    yield Fault("sparse_indexes", 4, "indexes with gaps", wires=IN_FRAGMENTS, modes=STREAMED, bend=sparse)
    yield Fault("index_as_string", 4, "an index sent as a string", wires=IN_FRAGMENTS, modes=STREAMED, bend=text)
    yield Fault(
        "id_and_name_repeated",
        5,
        "id and name in every piece",
        wires=LOOSE,
        modes=STREAMED,
        bend=event_faults.repeat_id_and_name(),
    )
    yield Fault(
        "empty_id_and_name",
        5,
        "an empty id and an empty name in later pieces",
        wires=LOOSE,
        modes=STREAMED,
        bend=each_fragment(event_faults.empty_id_and_name),
    )
    yield Fault("no_ids", 6, "calls without ids", rewrite=each_call(lambda call, _: changed(call, id="")))
    yield Fault(
        "ids_restart",
        6,
        "the ids of earlier turns again",
        rewrite=each_call(lambda call, number: changed(call, id=f"call_{number}")),
    )
    yield Fault(
        "one_id_for_all", 6, "one id for several calls", rewrite=each_call(lambda call, _: changed(call, id="call_1"))
    )
    yield Fault(
        "empty_arguments",
        7,
        "nothing in place of `{}` for a tool without arguments",
        wires=IN_FRAGMENTS,
        rewrite=each_call(rewrites.without_arguments),
        except_for=ARGUMENTS_ARE_OBJECTS,
    )
    yield Fault(
        "null_arguments",
        7,
        "null in place of `{}` for a tool without arguments",
        wires=IN_FRAGMENTS,
        rewrite=each_call(rewrites.without_arguments),
        bend=event_faults.null_arguments,
    )
    yield Fault(
        "null_args", 7, "null for a tool without arguments", wires=IN_ONE_EVENT, bend=event_faults.null_arguments
    )
    yield Fault(
        "object_arguments",
        7,
        "arguments as an object in place of text",
        wires=IN_FRAGMENTS,
        rewrite=each_call(lambda call, _: changed(call, pieces=1)),
        bend=event_faults.object_arguments,
        except_for=ARGUMENTS_ARE_OBJECTS,
    )
    yield Fault(
        "double_encoded",
        7,
        "arguments as JSON within JSON",
        wires=IN_FRAGMENTS,
        rewrite=each_call(rewrites.double_encoded),
        except_for=ARGUMENTS_ARE_OBJECTS,
    )
    yield Fault(
        "string_arguments",
        7,
        "arguments as text in place of an object",
        wires=_wires(lambda events: events.text_arguments != BOTH),
        bend=event_faults.string_arguments,
        except_for=_except(lambda events: [mode for mode in BOTH if mode not in events.text_arguments]),
    )
    yield Fault(
        "cut_by_length",
        8,
        "the token limit cuts a call",
        outcome="told",
        wires=IN_FRAGMENTS,
        rewrite=rewrites.cut_last_call(),
    )
    yield Fault(
        "malformed_call",
        8,
        "the provider could not read a call itself",
        True,
        lasting=BROKEN,
        wires=IN_ONE_EVENT,
        rewrite=rewrites.cut_last_call(),
    )
    yield Fault(
        "cut_by_lost_connection",
        8,
        "the connection is lost in the middle of a call",
        True,
        lasting=BROKEN,
        rewrite=rewrites.cut_last_call(Break()),
    )
    yield Fault(
        "text_after_arguments",
        9,
        "arguments that are whole, and then more text",
        outcome="told",
        wires=IN_FRAGMENTS,
        rewrite=rewrites.last_call(lambda call: [changed(call, raw=f"{call.raw}, and so on")]),
        except_for=ARGUMENTS_ARE_OBJECTS,
    )
    yield Fault(
        "placeholder_before_arguments",
        9,
        "`{}` before the arguments",
        outcome="told",
        wires=IN_FRAGMENTS,
        rewrite=rewrites.last_call(lambda call: [changed(call, raw=f"{{}}{call.raw}")]),
        except_for=ARGUMENTS_ARE_OBJECTS,
    )


def _at_the_end() -> Iterator[Fault]:
    """Rows 10 to 12: ends that are wrong or missing."""
    yield Fault(
        "finish_says_stop",
        10,
        "the finish reason says that there are no calls",
        wires=_wires(lambda events: bool(events.done_reason)),
        bend=event_faults.finish_without_calls,
    )
    yield Fault(
        "finish_says_calls_on_cut",
        10,
        "the finish reason says that all is well, and a call is cut",
        True,
        lasting="told",
        wires=_wires(lambda events: bool(events.done_reason)),
        rewrite=rewrites.cut_last_call(End("done")),
        except_for=ARGUMENTS_ARE_OBJECTS,
    )
    yield Fault(
        "completed_with_cut_item",
        10,
        "the response says that it is complete, and a call in it that it is not",
        outcome="told",
        wires=_wires(lambda events: events.calls_have_status),
        rewrite=rewrites.cut_last_call(End("done")),
    )
    yield Fault(
        "finish_twice",
        10,
        "two finish reasons",
        wires=_wires(lambda events: not events.calls_have_status),
        modes=STREAMED,
        bend=event_faults.finish_twice,
    )
    yield Fault(
        "usage_after_finish",
        10,
        "usage after the finish",
        wires=_wires(lambda events: events.usage_apart),
        modes=STREAMED,
        bend=event_faults.usage_last,
    )
    yield Fault(
        "no_finish_reason",
        10,
        "`[DONE]` and no finish reason",
        wires=DONE_ENDS,
        modes=STREAMED,
        bend=event_faults.no_finish,
    )
    yield Fault(
        "clean_end_without_finish",
        11,
        "the body ends cleanly, the response does not",
        True,
        lasting=BROKEN,
        bend=event_faults.clean_end,
    )
    yield Fault("close", 11, "the connection is closed", True, lasting=BROKEN, damage=damage.close)
    yield Fault("reset", 11, "the connection is reset", True, lasting=BROKEN, damage=damage.reset)
    yield Fault("hang_up", 11, "closed without an answer", True, lasting=UNREACHABLE, damage=damage.close, after=0)
    yield Fault("reset_at_once", 11, "reset without an answer", True, lasting=UNREACHABLE, damage=damage.reset, after=0)
    yield Fault("stall", 12, "silence in the middle", True, lasting=BROKEN, damage=damage.stall)
    yield Fault(
        "stall_at_once", 12, "silence from the start", True, lasting="typed:TimedOut", damage=damage.stall, after=0
    )


def _inside() -> Iterator[Fault]:
    """Rows 13 to 15 and 17: errors inside, nothing inside, something else beside."""
    error = event_faults.error_inside("the upstream failed, try again", 502)
    yield Fault("error_object_inside", 13, "an error object inside a 200", True, lasting=BROKEN, bend=error)
    yield Fault(
        "error_event_inside",
        13,
        "an error event inside a 200",
        True,
        modes=STREAMED,
        bend=event_faults.error_inside("overloaded", 529, named=True),
    )
    yield Fault(
        "error_at_the_end",
        13,
        "all is said, and then an error in place of the end",
        True,
        modes=STREAMED,
        bend=event_faults.error_at_the_end("internal error"),
    )
    yield Fault(
        "limit_inside",
        13,
        "too many requests, inside a 200",
        True,
        lasting=BROKEN,
        bend=event_faults.error_inside("too many requests", 429),
    )
    yield Fault(
        "refusal_inside",
        13,
        "an error inside a 200 that another try will not change",
        True,
        BROKEN,
        BROKEN,
        bend=event_faults.error_inside("the messages are invalid", 400),
    )
    yield Fault(
        "html_inside",
        13,
        "an HTML page inside a stream",
        True,
        modes=STREAMED,
        bend=event_faults.inside(_PAGE, ends=True),
    )
    yield Fault(
        "json_error_inside",
        13,
        "the body of an error inside a stream, not as an event",
        True,
        modes=STREAMED,
        bend=event_faults.bare_error_inside,
    )
    yield Fault("empty_response", 14, "an end, and nothing before it", True, lasting=BROKEN, rewrite=rewrites.nothing)
    yield Fault("empty_body", 14, "a 200 without a body", True, lasting=BROKEN, damage=damage.nothing)
    yield Fault(
        "only_reasoning", 14, "reasoning, and then the end", True, lasting=BROKEN, rewrite=rewrites.only_reasoning
    )
    yield Fault("blank_before_call", 14, "white space before a call", rewrite=rewrites.before_calls("\n\n"))
    yield Fault("text_before_call", 15, "text before a call", rewrite=rewrites.before_calls("One moment. "))
    for dialect, rewrite in rewrites.LEAKS.items():
        name = f"leaked_{dialect.replace('-', '_')}"
        yield Fault(name, 16, f"calls written as text, as {dialect} does", wires=LEAKING, rewrite=rewrite)
    yield Fault("provider_run_tools", 17, "a search that the provider ran itself", bend=event_faults.provider_run)


def _in_bytes() -> Iterator[Fault]:
    """Row 18: frames and bytes."""
    for name, title, change in (
        ("crlf", "lines end in CR LF", damage.crlf),
        ("comments", "keep-alive comments", damage.comments),
        ("no_space", "`data:` without a space", damage.no_space),
        ("unterminated_last_event", "the last event has no end", damage.unterminated),
    ):
        yield Fault(name, 18, title, modes=STREAMED, damage=change)
    for name, title, change in (
        ("utf8_split", "characters cut in the middle", damage.split_characters),
        ("drip", "one byte at a time", damage.drip),
    ):
        yield Fault(name, 18, title, damage=change)
    yield Fault("in_one_piece", 18, "the stream in one piece", modes=STREAMED, damage=damage.in_one_piece)
    yield Fault(
        "no_event_names",
        18,
        "no `event:` lines",
        wires=_wires(lambda events: events.named),
        modes=STREAMED,
        bend=event_faults.without_names,
    )
    yield Fault("json_array", 18, "one JSON array in place of events", modes=STREAMED, form="array")
    yield Fault("whole_for_stream", 18, "a whole body though a stream was asked for", modes=STREAMED, form="whole")
    yield Fault("stream_for_whole", 18, "a stream though a whole body was asked for", modes=WHOLE, form="stream")
    yield Fault("garbage", 18, "bytes that nobody wrote", True, lasting=BROKEN, damage=damage.garbage)
    yield Fault(
        "damaged_event", 18, "an event whose JSON is torn", True, lasting=BROKEN, bend=event_faults.damaged_event
    )


def _in_place() -> Iterator[Fault]:
    """Row 19: no response at all."""
    for code in _WORDS:
        fault = _status(code, "answered", "typed:RateLimited" if code == 429 else "typed:Unavailable")
        yield fault
        yield replace(fault, name=f"{fault.name}_retry_after", title=f"{fault.title}, with Retry-After", seconds=0.05)
    page = Instead(200, lambda _: _PAGE, "text/html")
    yield Fault("html_page", 19, "a 200 with an HTML page", True, lasting=BROKEN, instead=page)
    page = Instead(502, lambda _: _PAGE, "text/html")
    yield Fault("html_502", 19, "a 502 with an HTML page", True, lasting="typed:Unavailable", instead=page)
    text = Instead(200, lambda _: b"upstream connect error or disconnect/reset before headers\n", "text/plain")
    yield Fault("plain_text", 19, "a 200 with a line of text", True, lasting=BROKEN, instead=text)


def _too_long() -> Iterator[Fault]:
    """Row 35: many wordings of one refusal."""
    reports = {name: report for wire in WIRES.values() for name, report in wire.for_tests().events.too_long.items()}
    for name, report in reports.items():
        yield Fault(
            f"too_long_{name}",
            35,
            f"the context is too long, as {name} says it",
            True,
            lasting="typed:ContextTooLong",
            wires=_wires(lambda events, name=name: name in events.too_long),
            instead=Instead(report.status, lambda wire, report=report: dumps(_too_long_body(wire, report))),
            longest=LONGEST,
        )

    def shape(wire: str, status: int, message: str) -> Object:
        return _too_long_body(wire, next(iter(find_wire(wire).for_tests().events.too_long.values())))

    yield Fault(
        "too_long_inside",
        35,
        "the context is too long, and a 200 says so",
        True,
        lasting="typed:ContextTooLong",
        bend=event_faults.error_inside("", 400, shape=shape),
        longest=LONGEST,
    )


def _too_long_body(wire: str, report: TooLong) -> Object:
    body = find_wire(wire).error_body(report.status, report.message)
    body["error"] |= report.fields
    return body


def _in_values() -> Iterator[Fault]:
    """Rows 36 and 37: values that parsers fail on."""
    yield Fault("split_emoji", 36, "emoji as two halves in two events", modes=STREAMED, bend=event_faults.split_emoji)
    yield Fault("big_integers", 37, "integers beyond 64 bits", rewrite=each_call(rewrites.beyond_64_bits))


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for faults in (_in_calls, _at_the_end, _inside, _in_bytes, _in_place, _too_long, _in_values)
    for fault in faults()
}
"""All of them, in the order of their rows."""

__all__ = [
    "FAULTS",
    "Fault",
    "Mode",
    "Outcome",
    "close",
    "context_too_long",
    "drip",
    "find_fault",
    "garbage",
    "reset",
    "stall",
    "status",
]
