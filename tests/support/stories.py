"""Histories that any wire can express, valid and broken, in the raw messages of each wire, with checks.

The checks (`JUDGES`) define what each provider accepts, independently of how a history is repaired. Every raw object
has a mark `x`, a field that no wire knows, so that a test can see what was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from hypothesis import strategies as st

Raw = list[Any]


@dataclass(frozen=True)
class Say:
    who: str


@dataclass(frozen=True)
class Calls:
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    id: str


Story = list[Say | Calls | Answer]
"""A history that any wire can express."""


@st.composite
def stories(draw: st.DrawFn) -> Story:
    story: Story = [Say("user")]
    for ids in draw(st.lists(st.lists(st.sampled_from("abcd"), max_size=4, unique=True), max_size=5)):
        story.append(Calls(tuple(ids)) if ids else Say(draw(st.sampled_from(["user", "assistant"]))))
        story.extend(Answer(id) for id in ids)
    return story


def with_ids_used_once(story: Story) -> Story:
    once: Story = []
    for n, thing in enumerate(story):
        if isinstance(thing, Calls):
            once.append(Calls(tuple(f"{id}{n}" for id in thing.ids)))
            once.extend(Answer(f"{id}{n}") for id in thing.ids)
        elif isinstance(thing, Say):
            once.append(thing)
    return once


def broken(story: Story, random: Random) -> Story:
    story = list(story)
    for _ in range(random.randint(1, 5)):
        answers = [n for n, thing in enumerate(story) if isinstance(thing, Answer)]
        rounds = [(n, thing.ids) for n, thing in enumerate(story) if isinstance(thing, Calls)]
        act = random.choice(["drop", "double", "move", "orphan", "same id", "no id", "speak"])
        anywhere = random.randint(0, len(story))
        if act in ("orphan", "speak"):
            story.insert(anywhere, Answer("lost") if act == "orphan" else Say("user"))
        elif act in ("same id", "no id") and rounds:
            n, ids = random.choice(rounds)
            story[n] = Calls((*ids, ids[0] if act == "same id" else ""))
        elif answers:
            thing = story[random.choice(answers)]
            if act in ("drop", "move"):
                story.remove(thing)
            if act in ("double", "move"):
                story.insert(min(anywhere, len(story)), thing)
    return story


def told_as_chat(story: Story, random: Random | None, mark: Callable[[], int]) -> Raw:
    raw: Raw = []
    for thing in story:
        match thing:
            case Say(who):
                raw.append({"role": who, "content": "hi", "x": mark()})
            case Calls(ids):
                calls = [{"id": id, "type": "function", "function": {"name": "f"}, "x": mark()} for id in ids]
                raw.append({"role": "assistant", "content": None, "tool_calls": calls, "x": mark()})
            case Answer(id):
                raw.append({"role": "tool", "tool_call_id": id, "content": "ok", "x": mark()})
    return raw


def told_as_responses(story: Story, random: Random | None, mark: Callable[[], int]) -> Raw:
    raw: Raw = []
    for thing in story:
        match thing:
            case Say(who):
                raw.append({"role": who, "content": "hi", "x": mark()})
            case Calls(ids):
                raw.append({"type": "reasoning", "encrypted_content": "…", "x": mark()})
                raw += [{"type": "function_call", "call_id": id, "name": "f", "x": mark()} for id in ids]
            case Answer(id):
                raw.append({"type": "function_call_output", "call_id": id, "output": "ok", "x": mark()})
    return raw


def told_as_anthropic(story: Story, random: Random | None, mark: Callable[[], int]) -> Raw:
    raw: Raw = []
    for thing in story:
        match thing:
            case Say(who):
                if random and raw and raw[-1]["role"] == who and isinstance(raw[-1]["content"], list):
                    raw[-1]["content"].append({"type": "text", "text": "hi", "x": mark()})
                else:
                    raw.append({"role": who, "content": "hi", "x": mark()})
            case Calls(ids):
                blocks = [{"type": "tool_use", "id": id, "name": "f", "x": mark()} for id in ids]
                server = {"type": "server_tool_use", "id": "srv", "name": "web_search", "x": mark()}
                raw.append({"role": "assistant", "content": [server, *blocks], "x": mark()})
            case Answer(id):
                block = {"type": "tool_result", "tool_use_id": id, "content": "ok", "x": mark()}
                _join(raw, random, "content", block)
    return raw


def told_as_gemini(story: Story, random: Random | None, mark: Callable[[], int]) -> Raw:
    raw: Raw = []
    with_ids = bool(random and random.random() < 0.5)
    for thing in story:
        match thing:
            case Say(who):
                role = "model" if who == "assistant" else who
                raw.append({"role": role, "parts": [{"text": "hi", "x": mark()}], "x": mark()})
            case Calls(ids):
                calls = [{"functionCall": _named(id, with_ids), "thoughtSignature": "…", "x": mark()} for id in ids]
                raw.append({"role": "model", "parts": calls, "x": mark()})
            case Answer(id):
                part = {"functionResponse": {**_named(id, with_ids), "response": {"output": 1}}, "x": mark()}
                _join(raw, random, "parts", part)
    return raw


def _named(id: str, with_ids: bool) -> dict[str, Any]:
    return {"name": id or "f", "id": id} if with_ids and id else {"name": id or "f"}


def _join(raw: Raw, random: Random | None, key: str, part: Any) -> None:
    """Mostly added to the previous user message if that has parts."""
    joins = random is None or random.random() < 0.7
    if joins and raw and raw[-1]["role"] == "user" and isinstance(raw[-1][key], list):
        raw[-1][key].append(part)
    else:
        raw.append({"role": "user", key: [part]})


def told_as_ollama(story: Story, random: Random | None, mark: Callable[[], int]) -> Raw:
    raw: Raw = []
    with_ids = bool(random and random.random() < 0.5)
    for thing in story:
        match thing:
            case Say(who):
                raw.append({"role": who, "content": "hi", "x": mark()})
            case Calls(ids):
                calls: Raw = [
                    {**_given(id, "id", with_ids), "function": {"name": id or "f", "arguments": {}}, "x": mark()}
                    for id in ids
                ]
                raw.append({"role": "assistant", "content": "", "tool_calls": calls, "x": mark()})
            case Answer(id):
                given = _given(id, "tool_call_id", with_ids)
                raw.append({"role": "tool", "tool_name": id or "f", **given, "content": "ok", "x": mark()})
    return raw


def _given(id: str, field: str, with_ids: bool) -> dict[str, str]:
    return {field: id} if with_ids and id else {}


def told_as_cohere(story: Story, random: Random | None, mark: Callable[[], int]) -> Raw:
    raw = told_as_chat(story, random, mark)
    for message in raw:
        if message.get("tool_calls"):
            message["tool_plan"] = "I will look."
    return raw


def told_as_bedrock(story: Story, random: Random | None, mark: Callable[[], int]) -> Raw:
    raw: Raw = []
    for thing in story:
        match thing:
            case Say(who):
                raw.append({"role": who, "content": [{"text": "hi", "x": mark()}], "x": mark()})
            case Calls(ids):
                uses: Raw = [{"toolUse": {"toolUseId": id, "name": "f", "input": {}}, "x": mark()} for id in ids]
                server = {"toolUse": {"toolUseId": "srv", "name": "g", "type": "server_tool_use"}, "x": mark()}
                raw.append({"role": "assistant", "content": [server, *uses], "x": mark()})
            case Answer(id):
                block = {"toolResult": {"toolUseId": id, "content": [{"text": "ok"}]}, "x": mark()}
                _join(raw, random, "content", block)
    return raw


TELLERS = {
    "openai-chat": told_as_chat,
    "openai-responses": told_as_responses,
    "anthropic-messages": told_as_anthropic,
    "gemini": told_as_gemini,
    "ollama": told_as_ollama,
    "cohere-v2": told_as_cohere,
    "bedrock-converse": told_as_bedrock,
}


def tell(wire: str, story: Story, random: Random | None = None) -> Raw:
    marks = iter(range(1_000_000))
    return TELLERS[wire](story, random, lambda: next(marks))


def marks_of(raw: Any) -> list[int]:
    found: list[int] = []
    stack = [raw]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            found += [fields["x"]] if "x" in fields else []
            stack.extend(fields.values())
        elif isinstance(value, list):
            stack.extend(cast("Raw", value))
    return sorted(found)


def judge_chat(raw: Raw) -> None:
    due: list[str] = []
    for message in raw:
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0)
        else:
            assert not due
            due = [call["id"] for call in message.get("tool_calls", [])]
            assert all(due)
            assert len(set(due)) == len(due)
    assert not due


def judge_responses(raw: Raw) -> None:
    due: list[str] = []
    answering = False
    for item in raw:
        match item.get("type"):
            case "function_call":
                assert not (answering and due)
                assert item["call_id"]
                assert item["call_id"] not in due
                due.append(item["call_id"])
                answering = False
            case "function_call_output":
                assert item["call_id"] == due.pop(0)
                answering = True
            case _:
                assert not due or (not answering and item.get("role") != "user")
    assert not due


def judge_anthropic(raw: Raw) -> None:
    due: list[str] = []
    seen: set[str] = set()
    for message in raw:
        blocks: Raw = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert message["content"]
        if message["role"] == "assistant":
            assert not results
            assert all(calls)
            due += calls
            assert len(seen | set(calls)) == len(seen) + len(calls)
            seen |= set(calls)
        else:
            assert results == due
            assert all(block["type"] == "tool_result" for block in blocks[: len(results)])
            due = []
    assert not due


def judge_gemini(raw: Raw) -> None:
    due: list[tuple[str, str | None]] = []
    for content in raw:
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        assert content["parts"]
        if content["role"] == "model":
            assert not results
            due += [(call["name"], call.get("id")) for call in calls]
        else:
            assert [(result["name"], result.get("id")) for result in results] == due
            assert all("functionResponse" in part for part in content["parts"][: len(results)])
            due = []
    assert not due


def judge_ollama(raw: Raw) -> None:
    due: list[tuple[str, str | None]] = []
    for message in raw:
        if message["role"] == "tool":
            assert (message["tool_name"], message.get("tool_call_id")) == due.pop(0)
        else:
            assert not due
            due = [(call["function"]["name"], call.get("id")) for call in message.get("tool_calls", [])]
    assert not due


def judge_bedrock(raw: Raw) -> None:
    due: list[str] = []
    seen: set[str] = set()
    for message in raw:
        blocks: Raw = message["content"]
        results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        calls = [block["toolUse"]["toolUseId"] for block in blocks if "type" not in block.get("toolUse", {"type": ""})]
        assert blocks
        if message["role"] == "assistant":
            assert not results
            assert all(calls)
            due += calls
            assert len(seen | set(calls)) == len(seen) + len(calls)
            seen |= set(calls)
        else:
            assert results == due
            assert all("toolResult" in block for block in blocks[: len(results)])
            due = []
    assert not due


JUDGES: dict[str, Callable[[Raw], None]] = {
    "openai-chat": judge_chat,
    "openai-responses": judge_responses,
    "anthropic-messages": judge_anthropic,
    "gemini": judge_gemini,
    "ollama": judge_ollama,
    "cohere-v2": judge_chat,
    "bedrock-converse": judge_bedrock,
}
