"""openai-responses, its items: which are calls that a client runs, what they hold, what of them may go back.

Known to both ends, requests and responses. Only reads: nothing here decides whether a call is complete. What stands
inside a message or a result is in `parts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from unbroken.messages import Json
from unbroken.wires.values import Object, as_dict, as_text

NAME = "openai-responses"

# What has to be run stands under its own key in each of the built-in calls that the client runs.
PAYLOADS = {
    "apply_patch_call": "operation",
    "shell_call": "action",
    "local_shell_call": "action",
    "computer_call": "action",
    "tool_search_call": "arguments",
}
# xAI runs these itself and reports them as custom calls.
_XAI_SEARCHES = ("x_user_search", "x_keyword_search", "x_semantic_search", "x_thread_fetch")

_STRIPPED = ("reasoning", "message", "function_call", "custom_tool_call")


def call_kind(item: Object) -> str:
    """The kind of a call that the client has to run; empty for every other item."""
    match item.get("type"):
        case "function_call":
            return "function"
        case "custom_tool_call":
            # xAI runs its own searches so and gives them ids of their own; a client's tool may bear the same name.
            id = as_text(item.get("call_id"))
            own = id.startswith("xs_") or (item.get("name") in _XAI_SEARCHES and not id.startswith("call_"))
            return "" if own else "custom"
        case "tool_search_call":
            return "tool_search_call" if item.get("execution") == "client" else ""
        case "shell_call":
            return "" if as_dict(item.get("environment")).get("type") == "container_reference" else "shell_call"
        case "apply_patch_call" | "local_shell_call" | "computer_call" as kind:
            return kind
        case _:
            return ""


def run_by_provider(item: Object) -> bool:
    """A tool that the provider ran itself, or what came of it: everything that is neither speech nor a client's call.
    By exclusion, because each provider has kinds of its own: `search_results`, `program`, `openrouter:web_search`."""
    type = as_text(item.get("type"))
    speech = type in ("", "message", "reasoning") or type.endswith("compaction")
    return not speech and not call_kind(item)


def payload(item: Object) -> Json:
    """The arguments of a built-in call: an object, where the provider keeps to its own rules."""
    value = item.get(PAYLOADS.get(item["type"], ""))
    if value is None and isinstance(item.get("actions"), list):  # computer_call of later models: several at once
        return {"actions": item["actions"]}
    return value


def as_input(item: Object) -> Object:
    """An output item as the API takes it back: `status` is refused there on some kinds, and null on some fields."""
    if item.get("type", "message") not in _STRIPPED:
        return item
    return {key: value for key, value in item.items() if key != "status" and value is not None}


def says_more(items: Sequence[Object]) -> bool:
    """Is there anything that text and calls of ours do not say? Ids of a plain message and of plain calls do not count:
    they only pair items with a reasoning item, and without a stored response the API refuses some of them."""
    calls = messages = 0
    for item in items:
        match item:
            case {"type": "function_call", "arguments": str(), **rest}:
                calls += 1
                plain = not rest.keys() - {"id", "call_id", "name"}
            case {"role": "assistant", "content": content, **rest}:
                messages += 1
                plain = not calls and messages == 1 and not rest.keys() - {"id", "type"} and _plain_content(content)
            case _:
                plain = False
        if not plain:
            return True
    return False


def _plain_content(content: Json) -> bool:
    match content:
        case str():
            return True
        case [{"type": "output_text", "text": str(), **rest}]:
            return not any(rest.values())
        case _:
            return False
