"""Feature flags of the language. There is one: whether several calls of one message are used, or only the first."""

from __future__ import annotations

import os

from unbroken.errors import UserError

ENABLE_PARALLEL_TOOL_CALLS = "enable_parallel_tool_calls"

PREFIXES = ("UNBROKEN_", "DOLPHIN_")
"""Prefixes of the environment variables; the first that is set is used."""

_DEFAULTS = {ENABLE_PARALLEL_TOOL_CALLS: True}
_SET: dict[str, bool] = {}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def is_enabled(flag: str) -> bool:
    """A value set in this process takes precedence, then the environment, then the default."""
    name = _known(flag)
    if name in _SET:
        return _SET[name]
    for prefix in PREFIXES:
        variable = f"{prefix}{name.upper()}"
        if value := os.environ.get(variable, "").strip():
            if value.lower() in _TRUE:
                return True
            if value.lower() in _FALSE:
                return False
            raise UserError(f"{variable}={value}: set it to true or false, or unset it")
    return _DEFAULTS[name]


def enable(flag: str) -> None:
    _SET[_known(flag)] = True


def disable(flag: str) -> None:
    _SET[_known(flag)] = False


def reset(flag: str | None = None) -> None:
    """Removes the values that were set in this process, for one flag or for all."""
    for name in [_known(flag)] if flag is not None else list(_SET):
        _SET.pop(name, None)


def _known(flag: str) -> str:
    name = flag.lower()
    if name not in _DEFAULTS:
        raise UserError(f"there is no flag `{flag}`; the flags are: {', '.join(_DEFAULTS)}")
    return name
