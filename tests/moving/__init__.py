"""The code of docs/moving: `test_moving.py` runs what is written for Unbroken, `make test-moving` the rest."""
