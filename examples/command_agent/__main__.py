"""`python -m command_agent`, from the folder `examples`."""

import signal

# What is imported below takes a second: whoever presses Ctrl-C then wants it to end, and no traceback of imports.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from command_agent.cli import main  # noqa: E402 - see above

main()
