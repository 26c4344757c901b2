"""The settings of an agent are spelled once. What type checkers need besides has the same names and types, and what a
recording has of them becomes the same agent again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from unbroken import Agent, Limits, Output, Policy, Sampling, ScriptedModel, tool
from unbroken.agent.agent import AgentOptions
from unbroken.agent.limits import Prices, limits_from_json, limits_to_json
from unbroken.agent.options import (
    SAVED,
    SAVED_POLICY,
    Options,
    Overrides,
    ReplayOptions,
    ResumeOptions,
    Settings,
    header_of,
    read_header,
)

MODEL = ScriptedModel("Hello.", loop_last=True)
NAMES = {each.name for each in fields(Settings)}
IN_SIGNATURE = {"model", "tools", "instructions", "output"}
"""Their types depend on each other, so they are parameters of the overloads."""
FOLLOWING = {"language", "choice", "choose_limits"}
READ = {"deps", "limits", "schedule", "sampling", "sinks", "middleware", "handoffs", "policy"}
"""What is given is of another type than the setting."""
OF_A_RUN = {"store", "run_id", "history", "open_calls"}

CHANGED: dict[str, Any] = {
    "schedule": "parallel",
    "several_calls": False,
    "on_error": "finish",
    "sampling": Sampling(max_tokens=5, stop=("a", "b")),
    "reasoning": "low",
    "policy": Policy(nudge=True, choice="look", background=2.0, tool_retries=1, empty_answer="-", cache=True),
}


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


def test_the_arguments_of_an_agent_are_its_settings() -> None:
    given = set(get_type_hints(AgentOptions))
    assert given | IN_SIGNATURE == NAMES - FOLLOWING | {"record"}  # which becomes middleware


@pytest.mark.parametrize("name", sorted(set(get_type_hints(AgentOptions)) - READ - {"record"}))
def test_an_argument_that_is_kept_as_it_is_has_the_type_of_the_setting(name: str) -> None:
    assert get_type_hints(AgentOptions)[name] == get_type_hints(Settings)[name]


def test_a_run_is_given_settings_of_an_agent_in_place_of_its_own() -> None:
    run, resumed, replayed = (set(get_type_hints(each)) for each in (Options, ResumeOptions, ReplayOptions))
    assert run - OF_A_RUN <= NAMES - FOLLOWING
    assert set(get_type_hints(Overrides)) <= resumed <= run
    assert replayed == resumed - {"model", "tools", "instructions"}
    agent = set(get_type_hints(AgentOptions))
    assert resumed - {"store"} <= agent | IN_SIGNATURE


def test_a_recording_has_settings_by_their_names() -> None:
    assert set(SAVED) <= NAMES
    assert {name for name, (_, read) in SAVED.items() if read is not None} <= set(get_type_hints(AgentOptions))
    policy = {each.name for each in fields(Policy)}
    assert policy - set(SAVED_POLICY) == {"agent_depth", "most_handoffs", "open_calls"}
    assert set(SAVED_POLICY) & set(SAVED) == {"choice"}  # as the first request has it


def test_the_header_of_a_recording_has_the_fields_that_older_ones_have() -> None:
    assert sorted(header_of(Agent(MODEL).settings)) == [
        "background",
        "cache",
        "choice",
        "continue_prompt",
        "empty_answer",
        "final_answer",
        "language",
        "limits",
        "nudge",
        "on_all_failed",
        "on_error",
        "output",
        "reasoning",
        "result_limit",
        "sampling",
        "schedule",
        "several_calls",
        "share_all",
        "share_rounds",
        "tool_errors",
        "tool_retries",
        "wait_for_background",
    ]


def test_a_header_becomes_the_same_agent_again() -> None:
    agent = Agent(MODEL, [look], **CHANGED)
    assert set(CHANGED) == {"policy", *(name for name, (_, read) in SAVED.items() if read is not None)}
    again = Agent(MODEL, [look], **read_header(header_of(agent.settings)))
    usual = Agent(MODEL, [look]).settings
    for name in CHANGED:
        assert getattr(again.settings, name) == getattr(agent.settings, name) != getattr(usual, name), name


def test_an_answer_of_another_kind_is_in_the_header() -> None:
    header = header_of(Agent(MODEL, output=Output(int, via="tool")).settings)
    assert isinstance(header["output"], dict)
    assert (header["output"]["tool"], header["output"]["via"]) == ("final_answer", "tool")


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(rounds=None),
        Limits(3, 4, 5, 6.5, 7.5, 8.5, Prices(1, 2, cached=0.5), 9),
    ],
)
def test_limits_become_the_same_limits_again(limits: Limits) -> None:
    assert limits_from_json(limits_to_json(limits)) == limits
