"""A program runs."""

from unbroken_dph import run_program_sync

assert run_program_sync("1 + 2 -> sum\n", None).variables["sum"] == 3
