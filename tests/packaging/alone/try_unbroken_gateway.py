"""The gateway starts without the command line, and its demo model answers."""

import json
import re
import subprocess
import sys
from urllib.request import Request, urlopen

gateway = subprocess.Popen(
    [sys.executable, "-m", "unbroken_gateway", "gateway.toml"], stderr=subprocess.PIPE, text=True
)
try:
    assert gateway.stderr is not None
    address = next(found[0] for line in gateway.stderr if (found := re.findall(r"http://[\d.]+:\d+", line)))
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    with urlopen(Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})) as answer:
        assert "demo model of Unbroken" in json.load(answer)["choices"][0]["message"]["content"]
finally:
    gateway.terminate()
    assert gateway.wait(30) == 0
