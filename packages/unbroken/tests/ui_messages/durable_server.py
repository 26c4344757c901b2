"""Durable runs behind real HTTP, with a worker. `python durable_server.py COMMAND…` serves while the command runs,
which gets the address as its last argument."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "tests" / "support"))

from watched_runs import serving, working


async def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as url:
        async with working(Path(folder)):
            process = await asyncio.create_subprocess_exec(*command, url)
            return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
