"""The tools that all programs of this comparison offer. Each first writes its argument to a ledger."""

from __future__ import annotations

import json
import os

PROMPT = "Do what you think is right."
ROUNDS = 4
"""The limit of rounds that each library gets, in its own setting."""


def ledger(name: str, argument: str) -> None:
    with open(os.environ["LEDGER"], "a", encoding="utf-8") as file:
        file.write(json.dumps([name, argument]) + "\n")


def get_weather(city: str) -> str:
    """The weather in a city."""
    ledger("get_weather", city)
    return {"Rome": "sunny", "Oslo": "snow"}[city]  # any other city is an error in the tool


def delete_folder(path: str) -> str:
    """Delete a folder with everything in it."""
    ledger("delete_folder", path)
    return f"{path} is deleted"
