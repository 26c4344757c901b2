"""`python -m course_assistant`, from the folder `examples`."""

import signal

# What is imported below takes a second: whoever presses Ctrl-C then wants it to end, and no traceback of imports.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from course_assistant.cli import main  # noqa: E402 - see above

main()
