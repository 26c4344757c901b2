"""Suggestions for options that do not exist: misspellings, and the words that other libraries use."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("user_prompt", "input", "query", "message", "question"),
    "messages": ("history", "message_history", "chat_history", "previous_messages"),
    "history": ("message_history", "messages", "chat_history", "previous_messages"),
    "output": ("output_type", "result_type", "response_format", "response_model", "text_format", "output_schema"),
    "limits": (
        *("limit", "usage_limits", "max_turns", "recursion_limit", "max_iterations", "max_steps", "max_rounds"),
        *("max_tool_calls", "request_limit", "tool_calls_limit", "max_execution_time", "timeout", "time_limit"),
        *("rounds", "calls", "tokens", "seconds", "cost"),
    ),
    "rounds": ("max_turns", "recursion_limit", "max_iterations", "max_steps", "max_rounds", "request_limit", "turns"),
    "calls": ("max_tool_calls", "tool_calls_limit"),
    "tokens": ("total_tokens_limit", "max_tokens", "token_limit"),
    "seconds": ("timeout", "max_execution_time", "time_limit"),
    "instructions": ("system_prompt", "system", "system_message", "state_modifier", "prompt", "preamble"),
    "deps": ("context", "dependencies", "deps_type", "runtime_context", "run_context"),
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
            *("on_all_failed", "final_answer", "cache", "result_limit", "share_all", "tool_errors", "nudge"),
            *("continue_prompt", "open_calls"),
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
    "handoffs": "other.as_tool(…) among the tools",
}
"""Where an option belongs, for a function that does not have it."""

EXAMPLES = {
    "sampling": "sampling=Sampling(…)",
    "effect": 'effect="read"',
    "overlap": "overlap=True",
    "approve": "approve=True",
    "middleware": "middleware=[…]",
}
"""How an option is written that another library has under another name."""

LIMITS = ("rounds", "calls", "tokens", "seconds", "cost")

_OURS: dict[str, list[str]] = {}
for _ours, _others in OTHER_NAMES.items():
    for _other in _others:
        _OURS.setdefault(_other, []).append(_ours)


def suggestion(name: str, accepted: Collection[str]) -> str:
    """What may have been meant by an option that is not accepted; empty if nothing comes to mind."""
    meant = _OURS.get(name, [])
    here = next((ours for ours in meant if ours in accepted), None)
    if here is not None:
        return f"did you mean `{_written(here, name, meant)}`?"
    there = next((PLACES[ours] for ours in (name, *meant) if ours in PLACES), None)
    if there is not None:
        return f"use {there}."
    if near := get_close_matches(name, list(accepted), 1):
        return f"did you mean `{near[0]}`?"
    # A misspelled word of another library leads to ours, too.
    words = [other for other, ours in _OURS.items() if any(each in accepted for each in ours)]
    near = get_close_matches(name, words, 1, 0.8)
    return suggestion(near[0], accepted) if near else ""


def _written(ours: str, name: str, meant: Collection[str]) -> str:
    """How our option is written to say what `name` says elsewhere."""
    if ours == "limits":
        return f"limits=Limits({next((each for each in (name, *meant) if each in LIMITS), 'rounds')}=…)"
    if ours == "record" and name in ("on_failure", "record_failure"):
        return "record=Recorder(DIR, on_failure=…)"
    return EXAMPLES.get(ours, ours)
