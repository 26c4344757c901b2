"""The entry point: standard streams, `--version`, and our errors as one line and an exit code.

`--version` is handled before the commands (`commands`) are loaded, which import typer and rich.
"""

from __future__ import annotations

import sys

from unbroken.errors import UnbrokenError
from unbroken_cli.streams import INTERRUPTED, READER_GONE, open_streams, print_version


def main() -> None:
    out = open_streams()
    try:
        if sys.argv[1:2] == ["--version"]:
            print_version()
        else:
            from unbroken_cli.commands import build  # noqa: PLC0415 - start-up time: typer and rich

            build(sys.argv[1] if len(sys.argv) > 1 else "")()
    except UnbrokenError as error:
        sys.stderr.write(f"unbroken: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # commands that have something to say about it have said it
    except (SystemExit, BrokenPipeError):
        if out is not None and out.gone:
            sys.exit(READER_GONE)  # not 1, which means something in most commands
        raise
