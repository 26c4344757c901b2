"""`python -m unbroken` is the command `unbroken`, of the package unbroken-cli."""

from importlib import import_module
from importlib.util import find_spec

from unbroken.errors import needs_extra

if find_spec("unbroken_cli") is None:
    raise SystemExit(f"unbroken: {needs_extra('the command', 'unbroken-cli', 'cli')}")
import_module("unbroken_cli.main").main()
