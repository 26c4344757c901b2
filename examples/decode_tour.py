"""A tour of what Unbroken decodes: five responses, written for this tour, in the formats that providers really send.

Run it with `make tour`. Each stop runs the command that is printed above it, in pieces of 48 bytes, so that you see
each call as soon as its last byte has arrived.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.rule import Rule

HERE = Path(__file__).parent

STOPS = [
    (
        "Three calls in one streamed answer, two of them interleaved",
        "three_calls.sse",
        [],
        "Each call is ready at its own closing brace: the first could run while the others are still being written.",
    ),
    (
        "A call that was cut off, with a finish reason that indicates success",
        "cut_call_that_says_it_is_fine.sse",
        [],
        "The finish reason is tool_calls, but the file's text was never received. Half a call never runs.",
    ),
    (
        "A call that leaked into the text",
        "call_in_the_text.sse",
        ["--tools", "get_weather"],
        "Local models write their calls as text when a server does not know their dialect. Only offered tools count.",
    ),
    (
        "Anthropic's wire: reasoning with a signature, then two calls",
        "thinking_then_two_calls.sse",
        [],
        "The signature is kept, byte for byte: the provider requires it in the next request.",
    ),
    (
        "Gemini's wire, as one JSON array instead of a stream of events",
        "one_json_array.json",
        [],
        "This provider sends no ids: Unbroken generates them, always the same. The wire was guessed from the bytes.",
    ),
]


def main() -> None:
    console = Console(highlight=False)
    console.print("Unbroken decodes any provider's response and shows exactly what is in it.")
    console.print("No model is used here: the bytes were written for this tour, in the formats that providers send.\n")
    for number, (title, file, options, lesson) in enumerate(STOPS, start=1):
        console.print(Rule(f"{number}. {title}", align="left"))
        command = ["decode", "--follow", "--chunk", "48", *options, f"examples/streams/{file}"]
        console.print(f"$ unbroken {' '.join(command)}\n", style="bold", soft_wrap=True)
        done = subprocess.run([sys.executable, "-m", "unbroken", *command], check=False, cwd=HERE.parent)
        console.print(f"exit code {done.returncode}. {lesson}\n", style="italic")
    console.print("Try it on your own response: [bold].venv/bin/unbroken decode FILE[/] (or - for standard input).")


if __name__ == "__main__":
    main()
