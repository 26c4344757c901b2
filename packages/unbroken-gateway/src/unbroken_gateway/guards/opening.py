"""Opens the guardrails of an alias: settings in, middleware out. Mistakes are reported before the first request."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from json import dumps
from typing import Any, cast

from unbroken.errors import UserError
from unbroken.guardrails import REFUSED, Veto, check_answers, check_calls, check_input, check_output
from unbroken.middleware import Middleware
from unbroken_gateway.guards.guard import GatewayRedaction, call_user
from unbroken_gateway.guards.guarding import Guardrails
from unbroken_gateway.guards.hook_file import HookFile
from unbroken_gateway.settings import GuardrailSettings, UpstreamSettings
from unbroken_wires.messages import Assistant, Json, ToolCall

CHECKS: dict[str, Callable[..., Middleware]] = {
    "check_input": check_input,
    "check_answers": check_answers,
    "check_calls": check_calls,
    "check_output": check_output,
}


def open_guardrails(settings: UpstreamSettings) -> Guardrails:
    opened: list[tuple[str, Middleware]] = []
    if settings.hooks:
        opened.append(("hooks", HookFile(settings.hooks, settings.hook_timeout)))
    for each in settings.guardrails:
        opened.append((each.name or each.use, _open(each, settings.hook_timeout)))
    return Guardrails(tuple(opened))


def _open(settings: GuardrailSettings, seconds: float) -> Middleware:
    if settings.use == "redact":
        return GatewayRedaction(re.compile(settings.pattern), settings.by, settings.arguments)
    if settings.use.startswith("python:"):
        made = _find(settings.use.removeprefix("python:"))()
        if not isinstance(made, Middleware):
            raise UserError(f"guardrail `{settings.use}` returned {type(made).__name__}, which is not a Middleware")
        return made
    check = _limited(_find(settings.check), seconds) if settings.check else _veto(settings)
    options: dict[str, Any] = {}
    if settings.use == "check_calls":
        options["tools"] = settings.tools
    elif settings.use != "check_input":
        options["retries"] = settings.retries
    return CHECKS[settings.use](check, **options)


def _find(name: str) -> Callable[..., Any]:
    """The function `module:function`; the module may be in the working directory."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise UserError(f"the check `{name}` cannot be used: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UserError(f"the check `{name}` is not a function")
    return found


def _limited(check: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The check with a time limit; a plain function runs in a thread, so that it delays no other request."""

    @functools.wraps(check)
    async def limited(*arguments: Any) -> Any:
        return await call_user(check, *arguments, seconds=seconds)

    return limited


def _veto(settings: GuardrailSettings) -> Callable[..., Any]:
    """A check that refuses what the pattern finds."""
    pattern, message = re.compile(settings.veto), settings.message or REFUSED

    def veto(value: object) -> None:
        if pattern.search(_text(value)):
            raise Veto(message)

    veto.__name__ = settings.name or settings.use
    return veto


def _strings(value: Json) -> Iterator[str]:
    """The texts in a value: in JSON some of their characters are escaped."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in cast("dict[str, Json]", value).values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in cast("list[Json]", value):
            yield from _strings(each)


def _text(value: object) -> str:
    if isinstance(value, ToolCall):
        if value.arguments is None:
            return value.raw
        return "\n".join((dumps(value.arguments, ensure_ascii=False), *_strings(value.arguments)))
    if isinstance(value, Assistant):
        return value.text
    return value if isinstance(value, str) else dumps(value, ensure_ascii=False, default=str)
