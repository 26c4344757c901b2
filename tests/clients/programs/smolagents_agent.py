"""An agent of `smolagents` that calls tools; with an image, one that writes code in an answer of a given shape."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

from base64 import b64decode
from io import BytesIO

from PIL import Image
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool
from task import IMAGE, KEY, MODEL, PROMPT, SERIAL, STREAM, URL, finish


@tool
def write_file(path: str, content: str) -> str:
    """Writes a file.

    Args:
        path: Where.
        content: What.
    """
    with open(path, "a", encoding="utf-8") as file:  # appended, so that a call that ran twice is visible
        file.write(content)
    return f"{path} is written"


settings = {"parallel_tool_calls": False} if SERIAL and not IMAGE else {}
model = OpenAIModel(MODEL, api_base=f"{URL}/v1", api_key=KEY, **settings)
options = {"tools": [write_file], "model": model, "stream_outputs": STREAM, "verbosity_level": LogLevel.OFF}
if IMAGE:
    agent = CodeAgent(**options, use_structured_outputs_internally=True)
    finish(agent.run(PROMPT, images=[Image.open(BytesIO(b64decode(IMAGE)))]))
else:
    finish(ToolCallingAgent(**options).run(PROMPT))
