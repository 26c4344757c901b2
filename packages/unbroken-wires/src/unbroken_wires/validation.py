"""Checks arguments at the public functions: an unknown option raises an error with a suggestion, a value of the wrong
type an error that says what is accepted. The rules are the annotations of the signature, so there is no second list of
types to maintain.

Annotations are read at the first call. From then on a call costs about 0.1 µs for each argument passed; default values
are not checked.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, wraps
from math import isnan
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from unbroken_wires.errors import UserError

# Suggestions for options that do not exist: misspellings, and the words that other libraries use.


OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("user_prompt", "input", "query", "message", "question"),
    "messages": ("history", "message_history", "chat_history", "previous_messages"),
    "history": ("message_history", "messages", "chat_history", "previous_messages"),
    "output": ("output_type", "result_type", "response_format", "response_model", "text_format", "output_schema"),
    "limits": (
        "limit",
        "usage_limits",
        "max_turns",
        "recursion_limit",
        "max_iterations",
        "max_steps",
        "max_rounds",
        "max_tool_calls",
        "request_limit",
        "tool_calls_limit",
        "max_execution_time",
        "timeout",
        "time_limit",
        "rounds",
        "calls",
        "tokens",
        "seconds",
        "cost",
    ),
    "rounds": ("max_turns", "recursion_limit", "max_iterations", "max_steps", "max_rounds", "request_limit", "turns"),
    "calls": ("max_tool_calls", "tool_calls_limit"),
    "tokens": ("total_tokens_limit", "max_tokens", "token_limit"),
    "seconds": ("timeout", "max_execution_time", "time_limit"),
    "instructions": ("system_prompt", "system", "system_message", "state_modifier", "prompt", "preamble"),
    "deps": ("context", "dependencies", "runtime_context", "run_context"),
    "sinks": ("event_stream_handler", "callbacks", "hooks", "event_handler", "on_event", "listeners"),
    "sampling": ("model_settings", "temperature", "top_p", "max_tokens", "seed", "stop", "generation_config"),
    "reasoning": ("reasoning_effort", "thinking", "thinking_budget", "effort"),
    "choice": ("tool_choice",),
    "several_calls": ("parallel_tool_calls",),
    "tools": ("functions", "toolsets", "mcp_servers", "plugins"),
    "on_approval": ("interrupt_before", "interrupt_on", "human_in_the_loop", "approval_handler"),
    "approve": ("needs_approval", "requires_approval", "approval", "confirm", "requires_confirmation"),
    "effect": ("readonly", "read_only", "read_only_hint"),
    "overlap": ("parallel", "concurrent", "concurrency_safe"),
    "schedule": ("parallel", "concurrent", "parallel_tools"),
    "middleware": ("caller", "middlewares", "companions", "guardrails"),
    "trim": ("history_processors", "pre_model_hook", "trimmer", "session_input_callback"),
    "record": ("trace", "tracing", "record_to", "on_failure", "record_failure"),
    "name": ("name_override", "agent_name", "tool_name"),
    "description": ("description_override", "tool_description"),
    "retries": ("max_retries", "tool_retries"),
    "attempts": ("max_retries", "retries"),
    "base_url": ("api_base", "openai_api_base", "endpoint", "host", "url"),
    "api_key": ("openai_api_key", "anthropic_api_key", "google_api_key", "key", "token"),
    "headers": ("default_headers", "extra_headers"),
    "query": ("default_query", "extra_query"),
    "extra": ("extra_body", "model_kwargs"),
    "max_tokens": ("max_completion_tokens", "max_output_tokens"),
    "stop": ("stop_sequences",),
    "total": ("timeout", "request_timeout"),
    "command": ("args", "cmd"),
    "opening": ("startup_timeout",),
}
"""Our name, and what pydantic-ai, openai-agents, LangChain, LangGraph, the openai SDK and others call it."""

PLACES: dict[str, str] = {
    "model": "Agent(model, …)",
    "tools": "Agent(model, tools=[…])",
    "instructions": "Agent(model, instructions=…)",
    "sampling": "Agent(model, sampling=Sampling(…))",
    "schedule": "Agent(model, schedule=…)",
    "reasoning": "Agent(model, reasoning=…)",
    "choice": "Agent(model, policy=Policy(choice=…))",
    "several_calls": "Agent(model, several_calls=…)",
    "on_approval": "Agent(model, on_approval=…)",
    "approve": "@tool(approve=True)",
    "record": "Agent(model, record=…)",
    "name": "Agent(model, name=…)",
    "history": "agent.run(…, history=…); a Conversation keeps its own",
    "output": "Agent(model, output=…) or agent.run(…, output=…)",
    "deps": "Agent(model, deps=…) or agent.run(…, deps=…)",
    "limits": "Agent(model, limits=Limits(…)) or agent.run(…, limits=Limits(…))",
    "trim": "Agent(model, trim=…)",
    **{
        name: f"Agent(model, policy=Policy({name}=…))"
        for name in (
            "on_all_failed",
            "final_answer",
            "cache",
            "result_limit",
            "share_all",
            "tool_errors",
            "nudge",
            "share_rounds",
            "continue_prompt",
            "empty_answer",
            "open_calls",
        )
    },
    "base_url": "connect(name, base_url=…)",
    "api_key": "connect(name, api_key=…)",
    "attempts": "connect(name, attempts=…)",
    "headers": "connect(name, headers=…)",
    "extra": "connect(name, extra=…)",
    "stream": "agent.stream(…) in place of agent.run(…)",
    "session": "Conversation(agent)",
    "memory": "Conversation(agent)",
    "checkpointer": "Conversation(agent), or agent.resume of a recording",
    "thread_id": "Conversation(agent)",
    "conversation_id": "Conversation(agent)",
    "handoffs": "Agent(model, handoffs=[…])",
    "deps_type": "CallContext[Deps] in the tools; run(…, deps=…) takes the value",
    "retries": "@tool(retries=…), Policy(tool_retries=…) or connect(name, attempts=…)",
    "capabilities": "middleware=[…], or tools=[WebSearch()] for what the provider runs",
    "instrument": "Agent(model, middleware=[OpenTelemetry()])",
    "deferred_tool_results": "agent.resume(result, answers)",
}
"""Where an option belongs, for a function that does not have it."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    "Agent": {
        **dict.fromkeys(("tool", "tool_plain"), "@tool on the function, and Agent(model, tools=[…])"),
        "system_prompt": "Agent(model, instructions=…), which may be a function",
        **dict.fromkeys(("output_validator", "result_validator"), "@agent.check_output"),
        **dict.fromkeys(("run_stream", "run_stream_events", "run_streamed", "iter", "astream"), "agent.stream(…)"),
        "ainvoke": "agent.run(…)",
        "invoke": "agent.run_sync(…)",
    },
    "Result": {
        **dict.fromkeys(("all_messages", "new_messages", "to_input_list"), "result.messages"),
        "all_messages_json": "result.to_json()",
        **dict.fromkeys(("data", "final_output"), "result.text, or result.output for a structured answer"),
        "run_id": "result.run",
    },
}
"""By class: attributes that other libraries have, and what there is in their place."""

EXAMPLES = {
    "sampling": "sampling=Sampling(…)",
    "effect": 'effect="read"',
    "overlap": "overlap=True",
    "approve": "approve=True",
    "middleware": "middleware=[…]",
}
"""How to write an option that other libraries call by a different name."""

LIMITS = ("rounds", "calls", "tokens", "seconds", "cost")

_OURS: dict[str, list[str]] = {}
for _ours, _others in OTHER_NAMES.items():
    for _other in _others:
        _OURS.setdefault(_other, []).append(_ours)


def suggestion(name: str, accepted: Collection[str]) -> str:
    """Returns a suggestion for an option that does not exist, or an empty string."""
    meant = _OURS.get(name, [])
    here = next((ours for ours in meant if ours in accepted), None)
    if here is not None:
        return f"did you mean `{_written(here, name, meant)}`?"
    there = next((PLACES[ours] for ours in (name, *meant) if ours in PLACES), None)
    if there is not None:
        return f"use {there}."
    if near := get_close_matches(name, list(accepted), 1):
        return f"did you mean `{near[0]}`?"
    # A misspelled option of another library also leads to ours.
    words = [other for other, ours in _OURS.items() if any(each in accepted for each in ours)]
    near = get_close_matches(name, words, 1, 0.8)
    return suggestion(near[0], accepted) if near else ""


def missing_attribute(owner: object, name: str) -> AttributeError:
    """The error for an attribute that does not exist, for `__getattr__`."""
    use = next(
        (known[name] for base in type(owner).__mro__ if name in (known := ATTRIBUTES.get(base.__name__, {}))), ""
    )
    words = f"{type(owner).__name__!r} object has no attribute {name!r}{f': use {use}' if use else ''}"
    return AttributeError(words, name=name, obj=owner)


def _written(ours: str, name: str, meant: Collection[str]) -> str:
    """How to write our option so that it does what `name` does elsewhere."""
    if ours == "limits":
        return f"limits=Limits({next((each for each in (name, *meant) if each in LIMITS), 'rounds')}=…)"
    if ours == "record" and name in ("on_failure", "record_failure"):
        return "record=Recorder(DIR, on_failure=…)"
    return EXAMPLES.get(ours, ours)


T = TypeVar("T")
Test: TypeAlias = Callable[[Any], bool]
_SHOWN = 40
"""Characters of a value that an error message quotes."""


@overload
def checked(target: T, /) -> T: ...


@overload
def checked(*, name: str = "", error: type[UserError] = UserError, unknown: str = "") -> Callable[[T], T]: ...


def checked(target: Any = None, /, *, name: str = "", error: type[UserError] = UserError, unknown: str = "") -> Any:
    """A decorator for a function, or for a class whose constructor is to be checked. `name` is what error messages call
    it, `error` the type they have; `unknown` is added to the message about an option that does not exist."""

    def wrap(target: Any) -> Any:
        called = name or target.__name__
        if isinstance(target, type):
            made: Any = target
            made.__init__ = _checking(made.__init__, _Rules(made.__init__, called, error, unknown))
            return made
        return _checking(target, _Rules(target, called, error, unknown))

    return wrap if target is None else wrap(target)


def check_options(
    owner: str,
    kind: type,
    options: Mapping[str, Any],
    *,
    unchecked: Collection[str] = (),
    hidden: Collection[str] = (),
    also: Collection[str] = (),
    error: type[UserError] = UserError,
) -> None:
    """Checks options that are passed as a dict. `kind` is their TypedDict, or a dataclass that has them as fields in
    addition to those in `hidden`. The values of `unchecked` options are checked elsewhere. `also` are parameters of the
    function that takes the dict: an error message lists them too."""
    if options:
        tests = _tests_of(kind)
        for name, value in options.items():
            if name not in tests or name in hidden:
                raise error(_unknown(owner, name, [*also, *(each for each in tests if each not in hidden)]))
            test = tests[name]
            if test is not None and name not in unchecked and not test(value):
                raise error(_mistaken(owner, name, value, get_type_hints(kind)[name]))


def fits(value: object, hint: Any) -> bool:
    """Whether a value fits an annotation, as far as that can be known."""
    test = _test_of(hint)
    return test is None or test(value)


def check_fields(owner: str, value: object) -> None:
    """Checks the fields of a dataclass that does not check itself because it is built too often."""
    for name, test in _tests_of(type(value)).items():
        given = getattr(value, name)
        if test is not None and not test(given):
            raise UserError(_mistaken(owner, name, given, get_type_hints(type(value))[name]))


class _Rules:
    """What a function accepts, read from its signature at the first call."""

    def __init__(self, function: Callable[..., Any], name: str, error: type[UserError], unknown: str) -> None:
        self._function = function
        self._name = name
        self._error = error
        self._more = unknown
        self._hints: dict[str, Any] = {}
        self._tests: dict[str, Test | None] = {}
        self._positional: tuple[str, ...] = ()
        self._open = False
        """Whether any keyword is accepted."""

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._tests:
            self._read()
        tests = self._tests
        for name, value in zip(self._positional, args, strict=False):
            test = tests[name]
            if test is not None and not test(value):
                raise self._error(_mistaken(self._name, name, value, self._hints[name]))
        for name, value in kwargs.items():
            if name in tests:
                test = tests[name]
                if test is not None and not test(value):
                    raise self._error(_mistaken(self._name, name, value, self._hints[name]))
            elif not self._open:
                known = [each for each in tests if each != "self"]
                raise self._error(_unknown(self._name, name, known, self._more))

    def _read(self) -> None:
        hints = _hints_of(self._function)
        tests: dict[str, Test | None] = {}
        positional: list[str] = []
        for name, parameter in inspect.signature(self._function).parameters.items():
            hint = hints.get(name, Any)
            if parameter.kind is parameter.VAR_KEYWORD:
                fields = get_args(hint)[0] if get_origin(hint) is Unpack else None
                self._open = fields is None
                more = {} if fields is None else get_type_hints(fields)
                hints |= more
                tests |= {each: _test_of(kind) for each, kind in more.items()}
            elif parameter.kind is not parameter.VAR_POSITIONAL:  # the function checks those itself
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    positional.append(name)
                tests[name] = _test_of(hint)
        self._hints, self._positional, self._tests = hints, tuple(positional), tests


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters. The return value is not checked, and its type may not be imported yet."""
    names = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    parameters: Any = types.SimpleNamespace(__annotations__=names)
    return get_type_hints(parameters, inspect.unwrap(function).__globals__)


def _checking(function: Callable[..., Any], rules: _Rules) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        rules.check(args, kwargs)
        return function(*args, **kwargs)

    return call


@lru_cache(maxsize=64)
def _tests_of(kind: type) -> dict[str, Test | None]:
    return {name: _test_of(hint) for name, hint in get_type_hints(kind).items()}


def _test_of(hint: Any) -> Test | None:
    """A test whether a value fits this annotation. None means that every value does."""
    if isinstance(hint, TypeVar):
        return _test_of(hint.__bound__) if hint.__bound__ is not None else None
    if hint is Any or hint is object:
        return None
    if hint is None or hint is types.NoneType:
        return lambda value: value is None
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin: Any = get_origin(hint)
    if origin is Union or origin is types.UnionType:
        tests = [_test_of(each) for each in get_args(hint)]
        return None if None in tests else _any_of(cast("list[Test]", tests))
    if origin is Literal:
        return _one_of(get_args(hint))
    kind: Any = origin or hint
    if kind is Callable:
        return callable
    if is_typeddict(kind):
        return lambda value: isinstance(value, Mapping)
    if not isinstance(kind, type):
        return None
    if _is_a(kind, Mapping):
        return _mapping_of(kind, get_args(hint))
    if _is_a(kind, Iterable) and get_args(hint):
        return _items_of(kind, get_args(hint))
    if getattr(kind, "_is_protocol", False):
        members = [name for name in dir(kind) if not name.startswith("_")]
        return lambda value: not isinstance(value, type) and all(hasattr(value, name) for name in members)
    return lambda value: isinstance(value, kind)


def _is_a(kind: Any, parent: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, parent)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)


_PLAIN: dict[Any, Test] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: is_number,
    str: lambda value: isinstance(value, str),
}


def _any_of(tests: list[Test]) -> Test:
    def fits(value: Any) -> bool:
        for test in tests:  # noqa: SIM110 - a generator would cost more than the tests
            if test(value):
                return True
        return False

    return fits


def _one_of(allowed: tuple[Any, ...]) -> Test:
    return lambda value: any(isinstance(value, type(each)) and value == each for each in allowed)


def _mapping_of(kind: type, arguments: tuple[Any, ...]) -> Test:
    key, item = map(_test_of, arguments) if arguments else (None, None)

    def fits(value: Any) -> bool:
        if not isinstance(value, kind):
            return False
        pairs = cast("Mapping[Any, Any]", value).items()
        return all((key is None or key(k)) and (item is None or item(v)) for k, v in pairs)

    return fits


def _items_of(kind: type, arguments: tuple[Any, ...]) -> Test:
    """A string does not count as a list of strings. Iterators, which can be read only once, are not inspected."""
    item = _test_of(arguments[0])

    def fits(value: Any) -> bool:
        if not isinstance(value, kind) or isinstance(value, (str, bytes, bytearray)):
            return False
        return item is None or not isinstance(value, Collection) or all(map(item, cast("Collection[Any]", value)))

    return fits


def _unknown(owner: str, name: str, accepted: Collection[str], more: str = "") -> str:
    guess = suggestion(name, accepted)
    words = f"{owner} has no option `{name}`{': ' if guess else '.'}{guess} It accepts {', '.join(accepted)}"
    return f"{words}; {more}" if more else words


def _mistaken(owner: str, name: str, value: Any, hint: Any) -> str:
    """The message about a value of the wrong type. The value is quoted only if it cannot be a secret: a number, or a
    word where a number or one of a few words is expected."""
    misspelled = isinstance(value, str) and _is_choice(hint)
    quotable = value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and _is_numeric(hint))
    shown = repr(value)[:_SHOWN] if quotable or misspelled else "…"
    got = "" if misspelled else f", got {_kind_of(value, hint)}"
    return f"{owner}({name}={shown}): expected {describe(hint)}{got}"


def _is_choice(hint: Any) -> bool:
    return any(get_origin(each) is Literal for each in (hint, *get_args(hint)))


def _is_numeric(hint: Any) -> bool:
    return all(each in (int, float, types.NoneType) for each in get_args(hint) or (hint,))


def _kind_of(value: Any, hint: Any) -> str:
    """The type of a value, and of the first element in it that does not fit."""
    kind = _name_of(value)
    if isinstance(value, float) and isnan(value):
        return "nan"
    for each in (hint, *get_args(hint)):
        origin = get_origin(each)
        if not (isinstance(origin, type) and isinstance(value, origin)):
            continue
        if issubclass(origin, Mapping):
            parts = zip(get_args(each), zip(*cast("Mapping[Any, Any]", value).items(), strict=True), strict=False)
        elif issubclass(origin, Collection) and not isinstance(value, str):
            parts = zip(get_args(each)[:1], [cast("Collection[Any]", value)], strict=True)
        else:
            continue
        for item, found in parts:
            test = _test_of(item)
            odd = next((one for one in found if test is not None and not test(one)), None)
            if odd is not None:
                return f"{kind} with {_name_of(odd)} in it"
    return kind


def _name_of(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def describe(hint: Any) -> str:
    """Describes an annotation in words: `Limits or None`, `'continue' or 'finish'`, `a list of functions`."""
    *words, last = dict.fromkeys(_alternatives(hint))
    return f"{', '.join(words)} or {last}" if words else last


def _in_plural(hint: Any) -> str:
    return " or ".join(_PLURALS.get(word, word) for word in dict.fromkeys(_alternatives(hint)))


def _alternatives(hint: Any) -> list[str]:
    origin: Any = get_origin(hint)
    if isinstance(hint, TypeVar):
        return _alternatives(hint.__bound__)
    if origin is Union or origin is types.UnionType:
        return [word for each in get_args(hint) for word in _alternatives(each)]
    if origin is Literal:
        return [repr(each) for each in get_args(hint)]
    if hint is None or hint is types.NoneType:
        return ["None"]
    if hint is bool:
        return ["True", "False"]
    kind: Any = origin or hint
    if kind in _WORDS:
        return [_WORDS[kind]]
    if _is_a(kind, Mapping):
        return ["a dict"]
    if _is_a(kind, Iterable) and get_args(hint):
        inner = "" if get_args(hint)[0] is Any else f" of {_in_plural(get_args(hint)[0])}"
        return [f"a list{inner}" if kind is Collection or _is_a(kind, Sequence) else f"an iterable{inner}"]
    return [getattr(kind, "__name__", str(kind))]


_WORDS: dict[Any, str] = {
    int: "an int",
    float: "a number",
    str: "a string",
    bytes: "bytes",
    Callable: "a function",
    type: "a class",
}
_PLURALS = {"a function": "functions", "a string": "strings", "an int": "ints", "a number": "numbers"}
