"""How the log lines of a serving gateway look: one line each on standard error, for people or as JSON.

The library itself never sets up logging; this is for the process that serves, and for each of its workers.
"""

from __future__ import annotations

import json
import logging
import sys
import time


def set_up_logs(as_json: bool = False) -> None:
    """Our own lines from INFO on, everybody else's from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("unbroken").setLevel(logging.INFO)


_HARMLESS = {code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""A provider's words may hold what steers a terminal."""


class _Lines(logging.Formatter):
    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(_HARMLESS)


class _JsonLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
