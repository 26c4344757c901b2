"""`python -m unbroken_gateway` starts a gateway where the command line is not installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

DEMO = '[[models]]\nmodel = "demo"\n[server]\nport = 0\n[log]\njson = true\n'


@contextmanager
def started(folder: Path, *words: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The process and its address. In it, nothing of the command line can be imported."""
    missing = folder / "missing"
    missing.mkdir()
    for package in ("typer", "rich", "unbroken_cli"):
        (missing / f"{package}.py").write_text(f"raise ModuleNotFoundError('no {package}', name='{package}')")
    command = [sys.executable, "-m", "unbroken_gateway", *words]
    environment = {**os.environ, "PYTHONPATH": str(missing)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = (json.loads(line) for line in process.stderr)
            line = next(line["message"] for line in lines if line["message"].startswith("started"))
            yield process, line.partition("at=")[2].split()[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def test_it_serves_the_demo_model_without_typer_and_rich(tmp_path: Path) -> None:
    (tmp_path / "unbroken.toml").write_text(DEMO)
    with started(tmp_path) as (process, at):
        body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        headers = {"content-type": "application/json"}
        with urlopen(Request(f"{at}/v1/chat/completions", body, headers), timeout=30) as response:
            assert json.load(response)["choices"][0]["message"]["role"] == "assistant"
    assert process.returncode == 0


def test_mistakes_of_the_file_are_printed_with_the_exit_code_of_serve(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[server]\nporte = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "unbroken_gateway", "other.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "other.toml:2: [server]: unknown key `porte`" in done.stderr
