"""The task of every Python program here, and the tool that it offers. Runs with the Python of the clients' own
environment, in which Unbroken is not installed."""

from __future__ import annotations

import os
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict

URL, MODEL, PROMPT = (os.environ[name] for name in ("GATEWAY_URL", "GATEWAY_MODEL", "GATEWAY_PROMPT"))
KEY = os.environ["GATEWAY_KEY"]
SERIAL, STREAM = (os.environ.get(name) == "1" for name in ("GATEWAY_SERIAL", "GATEWAY_STREAM"))
IMAGE = os.environ.get("GATEWAY_IMAGE", "")
"""In base64. With it the question has this image, and the answer is a `Report`."""
IMAGE_URL = f"data:image/png;base64,{IMAGE}"

DESCRIPTION = "Writes a file."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
    "additionalProperties": False,
}


class Report(BaseModel):
    model_config = ConfigDict(extra="forbid")

    written: int
    summary: str


REPORT = Report.model_json_schema()


def write_file(path: str, content: str) -> str:
    """Writes a file."""
    with open(path, "a", encoding="utf-8") as file:  # appended, so that a call that ran twice is visible
        file.write(content)
    return f"{path} is written"


def finish(text: object) -> None:
    sys.stdout.write(f"{text}\n")
