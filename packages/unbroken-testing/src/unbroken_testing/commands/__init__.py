"""Commands that this package adds to `unbroken`."""
