"""The command line: `unbroken`. Pretty on a terminal, plain in a pipe, JSON on request.

Exit codes: 0 success; 1 the checked thing is broken; 2 the command was used wrongly, or its input is not valid.
"""

from unbroken_cli.main import main

__all__ = ["main"]
