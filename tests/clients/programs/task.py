"""What every Python program here is told, and the tool that it offers. Run with the Python of the clients' own
environment, which has none of Unbroken in it."""

from __future__ import annotations

import os
import sys
from typing import Any

URL, MODEL, PROMPT = (os.environ[name] for name in ("GATEWAY_URL", "GATEWAY_MODEL", "GATEWAY_PROMPT"))
KEY = os.environ["GATEWAY_KEY"]
SERIAL, STREAM = (os.environ.get(name) == "1" for name in ("GATEWAY_SERIAL", "GATEWAY_STREAM"))

DESCRIPTION = "Writes a file."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
    "additionalProperties": False,
}


def write_file(path: str, content: str) -> str:
    """Writes a file."""
    with open(path, "a", encoding="utf-8") as file:  # appended: a call that ran twice shows
        file.write(content)
    return f"{path} is written"


def finish(text: object) -> None:
    sys.stdout.write(f"{text}\n")
