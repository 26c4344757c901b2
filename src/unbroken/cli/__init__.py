"""The command line: `unbroken`. Pretty on a terminal, plain in a pipe, JSON on request.

Exit codes: 0 all is well, 1 the thing asked about is broken, 2 the command was used wrongly or its input is no input.
"""

from unbroken.cli.main import main

__all__ = ["main"]
