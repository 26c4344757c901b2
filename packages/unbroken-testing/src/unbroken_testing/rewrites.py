"""Faults in the script: takes the steps of an answer and returns other steps. The same on every wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from unbroken.models.scripted import Call, Cut, End, Say, Step, Think, Uses

Rewrite: TypeAlias = Callable[[Sequence[Step]], list[Step]]

BEYOND = 2**64
"""What is added to each integer, so that none of them fits into 64 bits."""


def each_call(change: Callable[[Call, int], Call]) -> Rewrite:
    """Applies a function to each call and its number."""

    def rewrite(steps: Sequence[Step]) -> list[Step]:
        calls = iter(range(len(steps)))
        return [change(step, next(calls)) if isinstance(step, Call) else step for step in steps]

    return rewrite


def last_call(change: Callable[[Call], Sequence[Step]]) -> Rewrite:
    """Applies a function to the last call that has arguments, else to the last one."""

    def rewrite(steps: Sequence[Step]) -> list[Step]:
        last = _last(steps)
        said: list[Step] = []
        for at, step in enumerate(steps):
            said += change(step) if at == last and isinstance(step, Call) else [step]
        return said

    return rewrite


def _last(steps: Sequence[Step]) -> int:
    calls = [at for at, step in enumerate(steps) if isinstance(step, Call)]
    full = [at for at, step in enumerate(steps) if isinstance(step, Call) and step.raw.strip() != "{}"]
    return (full or calls or [len(steps)])[-1]


def changed(call: Call, *, raw: str | None = None, id: str | None = None, pieces: int = 0) -> Call:
    return Call(
        call.name,
        call.raw if raw is None else raw,
        id=call.id if id is None else id,
        after=call.after,
        over=call.over,
        pieces=pieces or call.pieces,
    )


def cut_last_call(*ends: Step) -> Rewrite:
    def cut(call: Call) -> list[Step]:
        return [Cut(call.name, call.raw[: max(1, len(call.raw) // 2)], call.id, call.after, call.over), *ends]

    def rewrite(steps: Sequence[Step]) -> list[Step]:
        # Nothing follows the cut call, and the script's own end is replaced.
        last = _last(steps)
        if last == len(steps):
            return list(steps)
        kept = [step for step in steps[last + 1 :] if isinstance(step, Uses)]
        return last_call(cut)([*(step for step in steps[: last + 1] if not isinstance(step, End)), *kept])

    return rewrite


def nothing(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if isinstance(step, Uses)]


def only_reasoning(steps: Sequence[Step]) -> list[Step]:
    return [Think("What was I asked?"), *nothing(steps)]


def before_calls(text: str) -> Rewrite:
    def rewrite(steps: Sequence[Step]) -> list[Step]:
        first = next((at for at, step in enumerate(steps) if isinstance(step, Call)), None)
        return list(steps) if first is None else [*steps[:first], Say(text), *steps[first:]]

    return rewrite


def without_arguments(call: Call, number: int) -> Call:
    """A call of a tool without parameters, with nothing instead of `{}`."""
    return changed(call, raw="") if call.raw.strip() == "{}" else call


def double_encoded(call: Call, number: int) -> Call:
    return changed(call, raw=json.dumps(call.raw, ensure_ascii=False))


def beyond_64_bits(call: Call, number: int) -> Call:
    try:
        return changed(call, raw=json.dumps(_grown(json.loads(call.raw)), ensure_ascii=False))
    except ValueError:
        return call


def _grown(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int():
            return value + BEYOND
        case list():
            return [_grown(item) for item in value]  # pyright: ignore[reportUnknownVariableType] - any JSON
        case dict():
            return {key: _grown(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType] - any JSON
        case _:
            return value


def leaked(write: Callable[[str, dict[str, Any]], str], begin: str = "", end: str = "", between: str = "\n") -> Rewrite:
    """The calls as text, in a dialect."""

    def rewrite(steps: Sequence[Step]) -> list[Step]:
        calls = [step for step in steps if isinstance(step, Call)]
        if not calls:
            return list(steps)
        text = begin + between.join(write(call.name, json.loads(call.raw or "{}")) for call in calls) + end
        said: list[Step] = [step for step in steps if not isinstance(step, Call)]
        return [*said, Say(f"\n{text}" if any(isinstance(step, Say) for step in said) else text)]

    return rewrite


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else _dump(value)


def _object(name: str, arguments: dict[str, Any]) -> str:
    return _dump({"name": name, "arguments": arguments})


def _qwen_coder(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def _deepseek(name: str, arguments: dict[str, Any]) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_dump(arguments)}\n```<｜tool▁call▁end｜>"


def _dsml(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(
        f'<｜DSML｜parameter name="{key}" string="{_dump(isinstance(value, str))}">{_bare(value)}</｜DSML｜parameter>\n'
        for key, value in arguments.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{pairs}</｜DSML｜invoke>'


def _invoke(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(f'<parameter name="{key}">{_bare(value)}</parameter>\n' for key, value in arguments.items())
    return f'<invoke name="{name}">\n{pairs}</invoke>'


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _gemma(name: str, arguments: dict[str, Any]) -> str:
    pairs = ",".join(
        f'{key}:<|"|>{value}<|"|>' if isinstance(value, str) else f"{key}:{_dump(value)}"
        for key, value in arguments.items()
    )
    return f"<|tool_call>call:{name}{{{pairs}}}<tool_call|>"


def _harmony(name: str, arguments: dict[str, Any]) -> str:
    header = f"<|start|>assistant to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>"
    return f"{header}{_dump(arguments)}<|call|>"


def _kimi(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{_dump(arguments)}<|tool_call_end|>"


LEAKS: dict[str, Rewrite] = {
    "hermes": leaked(lambda name, arguments: f"<tool_call>\n{_object(name, arguments)}\n</tool_call>"),
    "qwen-coder": leaked(_qwen_coder),
    "glm": leaked(_glm),
    "llama": leaked(_object, begin="<|python_tag|>", between="; "),
    "mistral": leaked(_object, begin="[TOOL_CALLS][", between=", ", end="]"),
    "deepseek": leaked(_deepseek, begin="<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>"),
    "deepseek-dsml": leaked(_dsml, begin="<｜DSML｜function_calls>\n", end="\n</｜DSML｜function_calls>"),
    "kimi-k2": leaked(_kimi, begin="<|tool_calls_section_begin|>", end="<|tool_calls_section_end|>"),
    "fenced": leaked(lambda name, arguments: f"```json\n{_object(name, arguments)}\n```"),
    "dph": leaked(lambda name, arguments: f"=>#{name}: {_dump(arguments)}"),
    "minimax-m2": leaked(_invoke, begin="<minimax:tool_call>\n", end="\n</minimax:tool_call>"),
    "lfm2": leaked(_python, begin="<|tool_call_start|>[", between=", ", end="]<|tool_call_end|>"),
    "gemma4": leaked(_gemma, between=""),
    "harmony": leaked(_harmony, between=""),
}
"""One form for each shape of call that `decoding.leaked_calls` knows, in the dialect that leaks most."""
