"""anthropic-messages: what spans several answers. Calls of the provider's tools that wait for their results, while it
has paused its turn or a tool of ours runs, and the container in which its code runs.
"""

from __future__ import annotations

import re

from unbroken_wires.messages import Json, Native, Request
from unbroken_wires.wires.anthropic.messages_content import THINKING, blocks_of, turn_thinking_off
from unbroken_wires.wires.claude_models import says_cut
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts

CONTAINER = "container"
"""The kind of what is first in the native value of an answer whose code ran in a container: its id and when it expires.
No block of the wire: a request has the id at its top."""

SERVER_USES = ("server_tool_use", "mcp_tool_use")
"""Calls of tools that the provider runs."""


def container_of(native: Native, before: str) -> str:
    """The container after this answer. One that the provider reports as expired is not named again."""
    blocks = dicts(native.value)
    if any(as_dict(block.get("content")).get("error_code") == "container_expired" for block in blocks):
        return ""
    return as_text(blocks[0].get("id")) if blocks and blocks[0].get("type") == CONTAINER else before


def set_container(body: Object, id: str, *, ours: bool) -> None:
    """The last container of the history, so that its files stay. A client's own setting stays as it is; skills in ours
    are loaded into it."""
    given = body.get("container")
    if "container" not in body:
        body["container"] = id
    elif ours and isinstance(given, dict) and "id" not in given:
        body["container"] = {"id": id, **as_dict(given)}


def spans_turns(native: Native) -> bool:
    """Has it a call of the provider's tools without its result, or a result without its call? Then the provider paused
    its turn, or waited for a tool of ours."""
    blocks = dicts(native.value)
    calls = {as_text(block.get("id")) for block in blocks if block.get("type") in SERVER_USES}
    return calls != {as_text(block["tool_use_id"]) for block in blocks if "tool_use_id" in block}


def open_turn(turns: list[Object]) -> int:
    """Where the turn begins that the provider continues: calls and their results in turn belong to one turn."""
    ended = (
        n + 1
        for n in range(len(turns) - 1, -1, -1)
        if turns[n].get("role") != "assistant"
        and any(block.get("type") != "tool_result" for block in blocks_of(turns[n].get("content")))
    )
    return next(ended, 0)


def halves(turns: list[Object]) -> list[tuple[int, Object]]:
    """Calls of the provider's tools without a result, where a turn was paused and never continued, and results without
    a call, where a history was cut; with the place of their turn. The API refuses both, except in the turn that it
    continues: there it ends the calls."""
    spoken = [
        (n, block)
        for n, turn in enumerate(turns)
        if turn.get("role") == "assistant"
        for block in dicts(turn.get("content"))
    ]
    calls = {as_text(block.get("id")) for _, block in spoken if block.get("type") in SERVER_USES}
    results = {as_text(block["tool_use_id"]) for _, block in spoken if "tool_use_id" in block}
    begin = open_turn(turns)
    return [
        (n, block)
        for n, block in spoken
        if (block.get("type") in SERVER_USES and n < begin and as_text(block.get("id")) not in results)
        or ("tool_use_id" in block and as_text(block["tool_use_id"]) not in calls)
    ]


def without_halves(turns: list[Object]) -> list[Object]:
    gone = {id(block) for _, block in halves(turns)}
    for turn in turns:
        turn["content"] = [block for block in turn["content"] if id(block) not in gone]
    return [turn for turn in turns if turn["content"]]


# What the provider does not know any more

_UNKNOWN_CONTAINER = re.compile(r"container.{0,80}(?:expired|not found|not exist|no longer|invalid)", re.IGNORECASE)


def mend_refused(body: Object, words: str) -> tuple[Object, list[str]] | None:
    """The body without what the provider says it cannot use: a container that has expired, thinking whose signature was
    cut. None if it refuses something else."""
    messages = dicts(body.get("messages"))
    if body.get("container") and _UNKNOWN_CONTAINER.search(words):
        rest = {name: value for name, value in as_dict(body["container"]).items() if name != "id"}
        end: Object = {"role": "user", "content": " "}  # the calls that waited in it cannot be continued
        turns = without_halves([{**turn, "content": blocks_of(turn.get("content"))} for turn in (*messages, end)])[:-1]
        body = {**body, "messages": turns, "container": rest}
        return body if rest else {name: body[name] for name in body if name != "container"}, ["container"]
    if says_cut(words):
        spoken = [{**turn, "content": _without_thinking(turn.get("content"))} for turn in messages]
        body = {**body, "messages": [turn for turn in spoken if turn["content"]]}
        return turn_thinking_off(body, Request(()))[0], ["messages.thinking"]
    return None


def _without_thinking(content: Json) -> Json:
    return content if isinstance(content, str) else [one for one in dicts(content) if one.get("type") not in THINKING]
