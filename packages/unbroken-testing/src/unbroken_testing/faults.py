"""All faults between a provider and its clients, as data. Each has the number of its section in docs/faults.md.

A fault changes the script (`rewrites`), the events (`event_faults`) or their bytes (`damage`), or it replaces the
response (a status). `faulty` serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

from unbroken.errors import UserError
from unbroken.models.scripted import Break, End
from unbroken_testing import damage, event_faults, rewrites
from unbroken_testing.event_faults import each_fragment, error_inside, indexes
from unbroken_testing.fault import Fault, Instead, Outcome
from unbroken_testing.rewrites import Rewrite, changed, cut_last_call, each_call
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.event_shapes import BOTH, EventShapes, Mode, TooLong, dumps
from unbroken_wires.wires.framing import JSON_LINES, SSE
from unbroken_wires.wires.json_access import Object

STREAMED: tuple[Mode, ...] = ("streamed",)
UNSTREAMED: tuple[Mode, ...] = ("unstreamed",)


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
MERGING = _wires(lambda events: events.merges_calls)
IN_TURNS = _wires(lambda events: events.interleaves)
WITH_REASONS = _wires(lambda events: bool(events.done_reason))
WITH_STATUS = _wires(lambda events: events.calls_have_status)
WITHOUT_STATUS = _wires(lambda events: not events.calls_have_status)
USAGE_APART = _wires(lambda events: events.usage_apart)
NAMED = _wires(lambda events: events.named)
SERVER_SENT = tuple(name for name, wire in WIRES.items() if wire.framing is SSE)
IN_LINES = tuple(name for name, wire in WIRES.items() if wire.framing in (SSE, JSON_LINES))
ARGUMENTS_ARE_OBJECTS = _except(lambda events: events.text_arguments)

LONGEST = 20_000


def find_fault(name: str | Fault) -> Fault:
    """By its name; `reset@120` is a reset after byte 120."""
    if isinstance(name, Fault):
        return name
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - tests need not be typed
        raise UserError(f"{name!r} is not a fault: give a name, as in fault='reset', or a Fault")
    word, at, number = name.partition("@")
    fault = FAULTS.get(word.strip().replace("-", "_"))
    if fault is None:
        close_ones = get_close_matches(word, FAULTS, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close_ones)}? " if close_ones else ""
        raise UserError(f"there is no fault {word!r}; {hint}`unbroken faults list` shows them all")
    if not at:
        return fault
    if not number.isdecimal() or not number.isascii():
        raise UserError(f"fault {name!r}: the @ must be followed by a number of bytes, as in {word}@120")
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
    """A refusal in the format of the wire. Codes that are not listed are permanent."""
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
    409: "another request is in progress",
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


_in_stream = partial(Fault, modes=STREAMED)
_loses = partial(Fault, damages=True, lasting=BROKEN)
"""The response is lost and has to be retried."""
_text_arguments = partial(Fault, wires=IN_FRAGMENTS, except_for=ARGUMENTS_ARE_OBJECTS)
_LEAKED = "calls written as text, as {} does"


def _new_ids(id: str) -> Rewrite:
    """`{}` stands for the number of the call."""
    return each_call(lambda call, number: changed(call, id=id.format(number)))


def _new_text(text: str) -> Rewrite:
    """`{}` stands for the arguments of the last call."""
    return rewrites.last_call(lambda call: [changed(call, raw=text.format(call.raw))])


CALLS = (  # rows 1 to 9: how calls are sent
    Fault("several_calls", 1, "several calls in one response"),
    _in_stream(
        "calls_in_one_event",
        1,
        "several calls in one event",
        wires=MERGING,
        change_events=event_faults.all_calls_at_once,
    ),
    _in_stream(
        "calls_interleaved",
        1,
        "the pieces of several calls in turns",
        wires=IN_TURNS,
        change_events=event_faults.interleaved,
    ),
    _in_stream("no_index", 2, "no index", wires=IN_FRAGMENTS, change_events=indexes(lambda index: None)),
    Fault(
        "no_type", 2, "calls without their type", wires=LOOSE, change_events=each_fragment(event_faults.without_type)
    ),
    _in_stream(
        "all_at_index_0", 3, "every call at index 0", wires=IN_FRAGMENTS, change_events=indexes(lambda index: 0)
    ),
    _in_stream(
        "one_index_several_ids",
        3,
        "one index with several ids, in one event",
        wires=LOOSE,
        change_events=event_faults.at_one_index,
    ),
    _in_stream(
        "index_0_without_ids",
        3,
        "every call at index 0, and no ids",
        wires=LOOSE,
        change_events=each_fragment(event_faults.at_index_0_without_ids),
    ),
    _in_stream(
        "index_from_1", 4, "the first index is 1", wires=IN_FRAGMENTS, change_events=indexes(lambda index: index + 1)
    ),
    _in_stream(
        "sparse_indexes", 4, "indexes with gaps", wires=IN_FRAGMENTS, change_events=indexes(lambda index: 2 * index)
    ),
    _in_stream("index_as_string", 4, "an index sent as a string", wires=IN_FRAGMENTS, change_events=indexes(str)),
    _in_stream(
        "id_and_name_repeated",
        5,
        "id and name in every piece",
        wires=LOOSE,
        change_events=event_faults.repeat_id_and_name(),
    ),
    _in_stream(
        "empty_id_and_name",
        5,
        "an empty id and an empty name in later pieces",
        wires=LOOSE,
        change_events=each_fragment(event_faults.empty_id_and_name),
    ),
    Fault("no_ids", 6, "calls without ids", rewrite=_new_ids("")),
    Fault("ids_restart", 6, "the ids of earlier turns again", rewrite=_new_ids("call_{}")),
    Fault("one_id_for_all", 6, "one id for several calls", rewrite=_new_ids("call_1")),
    _text_arguments(
        "empty_arguments",
        7,
        "nothing in place of `{}` for a tool without arguments",
        rewrite=each_call(rewrites.without_arguments),
    ),
    Fault(
        "null_arguments",
        7,
        "null in place of `{}` for a tool without arguments",
        wires=IN_FRAGMENTS,
        rewrite=each_call(rewrites.without_arguments),
        change_events=event_faults.null_arguments,
    ),
    Fault(
        "null_args",
        7,
        "null for a tool without arguments",
        wires=IN_ONE_EVENT,
        change_events=event_faults.null_arguments,
    ),
    _text_arguments(
        "object_arguments",
        7,
        "arguments as an object in place of text",
        rewrite=each_call(lambda call, _: changed(call, pieces=1)),
        change_events=event_faults.object_arguments,
    ),
    _text_arguments("double_encoded", 7, "arguments as JSON within JSON", rewrite=each_call(rewrites.double_encoded)),
    Fault(
        "string_arguments",
        7,
        "arguments as text in place of an object",
        wires=_wires(lambda events: events.text_arguments != BOTH),
        change_events=event_faults.string_arguments,
        except_for=_except(lambda events: [mode for mode in BOTH if mode not in events.text_arguments]),
    ),
    Fault(
        "cut_by_length",
        8,
        "the token limit cuts a call",
        outcome="reported",
        wires=IN_FRAGMENTS,
        rewrite=cut_last_call(),
    ),
    _loses(
        "malformed_call", 8, "the provider could not read a call itself", wires=IN_ONE_EVENT, rewrite=cut_last_call()
    ),
    _loses(
        "cut_by_lost_connection", 8, "the connection is lost in the middle of a call", rewrite=cut_last_call(Break())
    ),
    _text_arguments(
        "text_after_arguments",
        9,
        "complete arguments, followed by more text",
        outcome="reported",
        rewrite=_new_text("{}, and so on"),
    ),
    _text_arguments(
        "placeholder_before_arguments", 9, "`{}` before the arguments", outcome="reported", rewrite=_new_text("{{}}{}")
    ),
)

ENDS = (  # rows 10 to 12: ends that are wrong or missing
    Fault(
        "finish_says_stop",
        10,
        "the finish reason indicates no calls",
        wires=WITH_REASONS,
        change_events=event_faults.finish_without_calls,
    ),
    Fault(
        "finish_says_calls_on_cut",
        10,
        "the finish reason indicates success, but a call is cut off",
        True,
        lasting="reported",
        wires=WITH_REASONS,
        rewrite=cut_last_call(End("done")),
        except_for=ARGUMENTS_ARE_OBJECTS,
    ),
    Fault(
        "completed_with_cut_item",
        10,
        "the response is marked complete, but one of its calls is not",
        outcome="reported",
        wires=WITH_STATUS,
        rewrite=cut_last_call(End("done")),
    ),
    _in_stream("finish_twice", 10, "two finish reasons", wires=WITHOUT_STATUS, change_events=event_faults.finish_twice),
    _in_stream(
        "usage_after_finish", 10, "usage after the finish", wires=USAGE_APART, change_events=event_faults.usage_last
    ),
    _in_stream(
        "no_finish_reason", 10, "`[DONE]` and no finish reason", wires=DONE_ENDS, change_events=event_faults.no_finish
    ),
    _loses(
        "clean_end_without_finish",
        11,
        "the body ends cleanly, the response does not",
        change_events=event_faults.clean_end,
    ),
    _loses("close", 11, "the connection is closed", damage=damage.close),
    _loses("reset", 11, "the connection is reset", damage=damage.reset),
    _loses("hang_up", 11, "closed without an answer", lasting=UNREACHABLE, damage=damage.close, after=0),
    _loses("reset_at_once", 11, "reset without an answer", lasting=UNREACHABLE, damage=damage.reset, after=0),
    _loses("stall", 12, "silence in the middle", damage=damage.stall),
    _loses("stall_at_once", 12, "silence from the start", lasting="typed:TimedOut", damage=damage.stall, after=0),
)

INSIDE = (  # rows 13 to 17: errors inside, nothing inside, something else beside
    _loses(
        "error_object_inside",
        13,
        "an error object inside a 200",
        change_events=error_inside("the upstream failed, try again", 502),
    ),
    _in_stream(
        "error_event_inside",
        13,
        "an error event inside a 200",
        True,
        change_events=error_inside("overloaded", 529, named=True),
    ),
    _in_stream(
        "error_at_the_end",
        13,
        "the complete answer, then an error instead of the end",
        True,
        change_events=event_faults.error_at_the_end("internal error"),
    ),
    _loses("limit_inside", 13, "too many requests, inside a 200", change_events=error_inside("too many requests", 429)),
    _loses(
        "refusal_inside",
        13,
        "an error inside a 200 that a retry will not fix",
        outcome=BROKEN,
        change_events=error_inside("the messages are invalid", 400),
    ),
    _in_stream(
        "html_inside", 13, "an HTML page inside a stream", True, change_events=event_faults.inside(_PAGE, ends=True)
    ),
    _in_stream(
        "json_error_inside",
        13,
        "the body of an error inside a stream, not as an event",
        True,
        change_events=event_faults.bare_error_inside,
    ),
    _loses("empty_response", 14, "an end, and nothing before it", rewrite=rewrites.nothing),
    _loses("empty_body", 14, "a 200 without a body", damage=damage.nothing),
    _loses("only_reasoning", 14, "reasoning, and then the end", rewrite=rewrites.only_reasoning),
    Fault("blank_before_call", 14, "white space before a call", rewrite=rewrites.before_calls("\n\n")),
    Fault("text_before_call", 15, "text before a call", rewrite=rewrites.before_calls("One moment. ")),
    *(
        Fault(f"leaked_{name.replace('-', '_')}", 16, _LEAKED.format(name), wires=LEAKING, rewrite=rewrite)
        for name, rewrite in rewrites.LEAKS.items()
    ),
    Fault(
        "provider_run_tools",
        17,
        "a search that the provider ran itself",
        wires=_wires(lambda events: events.provider_runs),
        change_events=event_faults.provider_run,
    ),
)

BYTES = (  # row 18: frames and bytes
    _in_stream("crlf", 18, "lines end in CR LF", wires=IN_LINES, damage=damage.crlf),
    _in_stream("comments", 18, "keep-alive comments", wires=SERVER_SENT, damage=damage.comments),
    _in_stream("no_space", 18, "`data:` without a space", wires=SERVER_SENT, damage=damage.no_space),
    _in_stream("unterminated_last_event", 18, "the last event has no end", wires=IN_LINES, damage=damage.unterminated),
    Fault("utf8_split", 18, "characters cut in the middle", damage=damage.split_characters),
    Fault("drip", 18, "one byte at a time", damage=damage.drip),
    _in_stream("in_one_piece", 18, "the stream in one piece", damage=damage.in_one_piece),
    _in_stream("no_event_names", 18, "no `event:` lines", wires=NAMED, change_events=event_faults.without_names),
    _in_stream("json_array", 18, "one JSON array in place of events", wires=SERVER_SENT, form="array"),
    _in_stream("whole_for_stream", 18, "one body although a stream was requested", form="body"),
    Fault("stream_for_whole", 18, "a stream although one body was requested", modes=UNSTREAMED, form="stream"),
    _loses("garbage", 18, "random bytes", damage=damage.garbage),
    _loses("damaged_event", 18, "an event with incomplete JSON", change_events=event_faults.damaged_event),
)

VALUES = (  # rows 36 and 37: values that parsers fail on
    _in_stream("split_emoji", 36, "emoji as two halves in two events", change_events=event_faults.split_emoji),
    Fault("big_integers", 37, "integers beyond 64 bits", rewrite=each_call(rewrites.beyond_64_bits)),
)


def _in_place() -> Iterator[Fault]:
    """Row 19: no response at all."""
    for code in _WORDS:
        fault = _status(code, "answered", "typed:RateLimited" if code == 429 else "typed:Unavailable")
        yield fault
        yield replace(fault, name=f"{fault.name}_retry_after", title=f"{fault.title}, with Retry-After", seconds=0.05)
    page, bad_page = Instead(200, lambda _: _PAGE, "text/html"), Instead(502, lambda _: _PAGE, "text/html")
    text = Instead(200, lambda _: b"upstream connect error or disconnect/reset before headers\n", "text/plain")
    yield _loses("html_page", 19, "a 200 with an HTML page", instead=page)
    yield _loses("html_502", 19, "a 502 with an HTML page", lasting="typed:Unavailable", instead=bad_page)
    yield _loses("plain_text", 19, "a 200 with a line of text", instead=text)


def _too_long() -> Iterator[Fault]:
    """Row 35: many wordings of one refusal."""
    reports = {name: report for wire in WIRES.values() for name, report in wire.for_tests().events.too_long.items()}
    for name, report in reports.items():
        yield Fault(
            f"too_long_{name}",
            35,
            f"the context is too long, as worded by {name}",
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
        "the context is too long, reported in a 200",
        True,
        lasting="typed:ContextTooLong",
        change_events=error_inside("", 400, shape=shape),
        longest=LONGEST,
    )


def _too_long_body(wire: str, report: TooLong) -> Object:
    body = find_wire(wire).error_body(report.status, report.message)
    if report.fields:
        body["error"] |= report.fields
    return body


FAULTS: dict[str, Fault] = {
    fault.name: fault for fault in (*CALLS, *ENDS, *INSIDE, *BYTES, *_in_place(), *_too_long(), *VALUES)
}
"""All faults, in the order of their sections."""

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
