"""`python -m unbroken_gateway [FILE]`: the gateway of a configuration file, without the command line `unbroken`.

`unbroken serve` has options, checks a file, and translates others.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from unbroken.errors import UnbrokenError
from unbroken.logs import chosen_level, set_up_logs
from unbroken_gateway.config import FILE
from unbroken_gateway.http.uvicorn_server import serve
from unbroken_gateway.reloading import ConfigSource


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m unbroken_gateway", description="Serve models to clients of any wire. Exit codes are those of serve."
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help=f"the configuration; {FILE} if it is here, else a demo")
    file: str = parser.parse_args().file or (FILE if Path(FILE).is_file() else "")
    try:
        source = ConfigSource(file, {})
        settings = source.read({})
        level = chosen_level("", None) or settings.log_level
        serve(settings, logs=partial(set_up_logs, settings.log_json, level), source=source)
    except UnbrokenError as error:
        sys.stderr.write(f"unbroken_gateway: {error}\n")
        sys.exit(2)


main()
