"""The command runs its demo, and says for each command whose package is not here what to install."""

import subprocess
import sys
from pathlib import Path

from unbroken_cli.commands import COMMANDS

unbroken = Path(sys.executable).with_name("unbroken")
demo = subprocess.run([unbroken, "demo", "--pace", "0.1"], capture_output=True, text=True, check=True)
assert "Each call ran once" in demo.stdout
for name, home in COMMANDS.items():
    if ":" in home or " " in name:
        continue
    done = subprocess.run([unbroken, name, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    assert f"`unbroken {name}` needs unbroken-{home}: pip install 'unbroken[{home}]'" in done.stderr, done.stderr
