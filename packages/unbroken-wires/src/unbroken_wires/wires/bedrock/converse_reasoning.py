"""bedrock-converse, how much a model reasons: each family has a field of its own in `additionalModelRequestFields`, and
rules about what may stand beside it."""

from __future__ import annotations

from unbroken_wires.messages import Effort, Request
from unbroken_wires.wires.bedrock.converse_content import is_claude, is_nova
from unbroken_wires.wires.claude_models import (
    BINDING,
    BINDING_BETA,
    BUDGETS,
    PREFIX_CHECKED,
    SINCE_4_6,
    adaptive_effort,
    effort_of,
    says_cut,
)
from unbroken_wires.wires.json_access import Object, as_dict, as_int, dicts

FIELDS = "additionalModelRequestFields"

_LEVELS: dict[Effort, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
_MAX_TOKENS = 8192


def spelled(effort: Effort, model: str) -> Object:
    """The effort in the fields of the model's family; empty if the family has none for it."""
    if model in SINCE_4_6 and effort != "none":
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": adaptive_effort(effort, model)}}
    if is_claude(model):  # it does not think by default, and its older models do not know the field
        return {} if effort == "none" else {"thinking": {"type": "enabled", "budget_tokens": BUDGETS[effort]}}
    if is_nova(model):
        if effort == "none":
            return {"reasoningConfig": {"type": "disabled"}}
        return {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": _LEVELS[effort]}}
    if "gpt-oss" in model:
        return {"reasoning_effort": _LEVELS.get(effort, "low")}
    return {}


def decode_effort(fields: Object) -> Effort | None:
    match fields:
        case {"thinking": {"type": "adaptive"}}:
            return effort_of(as_dict(fields.get("output_config")).get("effort"))
        case {"thinking": {"type": "enabled", "budget_tokens": int(budget)}}:
            return min(BUDGETS, key=lambda effort: abs(BUDGETS[effort] - budget))
        case {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low" | "medium" | "high" as level}}:
            return level
        case {"thinking": {"type": "disabled"}} | {"reasoningConfig": {"type": "disabled"}}:
            return "none"
        case {"reasoning_effort": "low" | "medium" | "high" as level}:
            return level
        case _:
            return None


def set_reasoning(body: Object, request: Request) -> None:
    """Adds the effort to a body that has its messages, tool choice and inference settings, and takes out what the
    family refuses beside it."""
    if request.reasoning is None:
        return
    fields = spelled(request.reasoning, request.model)
    thinking = as_dict(fields.get("thinking"))
    # Two requests are refused with thinking, and the choice and the history are the harder facts: one that forces a
    # call, and one that continues a turn which began without thinking.
    if thinking and _forces_a_call(body):
        return
    if thinking.get("type") == "enabled" and began_without(dicts(body.get("messages"))):
        return
    config: Object = body.get("inferenceConfig", {})
    if fields:
        body[FIELDS] = fields
    if thinking:
        budget = as_int(thinking.get("budget_tokens"))
        limit = as_int(config.get("maxTokens")) or _MAX_TOKENS
        if budget or "maxTokens" in config:
            config["maxTokens"] = budget + limit if limit <= budget else limit
        config.pop("temperature", None)
        if config.get("topP", 1) < 0.95:
            del config["topP"]
        body["inferenceConfig"] = config
    elif as_dict(fields.get("reasoningConfig")).get("maxReasoningEffort") == "high":
        for name in ("temperature", "topP", "maxTokens"):  # Nova decides on them itself at that effort
            config.pop(name, None)
        if not config:
            body.pop("inferenceConfig", None)


def drop_moved_reasoning(body: Object, request: Request) -> None:
    """Asks a newer Claude to drop reasoning that is not valid any more, as `anthropic.messages_binding` does, in the
    spelling of docs.aws.amazon.com/bedrock/latest/userguide/claude-messages-thinking-block-binding.html."""
    turns: list[Object] = body["messages"]
    if request.appended is request.messages or request.model not in PREFIX_CHECKED or not any(map(_reasons, turns)):
        return
    fields = as_dict(body.get(FIELDS))
    thinking = as_dict(fields.get("thinking"))
    if request.reasoning == "none" or _forces_a_call(body):
        for turn in filter(_reasons, turns):
            turn["content"] = [block for block in turn["content"] if "reasoningContent" not in block]
    elif BINDING not in thinking:
        thinking = {"type": "adaptive", **thinking, BINDING: {"mismatch_behavior": "drop_block"}}
        betas = [*fields.get("anthropic_beta", ()), BINDING_BETA]
        body[FIELDS] = {**fields, "thinking": thinking, "anthropic_beta": betas}


def _reasons(turn: Object) -> bool:
    return any("reasoningContent" in block for block in dicts(turn["content"]))


def _forces_a_call(body: Object) -> bool:
    choice = as_dict(as_dict(body.get("toolConfig")).get("toolChoice"))
    return "any" in choice or "tool" in choice


def began_without(messages: list[Object]) -> bool:
    """Is a turn being continued whose first message has no reasoning? Calls and results in turn are one turn."""
    first: Object | None = None
    for message in reversed(messages):
        blocks = dicts(message.get("content"))
        if message.get("role") == "assistant":
            first = message
        elif not blocks or any("toolResult" not in block for block in blocks if "cachePoint" not in block):
            break
    if first is None:
        return False
    blocks = dicts(first.get("content"))
    return not blocks or "reasoningContent" not in blocks[0]


def turn_reasoning_off(body: Object, request: Request) -> tuple[Object, str]:
    """Claude refuses thinking in a turn that did not begin with thinking."""
    fields, done = as_dict(body.get(FIELDS)), "thinking is off"
    continues = any("toolResult" in block for block in dicts(_last(body).get("content")))
    if is_claude(request.model) and request.reasoning not in (None, "none") and "thinking" not in fields:
        return body, done if continues else ""  # the wire's encoder has done it
    if as_dict(fields.get("thinking")).get("type") not in ("enabled", "adaptive"):
        return body, ""
    if not began_without(dicts(body.get("messages"))):
        return body, ""
    return {**body, FIELDS: {name: value for name, value in fields.items() if name != "thinking"}}, done


def mend_refused(body: Object, words: str) -> tuple[Object, list[str]] | None:
    """The body without the reasoning, if Claude refuses it because its signature was cut."""
    turns = dicts(body.get("messages"))
    if not says_cut(words) or not any(map(_reasons, turns)):
        return None
    spoken = [{**turn, "content": [b for b in dicts(turn["content"]) if "reasoningContent" not in b]} for turn in turns]
    body = {**body, "messages": [turn for turn in spoken if turn["content"]]}
    return turn_reasoning_off(body, Request(()))[0], ["messages.content.reasoningContent"]


def _last(body: Object) -> Object:
    messages = dicts(body.get("messages"))
    return messages[-1] if messages else {}
