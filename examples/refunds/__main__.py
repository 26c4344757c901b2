"""`make refunds`: three orders are refunded by a worker that is killed in the middle of a payment. A second worker
continues; the largest refund waits for a person; and the ledger shows that each order was paid once."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.prompt import Confirm

CONSOLE = Console(highlight=False, soft_wrap=True)


def begin_worker(journal: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "unbroken", "worker", "--journal", journal, "--agents", "refunds.agents:agents"]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)


def may_refund(run_id: str, amount: int, ask: bool) -> bool:
    words = f"{run_id} waits: may it refund {amount}?"
    if ask:
        return Confirm.ask(words, console=CONSOLE, default=True)
    CONSOLE.print(f"{words} yes")
    return True


async def main(folder: Path, ask: bool) -> bool:
    os.environ.setdefault("REFUNDS_LEDGER", f"sqlite:///{folder / 'ledger.db'}")
    url = os.environ.setdefault("REFUNDS_JOURNAL", f"sqlite:///{folder / 'runs.db'}")
    from refunds.agents import LEDGER, ORDERS  # noqa: PLC0415 - it reads the environment
    from unbroken import Allow, Deny  # noqa: PLC0415 - after the line above
    from unbroken_durable import open_journal  # noqa: PLC0415

    CONSOLE.print("A worker starts, with three refunds in its journal.")
    worker = begin_worker(url)
    try:
        async with await open_journal(url) as journal:
            for order in ORDERS:
                await journal.start("refunds", f"Refund order {order}.", run_id=f"order-{order}")
            while len(LEDGER.all()) < 1:
                await asyncio.sleep(0.02)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            CONSOLE.print("kill -9: the worker dies in the middle of a payment.")
            worker = begin_worker(url)
            CONSOLE.print("A second worker continues the runs.")
            while not (waiting := await journal.runs(state="waiting")):
                await journal.changed(1.0)
            for run in waiting:
                for call in run.pending:
                    allowed = may_refund(run.run_id, call.arguments["amount"], ask)
                    await journal.answer(run.run_id, {call.id: Allow() if allowed else Deny("the manager said no")})
            for order in ORDERS:
                async for _ in journal.events(f"order-{order}"):
                    pass
                recording = await journal.recording(f"order-{order}")
                CONSOLE.print(f"  [bold]order-{order}[/]: {getattr(recording.ending, 'text', '')}")
    finally:
        worker.terminate()
        worker.wait()
    paid = [(order, amount) for _, order, amount in LEDGER.all()]
    CONSOLE.print(f"The ledger has one payment for each order: {paid}")
    return len(paid) == len({order for order, _ in paid})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m refunds", description=__doc__)
    parser.add_argument("--yes", action="store_true", help="allow the large refund without asking")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        sys.exit(0 if asyncio.run(main(Path(place), CONSOLE.is_terminal and not options.yes)) else 1)
