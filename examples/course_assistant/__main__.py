"""`python -m course_assistant`, from the folder `examples`."""

import signal

# The imports below take a second: Ctrl-C during that time should end the program without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from course_assistant.cli import main  # noqa: E402 - see above

main()
