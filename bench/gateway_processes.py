"""The processes of the gateway's benches, and what the kernel knows of them: CPU time, memory, files. For Linux."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    started: float
    """Seconds from the start of the process to its first 200 on /healthz."""
    log: Path

    def cpu(self) -> float:
        """CPU seconds of all its threads, living and gone: its own clock, to the nanosecond."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1024 / 1024

    def peak_megabytes(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def stop(self, seconds: float = 10.0) -> int | None:
        """Its exit code; None if it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return taken.getsockname()[1]


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as asked:
            asked.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
            return asked.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    health: str = "/healthz",
    patience: float = 240.0,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Generator[Server]:
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}, cwd=directory
        )
        try:
            while not _answers(port, health):
                if process.poll() is not None or time.perf_counter() - began > patience:
                    raise SystemExit(f"{name} did not start: {log.read_text()[-2000:]}")
                time.sleep(0.005)
            yield Server(name, port, process, time.perf_counter() - began, log)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def bare(upstream: int, directory: Path) -> Generator[Server]:
    port = free_port()
    command = [sys.executable, str(HERE / "gateway_bare.py"), f"http://{HOST}:{upstream}", str(port)]
    with running("bare", command, port, directory / "bare.log") as server:
        yield server


def configuration(upstream: int, store: str, more: str = "", of_model: str = "") -> str:
    """A file for `unbroken serve`: every model of the upstream, and the first of them on another wire. `more`: other
    tables; `of_model`: more settings of each model."""
    rows = [(model, f"openai:{model}", f"http://{HOST}:{upstream}/v1") for model in MODELS]
    rows.append(("crossed", "anthropic:calls", f"http://{HOST}:{upstream}"))
    models = [
        f'[[models]]\nalias = "{alias}"\nmodel = "{model}"\nbase_url = "{url}"\napi_key_env = "BENCH_KEY"\n{of_model}'
        for alias, model, url in rows
    ]
    return f"[store]\nurl = {json.dumps(store)}\n\n{more}\n" + "\n".join(models)


MODELS = ("calls", "many", "burst", "drip", "slow", "marks")


@contextmanager
def gateway(
    upstream: int, directory: Path, store: str = "", name: str = "gateway", more: str = "", of_model: str = ""
) -> Generator[Server]:
    """`unbroken serve`, as a user starts it. The store is SQLite, as it is where nobody says anything else."""
    port = free_port()
    config = directory / f"{name}.toml"
    config.write_text(configuration(upstream, store or f"sqlite:{directory / name}.db", more, of_model))
    command = [str(Path(sys.executable).parent / "unbroken"), "serve", "--config", str(config), "--port", str(port)]
    key = {"BENCH_KEY": "not-a-real-key"}
    with running(name, command, port, directory / f"{name}.log", environment=key, directory=directory) as server:
        yield server


@contextmanager
def litellm(upstream: int, directory: Path, program: Path) -> Generator[Server]:
    """LiteLLM's proxy in the environment that `program` stands in: a dozen seconds to start."""
    port = free_port()
    base = f"http://{HOST}:{upstream}/v1"
    rows = [
        {"model_name": model, "litellm_params": {"model": f"openai/{model}", "api_base": base, "api_key": "not-a-key"}}
        for model in MODELS
    ]
    config = directory / "litellm.yaml"
    config.write_text(json.dumps({"model_list": rows}))  # what is JSON is YAML
    command = [str(program), "--config", str(config), "--host", HOST, "--port", str(port)]
    settings = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # ours asks for no key either
    }
    log = directory / "litellm.log"
    with running(
        "litellm", command, port, log, health="/health/liveliness", environment=settings, directory=directory
    ) as server:
        yield server
