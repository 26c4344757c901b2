"""A Python file with functions that the gateway calls: `on_request`, `on_call`, `on_answer`. It is read again when it
changes.

A file with a mistake is an error at the start; later the functions that were read before stay in use, and the log has
the error once.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Self, cast

from unbroken.errors import UserError
from unbroken.middleware import RunStart
from unbroken_gateway.guards.guard import Guard, RequestInfo, call_user
from unbroken_wires.messages import Assistant, Request, ToolCall
from unbroken_wires.wires.jsontext import dumps

log = logging.getLogger("unbroken.gateway")

NAMES = ("on_request", "on_call", "on_answer")
_NUMBERS = count(1)
_NOTHING = RequestInfo("", "", "", "")


class HookFile(Guard):
    """One object for each alias that uses the file; `start` returns the functions as they are at that moment."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = Path(path)
        self._seconds = seconds
        self._reading = Lock()
        self._stamp = self._stamped()
        self._functions = read_hooks(self._path)
        self._info = _NOTHING

    def start(self, run: RunStart) -> Self:
        self._read_again()
        started = copy(self)
        started._info = cast("RequestInfo", run.context().deps)
        started.checks_calls = "on_call" in started._functions
        started.checks_answers = "on_answer" in started._functions
        return started

    def _stamped(self) -> tuple[int, int, int]:
        """Zeros while there is no file: an editor may replace it."""
        try:
            found = os.stat(self._path)
        except OSError:
            return 0, 0, 0
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read_again(self) -> None:
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        with self._reading:
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                self._functions = read_hooks(self._path)
            except UserError as error:
                log.error("hooks_kept file=%s: the functions read before stay in use: %s", self._path.name, error)
            else:
                log.info("hooks_read file=%s functions=%s", self._path.name, ",".join(self._functions))

    async def _call(self, name: str, value: object) -> Any:
        function = self._functions.get(name)
        return None if function is None else await call_user(function, value, self._info, seconds=self._seconds)

    async def prepare(self, request: Request) -> Request:
        changed = await self._call("on_request", request)
        if changed is None:
            return request
        if not isinstance(changed, Request):
            raise TypeError(f"on_request returned {type(changed).__name__}: return nothing, or a Request")
        return changed

    async def check_call(self, call: ToolCall) -> ToolCall:
        changed = await self._call("on_call", call)
        if changed is None or changed is call:
            return call
        if not isinstance(changed, dict):
            raise TypeError(f"on_call returned {type(changed).__name__}: return nothing, or new arguments as a dict")
        return with_arguments(call, cast("dict[str, Any]", changed))

    async def check_answer(self, message: Assistant) -> str | None:
        changed = await self._call("on_answer", message)
        if changed is not None and not isinstance(changed, str):
            raise TypeError(f"on_answer returned {type(changed).__name__}: return nothing, or another text")
        return changed


def with_arguments(call: ToolCall, arguments: dict[str, Any]) -> ToolCall:
    return replace(call, arguments=arguments, raw=dumps(arguments).decode())


def read_hooks(path: Path) -> Mapping[str, Callable[..., Any]]:
    """The functions of a hook file. Raises `UserError`."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"hooks: {path} cannot be read: {error.strerror or error}") from None
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # it may import modules beside it
    # Not imported by its name: a compiled file of the same second and size would be used instead.
    module = ModuleType(f"unbroken_hooks_{next(_NUMBERS)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        return _functions(module, path)
    except UserError:
        del sys.modules[module.__name__]
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's file may raise anything
        del sys.modules[module.__name__]
        raise UserError(f"hooks: {path} cannot be used: {type(error).__name__}: {error}") from None


def _functions(module: ModuleType, path: Path) -> dict[str, Callable[..., Any]]:
    named = {name: value for name, value in vars(module).items() if name.startswith("on_") and callable(value)}
    for name in named.keys() - set(NAMES):
        near = get_close_matches(name, NAMES, 1)
        raise UserError(
            f"hooks: {path} has `{name}`, which is never called; there are {', '.join(NAMES)}"
            + (f": did you mean `{near[0]}`?" if near else "")
        )
    if not named:
        raise UserError(f"hooks: {path} has none of the functions {', '.join(NAMES)}")
    for name, function in named.items():
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            raise UserError(f"hooks: `{name}` in {path} has to take two arguments, like {name}(value, info)") from None
        except ValueError:
            pass  # it has no signature
    return {name: named[name] for name in NAMES if name in named}
