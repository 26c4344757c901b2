"""From a call to its result: find the tool, bind the arguments, run it within its time-out, convert its value to text.

A tool's failure is a result, never an exception. `execution` decides when a call runs; it uses a `Caller`, a signature
that a recording or a durable step can have too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import format_exception
from types import CoroutineType
from typing import Any, Literal, TypeAlias, TypeVar, cast

import orjson

from unbroken.clock import Clock, TimeLimit
from unbroken.errors import RecordingFailed, UnbrokenError, UserError, without_passwords
from unbroken.events import ToolLate
from unbroken.tools.context import CallContext
from unbroken.tools.parameters import inexact
from unbroken.tools.results import RESULT_LIMIT, CallWaits, Retry, ToolFailed, ToolOutput, is_plain, to_parts
from unbroken.tools.schema import ArgumentsDoNotFit
from unbroken.tools.threads import THREADS, Job
from unbroken.tools.tool import Effect, Tool, plain_key
from unbroken.tools.toolbox import SEARCH, IterationFailed, Toolbox, collect
from unbroken.tools.value_checks import problem_of_result
from unbroken_wires.messages import Json, Outcome, Part, ToolCall, ToolResult

T = TypeVar("T")

Caller: TypeAlias = Callable[[ToolCall, CallContext[Any]], Awaitable[ToolResult]]

LOG = logging.getLogger("unbroken.tools")

ToolErrors: TypeAlias = Literal["full", "safe"]
"""What a model sees of an exception: its text, or only its type."""

SAFE = "the tool failed ({kind}); the details are not shown here"
AROUND = "the program around the tool failed ({kind}); the details are not shown here"

NOT_EXECUTED = "not executed"

QUOTED = 200
"""How many characters of refused arguments are quoted."""

CACHED = 1024
"""Maximum number of cached results."""
BLOCKED = 0.5
"""Seconds for which the event loop may be too busy to end a tool at its time-out before that is logged."""
MOST_LINKS = 64
"""Of a chain of exceptions, which may be a circle."""


@dataclass(slots=True)
class Prepared:
    """A call and everything needed to run it. With a `refusal` it never runs: that is its result."""

    call: ToolCall
    tool: Tool | None
    number: int = -1
    """The call's number, unique in its run."""
    arguments: dict[str, Any] | None = None
    key: Any = None
    fingerprint: str = ""
    """Name and arguments: calls with the same one are identical."""
    asks: bool = False
    """It needs an approval."""
    refusal: str = ""
    unfit: bool = False
    """The model wrote a call that cannot run: of an unknown tool, or with arguments that do not fit."""
    exception: BaseException | None = None
    """What a function of the tool, or of a type, raised when the call was prepared."""
    nth: int = 1
    """Its number among the identical calls of its message."""
    uncertain: bool = False
    """It had started when its process died, and its result is not recorded."""
    references: tuple[str, ...] = ()
    """Handles of background calls in its arguments: these are bound when those calls have ended."""

    @property
    def effect(self) -> Effect:
        return (
            "read" if self.tool is None or self.refusal else self.tool.effect
        )  # a call that cannot run changes nothing

    @property
    def overlap(self) -> bool:
        """May it run beside calls of other tools that declare the same?"""
        return self.tool is not None and bool(self.tool.overlap)

    @property
    def waits(self) -> bool:
        """It may have taken effect, and a person has to decide about it."""
        return self.uncertain and self.tool is not None and self.tool.crash_policy == "wait"


def prepare(call: ToolCall, toolbox: Toolbox, errors: ToolErrors = "full") -> Prepared:
    tool = toolbox.get(call.name)
    if call.arguments is None:
        return Prepared(call, tool, fingerprint=f"{call.name}\n{call.raw}", refusal=_cut(call))
    if tool is None:
        return Prepared(call, None, fingerprint=fingerprint(call), refusal=_unknown(call, toolbox), unfit=True)
    prepared = Prepared(call, tool, fingerprint=fingerprint(call))
    if problem := inexact(call):
        prepared.refusal = f"not executed: the arguments of `{call.name}` cannot be read in one way only: {problem}"
        prepared.unfit = True
        return prepared
    try:
        prepared.arguments = tool.bind(call)
        if tool.key is not None:
            prepared.key = plain_key(tool.key(tool.bind(call)))
        prepared.asks = tool.needs_approval(tool.bind(call) if callable(tool.approve) else {})
    except ArgumentsDoNotFit as error:
        prepared.refusal = f"the arguments of `{call.name}` do not fit: {error}"
        prepared.unfit = True
        prepared.exception = error.__cause__ and bare(error.__cause__)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign `key` or `approve` runs here
        prepared.refusal = f"tool `{call.name}` could not be prepared: {_for_model(call, error, errors)}"
        prepared.exception = bare(error)
    return prepared


def number_identical(calls: Iterable[Prepared]) -> None:
    """Gives each identical call its own idempotency key, which stays the same after a retry."""
    made: dict[str, int] = {}
    for prepared in calls:
        prepared.nth = made[prepared.fingerprint] = made.get(prepared.fingerprint, 0) + 1


def fingerprint(call: ToolCall) -> str:
    try:
        arguments = orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONEncodeError, RecursionError):  # integers beyond 64 bits, half a surrogate pair
        items = sorted((call.arguments or {}).items(), key=lambda item: str(item[0]))
        arguments = repr(items).encode("utf-8", "backslashreplace")
    return f"{call.name}\n{arguments.decode()}"


def failure(
    call: ToolCall, message: str, outcome: Outcome = "failed", exception: BaseException | None = None
) -> ToolResult:
    ended_as = None if outcome == "failed" else outcome
    content = to_parts(f"Error: {message}")
    return ToolResult(call.id, content, error=True, name=call.name, ended_as=ended_as, exception=exception)


def not_executed(call: ToolCall, reason: str) -> ToolResult:
    return failure(call, f"{NOT_EXECUTED}: {reason}", "not_executed")


def ran_and_failed(result: ToolResult) -> bool:
    """Did its tool run and fail? A call that the run cancelled did not."""
    return result.error and result.outcome not in ("not_executed", "cancelled")


def timed_out(seconds: float) -> str:
    return f"Execution timeout after {seconds:g}s"


def in_words(error: BaseException) -> str:
    """The error as text for a model, without passwords in addresses."""
    return without_passwords(_words_of(error))


def _for_model(call: ToolCall, error: BaseException, errors: ToolErrors) -> str:
    """The error text for the model. The traceback goes to the log, unless the tool has raised it for the model."""
    if isinstance(error, ToolFailed):
        return in_words(error)
    safe = errors == "safe"
    log_bug(
        logging.ERROR if safe else logging.INFO, error, "Tool call %s (id=%s) raised an exception", call.name, call.id
    )
    return SAFE.format(kind=type(error).__name__) if safe else in_words(error)


def _words_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it tried to end the program (exit code {error.code})"
    kind = type(error).__name__
    try:
        words = str(error) or kind
    except (Exception, SystemExit):  # noqa: BLE001 - a foreign exception's own __str__ may fail
        return kind
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return f"{words}: {_words_of(group.exceptions[0])}"
    return f"KeyError: {words}" if isinstance(error, KeyError) else words


def safe_words(error: BaseException) -> str:
    """What a model reads of an error in the program around a tool. The text of an error may hold anything."""
    if isinstance(error, (ToolFailed, UnbrokenError)):
        return in_words(error)
    return AROUND.format(kind=type(error).__name__)


def log_bug(level: int, error: BaseException, words: str, *named: object) -> None:
    """Logs a bug in the user's code with its traceback, without passwords in addresses."""
    if LOG.isEnabledFor(level):
        LOG.log(level, f"{words}:\n%s", *named, without_passwords("".join(format_exception(error))))


def bare(error: BaseException) -> BaseException:
    """The error without tracebacks, which keep the variables of all that was running alive."""
    link: BaseException | None = error
    for _ in range(MOST_LINKS):
        if link is None:
            break
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


async def run_safely(caller: Caller, call: ToolCall, context: CallContext[Any]) -> ToolResult:
    """The result of a caller that may break its promises not to raise and to return the result of this call."""
    try:
        result = await caller(call, context)
    except RecordingFailed:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign `Caller`
        if not isinstance(error, ToolFailed):
            log_bug(logging.WARNING, error, "Middleware around the tool call %s (id=%s) failed", call.name, call.id)
        return failure(call, safe_words(error), exception=bare(error))
    if problem := problem_of_result(result):
        return failure(call, f"what runs the tools gave {problem}")
    return result if result.call_id == call.id else replace(result, call_id=call.id)


class ToolCaller:
    """The `Caller` of a toolbox. It caches the results of tools with `cache`."""

    def __init__(
        self,
        toolbox: Toolbox,
        clock: Clock,
        cache: ResultCache,
        limit: int = RESULT_LIMIT,
        errors: ToolErrors = "full",
    ) -> None:
        self._toolbox = toolbox
        self._clock = clock
        self._cache = cache
        self._limit = limit
        self._errors: ToolErrors = errors

    async def __call__(self, call: ToolCall, context: CallContext[Any]) -> ToolResult:
        tool = self._toolbox.get(call.name)
        if tool is None:
            return failure(call, _unknown(call, self._toolbox), "not_executed")
        arguments = context.arguments
        if arguments is None:
            prepared = prepare(call, self._toolbox, self._errors)
            if prepared.arguments is None:
                return failure(call, prepared.refusal, "not_executed")
            arguments = prepared.arguments
        if context.known is not None:
            context.returned = replace(context.known, call_id=call.id)
            return context.returned
        if tool.cache is None:
            context.returned = await self._run(tool, call, arguments, context)
            return context.returned
        now = self._clock.elapsed()
        if kept := self._cache.find(tool, call, context, now):
            return kept
        context.returned = result = await self._run(tool, call, arguments, context)
        if not result.error:
            self._cache.keep(tool, call, context, now + tool.cache, result)
        return result

    async def _run(
        self, tool: Tool, call: ToolCall, arguments: dict[str, Any], context: CallContext[Any]
    ) -> ToolResult:
        result = await self._attempt(tool, call, arguments, context)
        if isinstance(result, ToolResult):
            return result
        for _ in range(tool.retries):
            if not isinstance(result, Exception) or isinstance(result, Retry):
                break
            context.attempt += 1
            result = await self._attempt(tool, call, tool.bind(call), context)
        if isinstance(result, ToolResult):
            return result
        if isinstance(result, Retry):
            return _asking_for_retry(call, result, context)
        return failure(call, _for_model(call, result, self._errors), exception=bare(result))

    async def _attempt(
        self, tool: Tool, call: ToolCall, arguments: dict[str, Any], context: CallContext[Any]
    ) -> ToolResult | BaseException:
        """What it returned or raised; a time-out is a result, because a retry would only take longer."""
        assert tool.function is not None  # a client tool never gets here
        if tool.signature.context:
            arguments = {**arguments, tool.signature.context: context}
        attempt = Attempt(call, context, tool.timeout, self._limit)
        return await attempt.outcome(partial(tool.function, **arguments), tool.signature.is_async)


@dataclass(slots=True)
class Attempt:
    """One run of a tool's function within its time-out, up to its result. User code runs in a thread (a synchronous
    tool, and iterating or converting its value), or is asynchronous."""

    call: ToolCall
    context: CallContext[Any]
    timeout: float | None
    limit: int
    """Maximum characters of the result."""
    time: TimeLimit = field(init=False)
    _job: Job | None = None

    async def outcome(self, function: Callable[[], Any], is_async: bool) -> ToolResult | BaseException:
        """What it returned or raised. After a time-out it is a failure, and `time.expired` is true."""
        try:
            return await self._run(function, is_async)
        except TimeoutError as error:
            if not self.time.expired:
                return error  # the tool's own
            limit = self.timeout or 0.0
            if (threads := self.leave_thread()) is not None:
                context = self.context
                context.say(ToolLate, context.number, context.call_id, self.call.name, limit, threads)
            return failure(self.call, timed_out(limit), "timed_out")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.leave_thread()
                raise
            return RuntimeError(f"something that the tool waited for was cancelled: {in_words(error)}")
        except (KeyboardInterrupt, CallWaits):
            raise  # on the loop the first is the user's Ctrl-C, whichever tool it hits
        except IterationFailed as error:
            return error.__cause__ or error
        except Raised as error:
            return error.error
        except BaseException as error:  # noqa: BLE001 - a foreign tool runs here: SystemExit, a panic of foreign code
            return error
        finally:
            if is_async and (late := self.time.late) > BLOCKED:
                LOG.warning(
                    "Tool %s (id=%s) could not be stopped at its time-out of %gs, and went on for %.1fs: it, or code "
                    "beside it, blocks the event loop. Await what takes long, or write `def` in place of `async def`",
                    self.call.name,
                    self.call.id,
                    self.timeout,
                    late,
                )

    async def _run(self, function: Callable[[], Any], is_async: bool) -> ToolResult:
        waits = not is_async and THREADS.crowded
        self.time = self.context.time = TimeLimit(None if waits else self.timeout)
        with self.time:
            value: Any = function() if is_async else await self._in_thread(partial(self._call, function), waits)
            if type(value) in _AWAITED or inspect.isawaitable(value):
                value = await value
            if type(value) is str:  # most are, and need nothing more
                return self._result(value)
            if isinstance(value, _Given):
                return value.result
            content = value.content if isinstance(value, ToolOutput) else value
            if isinstance(content, AsyncIterator):
                items = await collect(cast("AsyncIterator[Any]", content), self.context.report)
                value = replace(value, content=items) if isinstance(value, ToolOutput) else items
            if is_plain(value):
                return self._result(value)
            return await self._in_thread(partial(self._result, value), waits=False)

    async def _in_thread(self, work: Callable[[], T], waits: bool) -> T:
        job = self._job = Job(work)
        loop = asyncio.get_running_loop()
        if waits and self.timeout is not None:
            # Its time-out begins when it has a thread, not while it waits for one.
            begin = partial(self.time.begin, self.timeout)
            job.on_start = lambda: loop.call_soon_threadsafe(begin)
        value, error = await loop.run_in_executor(THREADS, job)
        if error is not None:
            raise Raised(error) if isinstance(error, _CANNOT_PASS) else error
        return value

    def _call(self, function: Callable[[], Any]) -> Any:
        value = function()
        content = value.content if isinstance(value, ToolOutput) else value
        waits = inspect.isawaitable(value) or isinstance(content, AsyncIterator)
        return value if waits else _Given(self._result(value))

    def _result(self, value: Any) -> ToolResult:
        call = self.call
        if isinstance(value, ToolResult):
            if problem_of_result(value):
                value = replace(value, content=self._parts(value.content))
            if problem := problem_of_result(value):
                return failure(call, f"the tool returned {problem}", exception=UserError(problem))
            return replace(value, call_id=call.id, name=call.name)
        data = value.data if isinstance(value, ToolOutput) else None
        return ToolResult(call.id, self._parts(value), name=call.name, data=data)

    def _parts(self, value: object) -> tuple[Part, ...]:
        return to_parts(value, self.limit, self._is_late)

    def _is_late(self) -> bool:
        return self._job is not None and self._job.late

    def leave_thread(self) -> int | None:
        """Gives up waiting for its thread. Returns how many threads are late now, or None if it has no thread."""
        return THREADS.give_up(self._job) if self._job is not None and self._job.running else None


@dataclass(slots=True)
class _Given:
    """What a tool returned in its thread, converted to text there."""

    result: ToolResult


class Raised(Exception):
    """A synchronous tool raised an exception that has another meaning on the loop; `error` is that exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


_AWAITED = (CoroutineType,)
_CANNOT_PASS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, StopAsyncIteration)


class ResultCache:
    """The results of tools with `cache`, by name and arguments, until they expire."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, ToolResult, tuple[Any, ...]]] = {}

    def find(self, tool: Tool, call: ToolCall, context: CallContext[Any], now: float) -> ToolResult | None:
        until, result, theirs = self._kept.get(fingerprint(call), (now, None, ()))
        if result is None or until <= now or [*map(id, _whose(tool, context))] != [*map(id, theirs)]:
            return None
        return replace(result, call_id=call.id, ended_as="cached")

    def keep(self, tool: Tool, call: ToolCall, context: CallContext[Any], until: float, result: ToolResult) -> None:
        key = fingerprint(call)
        self._kept.pop(key, None)
        self._kept[key] = (until, result, _whose(tool, context))
        while len(self._kept) > CACHED:
            del self._kept[next(iter(self._kept))]


def _whose(tool: Tool, context: CallContext[Any]) -> tuple[Any, ...]:
    """A result that depends on the context is valid only for these deps and this conversation. Another function with
    the same name (for example a closure over another user) never gets it."""
    return (tool.function, context.deps, context.store) if tool.signature.context else (tool.function,)


def _cut(call: ToolCall) -> str:
    if call.kind == "custom":
        return f"`{call.name}` was called with free text; call it with arguments as a JSON object"
    raw = call.raw[:QUOTED] + ("…" if len(call.raw) > QUOTED else "")
    return f"not executed: {call.problem or 'the arguments are not complete'}. Received: {raw}"


def _asking_for_retry(call: ToolCall, error: Retry, context: CallContext[Any]) -> ToolResult:
    most = context.most_retries
    may_retry = most is None or context.retries.get(call.name, 0) + 1 < most
    advice = "correct the call and make it again" if may_retry else "do not call it again"
    return failure(call, f"{in_words(error)}; {advice}", "retry", bare(error))


def _unknown(call: ToolCall, toolbox: Toolbox) -> str:
    close = toolbox.close_to(call.name)
    meant = f"; did you mean `{close[0]}`?" if close else ""
    search = f"; find others with `{SEARCH}`, before you call them" if SEARCH in toolbox else ""
    return f"unknown tool `{call.name}`; there are: {', '.join(toolbox.names) or 'none'}{meant}{search}"


def note(result: ToolResult, text: str) -> ToolResult:
    """The same result with a remark for the model."""
    return replace(result, content=(*result.content, *to_parts(f"\n\n{text}")))


def with_changed_arguments(result: ToolResult, call: ToolCall) -> ToolResult:
    """The result of a call that did not run as the model made it: the model reads how it ran."""
    told = f"[Its arguments were changed before it ran: {quote(call.arguments or {})}]"
    return result if result.text.endswith(told) else note(result, told)  # a recorded result has it already


def quote(arguments: dict[str, Json]) -> str:
    """Arguments for people, short."""
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"
