"""The command runs its demo, and says what a command needs whose package is not here."""

import subprocess
import sys
from pathlib import Path

unbroken = Path(sys.executable).with_name("unbroken")
demo = subprocess.run([unbroken, "demo", "--pace", "0.1"], capture_output=True, text=True, check=True)
assert "Each call ran once" in demo.stdout
serve = subprocess.run([unbroken, "serve"], capture_output=True, text=True, check=False)
assert serve.returncode != 0
assert "pip install 'unbroken[gateway]'" in serve.stderr, serve.stderr
