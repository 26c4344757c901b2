"""Options are checked where they are passed: an unknown one is refused with a suggestion, a value of a wrong type with
what is accepted. The matrix is generated from the public names: a new one has to be added to it, or exempted."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

import pytest
from documented_names import documented_names

import unbroken_dph
from unbroken import (
    Agent,
    Conversation,
    Deny,
    Edit,
    Image,
    Limits,
    MCPServer,
    Metrics,
    Model,
    OpenTelemetry,
    Output,
    Policy,
    Prices,
    Recorder,
    Result,
    RetryingModel,
    Sampling,
    ScriptedModel,
    UnbrokenError,
    UserError,
    client_tool,
    connect,
    decode,
    tool,
)
from unbroken.agent import RunStream
from unbroken.agent.options import Options, ResumeOptions, TurnOptions
from unbroken.compaction import ClearResults, Compaction
from unbroken.errors import InvalidTool
from unbroken.mcp import OAuth
from unbroken.models.connect import ModelSettings, Settings
from unbroken.models.http import HTTPModel
from unbroken.read_more import ReadMore
from unbroken.tools.tool import Tool
from unbroken.trajectory.alerts import Alert, Alerts
from unbroken.trajectory.prometheus import PrometheusMetrics
from unbroken.trajectory.recording import list_recordings
from unbroken.trajectory.replay import replay
from unbroken_dph import check_program, load_program, parse_program, read_source, run_program, run_program_sync
from unbroken_wires.messages import ToolCall
from unbroken_wires.server_tools import CodeExecution, FileSearch, ImageGeneration, MCPConnector, WebFetch, WebSearch
from unbroken_wires.validation import ATTRIBUTES, OTHER_NAMES, PLACES, check_options, checked

MODEL = ScriptedModel("Hello.", loop_last=True)
AGENT = Agent(MODEL)
PROGRAM = "/prompt/ Hello. -> a\n"


def make_tool(**options: Any) -> Tool:
    """A separate function for each tool: `@tool` is what is checked."""

    def look() -> str:
        """Look."""
        return "seen"

    return tool(**options)(look)


def play(**options: Any) -> Any:
    return AGENT.run_sync("Hi.", **options)


def stream(**options: Any) -> RunStream:
    return AGENT.stream("Hi.", **options)


def say(**options: Any) -> Any:
    return Conversation(AGENT).say_sync("Hi.", **options)


def stream_turn(**options: Any) -> RunStream:
    return Conversation(AGENT).stream("Hi.", **options)


def sample(**options: Any) -> Agent:
    return Agent(MODEL, sampling=Sampling(**options))


def connected(**options: Any) -> Any:
    given: dict[str, Any] = {"model": "openai:gpt-5", "api_key": "k", **options}
    return connect(**given)


def prometheus(**options: Any) -> PrometheusMetrics:
    return PrometheusMetrics(**options)


def run_program_now(**options: Any) -> Any:
    given: dict[str, Any] = {"source": PROGRAM, "model": MODEL, **options}
    return run_program_sync(**given)


ENTRY_POINTS: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "Agent": (Agent, {"model": MODEL}, Agent.__init__),
    "Agent.run": (play, {}, Options),
    "Agent.stream": (stream, {}, Options),
    "Agent.as_tool": (AGENT.as_tool, {"name": "ask", "description": "Asks."}, Agent.as_tool),
    "Conversation": (Conversation, {"agent": AGENT}, Conversation.__init__),
    "Conversation.say": (say, {}, TurnOptions),
    "Conversation.stream": (stream_turn, {}, TurnOptions),
    "Limits": (Limits, {}, Limits.__init__),
    "Output": (Output, {"kind": int}, Output[Any].__init__),
    "Policy": (Policy, {}, Policy.__init__),
    "Prices": (Prices, {"input": 1, "output": 1}, Prices.__init__),
    "Sampling": (sample, {}, Sampling.__init__),
    "RetryingModel": (RetryingModel, {"model": MODEL}, RetryingModel[Model].__init__),
    "ScriptedModel": (ScriptedModel, {}, ScriptedModel.__init__),
    "Recorder": (Recorder, {"path": "runs"}, Recorder.__init__),
    "MCPServer": (MCPServer, {"command": "server"}, MCPServer.__init__),
    "OAuth": (OAuth, {}, OAuth.__init__),
    "Image": (Image, {"source": b"x", "mime": "image/png"}, Image),
    "WebSearch": (WebSearch, {}, WebSearch.__init__),
    "WebFetch": (WebFetch, {}, WebFetch.__init__),
    "CodeExecution": (CodeExecution, {}, CodeExecution.__init__),
    "FileSearch": (FileSearch, {"stores": ["vs_1"]}, FileSearch.__init__),
    "MCPConnector": (MCPConnector, {"url": "https://a.org", "name": "a"}, MCPConnector.__init__),
    "ImageGeneration": (ImageGeneration, {}, ImageGeneration.__init__),
    "connect": (connected, {}, connect),
    "tool": (make_tool, {}, Tool.__init__),
    "client_tool": (client_tool, {"name": "pick", "description": "Picks.", "parameters": {}}, client_tool),
    "Compaction": (Compaction, {}, Compaction.__init__),
    "ClearResults": (ClearResults, {}, ClearResults.__init__),
    "ReadMore": (ReadMore, {}, ReadMore.__init__),
    "Edit": (Edit, {"arguments": {}}, Edit.__init__),
    "Deny": (Deny, {}, Deny.__init__),
    "Metrics": (Metrics, {}, Metrics.__init__),
    "PrometheusMetrics": (prometheus, {}, PrometheusMetrics.__init__),
    "Alert": (Alert, {"name": "a", "metric": "tool_failure_rate", "above": 1}, Alert.__init__),
    "Alerts": (Alerts, {}, Alerts.__init__),
    "replay": (replay, {"path": "none.jsonl"}, replay),
    "list_recordings": (list_recordings, {"folder": "."}, list_recordings),
    "decode": (decode, {"body": b"{}"}, decode),
    "run_program": (run_program, {"source": PROGRAM, "model": MODEL}, run_program),
    "run_program_sync": (run_program_now, {}, run_program_sync),
    "parse_program": (parse_program, {"source": PROGRAM}, parse_program),
    "check_program": (check_program, {"program": parse_program(PROGRAM)}, check_program),
}
"""By name: how to call it, with which valid arguments, and what has its annotations."""

HIDDEN = {"tool": {"spec", "function", "signature"}, "Agent.as_tool": {"self"}}

DATA = "data that the library itself makes, some of it for each delta: checked where it is passed to something"
READS = "takes the one thing that it reads, and refuses another at once"
EXEMPT = {
    **dict.fromkeys(
        [
            "CallView",
            "HTTPModel",
            "Playback",
            "RunStream",
            "Recording",
            "RunStart",
            "TurnView",
            "Wire",
            "PromptTemplate",
            "Resource",
        ],
        "made by the library, not by callers",
    ),
    **dict.fromkeys(["Decoder", "ResponseWriter", "Transcript", "Shown", "VirtualClock"], DATA),
    **dict.fromkeys(
        ["RunView", "Toolbox", "Sentences", "Steps", "RealClock", "Middleware", "Schedule"], "has no options"
    ),
    **dict.fromkeys(
        ["Thought", "Action", "Observation", "TodoUpdate", "Answer"], "a step of a run, which `steps` makes"
    ),
    "OpenTelemetry": "checks its two providers by hand: their types are in an optional package",
    "load_program": READS,
    "read_source": READS,
    "todo_write": "a tool",
    **dict.fromkeys(["find_wire", "guess_wire", "read_recording", "event_from_json", "event_to_json"], READS),
    **dict.fromkeys(["from_json", "to_json", "repair", "repair_raw", "chain_status", "validate_tool_chain"], READS),
    "read_stored": READS,
    **dict.fromkeys(["chunk_of", "detect_tool_call", "detect_tool_calls", "deduplicate_within_batch"], READS),
    **dict.fromkeys(
        ["append_tool_call_message", "append_tool_calls_message", "append_tool_response_message"],
        "a `Transcript` checks what is added to it",
    ),
    **dict.fromkeys(
        ["collect", "sentences", "steps", "ui_messages", "from_ui_messages", "answers_from_ui_messages"], READS
    ),
    **dict.fromkeys(["InvalidProgram", "ProgramFailed", "program_event_to_json", "ProgramRun"], "made by the library"),
}
DATA_MODULES = (
    "unbroken_wires.messages",
    "unbroken_wires.deltas",
    "unbroken.events",
    "unbroken_wires.deltas",
    "unbroken_wires.transcript",
    "unbroken.agent.result",
    "unbroken.agent.run",
    "unbroken.agent.streaming",
    "unbroken_wires.decoding",
    "unbroken.trajectory",
    "unbroken.tools.results",
    "unbroken.tools.context",
    "unbroken_wires.wires",
    "unbroken_dph",
    "unbroken.tools.tool",
    "unbroken.tools.approval",
    "unbroken.tools.handles",
)
OTHER_MODULES = ("unbroken_testing.evals", "unbroken_gateway", "unbroken.mcp", "unbroken_testing", "unbroken_viewer")
"""What has tests of its own for wrong options."""

NOT_THE_OPTION = object()
WRONG = [
    3,
    -1,
    2.5,
    float("nan"),
    True,
    None,
    "zz",
    "",
    b"zz",
    int,
    print,
    NOT_THE_OPTION,
    [NOT_THE_OPTION],
    (3,),
    {"a": NOT_THE_OPTION},
    {3: 4},
    set[str](),
]


def options_of(name: str) -> Iterator[tuple[str, Any]]:
    """The options of an entry point with their annotations, those of an unpacked TypedDict among them."""
    for option, hint in get_type_hints(ENTRY_POINTS[name][2], localns={"HTTPModel": HTTPModel}).items():
        if option in {"return", "answers", *HIDDEN.get(name, ())}:
            continue
        if option in ("settings", "options") and get_origin(hint) is not None:
            yield from get_type_hints(get_args(hint)[0]).items()
        else:
            yield option, hint


PAIRS = [(name, option, hint) for name in ENTRY_POINTS for option, hint in options_of(name)]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(tmp_path)  # a path may be "zz"


@pytest.mark.parametrize(("name", "option", "hint"), PAIRS, ids=[f"{name}-{option}" for name, option, _ in PAIRS])
def test_a_wrong_value_is_accepted_completely_or_refused_with_a_typed_error_that_names_the_option(
    name: str, option: str, hint: Any
) -> None:
    call, valid, _ = ENTRY_POINTS[name]
    for wrong in WRONG:
        with suppress(UnbrokenError):
            made = call(**{**valid, option: wrong})
            if isinstance(made, Agent):
                cast("Agent", made).run_sync("Hi.")  # an accepted value does not fail later in an unexpected way
            if isinstance(made, RunStream):
                asyncio.run(made.aclose())
    if hint is not Any and option != "deps":
        with pytest.raises(UserError, match=option):
            call(**{**valid, option: NOT_THE_OPTION})


def test_every_public_name_is_in_the_matrix_or_exempt_for_a_reason() -> None:
    known = {*ENTRY_POINTS, *EXEMPT}
    missing: list[str] = []
    for module, name, value in documented_names():
        if module.startswith(OTHER_MODULES):
            continue
        is_error = isinstance(value, type) and issubclass(value, BaseException)
        is_data = isinstance(value, type) and value.__module__.startswith(DATA_MODULES)
        is_protocol = getattr(value, "_is_protocol", False)
        called = inspect.isfunction(value) or isinstance(value, type)
        if called and not (is_error or is_data or is_protocol or name in known):
            missing.append(name)
    assert missing == []
    assert {load_program, read_source} <= {getattr(unbroken_dph, name, None) for name in EXEMPT}


FOREIGN = [
    ("limit", "limits=Limits(rounds=…)"),
    ("usage_limits", "limits=Limits(rounds=…)"),
    ("max_turns", "limits=Limits(rounds=…)"),
    ("recursion_limit", "limits=Limits(rounds=…)"),
    ("rounds", "`limits=Limits(rounds=…)`"),
    ("seconds", "`limits=Limits(seconds=…)`"),
    ("timeout", "`limits=Limits(seconds=…)`"),
    ("max_tool_calls", "`limits=Limits(calls=…)`"),
    ("message_history", "`history`"),
    ("output_type", "`output`"),
    ("result_type", "`output`"),
    ("response_format", "`output`"),
    ("context", "`deps`"),
    ("callbacks", "`sinks`"),
    ("system_prompt", "`instructions`"),
    ("temperature", "sampling=Sampling(…)"),
    ("session", "Conversation(agent)"),
    ("thread_id", "Conversation(agent)"),
]


@pytest.mark.parametrize(("word", "ours"), FOREIGN)
def test_option_names_of_other_libraries_are_refused_with_ours(word: str, ours: str) -> None:
    model = ScriptedModel("Hello.")
    given: dict[str, Any] = {word: 3}
    with pytest.raises(UserError) as refused:
        Agent(model).run_sync("Hi.", **given)
    assert f"`{word}`" in str(refused.value)
    assert ours in str(refused.value)
    assert model.requests == []


AN_AGENT: Callable[..., Any] = partial(Agent, MODEL)
A_CONVERSATION: Callable[..., Any] = partial(Conversation, AGENT)


@pytest.mark.parametrize(
    ("call", "option", "ours"),
    [
        (AN_AGENT, "on_failure", "`record=Recorder(DIR, on_failure=…)`"),
        (AN_AGENT, "record_failure", "`record=Recorder(DIR, on_failure=…)`"),
        (AN_AGENT, "caller", "`middleware=[…]`"),
        (AN_AGENT, "parallel", "`schedule`"),
        (make_tool, "parallel", "`overlap=True`"),
        (make_tool, "concurrent", "`overlap=True`"),
        (make_tool, "readonly", '`effect="read"`'),
        (make_tool, "confirm", "`approve=True`"),
        (make_tool, "nmae", "`name`"),
        (connected, "url", "`base_url`"),
        (connected, "timeot", "`seconds`"),
        (A_CONVERSATION, "histry", "`messages`"),
        (A_CONVERSATION, "history", "`messages`"),
    ],
)
def test_a_differently_named_option_is_refused_with_its_name_here(
    call: Callable[..., Any], option: str, ours: str
) -> None:
    with pytest.raises(UserError) as refused:
        call(**{option: 3})
    assert f"did you mean {ours}?" in str(refused.value)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (partial(AGENT.replay, "none.jsonl"), "clock, tools, speed, output, deps"),
        (partial(AGENT.resume_sync, "none.jsonl"), "answers, output, deps"),
        (play, "prompt, output, deps"),
        (make_tool, "name, description, strict, effect, timeout"),
    ],
)
def test_the_list_of_accepted_options_is_complete(call: Callable[..., Any], names: str) -> None:
    with pytest.raises(UserError, match=f"It accepts {names}"):
        call(zz=3)


def ways() -> Iterator[tuple[str, Callable[[], Any]]]:
    waiting = Agent(MODEL).run_sync("Hi.")
    odd: Any = {"limt": 3}
    yield "run", lambda: asyncio.run(AGENT.run("Hi.", **odd))
    yield "run_sync", lambda: AGENT.run_sync("Hi.", **odd)
    yield "stream", lambda: AGENT.stream("Hi.", **odd)
    yield "resume", lambda: asyncio.run(AGENT.resume(waiting, {}, **odd))
    yield "resume_sync", lambda: AGENT.resume_sync(waiting, {}, **odd)
    yield "stream_resume", lambda: AGENT.stream_resume(waiting, {}, **odd)
    yield "replay", lambda: AGENT.replay("none.jsonl", **odd)
    yield "as_tool", lambda: AGENT.as_tool("a", "b", **odd)
    yield "say", lambda: asyncio.run(Conversation(AGENT).say("Hi.", **odd))
    yield "say_sync", lambda: Conversation(AGENT).say_sync("Hi.", **odd)
    yield "chat.stream", lambda: Conversation(AGENT).stream("Hi.", **odd)
    yield "connect", lambda: connect("openai:gpt-5", api_key="k", **odd)
    yield "tool", lambda: tool(**odd)
    yield "RetryingModel", lambda: RetryingModel(MODEL, **odd)
    yield "Limits", lambda: Limits(**odd)
    yield "run_program", lambda: run_program(PROGRAM, MODEL, **odd)
    yield "run_program_sync", lambda: run_program_sync(PROGRAM, MODEL, **odd)
    yield "Agent", lambda: Agent(MODEL, **odd)
    yield "Recorder", lambda: Recorder("zz", **odd)
    yield "MCPServer", lambda: MCPServer("zz", **odd)
    yield "ScriptedModel", lambda: ScriptedModel("zz", **odd)
    yield "Conversation", lambda: Conversation(AGENT, **odd)


@pytest.mark.parametrize(("name", "call"), list(ways()), ids=[name for name, _ in ways()])
def test_a_misspelled_option_is_refused_everywhere(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match="has no option `limt`"):
        call()


def test_a_conversation_does_not_accept_another_history() -> None:
    with pytest.raises(UserError, match="a Conversation keeps its own"):
        say(history=[])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Agent(MODEL, reasoning="lots"), "Agent(reasoning='lots'): expected 'none', 'minimal', 'low'"),  # type: ignore
        (lambda: Agent(MODEL, limits=3), "Agent(limits=3): expected Limits, a function or None, got int"),  # type: ignore
        (lambda: Agent(MODEL, sinks=print), "Agent(sinks=…): expected a list of functions or Middleware, got builtin"),  # type: ignore
        (
            lambda: Agent(MODEL, sinks=[3]),  # type: ignore
            "Agent(sinks=…): expected a list of functions or Middleware, got list with int in it",
        ),
        (
            lambda: Agent(MODEL, middleware=[Compaction]),  # type: ignore
            "Agent(middleware=…): expected a list of Middleware, got list with the class Compaction in it",
        ),
        (lambda: Agent(MODEL, guidance="fr"), "Agent(guidance='fr'): expected True, False, 'en' or 'zh'"),  # type: ignore
        (lambda: Limits(rounds="3"), "Limits(rounds='3'): expected an int or None, got str"),  # type: ignore
        (lambda: make_tool(timeout="5s"), "@tool(timeout='5s'): expected a number or None, got str"),
        (lambda: Agent(MODEL, on_approval=3), "Agent(on_approval=3): expected a function or None, got int"),  # type: ignore
        (lambda: Image(3), "Image(source=3): expected a string, Path or bytes, got int"),  # type: ignore
        (lambda: Limits(seconds=float("nan")), "Limits(seconds=nan): expected a number or None, got nan"),
        (lambda: Limits(max_turns=3), "Limits has no option `max_turns`: did you mean `rounds`?"),  # type: ignore
        (lambda: OpenTelemetry(3), "OpenTelemetry(tracer_provider=…): expected a provider with get_tracer"),  # type: ignore
        (lambda: AGENT.run_sync("Hi.", history="Hi."), "agent.run(history=…): expected the messages of a Result"),  # type: ignore
    ],
)
def test_an_error_names_the_option_the_type_and_what_is_accepted(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert str(refused.value).startswith(words)


def test_an_error_about_a_misspelled_word_does_not_mention_strings() -> None:
    wrong: Any = "lots"
    for make in (lambda: Agent(MODEL, reasoning=wrong), lambda: make_tool(effect=wrong)):
        with pytest.raises(UserError) as refused:
            make()
        assert "got" not in str(refused.value)


def test_a_tool_choice_that_the_agent_does_not_have_is_refused() -> None:
    look = make_tool(name="look")
    assert Agent(MODEL, [look], policy=Policy(choice="look")).run_sync("Hi.").text == "Hello."
    with pytest.raises(UserError, match=r"Policy\(choice='t2'\): there is no such tool; there are: look; or use"):
        Agent(MODEL, [look], policy=Policy(choice="t2"))
    with pytest.raises(UserError, match="there is no such tool; this agent has none"):
        Agent(MODEL, policy=Policy(choice="t2"))


def test_an_approver_with_a_wrong_signature_is_refused() -> None:
    def nothing() -> Deny:
        return Deny()

    def too_much(call: ToolCall, context: object) -> Deny:
        return Deny()

    def enough(call: ToolCall, context: object = None) -> Deny:
        return Deny()

    given: Any
    for given in (nothing, too_much):
        with pytest.raises(UserError, match=rf"Agent\(on_approval={given.__name__}\): it is called with one argument"):
            Agent(MODEL, on_approval=given)
    for given in (enough, print, int):
        Agent(MODEL, on_approval=given)


def test_a_value_that_may_be_a_secret_is_not_quoted() -> None:
    secret: Any = b"sk-very-secret"
    for make in (lambda: connect("openai:gpt-5", api_key=secret), lambda: MCPServer(url=secret)):
        with pytest.raises(UserError) as refused:
            make()
        assert "very-secret" not in str(refused.value)


def test_a_field_of_a_provider_passes_in_extra_and_a_misspelled_setting_does_not() -> None:
    model = connected(extra={"logit_bias": {"5": 1}})
    assert model.model.settings.extra == {"logit_bias": {"5": 1}}
    with pytest.raises(UserError, match=r"no option `logit_bias`.*into extra="):
        connected(logit_bias={"5": 1})


def test_tools_have_their_own_errors() -> None:
    for options in ({"efect": "read"}, {"effect": "reed"}, {"timeout": "3"}, {"spec": 3}):
        with pytest.raises(InvalidTool):
            make_tool(**options)


def test_the_settings_of_connect_are_the_fields_of_its_typed_dict() -> None:
    assert {each.name for each in fields(Settings)} == set(get_type_hints(ModelSettings))


def test_every_suggestion_leads_to_an_option_that_exists() -> None:
    real = {option for _, option, _ in PAIRS} | {"prompt"}
    assert set(OTHER_NAMES) <= real
    elsewhere = {"model", "stream", "session", "memory", "checkpointer", "thread_id", "conversation_id", "handoffs"}
    others = {"deps_type", "capabilities", "instrument", "deferred_tool_results"}
    assert set(PLACES) <= real | elsewhere | others


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Agent(MODEL, deps_type=int), "Agent has no option `deps_type`: use CallContext[Deps] in the tools"),  # type: ignore[call-arg]
        (lambda: Agent(MODEL, retries=2), "Agent has no option `retries`: use @tool(retries=…), Policy("),  # type: ignore[call-arg]
        (lambda: Agent(MODEL, instrument=True), "Agent has no option `instrument`: use Agent(model, middleware=[Open"),  # type: ignore[call-arg]
        (lambda: play(deferred_tool_results={}), "agent.run has no option `deferred_tool_results`: use agent.resume("),
    ],
)
def test_an_option_that_has_another_meaning_elsewhere_leads_to_what_does_the_same_here(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(("kind", "known"), [(Agent, ATTRIBUTES["Agent"]), (Result, ATTRIBUTES["Result"])])
def test_a_method_of_another_library_leads_to_ours(kind: type, known: dict[str, str]) -> None:
    owner: Any = AGENT if kind is Agent else AGENT.run_sync("Hi.")
    for name, use in known.items():
        with pytest.raises(
            AttributeError, match=re.escape(f"{kind.__name__!r} object has no attribute {name!r}: use {use}")
        ):
            getattr(owner, name)
        assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match=rf"^'{kind.__name__}' object has no attribute 'colour'$"):
        owner.colour  # noqa: B018


def test_a_class_made_from_an_agent_has_the_same_hints() -> None:
    class Clerk(Agent[None, None]):
        pass

    clerk: Any = Clerk(MODEL)
    with pytest.raises(AttributeError, match="'Clerk' object has no attribute 'tool': use @tool on the function"):
        clerk.tool  # noqa: B018


def test_a_checked_function_keeps_its_identity() -> None:
    @checked
    def add(a: int, b: int = 1, *, c: str = "") -> int:
        """Adds."""
        return a + b + len(c)

    assert add(1, 2, c="four") == 7
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    for call in (lambda: add("1"), lambda: add(1, "2"), lambda: add(1, c=4), lambda: add(1, d=4)):  # type: ignore
        with pytest.raises(UserError):
            call()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        add()  # type: ignore


def test_options_that_are_not_given_are_not_checked() -> None:
    check_options("run", ResumeOptions, {})
    with pytest.raises(UserError, match="run has no option `run_id`"):
        check_options("run", ResumeOptions, {"run_id": "a"})


PROGRAM_WITH_MISTAKES = """
from unbroken import Agent, Limits, ScriptedModel, connect, tool
from unbroken_dph import run_program_sync
agent = Agent(ScriptedModel("x"))
agent.run_sync("x", limit=Limits())
agent.run_sync("x", limits=3)
connect("openai:gpt-5", temprature=1)
tool(efect="read")
run_program_sync("x", None, modles={})
typed = Agent("openai:gpt-5", output=int, deps=3)
typed.run_sync("x", deps="three")
typed.run_sync("x").output.upper()
"""


def test_a_type_checker_finds_the_same_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "mistakes.py"
    file.write_text(PROGRAM_WITH_MISTAKES, "utf-8")
    told = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(file)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    lines = {int(line.split(":")[1]) for line in told.splitlines() if " - error: " in line}
    assert lines == {5, 6, 7, 8, 9, 11, 12}, told


@pytest.mark.parametrize("limit", [0, -1])
def test_a_result_limit_must_leave_room_for_something(limit: int) -> None:
    with pytest.raises(UserError, match=rf"Policy\(result_limit={limit}\): expected a number of characters from 1"):
        Agent(MODEL, policy=Policy(result_limit=limit))


def test_an_empty_run_id_is_refused() -> None:
    with pytest.raises(UserError, match=r"agent\.run\(run_id=''\): the id is empty"):
        AGENT.run_sync("Hi.", run_id="")
