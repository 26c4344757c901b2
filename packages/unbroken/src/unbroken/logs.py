"""Log lines on standard error, for programs that serve or run agents: plain for people, or a JSON object each.

The library itself never configures logging. This module is for programs: `unbroken serve` and its workers, the other
commands, and applications such as those in `examples/`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Literal, TypeAlias, cast, get_args

from unbroken.asgi import REQUEST_ID
from unbroken.errors import UserError
from unbroken.trajectory.redaction import Redactor, secrets_in_environment

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LEVELS = get_args(LogLevel)
VARIABLE = "UNBROKEN_LOG"
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def chosen_level(given: str, default: LogLevel | None) -> LogLevel | None:
    """The level that an option names, else the variable `UNBROKEN_LOG`, else the default of the program."""
    for source, value in (("--log-level", given), (VARIABLE, os.environ.get(VARIABLE, ""))):
        level = value.strip().lower()
        if level in LEVELS:
            return cast("LogLevel", level)
        if level:
            raise UserError(f"{source} {value!r}: expected {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")
    return default


def set_up_logs(as_json: bool = False, level: LogLevel = "info") -> None:
    """Our own lines from this level on, those of other libraries from WARNING on. Values of environment variables that
    are named like secrets are masked."""
    others = max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()])
    logging.basicConfig(handlers=[stderr_handler(as_json)], level=others, force=True)
    logging.getLogger("unbroken").setLevel(level.upper())
    logging.captureWarnings(as_json)  # Python would print them as they are


def stderr_handler(as_json: bool = False) -> logging.Handler:
    """Writes each line to standard error, in the chosen form."""
    handler = logging.StreamHandler(_CurrentError())
    handler.setFormatter(JsonLines() if as_json else PlainLines(PLAIN))
    return handler


class _CurrentError:
    """Standard error as it is at each write: a progress line takes its place for a while, and moves out of the way of
    what is written."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


_HARMLESS = {code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""A provider's words may hold what steers a terminal."""


class PlainLines(logging.Formatter):
    """One line each, without secrets and without characters that steer a terminal. In a server, the id of the request
    follows."""

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, form: str | None = None) -> None:
        super().__init__(form)
        self._redactor = Redactor(secrets_in_environment())

    def format(self, record: logging.LogRecord) -> str:
        line = self._redactor.text(super().format(record)).translate(_HARMLESS)
        return f"{line} [{id}]" if (id := REQUEST_ID.get()) else line


_PLACEHOLDER = re.compile(r"(?:(\w+)=)?%(?:%|[-+ #0-9.]*([a-zA-Z]))")
_EVENT = re.compile(r"([a-z]\w*) (?=\w+=%)|([a-z]+(?:_[a-z]+)+)(?= |:|$)")


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The values of a line such as `log.info("serial_hold calls=%d", 3)`: `event`, and each `name=%…`. `-` is no value,
    and becomes None."""
    template: object = record.msg
    if not isinstance(template, str) or not isinstance(record.args, tuple):
        return {}
    fields: dict[str, object] = {}
    if event := _EVENT.match(template):
        fields["event"] = event[1] or event[2]
    values = iter(record.args)
    for found in _PLACEHOLDER.finditer(template):
        if found[2] is None:  # `%%`
            continue
        value = next(values, None)
        if found[1]:
            if isinstance(value, float) and found[2] in "fg":
                value = float(found[0].partition("=")[2] % value)
            fields[found[1]] = None if value == "-" else value if isinstance(value, int | float) else str(value)
    return fields


class JsonLines(PlainLines):
    """The same as JSON objects, with time, level, logger and message, and a field for each `name=value` in it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redactor.text(record.getMessage()),
        }
        if id := REQUEST_ID.get():
            line["request"] = id
        for name, value in fields_of(record).items():
            line.setdefault(name, self._redactor.text(value) if isinstance(value, str) else value)
        if record.exc_info:
            line["error"] = self._redactor.text(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)
