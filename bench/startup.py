"""What it takes to start: user CPU time against `import openai`, interleaved in one run; the median.

Both with byte code, as installed packages have it. The time that Python itself takes to start is part of each.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

ROUNDS = 10
REFERENCE = "import openai"
IMPORTS = {
    "import unbroken_wires": "<= 0.1",
    "from unbroken import decode": "<= 0.25",
    "from unbroken import Agent, connect, tool": "<= 0.5",
    "from unbroken import Agent, connect, tool; connect('openai:gpt-5', api_key='k')": "",
    "import pydantic, aiohttp, orjson": "",
}
"""The fourth loads aiohttp as well; the last is what the libraries that we need take alone."""
COMMANDS = {"--version": "<= 0.1", "run --help": "", "serve --help": "", "--help": ""}


def user_cpu(arguments: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = {statement: ["-c", statement] for statement in (REFERENCE, *IMPORTS)}
    started |= {f"unbroken {command}": ["-m", "unbroken", *command.split()] for command in COMMANDS}
    times: dict[str, list[float]] = {what: [] for what in started}
    for arguments in started.values():
        user_cpu(arguments, environment)  # writes the byte code
    for _ in range(ROUNDS):
        for what, arguments in started.items():
            times[what].append(user_cpu(arguments, environment))
    reference = statistics.median(times[REFERENCE])
    print(f"{'user CPU time against `import openai`':<82} {'ratio':>6}   wanted")
    wanted = {**IMPORTS, **{f"unbroken {command}": bound for command, bound in COMMANDS.items()}}
    for what, bound in wanted.items():
        print(f"{what:<82} {statistics.median(times[what]) / reference:>6.2f}   {bound}".rstrip())
    print(f"`import openai` takes {reference * 1000:.0f} ms here, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
