"""Hands its streams, environment and folder to a process that `loaded_command` forks, passes signals on to it, and ends
with its exit code. It imports little, so that it starts at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main(address: str, order: str) -> int:
    status, child = os.pipe()
    complete = {**json.loads(order), "env": dict(os.environ), "cwd": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as loaded:
        loaded.connect(address)
        socket.send_fds(loaded, [json.dumps(complete).encode()], [0, 1, 2, child])
        pid = int(loaded.recv(100))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _frame: os.kill(pid, number))
        for end in (0, 1, 2, child):  # its streams end when the fork ends
            os.close(end)
        code = int(os.read(status, 100) or b"-9")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
