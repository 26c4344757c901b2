"""`python -m unbroken` is `unbroken`."""

from unbroken.cli.main import main

main()
