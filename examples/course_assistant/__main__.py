"""`python -m course_assistant`, from the folder `examples`."""

from course_assistant.cli import main

main()
