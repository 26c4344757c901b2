"""`python -m unbroken` is `unbroken`."""

from unbroken_cli.main import main

main()
