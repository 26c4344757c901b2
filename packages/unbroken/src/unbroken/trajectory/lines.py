"""The lines of a recording: what each kind holds, and how values become lines and values again.

One JSON object a line; its `line` says what it is. `docs/recordings.md` describes every field. A reader ignores kinds
and fields that it does not know: only what changes the meaning of what was there before makes a new `SCHEMA`.

    run       first line: the run, its agent, its clock, its settings, the history that it began with
    tools     the tools of a turn, if they differ from those of the turn before
    history   the complete history, if the next request holds something else
    request   what the model was asked; of its messages only those that the last request did not have
    delta     what came of the answer
    pieces    deltas of its text, or of its reasoning, that came one after another, each with its time
    closed    its stream was closed, after its end or because the run left it
    failed    there was no answer: the error in its place
    result    what a tool gave, and the idempotency key of its call
    approval  what was decided about a call
    waits     a call that runs an agent, and the calls that this agent waits for
    inner     a line of the recording of an agent that runs as a tool
    cancelled a call, or the question about one, ended because it was cancelled
    time_up   the time limit of the run was reached
    event     an event of the run
    stage     `multi_tool_call`: several calls came in one answer, and how they ended
    resumed   the run continues here, in another process perhaps
    note      something that the recorder could not write
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from itertools import compress
from operator import attrgetter
from typing import Any, cast

import orjson

from unbroken.errors import ProviderError, UnbrokenError, UserError, named
from unbroken.events import CallChanged, CallProgress, InnerEvent, TodoUpdated, ToolLate
from unbroken.tools.approval import Allow, Approval, Deny, Edit, Wait
from unbroken.tools.results import CallWaits
from unbroken.tools.tool import Tool
from unbroken_wires.deltas import (
    AttemptFailed,
    CallArguments,
    CallOpened,
    CallReady,
    CallSpoiled,
    CallWithdrawn,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Restarted,
    ServerCallEnded,
    ServerCallOpened,
    ServerCallSeen,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken_wires.messages import (
    UNSET,
    Assistant,
    OneTool,
    Request,
    Sampling,
    ServerCall,
    ToolCall,
    ToolSpec,
    Usage,
)
from unbroken_wires.server_tools import server_tool_to_json
from unbroken_wires.transcript import from_json, to_json
from unbroken_wires.transcript.saved import read_call, write_call

SCHEMA = 3
LARGEST = 1e12
"""No count and no time in a run is as large."""

Line = dict[str, Any]

NAMES: dict[type[Any], str] = {
    TextDelta: "text",
    ReasoningDelta: "reasoning",
    CallOpened: "call_opened",
    CallArguments: "call_arguments",
    CallReady: "call_ready",
    CallSpoiled: "call_spoiled",
    CallWithdrawn: "call_withdrawn",
    ServerCallOpened: "server_call_opened",
    ServerCallSeen: "server_call",
    ServerCallEnded: "server_call_ended",
    UsageReported: "usage",
    Ended: "ended",
    AttemptFailed: "attempt_failed",
    Restarted: "restarted",
}
"""The name of each delta in a recording. (Bytes that a gateway passes on are not recorded.)"""


CAUSED_BY_TOOLS = (CallChanged, CallProgress, InnerEvent, TodoUpdated, ToolLate)
"""Events that are inputs of the run: a tool emits them."""


def encode(line: Mapping[str, Any]) -> bytes:
    """One line, without the newline."""
    try:
        return orjson.dumps(line)
    except (TypeError, ValueError):  # an integer beyond 64 bits, half a surrogate pair
        return exact(line)


def exact(line: Any) -> bytes:
    """The same for what the fast encoder refuses or changes: it writes infinity as null."""
    return json.dumps(line, separators=(",", ":"), default=fields_of).encode()


# Deltas


def split_pieces(line: Line) -> list[Line]:
    """Splits a line of pieces into single deltas; returns any other line unchanged. Pieces that arrived together are
    one event: all but the first are `joined`."""
    if line["line"] != "pieces":
        return [line]
    rest: Line = {"turn": line["turn"], "delta": line["delta"]} | ({"masked": True} if line.get("masked") else {})
    found: list[Line] = []
    for at, first, *others in line["pieces"]:
        found.append({"line": "delta", "at": at, "text": first, **rest})
        found += [{"line": "delta", "at": at, "text": text, "joined": True, **rest} for text in others]
    return found


def delta_fields(delta: Delta) -> Line:
    """Of any delta but the last."""
    match delta:
        case CallReady(call) | CallSpoiled(call):
            return {"call": write_call(call)}
        case UsageReported(usage):
            return {"usage": usage_fields(usage)}
        case AttemptFailed(verdict, wait, elsewhere, streamed):
            failed: Line = {"verdict": verdict_fields(verdict), "wait": wait, "elsewhere": elsewhere}
            return failed if streamed else {**failed, "streamed": False}
        case _:
            return fields_of(delta)


def ended_fields(ended: Ended, so_far: PartialResponse) -> Line:
    """`so_far` is what the deltas before it add up to: if the message is the same, the line only refers to it."""
    return {"verdict": verdict_fields(ended.verdict), **_ending(ended.message, so_far)}


def _ending(said: Assistant | None, so_far: PartialResponse) -> Line:
    if said is None:
        return {}
    if so_far.matches(said):
        if said.native is None:
            return {"as_heard": True}
        native = to_json([Assistant("", native=said.native)])[0].get("native")
        return {"as_heard": True, "native": native}
    return {"message": to_json([said])[0]}


def read_delta(line: Line, so_far: PartialResponse) -> Delta:
    """The delta again. `so_far` is what the deltas before it add up to."""
    match line["delta"]:
        case "text":
            return TextDelta(line["text"])
        case "reasoning":
            return ReasoningDelta(line["text"])
        case "call_opened":
            return CallOpened(line["index"], line["name"], line["id"])
        case "call_arguments":
            return CallArguments(line["index"], line["text"])
        case "call_ready":
            return CallReady(read_call(line["call"]))
        case "call_spoiled":
            return CallSpoiled(read_call(line["call"]))
        case "call_withdrawn":
            return CallWithdrawn(line["index"])
        case "server_call":
            return ServerCallSeen(_known(ServerCall, line["call"]))
        case "server_call_opened":
            return ServerCallOpened(_known(ServerCall, line["call"]))
        case "server_call_ended":
            return ServerCallEnded(_known(ServerCall, line["call"]), line["error"])
        case "usage":
            return UsageReported(_known(Usage, line["usage"]))
        case "ended":
            return Ended(read_verdict(line["verdict"]), _read_message(line, so_far))
        case "attempt_failed":
            verdict, streamed = read_verdict(line["verdict"]), line.get("streamed", True)
            return AttemptFailed(verdict, line["wait"], line["elsewhere"], streamed)
        case "restarted":
            return Restarted(tuple(line["dropped"]))
        case other:
            raise UserError(f"{other!r} is not a delta that this version knows")


def _read_message(line: Line, so_far: PartialResponse) -> Assistant | None:
    if line.get("as_heard"):
        saved: Line = {"role": "assistant", "content": ""}
        native = from_json([saved | ({"native": line["native"]} if "native" in line else {})])[0]
        return replace(so_far.message, native=cast("Assistant", native).native)
    if "message" not in line:
        return None
    return cast("Assistant", from_json([line["message"]])[0])


_COUNTS = tuple(each.name for each in fields(Usage) if each.name not in ("cost", "cache_saving"))
_counts_of = attrgetter(*_COUNTS)
_NO_USAGE = {name: getattr(Usage(), name) for name in _COUNTS}


def usage_fields(usage: Usage) -> Line:
    """The counts that are not 0. The cost is beside them: older versions expect whole numbers here."""
    counts = _counts_of(usage)
    return dict(compress(zip(_COUNTS, counts, strict=True), counts))


def full_usage(saved: Line) -> Line:
    """All counts."""
    return {**_NO_USAGE, "raw": {}, **saved}


def read_usage(saved: object, cost: object = None, cache_saving: object = None) -> Usage | None:
    """None if it is missing or invalid: losing the usage is better than losing the result."""
    if not isinstance(saved, dict):
        return None
    known = {name: value for name, value in cast("Line", saved).items() if name in _COUNTS}
    counted = (value for name, value in known.items() if name != "raw")
    if not all(isinstance(value, int) and 0 <= value < LARGEST for value in counted):
        return None
    return Usage(
        **known,
        cost=cost if isinstance(cost, float) and 0 <= cost < LARGEST else None,
        cache_saving=cache_saving if isinstance(cache_saving, float) and abs(cache_saving) < LARGEST else None,
    )


def read_verdict(saved: Line) -> Verdict:
    lists = {name: tuple(saved.get(name, ())) for name in ("open_calls", "left_out")}
    return _known(Verdict, {**saved, **lists})


def _known(kind: type[Any], saved: Line) -> Any:
    """A value from its fields; those that a later version has added are ignored."""
    names = _names(kind)
    return kind(**{name: value for name, value in saved.items() if name in names})


def fields_of(value: object) -> Line:
    """A dataclass as a dict, its fields in order."""
    return {name: getattr(value, name) for name in _names(value.__class__)}


def verdict_fields(verdict: Verdict) -> Line:
    """The fields of a verdict; of a good one only those that are set. Its turn is that of its line."""
    if verdict.kind != "whole" or verdict.reason or verdict.open_calls or verdict.error is not None or verdict.again:
        saved = fields_of(verdict)
        del saved["turn"]
        return saved
    saved: Line = {
        "kind": verdict.kind,
        "finish": verdict.finish,
        "meaning": verdict.meaning,
        "bytes_seen": verdict.bytes_seen,
        "text_seen": verdict.text_seen,
        "attempt": verdict.attempt,
    }
    if verdict.model:
        saved["model"] = verdict.model
    if verdict.left_out:
        saved["left_out"] = list(verdict.left_out)
    return saved


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


# Requests


def request_fields(request: Request) -> Line:
    """All of a request except its messages and tools; default values are left out."""
    line: Line = {}
    if request.choice is not None:
        line["choice"] = {"tool": request.choice.name} if isinstance(request.choice, OneTool) else request.choice
    if request.parallel is not None:
        line["parallel"] = request.parallel
    if request.final:
        line["final"] = True
    if not request.stream:
        line["stream"] = False
    if request.reasoning is not None:
        line["reasoning"] = request.reasoning
    if request.cache:
        line["cache"] = True
    if sampling := sampling_fields(request.sampling):
        line["sampling"] = sampling
    if request.extra:
        line["extra"] = request.extra
    if request.server_tools:
        line["server_tools"] = [server_tool_to_json(tool) for tool in request.server_tools]
    if request.model:
        line["model"] = request.model
    if request.wire:
        line["wire"] = request.wire
    return line


def spec_fields(spec: ToolSpec) -> Line:
    return {"name": spec.name, "description": spec.description, "parameters": spec.parameters, "strict": spec.strict}


def tool_fields(tool: Tool) -> Line:
    """A tool as the model sees it, and its declared properties. A function among them is only recorded as present."""
    spec = tool.spec
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "strict": spec.strict,
        "effect": tool.effect,
        "timeout": tool.timeout,
        "key": tool.key is not None,
        "overlap": tool.overlap,
        "dedupe": tool.dedupe,
        "cache": tool.cache,
        "retries": tool.retries,
        "repeat": tool.repeat,
        "approve": "sometimes" if callable(tool.approve) else tool.approve,
        "after_crash": "verify" if callable(tool.after_crash) else tool.after_crash,
        "client": tool.function is None,
        "queue": tool.queue,
        **({"role": tool.role} if tool.role else {}),
        "background": tool.background,
    }


def sampling_fields(sampling: Sampling) -> Line:
    """Those that are set."""
    if sampling is UNSET:
        return {}
    return {name: value for name, value in fields_of(sampling).items() if value not in (None, (), [])}


def read_sampling(saved: Line) -> Sampling:
    return _known(Sampling, {**saved, "stop": tuple(saved.get("stop", ()))})


# Errors and approvals


def error_fields(error: BaseException) -> Line:
    line: Line = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, UnbrokenError) and error.verdicts:
        line["verdicts"] = [fields_of(verdict) for verdict in error.verdicts]
    if isinstance(error, ProviderError):
        line |= {"status": error.status, "retry_after": error.retry_after}
    return line


def read_error(line: Line) -> Exception:
    """An error of the same type, if it is one of ours."""
    kind = named(line["error"])
    if kind is None:
        return ProviderError(f"{line['error']}: {line['message']}")
    try:
        error = kind(line["message"])
    except TypeError:
        error = ProviderError(line["message"])
    error.verdicts = tuple(map(read_verdict, line.get("verdicts", ())))
    if isinstance(error, ProviderError):
        error.status, error.retry_after = line.get("status", 0), line.get("retry_after")
    return error


def approval_fields(approval: Approval) -> Line:
    match approval:
        case Allow():
            return {"decision": "allow"}
        case Deny(reason):
            return {"decision": "deny", "reason": reason}
        case Edit(arguments):
            return {"decision": "edit", "arguments": arguments}
        case Wait():
            return {"decision": "wait"}


def waits_fields(waits: CallWaits) -> Line:
    """What a call waits for, in its saved form."""
    return {"pending": [_pending(call, waits) for call in waits.pending]}


def _pending(call: ToolCall, waits: CallWaits) -> Line:
    saved: Line = {**write_call(call), "agent": call.agent}
    if call.id in waits.needs_result:
        saved["needs"] = "result"
    if call.id in waits.uncertain:
        saved["uncertain"] = True
    return saved


def read_waits(line: Mapping[str, Any]) -> CallWaits:
    """The same again, without what its tool would need to continue."""
    pending: list[Line] = line["pending"]
    needs_result = frozenset(str(saved["id"]) for saved in pending if saved.get("needs") == "result")
    uncertain = frozenset(str(saved["id"]) for saved in pending if saved.get("uncertain"))
    calls = tuple(replace(read_call(saved), agent=str(saved.get("agent", ""))) for saved in pending)
    return CallWaits(calls, needs_result, uncertain)


def read_pending(saved: Mapping[str, Any]) -> ToolCall:
    """A call of an inner run that waits."""
    return ToolCall(str(saved["id"]), str(saved["name"]), saved.get("arguments"), agent=str(saved.get("agent", "")))


def read_approval(line: Line) -> Approval:
    match line["decision"]:
        case "allow":
            return Allow()
        case "edit":
            return Edit(line["arguments"])
        case "wait":
            return Wait()
        case _:
            return Deny(line.get("reason", ""))
