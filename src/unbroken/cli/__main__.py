"""`python -m unbroken.cli` is `unbroken`."""

from unbroken.cli.main import main

main()
